"""PaiNN's values of the atoms to learn from, as one operator: gradients in all weights.

Forward, a layer is one call (see `painn_potential`), and radial functions, filters and directions
another. Backward, a block of nodes goes from the layer's receivers to its senders and through all
dense layers in one thread's cache; the gradients in a pair's filters are multiplied with its radial
functions before they leave the cache. Nothing is learned from the places of atoms.

N nodes, E edges, P pairs, F features, L layers, R radial functions, C chunks of pairs. The weights'
gradients from pairs are summed by chunk first: how many threads there are then changes no bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels import painn_message as messages
from weft.kernels.custom_op import array_of, differentiable_gradients, require
from weft.kernels.edge_pairs import EdgePairs
from weft.kernels.gaussians import chunks_of
from weft.kernels.painn_mixing import invariants, update
from weft.kernels.painn_potential import (
    BLOCK_ROWS,
    backs_of,
    fits,
    kept_of,
    layer_rows,
    perceptron_back,
    unmix,
)
from weft.kernels.vector_math import exp_negative
from weft.runtime import gemm, gemm_address, kernel, shared_rows

# Pairs of a block: with 128 features its filters stay in a second-level cache.
_PAIRS = 128
# Å². Padding edges have length 0.
_TINY = 1e-12
# Multiply-adds of a node and feature in a layer for each feature, and of an edge and feature.
_WORK, _EDGE_WORK = 12, 12


@kernel
def _direct(places: Any, edge: int, receivers: Any, senders: Any, direction: Any) -> Any:
    """The length of an edge, whose direction is written down."""
    pos, shift = places
    s, r = senders[edge], receivers[edge]
    x, y, z = pos[s, 0] - pos[r, 0], pos[s, 1] - pos[r, 1], pos[s, 2] - pos[r, 2]
    if shift.shape[0] > 0:
        x, y, z = x + shift[edge, 0], y + shift[edge, 1], z + shift[edge, 2]
    square = x * x + y * y + z * z
    # In this order, so that nan stays nan.
    length = np.sqrt(pos.dtype.type(_TINY) if square < _TINY else square)
    direction[edge, 0], direction[edge, 1], direction[edge, 2] = x / length, y / length, z / length
    return length


@shared_rows
@kernel
def _filter_blocks(
    address: int,
    places: Any,
    edges: Any,
    form: Any,
    tables: Any,
    made: Any,
    outs: Any,
    first: int,
    stop: int,
) -> None:
    """Blocks first:stop of pairs: radial functions times the cutoff, directions, and filters.

    The last column of the basis [P, R + 1] is the cutoff itself, which the biases multiply.
    """
    forward, backward, receivers, senders = edges
    spacing, sharpness, cutoff = form
    basis, direction = made
    number = basis.dtype.type
    radial = basis.shape[1] - 1
    for block in range(first, stop):
        start = block * _PAIRS
        end = min(start + _PAIRS, basis.shape[0])
        for pair in range(start, end):
            if backward[pair] != forward[pair]:
                _direct(places, backward[pair], receivers, senders, direction)
            d = _direct(places, forward[pair], receivers, senders, direction)
            fade = number(0.5) * (np.cos(d * number(math.pi / cutoff)) + number(1))
            if d >= cutoff:
                fade = number(0)
            for k in range(radial):
                apart = d - number(k) * number(spacing)
                basis[pair, k] = exp_negative(number(sharpness) * apart * apart) * fade
            basis[pair, radial] = fade
        for place in range(len(tables)):
            table, out = tables[place], outs[place][start:end]
            rows, own = end - start, basis[start:end]
            gemm(address, False, False, rows, out.shape[1], radial + 1, own, table, out, False)


@shared_rows
@kernel
def _table_chunks(
    address: int,
    basis: Any,
    layers: Any,
    edges: Any,
    chunk: int,
    made: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of pairs: the gradients [C, R + 1, 3 F] in each layer's filter weights.

    For each layer: what its messages are made of, and the gradients of its receivers.
    """
    forward, backward, receivers, senders = edges
    functions, width = basis.shape[1], layers[0][1][0].shape[1]
    space = np.empty(_PAIRS * 3 * width, dtype=basis.dtype)
    for number in range(first, stop):
        begin = number * chunk
        end = min(begin + chunk, basis.shape[0])
        for start in range(begin, end, _PAIRS):
            last = min(start + _PAIRS, end)
            rows, more, own = last - start, start > begin, basis[start:last]
            ends = (forward[start:last], backward[start:last], receivers, senders)
            for place in range(len(layers)):
                given, grads = layers[place]
                parts = given[0].shape[1]
                found = space[: rows * parts * width].reshape(rows, parts, width)
                messages._to_filters(grads, given, ends, found, 0, rows)
                flat, target = found.reshape(rows, parts * width), made[place][number]
                columns = parts * width
                gemm(address, True, False, functions, columns, rows, own, flat, target, more)


@shared_rows
@kernel
def _back_blocks(
    address: int,
    grads: Any,
    given: Any,
    edges: Any,
    sent: Any,
    after: Any,
    kept: Any,
    weights: Any,
    space: Any,
    back: Any,
    first: int,
    stop: int,
) -> None:
    """From the next layer's receivers to blocks of its senders, and through the layer before.

    Without a next layer `grads` are empty, and `sent` has the gradients of the values already.
    """
    grad_q, grad_mu = grads
    to_x, flat_x, to_mu = sent
    layers, _, slope, _ = after
    before, to_mixes, to_mixed, inner = space
    nodes, width = back[0].shape
    more = grad_q.shape[0] > 0
    for block in range(first, stop):
        start = block * BLOCK_ROWS
        end = min(start + BLOCK_ROWS, nodes)
        own_q = np.empty((end - start, width), dtype=slope.dtype)
        own_mu = np.zeros((end - start, 3, width), dtype=slope.dtype)
        if more:
            messages._to_senders(grads, given, edges, (to_x, to_mu), start, end)
            own_q[:] = grad_q[start:end]
            for i in range(end - start):
                for c in range(3):
                    for f in range(width):
                        own_mu[i, c, f] = grad_mu[start + i, c, f] + to_mu[start + i, c, f]
        upper, pre = flat_x[start:end], before[start:end]
        perceptron_back(address, upper, layers, pre, slope[start:end], own_q, more)
        own = (to_mixes[start:end], to_mixed[start:end], inner[start:end])
        unmix(address, start, end, own_q, own_mu, kept, weights, own, back)


class Radial(NamedTuple):
    """The Gaussians exp(-sharpness · (d - k spacing)²) times half a cosine up to the cutoff, Å."""

    spacing: float
    sharpness: float
    cutoff: float


class Dense(NamedTuple):
    """Weights of a layer of nodes; perceptrons as (first, bias, second, bias), out by in.

    Attributes:
        vectors: [2 F, F].
        mixing: of what does not turn, [F, 2 F] and [3 F, F].
        after: of the new scalars: what the next layer sends, [F, F] and [3 F, F], or the values.
    """

    vectors: Tensor
    mixing: Sequence[Tensor]
    after: Sequence[Tensor]


class _Fixed(NamedTuple):
    """What nothing is learned from."""

    pos: Tensor
    shift: Tensor | None
    mask: Tensor
    pairs: EdgePairs
    radial: Radial
    epsilon: float


def painn_energies(
    start: tuple[Tensor, Tensor],
    filters: tuple[Tensor, Tensor],
    layers: Sequence[Dense],
    places: tuple[Tensor, Tensor | None, Tensor],
    pairs: EdgePairs,
    radial: Radial,
    epsilon: float,
) -> Tensor:
    """Values of the atoms [N].

    Tensors are such as `is_fusable` allows.

    Args:
        start: scalars [N, F], and what the atoms send in the first layer [N, 2 F].
        filters: weights [L · 3 F, R] and biases [L · 3 F] of the radial functions.
        layers: their weights.
        places: of the atoms [N, 3], shifts of the edges [E, 3] or None, and their mask [E].
        pairs: the edges.
        radial: the radial functions.
        epsilon: added to the square of a vector's length.
    """
    q, x = start
    weight, bias = filters
    pos, shift, mask = places
    (nodes, width), count, depth = q.shape, len(pairs.tensors[0]), len(layers)
    right = nodes == pairs.nodes and x.shape == (nodes, 2 * width) and pos.shape == (nodes, 3)
    right = right and mask.shape == (count,) and (shift is None or shift.shape == (count, 3))
    right = right and weight.ndim == 2 and len(weight) == depth * 3 * width
    right = right and bias.shape == weight.shape[:1] and depth > 0
    for place, layer in enumerate(layers):
        wide = 3 * width if place < depth - 1 else 1
        right = right and layer.vectors.shape == (2 * width, width)
        right = right and fits(layer.mixing, 2 * width, 3 * width)
        right = right and fits(layer.after, width, wide)
    require(right, "weights, filters and nodes must fit", q, x, pos, shift, mask, weight, bias)
    # As one argument: each tensor that autograd looks at takes microseconds.
    fixed = _Fixed(pos, shift, mask, pairs, radial, epsilon)
    flat = [t for layer in layers for t in (layer.vectors, *layer.mixing, *layer.after)]
    values: Tensor = _Energies.apply(q, x, weight, bias, *flat, fixed)  # type: ignore[no-untyped-call]
    return values


_EACH = 9


def _layers_of(flat: Sequence[Any]) -> list[Dense]:
    parts = [flat[k : k + _EACH] for k in range(0, len(flat), _EACH)]
    return [Dense(part[0], part[1:5], part[5:]) for part in parts]


def _tables(weight: Tensor, bias: Tensor, depth: int) -> list[Tensor]:
    """By layer [R + 1, 3 F], the bias as last row; the first one [R + 1, 2 F] has no vectors."""
    table = torch.cat(
        [weight.view(depth, -1, weight.shape[1]).transpose(1, 2), bias.view(depth, 1, -1)], dim=1
    )
    first, *others = table.unbind(0)
    return [first[:, : 2 * (first.shape[1] // 3)].contiguous(), *others]


class _Layer(NamedTuple):
    """Arrays of a layer's forward pass, as `layer_rows` takes them."""

    given: Any
    sums: Any
    kept: Any
    weights: Any
    after: Any
    made: Any


class _Energies(torch.autograd.Function):
    # One function with ctx: torch would inspect the signature of a separate forward at each call.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        q, x, weight, bias, *flat, fixed = arguments
        pos, shift, mask, pairs, radial, epsilon = fixed
        (nodes, width), dtype = q.shape, array_of(q).dtype
        layers, address = _layers_of([array_of(t) for t in flat]), gemm_address(q.dtype)
        rows, columns, offsets, _, _, _, forward, backward, of_edge = pairs.arrays
        empty = functools.partial(_empty, dtype=dtype)
        tables = [array_of(t) for t in _tables(weight.detach(), bias.detach(), len(layers))]
        filters = [empty(pairs.count, table.shape[1]) for table in tables]
        basis, direction = empty(pairs.count, len(tables[0])), empty(len(rows), 3)
        _filter_blocks.share(
            (
                address,
                (array_of(pos), empty(0, 3) if shift is None else array_of(shift)),
                (forward, backward, rows, columns),
                tuple(radial),
                tuple(tables),
                (basis, direction),
                tuple(filters),
            ),
            -(-pairs.count // _PAIRS),
            basis.size * 3 * width * len(layers),
        )
        ends = np.minimum(np.arange(0, nodes + BLOCK_ROWS, BLOCK_ROWS), nodes)
        work = _WORK * nodes * width * width + _EDGE_WORK * len(rows) * width
        around, receive = (direction, array_of(mask)), (of_edge, columns, offsets)
        now, sent, mu = array_of(q), array_of(x).reshape(nodes, 2, width), empty(0, 3, 0)
        steps: list[_Layer] = []
        for layer, own in zip(layers, filters, strict=True):
            given = (sent, mu, own.reshape(len(own), own.shape[1] // width, width), *around)
            summed, hidden = empty(nodes, 3, width), len(layer.after[0])
            out = empty(nodes, len(layer.after[2]))
            step = _Layer(
                given,
                (empty(nodes, width), summed, summed.reshape(3 * nodes, width)),
                kept_of(empty, nodes, width, len(layer.mixing[0])),
                (layer.vectors, tuple(layer.mixing), dtype.type(epsilon)),
                (tuple(layer.after), empty(nodes, hidden), empty(nodes, hidden), out),
                (empty(nodes, width), empty(nodes, 3, width)),
            )
            passed = (address, now, given, receive, *step[1:])
            layer_rows.share(passed, len(ends) - 1, work, offsets[ends])
            steps.append(step)
            now, mu = step.made
            sent = out.reshape(nodes, -1, width) if out.shape[1] > 1 else out
        ctx.save_for_backward(*arguments[:-1])
        ctx.fixed, ctx.steps, ctx.around = fixed, steps, (basis, direction)
        return torch.from_numpy(out[:, 0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        saved, (grad,) = ctx.saved_tensors, grads
        if torch.is_grad_enabled():
            around = tuple(map(torch.from_numpy, ctx.around))
            plain = functools.partial(_plain, fixed=ctx.fixed, around=around)
            return *differentiable_gradients(ctx, plain, saved, (grad,)), None
        return *_gradients(ctx, grad), None


def _empty(*shape: int, dtype: Any) -> Any:
    return np.empty(shape, dtype=dtype)


def _gradients(ctx: Any, grad: Tensor) -> list[Tensor]:
    """In all that `_Energies` takes."""
    steps, (basis, _), pairs = ctx.steps, ctx.around, ctx.fixed.pairs
    nodes, width = steps[0].made[0].shape
    empty = functools.partial(_empty, dtype=basis.dtype)
    address = gemm_address(grad.dtype)
    rows, columns, offsets, _, offsets_t, order_t, forward, backward, of_edge = pairs.arrays
    leave = (of_edge, rows, offsets_t, order_t)
    ends = np.minimum(np.arange(0, nodes + BLOCK_ROWS, BLOCK_ROWS), nodes)
    work = 2 * (_WORK * nodes * width * width + _EDGE_WORK * len(rows) * width)
    upper = (empty(0, 3, 0), array_of(grad).reshape(nodes, 1), empty(0, 3, 0))
    to_next, given = (empty(0, 0), empty(0, 3, 0)), steps[-1].given
    by_layer: list[list[Tensor]] = []
    used: list[Any] = []
    for step in reversed(steps):
        back = backs_of(empty, nodes, width)
        before = empty(nodes, step.after[1].shape[1])
        of_layers = (empty(nodes, 3, width), empty(nodes, 3, 2, width), empty(*step.kept[5].shape))
        dense = (step.after, step.kept, step.weights, (before, *of_layers), back)
        passed = (address, to_next, given, leave, upper, *dense)
        _back_blocks.share(passed, len(ends) - 1, work, offsets[ends])
        by_layer.append(_weight_gradients(step, upper[1], before, of_layers))
        to_next, given = (back[0], back[1]), step.given
        used.append((given, to_next))
        to_x = empty(*given[0].shape)
        upper = (to_x, to_x.reshape(nodes, -1), empty(nodes, 3, width))
    sent = (upper[0], upper[2])
    messages._to_senders.share((to_next, given, leave, sent), nodes, work, offsets_t)
    chunk, chunks = chunks_of(len(basis))
    used.reverse()
    parts = [empty(chunks, basis.shape[1], part[0][0][0].size) for part in used]
    ways = (forward, backward, rows, columns)
    learned = (address, basis, tuple(used), ways, chunk, tuple(parts))
    _table_chunks.share(learned, chunks, _EDGE_WORK * len(rows) * width * len(steps))
    tables = torch.zeros(len(steps), basis.shape[1], 3 * width, dtype=grad.dtype)
    for table, part in zip(tables, parts, strict=True):
        table[:, : part.shape[2]] = torch.from_numpy(part).sum(0)
    weight, bias = tables[:, :-1].transpose(1, 2), tables[:, -1]
    start = [torch.from_numpy(to_next[0]), torch.from_numpy(upper[1])]
    filters = [weight.reshape(-1, basis.shape[1] - 1), bias.reshape(-1)]
    return [*start, *filters, *(t for layer in reversed(by_layer) for t in layer)]


def _weight_gradients(step: _Layer, upper: Any, before: Any, of_layers: Any) -> list[Tensor]:
    """In a layer's weights, as `Dense` has them one after the other."""
    to_mixes, to_mixed, inner = of_layers
    _, _, _, context, _, mixing_inner, _, _, _ = step.kept
    pairs = (
        (to_mixed.reshape(-1, to_mixed.shape[2] * to_mixed.shape[3]), step.sums[2]),
        (inner, context),
        (to_mixes.reshape(len(inner), -1), mixing_inner),
        (before, step.made[0]),
        (upper, step.after[1]),
    )
    found: list[Tensor] = []
    for made, given in pairs:
        grad = torch.from_numpy(made)
        found += [grad.t() @ torch.from_numpy(given), grad.sum(0)]
    # The vectors have no bias.
    return [found[0], *found[2:]]


def _plain(
    q: Tensor, x: Tensor, weight: Tensor, bias: Tensor, *flat: Tensor, fixed: _Fixed, around: Any
) -> Tensor:
    basis, direction = around
    receivers, senders, offsets, _, offsets_t, order_t, *halves = fixed.pairs.tensors
    edges = (senders, receivers, offsets, offsets_t, order_t, *halves)
    layers, mu = _layers_of(flat), None
    for layer, table in zip(layers, _tables(weight, bias, len(layers)), strict=True):
        given = (x, mu, basis @ table, direction, fixed.mask)
        dq, dmu = messages._message(*given, *edges)
        q, mu = q + dq, dmu if mu is None else mu + dmu
        context, dot, right = invariants(functional.linear(mu, layer.vectors), q, fixed.epsilon)
        q, mu = update(q, mu, _perceptron(context, layer.mixing), dot, right)
        x = _perceptron(q, layer.after)
    return x[:, 0]


def _perceptron(x: Tensor, layers: Sequence[Tensor]) -> Tensor:
    first, first_bias, second, second_bias = layers
    inner = functional.silu(functional.linear(x, first, first_bias))
    return functional.linear(inner, second, second_bias)
