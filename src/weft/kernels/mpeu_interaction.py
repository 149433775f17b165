"""What MPEU computes by edge, as one operator: an edge's new state, its filter and its message.

    active[e] = softplus(a[sender] + b[receiver] + own[e])
    edge      = active Eᵀ
    weight    = softplus(softplus(edge Fᵀ) Sᵀ)
    sums[r]   = Σ fade[e] · weight[e] · messages[sender]

The softplus is the shifted one. Nearly all of it is matrix products of E rows. Layer by layer their
rows pass through memory a dozen times each way; here a block of edges goes through all of them in
one thread's cache. Padding edges, which come last, are left out.

N nodes, E edges, P pairs, H features, C chunks of edges. Gradients of the weights are summed by
chunk first, and the chunks depend on E alone: how many threads there are then changes no bit. What
is absent is an empty array, so that a loop is compiled once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels.custom_op import array_of, differentiable_gradients, require
from weft.kernels.edge_pairs import EdgePairs
from weft.kernels.segment_ops import spmm
from weft.kernels.softplus import edge_softplus, shifted_softplus
from weft.kernels.vector_math import softplus_derivative_of, softplus_of
from weft.runtime import gemm, gemm_address, kernel, shared_rows

# Edges of a block: with 64 features, what a block is at any time stays in a second-level cache.
_BLOCK = 128
# Chunks that sum the gradients of the weights, at most.
_CHUNKS = 16


@kernel
def _activate(x: Any) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = softplus_of(x[i, j])


@kernel
def _times_derivative(y: Any, x: Any) -> None:
    """x · dy/du of y = softplus(u), in place."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] *= softplus_derivative_of(y[i, j])


@shared_rows
@kernel
def _edge_blocks(
    address: int, ends: Any, state: Any, layers: Any, edges: Any, made: Any, first: int, stop: int
) -> None:
    """Blocks first:stop of `made`: active [E, 2 H], edge, inner and weight [E, H].

    `state` are own [P, 2 H], and the edges' states [E, H] with their weights [2 H, H].
    """
    a, b = ends
    own, before, of_edge = state
    edge_layer, filter_layer, last_layer = layers
    receivers, senders, pair, real = edges
    active, edge, inner, weight = made
    wide, width, hidden = a.shape[1], edge_layer.shape[0], last_layer.shape[0]
    for block in range(first, stop):
        start = block * _BLOCK
        end = min(start + _BLOCK, real)
        rows = end - start
        z, u, v = active[start:end], inner[start:end], weight[start:end]
        if of_edge.shape[0] > 0:
            given = before[start:end]
            gemm(address, False, True, rows, wide, before.shape[1], given, of_edge, z, False)
            for i in range(rows):
                left, right, row = a[senders[start + i]], b[receivers[start + i]], z[i]
                for f in range(wide):
                    row[f] = softplus_of(left[f] + right[f] + row[f])
        else:
            for i in range(rows):
                left, right, row = a[senders[start + i]], b[receivers[start + i]], z[i]
                mine = own[pair[start + i]]
                for f in range(wide):
                    row[f] = softplus_of(left[f] + right[f] + mine[f])
        if filter_layer.shape[0] > 0:
            e = edge[start:end]
            gemm(address, False, True, rows, width, wide, z, edge_layer, e, False)
            gemm(address, False, True, rows, hidden, width, e, filter_layer, u, False)
        else:
            gemm(address, False, True, rows, hidden, wide, z, edge_layer, u, False)
        _activate(u)
        gemm(address, False, True, rows, hidden, hidden, u, last_layer, v, False)
        _activate(v)


@shared_rows
@kernel
def _receive_rows(
    weight: Any, fade: Any, messages: Any, edges: Any, sums: Any, first: int, stop: int
) -> None:
    """sums[r] = Σ fade · weight · messages[sender] over the edges that reach r."""
    senders, offsets, real = edges
    width = sums.shape[1]
    for row in range(first, stop):
        total = sums[row]
        for f in range(width):
            total[f] = 0
        for edge in range(min(offsets[row], real), min(offsets[row + 1], real)):
            own, given = weight[edge], messages[senders[edge]]
            if fade.shape[0] > 0:
                factor = fade[edge]
                for f in range(width):
                    total[f] += factor * own[f] * given[f]
            else:
                for f in range(width):
                    total[f] += own[f] * given[f]


@shared_rows
@kernel
def _gradient_chunks(
    address: int,
    grads: Any,
    messages: Any,
    fade: Any,
    state: Any,
    layers: Any,
    saved: Any,
    edges: Any,
    chunk: int,
    made: Any,
    by_chunk: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of edges: gradients before the first softplus, of states and of weights.

    grads are those of the sums [N, H] and of the edges' states [E, H].
    """
    to_sums, to_edge = grads
    _, before, of_edge = state
    edge_layer, filter_layer, last_layer = layers
    active, edge, inner, weight = saved
    receivers, senders, real = edges
    to_active, to_before = made
    of_state, of_edges, of_filter, of_last = by_chunk
    wide, width, hidden = active.shape[1], edge_layer.shape[0], last_layer.shape[0]
    outer = np.empty((_BLOCK, hidden), dtype=messages.dtype)
    middle = np.empty((_BLOCK, hidden), dtype=messages.dtype)
    new = np.empty((_BLOCK, width), dtype=messages.dtype)
    for number in range(first, stop):
        begin = number * chunk
        stopped = min(begin + chunk, real)
        for start in range(begin, stopped, _BLOCK):
            end = min(start + _BLOCK, stopped)
            rows, more = end - start, start > begin
            v, u, z = weight[start:end], inner[start:end], active[start:end]
            g, m, n, back = outer[:rows], middle[:rows], new[:rows], to_active[start:end]
            for i in range(rows):
                grad, given = to_sums[receivers[start + i]], messages[senders[start + i]]
                target, value = g[i], v[i]
                for f in range(hidden):
                    target[f] = grad[f] * given[f] * softplus_derivative_of(value[f])
            if fade.shape[0] > 0:
                for i in range(rows):
                    for f in range(hidden):
                        g[i, f] *= fade[start + i]
            gemm(address, True, False, hidden, hidden, rows, g, u, of_last[number], more)
            gemm(address, False, False, rows, hidden, hidden, g, last_layer, m, False)
            _times_derivative(u, m)
            if filter_layer.shape[0] > 0:
                e = edge[start:end]
                gemm(address, True, False, hidden, width, rows, m, e, of_filter[number], more)
                known = to_edge.shape[0] > 0
                if known:
                    n[:] = to_edge[start:end]
                gemm(address, False, False, rows, width, hidden, m, filter_layer, n, known)
                gemm(address, True, False, width, wide, rows, n, z, of_edges[number], more)
                gemm(address, False, False, rows, wide, width, n, edge_layer, back, False)
            else:
                gemm(address, True, False, hidden, wide, rows, m, z, of_edges[number], more)
                gemm(address, False, False, rows, wide, hidden, m, edge_layer, back, False)
            _times_derivative(z, back)
            if of_edge.shape[0] > 0:
                s, t, inside = before[start:end], to_before[start:end], before.shape[1]
                gemm(address, True, False, wide, inside, rows, back, s, of_state[number], more)
                gemm(address, False, False, rows, inside, wide, back, of_edge, t, False)


@shared_rows
@kernel
def _end_rows(
    to_active: Any,
    to_sums: Any,
    weight: Any,
    fade: Any,
    edges: Any,
    made: Any,
    first: int,
    stop: int,
) -> None:
    """Gradients of nodes first:stop: in what they send, receive with, and in their messages."""
    receivers, offsets, out_offsets, out_order, real = edges
    to_a, to_b, to_messages = made
    wide, width = to_a.shape[1], to_messages.shape[1]
    for node in range(first, stop):
        sent, received, message = to_a[node], to_b[node], to_messages[node]
        for f in range(wide):
            sent[f] = 0
            received[f] = 0
        for f in range(width):
            message[f] = 0
        for edge in range(min(offsets[node], real), min(offsets[node + 1], real)):
            given = to_active[edge]
            for f in range(wide):
                received[f] += given[f]
        for k in range(out_offsets[node], out_offsets[node + 1]):
            edge = out_order[k]
            if edge >= real:
                continue
            given = to_active[edge]
            for f in range(wide):
                sent[f] += given[f]
            grad, own = to_sums[receivers[edge]], weight[edge]
            if fade.shape[0] > 0:
                factor = fade[edge]
                for f in range(width):
                    message[f] += factor * own[f] * grad[f]
            else:
                for f in range(width):
                    message[f] += own[f] * grad[f]


@shared_rows
@kernel
def _pair_rows(
    values: Any, forward: Any, backward: Any, real: int, out: Any, first: int, stop: int
) -> None:
    """out[p] = Σ values[e] over the real edges of pair p."""
    for pair in range(first, stop):
        one, other, row = forward[pair], backward[pair], out[pair]
        if one >= real:
            one = other
        if other >= real:
            other = one
        if one >= real:
            for f in range(row.shape[0]):
                row[f] = 0
        elif one == other:
            mine = values[one]
            for f in range(row.shape[0]):
                row[f] = mine[f]
        else:
            mine, yours = values[one], values[other]
            for f in range(row.shape[0]):
                row[f] = mine[f] + yours[f]


def edge_messages(
    ends: tuple[Tensor, Tensor, Tensor],
    state: Tensor,
    layers: tuple[Tensor | None, Tensor, Tensor | None, Tensor],
    fade: Tensor | None,
    pairs: EdgePairs,
    real: int,
) -> tuple[Tensor, Tensor]:
    """Sums of the messages that reach each node, [N, H], and the edges' new states [E, H].

    Tensors are such as `is_fusable` allows; nothing learns from `fade`.

    Args:
        ends: what nodes send and receive with, [N, 2 H] each, and their messages [N, H].
        state: the edges' states [E, H]; without the first layer own [P, 2 H], a row a pair.
        layers: of an edge's state [2 H, H] or None; of its new state [H, 2 H]; of its filter
            [H, H] twice. Without the first of the filter's, the new state goes straight into its
            softplus and is not given back.
        fade: [E], or None for ones.
        pairs: the edges, by receiver.
        real: edges from this one on are padding.
    """
    a, b, messages = ends
    of_edge, edge, filter_layer, last = layers
    nodes, count = pairs.nodes, len(pairs.tensors[0])
    wide, hidden, width = a.shape[-1], messages.shape[-1], len(edge)
    right = a.shape == b.shape == (nodes, wide) and messages.shape == (nodes, hidden)
    require(right, f"the ends of {nodes} nodes needed", a, b, messages)
    rows, inside = (pairs.count, wide) if of_edge is None else (count, state.shape[-1])
    right = state.shape == (rows, inside) and edge.shape == (width, wide)
    right = right and (of_edge is None or of_edge.shape == (wide, inside))
    right = right and last.shape == (hidden, hidden)
    if filter_layer is None:
        right = right and width == hidden
    else:
        right = right and filter_layer.shape == (hidden, width)
    require(right, "states and layers must fit", state, of_edge, edge, filter_layer, last)
    right = (fade is None or fade.shape == (count,)) and 0 <= real <= count
    require(right and pairs.tensors[3] is None, "edges by receiver needed, and a fade each", fade)
    # As one argument: each tensor that autograd looks at takes microseconds.
    fixed = (fade, pairs, real)
    found: tuple[Tensor, Tensor] = _EdgeMessages.apply(*ends, state, *layers, fixed)  # type: ignore[no-untyped-call]
    return found


class _EdgeMessages(torch.autograd.Function):
    # One function with ctx: torch would inspect the signature of a separate forward at each call.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        a, b, messages, state, of_edge, edge, filter_layer, last, (fade, pairs, real) = arguments
        receivers, senders, offsets, *_, of_pair = pairs.arrays
        count, hidden = len(receivers), len(last)
        active, inner = a.new_empty(count, a.shape[1]), a.new_empty(count, hidden)
        weight, sums = a.new_empty(count, hidden), a.new_empty(len(a), hidden)
        new = a.new_empty(0 if filter_layer is None else count, len(edge))
        new[real:] = 0
        layers = tuple(_array(t, a) for t in (edge, filter_layer, last))
        given = (gemm_address(a.dtype), (array_of(a), array_of(b)), _states(state, of_edge), layers)
        made = tuple(t.numpy() for t in (active, new, inner, weight))
        work = count * a.shape[1] * hidden
        arguments_of = (*given, (receivers, senders, of_pair, real), made)
        _edge_blocks.share(arguments_of, -(-real // _BLOCK), work)
        read = (made[3], _array(fade, a, 1), array_of(messages), (senders, offsets, real))
        _receive_rows.share((*read, sums.numpy()), len(a), count * hidden, offsets)
        ctx.save_for_backward(*arguments[:8], active, new, inner, weight)
        ctx.fixed = arguments[8]
        ctx.set_materialize_grads(False)
        return sums, new

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        *given, active, new, inner, weight = ctx.saved_tensors
        a, _, messages, state, of_edge, edge, filter_layer, last = given
        fade, pairs, real = ctx.fixed
        to_sums = messages.new_zeros(messages.shape) if grads[0] is None else grads[0]
        if torch.is_grad_enabled():
            to_edge = new.new_zeros(new.shape) if grads[1] is None else grads[1]
            function = functools.partial(_plain, fade=fade, pairs=pairs, real=real)
            return *differentiable_gradients(ctx, function, given, (to_sums, to_edge)), None
        receivers, senders, offsets, _, offsets_t, order_t, forward, backward, _ = pairs.arrays
        count, wide, hidden = len(receivers), a.shape[1], len(last)
        chunk = _BLOCK * max(1, -(-real // (_BLOCK * _CHUNKS)))
        chunks = -(-real // chunk)
        layers = tuple(_array(t, a) for t in (edge, filter_layer, last))
        to_active = a.new_empty(count, wide)
        to_state = state.new_empty(state.shape)
        learned = [
            a.new_empty(0, 0, 0) if t is None else a.new_empty(chunks, *t.shape)
            for t in (of_edge, edge, filter_layer, last)
        ]
        work = count * wide * hidden
        fading, upper = _array(fade, a, 1), array_of(to_sums)
        to_before = _array(None if of_edge is None else to_state, a)
        arguments = (
            gemm_address(a.dtype),
            (upper, _array(grads[1], a)),
            array_of(messages),
            fading,
            _states(state, of_edge),
            layers,
            tuple(t.numpy() for t in (active, new, inner, weight)),
            (receivers, senders, real),
            chunk,
            (to_active.numpy(), to_before),
            tuple(t.numpy() for t in learned),
        )
        _gradient_chunks.share(arguments, chunks, 2 * work)
        to_ends = [a.new_empty(len(a), columns) for columns in (wide, wide, hidden)]
        around = (receivers, offsets, offsets_t, order_t, real)
        read = (to_active.numpy(), upper, weight.numpy(), fading, around)
        _end_rows.share((*read, tuple(t.numpy() for t in to_ends)), len(a), 3 * count * wide)
        if of_edge is None:
            both = (to_active.numpy(), forward, backward, real, to_state.numpy())
            _pair_rows.share(both, len(to_state), count * wide)
        else:
            to_state[real:] = 0
        to_layers = [
            None if t is None else parts.sum(0)
            for t, parts in zip((of_edge, edge, filter_layer, last), learned, strict=True)
        ]
        return *to_ends, to_state, *to_layers, None


def _array(tensor: Tensor | None, like: Tensor, dimensions: int = 2) -> Any:
    return array_of(like.new_empty((0,) * dimensions) if tensor is None else tensor)


def _states(state: Tensor, of_edge: Tensor | None) -> tuple[Any, Any, Any]:
    absent, given = _array(None, state), array_of(state)
    return (given, absent, absent) if of_edge is None else (absent, given, array_of(of_edge))


def _plain(
    a: Tensor,
    b: Tensor,
    messages: Tensor,
    state: Tensor,
    of_edge: Tensor | None,
    edge: Tensor,
    filter_layer: Tensor | None,
    last: Tensor,
    *,
    fade: Tensor | None,
    pairs: EdgePairs,
    real: int,
) -> tuple[Tensor, Tensor]:
    receivers, senders, offsets, _, offsets_t, order_t, *halves = pairs.tensors
    edges = (senders, receivers, offsets, offsets_t, order_t)
    if of_edge is not None:
        state, halves = functional.linear(state, of_edge), []
    new = functional.linear(edge_softplus(a, b, state, *edges, *(halves or (None,) * 3)), edge)
    inner = new if filter_layer is None else functional.linear(new, filter_layer)
    weight = shifted_softplus(functional.linear(shifted_softplus(inner), last))
    here = torch.arange(len(weight)) < real
    weight = weight * (here if fade is None else fade * here)[:, None]
    return spmm(messages, weight, *pairs.tensors[:6]), new[: 0 if filter_layer is None else None]
