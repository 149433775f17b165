"""PaiNN's energies of the atoms and their derivatives in the edges, in few calls.

A step of molecular dynamics of some dozen atoms takes longer to call two hundred operators than to
compute them. Here a layer is one call each way: a block of nodes receives its messages and goes
through all dense layers up to the next messages, in one thread's cache. Nothing is learned from it:
weights have no gradients.

N nodes, E edges, P pairs, F features, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from weft.kernels import painn_message
from weft.kernels.custom_op import array_of, require
from weft.kernels.edge_pairs import EdgePairs
from weft.kernels.vector_math import sigmoid_of
from weft.runtime import compiled, gemm, gemm_address, kernel, shared_rows

# Rows of a block of nodes; threads share blocks, so that the products are the same for any number.
BLOCK_ROWS = 32
# Multiply-adds of a node and feature in a layer for each feature, about.
_WORK = 12
# Multiply-adds of an edge and feature.
_EDGE_WORK = 12


@kernel
def _silu(x: Any, slope: Any, bias: Any) -> None:
    """x becomes SiLU(x + bias), and slope its derivative there."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            value = x[i, j] + bias[j]
            gate = sigmoid_of(value)
            x[i, j] = value * gate
            slope[i, j] = gate * (1 + value * (1 - gate))


@kernel
def _add_bias(x: Any, bias: Any) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] += bias[j]


@kernel
def _perceptron(address: int, x: Any, layers: Any, inner: Any, slope: Any, out: Any) -> None:
    """out = second(SiLU(first(x))); the derivative of the SiLU in `slope`."""
    first, first_bias, second, second_bias = layers
    rows, hidden = inner.shape
    gemm(address, False, True, rows, hidden, x.shape[1], x, first, inner, False)
    _silu(inner, slope, first_bias)
    gemm(address, False, True, rows, out.shape[1], hidden, inner, second, out, False)
    _add_bias(out, second_bias)


@kernel
def perceptron_back(
    address: int, grad: Any, layers: Any, inner: Any, slope: Any, out: Any, add: bool
) -> None:
    """Gradient in x, given that in the result; `inner` is overwritten."""
    first, _, second, _ = layers
    rows, hidden = inner.shape
    gemm(address, False, False, rows, hidden, grad.shape[1], grad, second, inner, False)
    for i in range(rows):
        for j in range(hidden):
            inner[i, j] *= slope[i, j]
    gemm(address, False, False, rows, out.shape[1], hidden, inner, first, out, add)


@kernel
def _mix(
    address: int,
    start: int,
    stop: int,
    q: Any,
    mu: Any,
    sums: Any,
    kept: Any,
    weights: Any,
    made: Any,
) -> None:
    """New scalars and vectors of the nodes start:stop, `made`, with the messages `sums` added."""
    sum_q, sum_mu, flat_mu = sums
    mixed, flat_mixed, context, flat_context, dot, inner, slope, mixes, flat_mixes = kept
    turn, layers, epsilon = weights
    new_q, new_mu = made
    rows, width = stop - start, q.shape[1]
    if mu.shape[0] > 0:
        for row in range(start, stop):
            for c in range(3):
                for f in range(width):
                    sum_mu[row, c, f] += mu[row, c, f]
    given, found = flat_mu[3 * start : 3 * stop], flat_mixed[3 * start : 3 * stop]
    gemm(address, False, True, 3 * rows, 2 * width, width, given, turn, found, False)
    for row in range(start, stop):
        for f in range(width):
            context[row, 0, f] = q[row, f] + sum_q[row, f]
        for f in range(width):
            a, b, c = mixed[row, 0, 0, f], mixed[row, 1, 0, f], mixed[row, 2, 0, f]
            context[row, 1, f] = np.sqrt(a * a + b * b + c * c + epsilon)
            dot[row, f] = (
                a * mixed[row, 0, 1, f] + b * mixed[row, 1, 1, f] + c * mixed[row, 2, 1, f]
            )
    given, found = flat_context[start:stop], flat_mixes[start:stop]
    _perceptron(address, given, layers, inner[start:stop], slope[start:stop], found)
    for row in range(start, stop):
        for f in range(width):
            new_q[row, f] = context[row, 0, f] + mixes[row, 0, f] + mixes[row, 2, f] * dot[row, f]
        for c in range(3):
            for f in range(width):
                new_mu[row, c, f] = sum_mu[row, c, f] + mixes[row, 1, f] * mixed[row, c, 1, f]


@kernel
def unmix(
    address: int,
    start: int,
    stop: int,
    grad_q: Any,
    grad_mu: Any,
    kept: Any,
    weights: Any,
    space: Any,
    made: Any,
) -> None:
    """The transpose of `_mix`; grad_q [B, F] and grad_mu [B, 3, F] are those of the block alone.

    So is `space`, for the gradients of what the layers make: mixes, mixed and before the SiLU.
    """
    mixed, _, context, _, dot, _, slope, mixes, _ = kept
    turn, layers, _ = weights
    to_mixes, to_mixed, inner = space
    out_q, out_mu, flat_out = made
    rows, width = stop - start, grad_q.shape[1]
    to_context = np.empty((rows, 2 * width), dtype=grad_q.dtype)
    for i in range(rows):
        row = start + i
        for f in range(width):
            to_mixes[i, 0, f] = grad_q[i, f]
            to_mixes[i, 1, f] = (
                grad_mu[i, 0, f] * mixed[row, 0, 1, f]
                + grad_mu[i, 1, f] * mixed[row, 1, 1, f]
                + grad_mu[i, 2, f] * mixed[row, 2, 1, f]
            )
            to_mixes[i, 2, f] = grad_q[i, f] * dot[row, f]
    flat = to_mixes.reshape(rows, 3 * width)
    perceptron_back(address, flat, layers, inner, slope[start:stop], to_context, False)
    for i in range(rows):
        row = start + i
        for f in range(width):
            out_q[row, f] = grad_q[i, f] + to_context[i, f]
        for c in range(3):
            for f in range(width):
                to_dot = grad_q[i, f] * mixes[row, 2, f]
                left, right = mixed[row, c, 0, f], mixed[row, c, 1, f]
                to_mixed[i, c, 0, f] = (
                    to_context[i, width + f] / context[row, 1, f] * left + to_dot * right
                )
                to_mixed[i, c, 1, f] = to_dot * left + grad_mu[i, c, f] * mixes[row, 1, f]
            for f in range(width):
                out_mu[row, c, f] = grad_mu[i, c, f]
    given, found = to_mixed.reshape(3 * rows, 2 * width), flat_out[3 * start : 3 * stop]
    gemm(address, False, False, 3 * rows, width, 2 * width, given, turn, found, True)


@kernel
def _space(rows: int, kept: Any) -> Any:
    """What `unmix` needs of memory."""
    dot, inner = kept[4], kept[5]
    return (
        np.empty((rows, 3, dot.shape[1]), dtype=dot.dtype),
        np.empty((rows, 3, 2, dot.shape[1]), dtype=dot.dtype),
        np.empty((rows, inner.shape[1]), dtype=dot.dtype),
    )


@shared_rows
@kernel
def layer_rows(
    address: int,
    q: Any,
    given: Any,
    edges: Any,
    sums: Any,
    kept: Any,
    weights: Any,
    after: Any,
    made: Any,
    first: int,
    stop: int,
) -> None:
    """A layer of the blocks first:stop of nodes, and what they send in the next one."""
    layers, inner, slope, sent = after
    new_q, _ = made
    for block in range(first, stop):
        start = block * BLOCK_ROWS
        end = min(start + BLOCK_ROWS, q.shape[0])
        painn_message._messages(given, edges, (sums[0], sums[1]), start, end)
        _mix(address, start, end, q, given[1], sums, kept, weights, made)
        own, out = (inner[start:end], slope[start:end]), sent[start:end]
        _perceptron(address, new_q[start:end], layers, *own, out)


@shared_rows
@kernel
def _last_rows(
    address: int,
    q: Any,
    given: Any,
    edges: Any,
    sums: Any,
    kept: Any,
    weights: Any,
    readout: Any,
    made: Any,
    atomic: Any,
    seeds: Any,
    back: Any,
    first: int,
    stop: int,
) -> None:
    """The last layer of blocks of nodes, their values, and back through its dense part.

    seeds [N, 1] are the derivatives of what is differentiated in the values.
    """
    new_q, _ = made
    width = q.shape[1]
    for block in range(first, stop):
        start = block * BLOCK_ROWS
        end = min(start + BLOCK_ROWS, q.shape[0])
        rows = end - start
        painn_message._messages(given, edges, (sums[0], sums[1]), start, end)
        _mix(address, start, end, q, given[1], sums, kept, weights, made)
        inner = np.empty((rows, readout[0].shape[0]), dtype=q.dtype)
        slope = np.empty((rows, readout[0].shape[0]), dtype=q.dtype)
        _perceptron(address, new_q[start:end], readout, inner, slope, atomic[start:end])
        grad_q = np.empty((rows, width), dtype=q.dtype)
        grad_mu = np.zeros((rows, 3, width), dtype=q.dtype)
        perceptron_back(address, seeds[start:end], readout, inner, slope, grad_q, False)
        space = _space(rows, kept)
        unmix(address, start, end, grad_q, grad_mu, kept, weights, space, back)


@shared_rows
@kernel
def _back_rows(
    address: int,
    grads: Any,
    given: Any,
    edges: Any,
    sent: Any,
    layers: Any,
    slope: Any,
    kept: Any,
    weights: Any,
    back: Any,
    first: int,
    stop: int,
) -> None:
    """From a layer's receivers to blocks of its senders, and through the dense part before it."""
    grad_q, grad_mu = grads
    to_x, flat_x, to_mu = sent
    width = grad_q.shape[1]
    for block in range(first, stop):
        start = block * BLOCK_ROWS
        end = min(start + BLOCK_ROWS, grad_q.shape[0])
        painn_message._to_senders(grads, given, edges, (to_x, to_mu), start, end)
        own_q, own_mu = grad_q[start:end].copy(), grad_mu[start:end].copy()
        for i in range(end - start):
            for c in range(3):
                for f in range(width):
                    own_mu[i, c, f] += to_mu[start + i, c, f]
        inner = np.empty((end - start, slope.shape[1]), dtype=grad_q.dtype)
        perceptron_back(address, flat_x[start:end], layers, inner, slope[start:end], own_q, True)
        space = _space(end - start, kept)
        unmix(address, start, end, own_q, own_mu, kept, weights, space, back)


# Dot products are summed in the order of the vector registers: fixed, whatever the threads.
@shared_rows
@compiled(fastmath={"contract", "reassoc"}, error_model="numpy")
def _pair_rows(
    layers: Any, edges: Any, direction: Any, mask: Any, made: Any, first: int, stop: int
) -> None:
    """Derivatives in each pair's distance [P] and in the directions of its edges [E, 3].

    For each layer: filters and slopes, x and mu of the senders, gradients of the receivers.
    """
    forward, backward, receivers, senders = edges
    to_distance, to_direction = made
    for pair in range(first, stop):
        along = to_distance.dtype.type(0)
        for way in range(2):
            edge = forward[pair] if way == 0 else backward[pair]
            if way == 1 and edge == forward[pair]:
                continue
            a0, a1, a2 = along * 0, along * 0, along * 0
            if mask[edge]:
                r, s = receivers[edge], senders[edge]
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                for number in range(len(layers)):
                    weight, slope, x, mu, grad_q, grad_mu = layers[number]
                    for f in range(x.shape[2]):
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        turned = weight[pair, 1, f] * x[s, 1, f]
                        a0 += turned * g0
                        a1 += turned * g1
                        a2 += turned * g2
                        along += slope[pair, 0, f] * grad_q[r, f] * x[s, 0, f]
                        along += slope[pair, 1, f] * x[s, 1, f] * (d0 * g0 + d1 * g1 + d2 * g2)
                    if x.shape[1] == 3:
                        for f in range(x.shape[2]):
                            along += (
                                slope[pair, 2, f]
                                * x[s, 2, f]
                                * (
                                    mu[s, 0, f] * grad_mu[r, 0, f]
                                    + mu[s, 1, f] * grad_mu[r, 1, f]
                                    + mu[s, 2, f] * grad_mu[r, 2, f]
                                )
                            )
            to_direction[edge, 0], to_direction[edge, 1], to_direction[edge, 2] = a0, a1, a2
        to_distance[pair] = along


class Layer(NamedTuple):
    """Weights of a PaiNN layer; perceptrons as (first, bias, second, bias), out by in.

    Attributes:
        context: of the scalars, [F, F] and [3 F, F].
        vectors: [2 F, F].
        mixing: of what does not turn, [F, 2 F] and [3 F, F].
    """

    context: Sequence[Tensor]
    vectors: Tensor
    mixing: Sequence[Tensor]


def painn_values(
    start: tuple[Tensor, Tensor],
    layers: Sequence[Layer],
    readout: Sequence[Tensor],
    filters: tuple[Sequence[Tensor], Sequence[Tensor]],
    edges: tuple[Tensor, Tensor],
    seeds: Tensor,
    pairs: EdgePairs,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Values of the atoms [N], and derivatives of Σ seeds · values.

    Tensors are such as `is_fusable` allows.

    Args:
        start: scalars [N, F], and what the atoms send in the first layer [N, 2 F].
        layers: their weights.
        readout: perceptron of the scalars to one value.
        filters: of each layer [P, 3 F], of the first one [P, 2 F]; and their slopes.
        edges: directions [E, 3] and mask [E].
        seeds: [N].
        pairs: the edges.
        epsilon: added to the square of a vector's length.

    Returns:
        Values [N]; derivatives in the pairs' distances [P] and in the directions [E, 3].
    """
    q, x = start
    direction, mask = edges
    nodes, width = q.shape
    count = len(pairs.tensors[0])
    parts = [2] + [3] * (len(layers) - 1)
    right = nodes == pairs.nodes and x.shape == (nodes, 2 * width) and seeds.shape == (nodes,)
    right = right and direction.shape == (count, 3) and mask.shape == (count,)
    right = right and all(
        one.shape == other.shape == (pairs.count, k * width)
        for one, other, k in zip(*filters, parts, strict=True)
    )
    for layer in layers:
        right = right and fits(layer.context, width, 3 * width)
        right = right and fits(layer.mixing, 2 * width, 3 * width)
        right = right and layer.vectors.shape == (2 * width, width)
    right = right and fits(readout, width, 1)
    require(right, "weights, filters and nodes must fit", q, x, direction, seeds)
    return _run(start, layers, readout, filters, edges, seeds, pairs, epsilon)


def fits(layers: Sequence[Tensor], width_in: int, width_out: int) -> bool:
    """Whether these are the weights of a perceptron from `width_in` to `width_out`."""
    first, first_bias, second, second_bias = layers
    hidden = len(first)
    return (
        first.shape == (hidden, width_in)
        and second.shape == (width_out, hidden)
        and (len(first_bias), len(second_bias)) == (hidden, width_out)
    )


def _run(
    start: tuple[Tensor, Tensor],
    layers: Sequence[Layer],
    readout: Sequence[Tensor],
    filters: tuple[Sequence[Tensor], Sequence[Tensor]],
    edges: tuple[Tensor, Tensor],
    seeds: Tensor,
    pairs: EdgePairs,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    q = array_of(start[0])
    nodes, width = q.shape
    number, depth = q.dtype.type, len(layers)
    address = gemm_address(start[0].dtype)
    rows, columns, offsets, _, offsets_t, order_t, forward, backward, of_edge = pairs.arrays
    around = (array_of(edges[0]), array_of(edges[1]))

    def empty(*shape: int) -> Any:
        return np.empty(shape, dtype=q.dtype)

    work = _WORK * nodes * width * width + _EDGE_WORK * len(rows) * width
    ends = np.minimum(np.arange(0, nodes + BLOCK_ROWS, BLOCK_ROWS), nodes)
    blocks, by_block = len(ends) - 1, offsets[ends]
    receive, leave = (of_edge, columns, offsets), (of_edge, rows, offsets_t, order_t)
    out_layers = tuple(map(array_of, readout))
    sums_mu = empty(nodes, 3, width)
    sums = (empty(nodes, width), sums_mu, sums_mu.reshape(3 * nodes, width))
    atomic = start[0].new_empty(nodes, 1)
    x, mu = array_of(start[1]).reshape(nodes, 2, width), empty(0, 3, 0)
    steps: list[_Step] = []
    back = backs_of(empty, nodes, width)
    for layer, weight, slope in zip(layers, *filters, strict=True):
        parts = x.shape[1]
        own = tuple(array_of(t).reshape(len(t), parts, width) for t in (weight, slope))
        weights = (array_of(layer.vectors), tuple(map(array_of, layer.mixing)), number(epsilon))
        kept = kept_of(empty, nodes, width, len(layer.mixing[0]))
        made = (empty(nodes, width), empty(nodes, 3, width))
        given = (x, mu, own[0], *around)
        common = (address, q, given, receive, sums, kept, weights)
        if len(steps) < depth - 1:
            senders = tuple(map(array_of, layers[len(steps) + 1].context))
            inner = (empty(nodes, len(senders[0])), empty(nodes, len(senders[0])))
            after = (senders, *inner, empty(nodes, 3 * width))
            layer_rows.share((*common, after, made), blocks, work, by_block)
        else:
            after = (out_layers, *(empty(0, 0),) * 3)
            seed = array_of(seeds).reshape(nodes, 1)
            last = (*common, out_layers, made, atomic.numpy(), seed, back)
            _last_rows.share(last, blocks, 2 * work, by_block)
        steps.append(_Step(given, own[1], kept, weights, after))
        q, mu = made
        x = after[3].reshape(len(after[3]), 3, -1) if after[3].size else x
    sent_x = empty(nodes, 3, width)
    sent = (sent_x, sent_x.reshape(nodes, 3 * width), empty(nodes, 3, width))
    used = []
    for place in range(depth - 1, -1, -1):
        step, grads = steps[place], (back[0], back[1])
        used.append((step.given[2], step.slope, step.given[0], step.given[1], *grads))
        if place:
            before = steps[place - 1]
            back = backs_of(empty, nodes, width)
            through = (before.after[0], before.after[2], before.kept, before.weights)
            arguments = (address, grads, step.given, leave, sent, *through, back)
            _back_rows.share(arguments, blocks, 2 * work, by_block)
    to_distance = start[0].new_empty(pairs.count)
    to_direction = start[0].new_empty(len(rows), 3)
    both = (forward, backward, rows, columns)
    made = (to_distance.numpy(), to_direction.numpy())
    _pair_rows.share(
        (tuple(used), both, *around, made), pairs.count, _EDGE_WORK * len(rows) * width * depth
    )
    return atomic[:, 0], to_distance, to_direction


class _Step(NamedTuple):
    """What going back through a layer needs."""

    given: Any
    slope: Any
    kept: Any
    weights: Any
    after: Any


def kept_of(empty: Any, nodes: int, width: int, hidden: int) -> tuple[Any, ...]:
    """What mixing leaves for its transpose, some of it in two shapes."""
    mixed, mixes, context = (
        empty(nodes, 3, 2, width),
        empty(nodes, 3, width),
        empty(nodes, 2, width),
    )
    flat = (mixed.reshape(3 * nodes, 2 * width), context.reshape(nodes, 2 * width))
    inner = (empty(nodes, width), empty(nodes, hidden), empty(nodes, hidden))
    return mixed, flat[0], context, flat[1], *inner, mixes, mixes.reshape(nodes, 3 * width)


def backs_of(empty: Any, nodes: int, width: int) -> tuple[Any, Any, Any]:
    """Gradients of scalars and of vectors, those in two shapes."""
    mu = empty(nodes, 3, width)
    return empty(nodes, width), mu, mu.reshape(3 * nodes, width)
