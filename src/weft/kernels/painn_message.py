"""PaiNN's message as one operator: no tensor of E rows and 3 F columns is made, either way.

    Δq[r]     = Σ Wq · xq[s]
    Δμ[r, c]  = Σ Wr · xr[s] · direction[c]  +  Wm · xm[s] · μ[s, c]

over the edges s -> r that are not padding; by feature. The filters W are those of the edge's pair
where both directions share them. The gradients are made of the same few loops, to any order.

In the loops: N nodes, E edges, P pairs, F features; x and filters hold three parts of F features:
for scalars, for the direction and for the vectors of the sender. Filters of two parts stand for
vectors that are 0: `mu` is empty. `given` are x, mu, filters, the directions and the mask; `grads`
the gradients in the scalars and vectors.

Before the compiler may use vector instructions, it must know that what a loop writes is not what it
reads. Of rows of arrays it has to ask at run time, for every pair of rows, and gives up when they
are many. So sums over edges are kept on the stack, which it knows to be apart, a tile of features
at a time.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from weft.kernels.backends import forms
from weft.kernels.custom_op import array_of, has_loop, operator, require, widest
from weft.kernels.edge_pairs import BatchEdges, Pairs
from weft.kernels.message_passing import SortedEdges
from weft.runtime import compiled, kernel, shared_rows, stack_numbers

# Sums over edges: rows of features, at most so many and so long at a time.
_ROWS, _TILE = 5, 128
_SPACE = _ROWS * _TILE
# Multiply-adds an edge and feature, to tell whether threads pay.
_WORK = 12


@shared_rows
@kernel
def _messages(given: Any, edges: Any, made: Any, first: int, stop: int) -> None:
    """Scalars [N, F] and vectors [N, 3, F], `made`, that reach each receiver."""
    x, mu, filters, direction, mask = given
    pair, senders, offsets = edges
    out_q, out_mu = made
    width = x.shape[2]
    vectors = x.shape[1] == 3
    sums = stack_numbers(x, _SPACE)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(4 * _TILE):
                sums[j] = 0
            for edge in range(offsets[row], offsets[row + 1]):
                if not mask[edge]:
                    continue
                s, p = senders[edge], pair[edge]
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                if vectors:
                    for j in range(count):
                        f = start + j
                        along = filters[p, 1, f] * x[s, 1, f]
                        turned = filters[p, 2, f] * x[s, 2, f]
                        sums[j] += filters[p, 0, f] * x[s, 0, f]
                        sums[_TILE + j] += d0 * along + turned * mu[s, 0, f]
                        sums[2 * _TILE + j] += d1 * along + turned * mu[s, 1, f]
                        sums[3 * _TILE + j] += d2 * along + turned * mu[s, 2, f]
                else:
                    for j in range(count):
                        f = start + j
                        along = filters[p, 1, f] * x[s, 1, f]
                        sums[j] += filters[p, 0, f] * x[s, 0, f]
                        sums[_TILE + j] += d0 * along
                        sums[2 * _TILE + j] += d1 * along
                        sums[3 * _TILE + j] += d2 * along
            for j in range(count):
                out_q[row, start + j] = sums[j]
            for c in range(3):
                for j in range(count):
                    out_mu[row, c, start + j] = sums[(1 + c) * _TILE + j]


@shared_rows
@kernel
def _to_senders(grads: Any, given: Any, edges: Any, made: Any, first: int, stop: int) -> None:
    """Gradients of the senders, of their x and mu, by rows of the offsets and order in `edges`."""
    grad_q, grad_mu = grads
    x, mu, filters, direction, mask = given
    pair, receivers, offsets, order = edges
    grad_x, grad_mu_in = made
    width = x.shape[2]
    vectors = x.shape[1] == 3
    sums = stack_numbers(x, _SPACE)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(5 * _TILE):
                sums[j] = 0
            for k in range(offsets[row], offsets[row + 1]):
                edge = order[k]
                if not mask[edge]:
                    continue
                r, p = receivers[edge], pair[edge]
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                if vectors:
                    for j in range(count):
                        f = start + j
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        w = filters[p, 2, f]
                        sums[j] += filters[p, 0, f] * grad_q[r, f]
                        sums[_TILE + j] += filters[p, 1, f] * (d0 * g0 + d1 * g1 + d2 * g2)
                        sums[2 * _TILE + j] += w * g0
                        sums[3 * _TILE + j] += w * g1
                        sums[4 * _TILE + j] += w * g2
                else:
                    for j in range(count):
                        f = start + j
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        sums[j] += filters[p, 0, f] * grad_q[r, f]
                        sums[_TILE + j] += filters[p, 1, f] * (d0 * g0 + d1 * g1 + d2 * g2)
            for part in range(2):
                for j in range(count):
                    grad_x[row, part, start + j] = sums[part * _TILE + j]
            if vectors:
                # The sender's own factors are the same for all its edges, so they come last.
                for j in range(count):
                    f = start + j
                    grad_x[row, 2, f] = (
                        mu[row, 0, f] * sums[2 * _TILE + j]
                        + mu[row, 1, f] * sums[3 * _TILE + j]
                        + mu[row, 2, f] * sums[4 * _TILE + j]
                    )
                for c in range(3):
                    for j in range(count):
                        grad_mu_in[row, c, start + j] = (
                            x[row, 2, start + j] * sums[(2 + c) * _TILE + j]
                        )


@shared_rows
@kernel
def _to_filters(
    grads: Any, given: Any, edges: Any, grad_filters: Any, first: int, stop: int
) -> None:
    """Gradient of each pair's filters, from its edges forward[p] and backward[p]."""
    grad_q, grad_mu = grads
    x, mu, _, direction, mask = given
    forward, backward, receivers, senders = edges
    width = x.shape[2]
    vectors = x.shape[1] == 3
    sums = stack_numbers(x, _SPACE)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(3 * _TILE):
                sums[j] = 0
            for way in range(2):
                edge = forward[row] if way == 0 else backward[row]
                if (way == 1 and edge == forward[row]) or not mask[edge]:
                    continue
                r, s = receivers[edge], senders[edge]
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                if vectors:
                    for j in range(count):
                        f = start + j
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        sums[j] += grad_q[r, f] * x[s, 0, f]
                        sums[_TILE + j] += x[s, 1, f] * (d0 * g0 + d1 * g1 + d2 * g2)
                        sums[2 * _TILE + j] += x[s, 2, f] * (
                            mu[s, 0, f] * g0 + mu[s, 1, f] * g1 + mu[s, 2, f] * g2
                        )
                else:
                    for j in range(count):
                        f = start + j
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        sums[j] += grad_q[r, f] * x[s, 0, f]
                        sums[_TILE + j] += x[s, 1, f] * (d0 * g0 + d1 * g1 + d2 * g2)
            for part in range(grad_filters.shape[1]):
                for j in range(count):
                    grad_filters[row, part, start + j] = sums[part * _TILE + j]


# Dot products are summed in the order of the vector registers: fixed, whatever the threads.
@shared_rows
@compiled(fastmath={"contract", "reassoc"}, error_model="numpy")
def _to_directions(
    grads: Any, given: Any, edges: Any, grad_direction: Any, first: int, stop: int
) -> None:
    """Gradient [E, 3] of each edge's direction."""
    _, grad_mu = grads
    x, _, filters, _, mask = given
    pair, receivers, senders = edges
    width = x.shape[2]
    for edge in range(first, stop):
        r, s = receivers[edge], senders[edge]
        p = pair[edge]
        for c in range(3):
            total = x.dtype.type(0)
            if mask[edge]:
                for f in range(width):
                    total += filters[p, 1, f] * x[s, 1, f] * grad_mu[r, c, f]
            grad_direction[edge, c] = total


class PairedEdges(SortedEdges, Protocol):
    """Sorted edges of which some are padding, and which may come in pairs (see GraphBatch)."""

    @property
    def edge_mask(self) -> Tensor: ...  # noqa: D102
    @property
    def pairs(self) -> dict[str, Tensor]: ...  # noqa: D102


def painn_message(
    batch: PairedEdges, x: Tensor, mu: Tensor | None, filters: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor]:
    """Scalars [N, F] and vectors [N, 3, F] that reach each node.

    Args:
        batch: the edges; padding edges carry nothing.
        x: [N, 3 F], the senders' scalars, factors of the direction and factors of their vectors.
        mu: [N, 3, F], the senders' vectors; None for zeros, and then x and filters are 2 F wide.
        filters: [P, 3 F], one row per pair of the batch; without pairs [E, 3 F], one per edge.
        direction: [E, 3].
    """
    pairs = map(batch.pairs.get, Pairs._fields)
    given = (x, mu, filters, direction, batch.edge_mask)
    dq, dmu = _message(*given, *BatchEdges.of(batch), *pairs)
    return dq, dmu


class MessageInputs(NamedTuple):
    """What the message is made of; see `painn_message`."""

    x: Tensor
    mu: Tensor | None
    filters: Tensor
    direction: Tensor
    mask: Tensor

    def check(self, edges: BatchEdges, pairs: Pairs | None) -> int:
        """F, if all shapes fit."""
        edges.check(pairs)
        x, mu, filters, direction, mask = self
        nodes, count = edges.in_offsets.numel() - 1, edges.senders.numel()
        parts = 2 if mu is None else 3
        one_each = x.ndim == 2 and x.shape[0] == nodes
        require(one_each, "x must have one row per node", x, edges.in_offsets)
        width = x.shape[1] // parts
        right = width > 0 and x.shape[1] == parts * width
        require(right, f"x must have {parts} parts of one width", x)
        if mu is not None:
            require(mu.shape == (nodes, 3, width), f"mu must be [{nodes}, 3, {width}]", mu)
        rows = count if pairs is None else pairs.forward.numel()
        require(filters.shape == (rows, parts * width), "filters must fit pairs and x", filters, x)
        require(direction.shape == (count, 3), f"directions must be [{count}, 3]", direction)
        require(mask.shape == edges.senders.shape, "an edge has a mask", mask, edges.senders)
        return width

    def arrays(self, width: int) -> tuple[Any, ...]:
        """What the loops take; mu is empty instead of None: a loop of one type is compiled once."""
        x, mu, filters, direction, mask = self
        vectors = array_of(x.new_empty(0, 3, 0) if mu is None else mu)
        edges = (array_of(direction), array_of(mask))
        return _parts(x, width), vectors, _parts(filters, width), *edges


def _parts(tensor: Tensor, width: int) -> Any:
    """The array [rows, parts, width] of [rows, parts · width]."""
    return array_of(tensor).reshape(tensor.shape[0], tensor.shape[1] // width, width)


def _pairing(pairs: Pairs | None, field: int, edges: Tensor) -> Any:
    """The array of a field of the pairs; without them, every edge is one."""
    return array_of(torch.arange(len(edges), dtype=edges.dtype) if pairs is None else pairs[field])


def _empty_messages(given: MessageInputs, *_: Any) -> tuple[Tensor, Tensor]:
    x, mu, filters, direction = given[:4]
    nodes, width = x.shape[0], x.shape[1] // (2 if mu is None else 3)
    vectors = x.new_empty(nodes, 3, width, dtype=widest(x, mu, filters, direction))
    return x.new_empty(nodes, width, dtype=widest(x, filters)), vectors


@operator("weft::painn_message", _empty_messages)
def _message(given: MessageInputs, edges: BatchEdges, pairs: Pairs | None) -> tuple[Tensor, Tensor]:
    """See `painn_message`."""
    width = given.check(edges, pairs)
    if not has_loop(*given[:4]):
        return forms(*given[:4]).painn_message(given, edges, pairs)
    dq, dmu = _empty_messages(given)
    starts, senders = array_of(edges.in_offsets), edges.senders
    read = (_pairing(pairs, 2, senders), array_of(senders), starts)
    arguments = (given.arrays(width), read, (dq.numpy(), dmu.numpy()))
    _messages.share(arguments, len(dq), _WORK * width * senders.shape[0], starts)
    return dq, dmu


@_message.derivative()
def _message_grad(ctx: Any, grad_q: Tensor, grad_mu: Tensor) -> tuple[Tensor | None, ...]:
    inputs, wanted = ctx.saved_tensors, ctx.needs_input_grad[3]
    grad_x, grad_mu_in, *others = _message_backward(grad_q, grad_mu, *inputs, wanted)
    grad_filters, grad_direction = others
    grad_vectors = None if inputs[1] is None else grad_mu_in
    return grad_x, grad_vectors, grad_filters, grad_direction if wanted else None


def _empty_gradients(
    grad_q: Tensor,
    _: Any,
    given: MessageInputs,
    edges: BatchEdges,
    pairs: Any,
    want_direction: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    nodes, width = grad_q.shape
    x, mu, filters, direction, _ = given
    return (
        x.new_empty(x.shape),
        (x if mu is None else mu).new_empty(0 if mu is None else nodes, 3, width),
        filters.new_empty(filters.shape),
        direction.new_empty(direction.shape[0] if want_direction else 0, 3),
    )


@operator("weft::painn_message_backward", _empty_gradients)
def _message_backward(
    grad_q: Tensor,
    grad_mu: Tensor,
    given: MessageInputs,
    edges: BatchEdges,
    pairs: Pairs | None,
    want_direction: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, mu (empty where there is none), filters and direction (empty if unwanted)."""
    width = given.check(edges, pairs)
    nodes, count = given.x.shape[0], edges.senders.shape[0]
    right = grad_q.shape == (nodes, width) and grad_mu.shape == (nodes, 3, width)
    require(right, "gradients must have the shapes of the outputs", grad_q, grad_mu)
    if not has_loop(grad_q, grad_mu, *given[:4]):
        backward = forms(grad_q, grad_mu, *given[:4]).painn_message_backward
        return backward(grad_q, grad_mu, given, edges, pairs, want_direction)
    grads = _empty_gradients(grad_q, grad_mu, given, edges, pairs, want_direction)
    grad_x, grad_mu_in, grad_filters, grad_direction = grads
    read = ((array_of(grad_q), array_of(grad_mu)), given.arrays(width))
    senders, receivers, _, out_offsets, out_order = edges
    ends = (array_of(receivers), array_of(senders))
    forward, backward, of_edge = (_pairing(pairs, k, senders) for k in range(3))
    starts = array_of(out_offsets)
    operations = _WORK * width * count
    leaving = (of_edge, ends[0], starts, array_of(out_order))
    made = (_parts(grad_x, width), grad_mu_in.numpy())
    _to_senders.share((*read, leaving, made), nodes, operations, starts)
    both = (forward, backward, *ends)
    arguments = (*read, both, _parts(grad_filters, width))
    _to_filters.share(arguments, grad_filters.shape[0], operations)
    if want_direction:
        reached = (*read, (of_edge, *ends), grad_direction.numpy())
        _to_directions.share(reached, count, operations)
    return grads


@_message_backward.derivative()
def _backward_grad(
    ctx: Any, to_x: Tensor, to_mu: Tensor, to_filters: Tensor, to_direction: Tensor
) -> tuple[Tensor | None, ...]:
    """The message is linear in x, in the filters, and (its vectors) in μ and direction together.

    So what the gradients change by, when each of the three is pushed, is again the message's
    gradient with that one replaced by its push.
    """
    grad_q, grad_mu, x, mu, filters, direction, *topology = ctx.saved_tensors
    if mu is None:
        to_mu = None  # type: ignore[assignment]
    (want_direction,) = ctx.others
    if not want_direction:
        to_direction = torch.zeros_like(direction)
    pushes = (
        (to_x, mu, filters, direction),
        (x, mu, to_filters, direction),
        (x, to_mu, filters, to_direction),
    )
    q1, v1 = _message(*pushes[0], *topology)
    q2, v2 = _message(*pushes[1], *topology)
    _, v3 = _message(*pushes[2], *topology)
    want = ctx.needs_input_grad[5]
    no_q = torch.zeros_like(grad_q)
    _, mu1, filters1, direction1 = _message_backward(grad_q, grad_mu, *pushes[0], *topology, want)
    x2, mu2, _, direction2 = _message_backward(grad_q, grad_mu, *pushes[1], *topology, want)
    x3, _, filters3, _ = _message_backward(no_q, grad_mu, *pushes[2], *topology, False)
    return (
        q1 + q2,
        v1 + v2 + v3,
        x2 + x3,
        None if mu is None else mu1 + mu2,
        filters1 + filters3,
        direction1 + direction2 if want else None,
    )
