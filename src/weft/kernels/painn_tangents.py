"""PaiNN's message together with its directional derivative, see `tangents` and `painn_message`.

Values and tangents are the halves of the rows of x [2 N, 3 F], mu [2 N, 3, F] and the results. An
edge's filters move by push · slope of its pair, its direction by `turn`. N nodes, E edges, P pairs,
F features; x and filters hold three parts, or two where mu is None.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.custom_op import array_of, require
from weft.kernels.edge_pairs import EdgePairs
from weft.runtime import kernel, shared_rows, stack_numbers

# Features whose sums are on the stack at a time, and of how many kinds.
_TILE = 64
_SPACE = 10 * _TILE
# Multiply-adds an edge and feature, to tell whether threads pay.
_WORK = 32


@shared_rows
@kernel
def _messages(given: Any, filters: Any, edges: Any, made: Any, first: int, stop: int) -> None:
    """Scalars [2 N, F] and vectors [2 N, 3, F], `made`, that reach each receiver."""
    x, mu = given
    weight, slope, push = filters
    pair, senders, offsets, direction, turn, mask = edges
    out_q, out_mu = made
    width = x.shape[2]
    nodes = x.shape[0] // 2
    vectors = x.shape[1] == 3
    sums = stack_numbers(x, _SPACE)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(8 * _TILE):
                sums[j] = 0
            for edge in range(offsets[row], offsets[row + 1]):
                if not mask[edge]:
                    continue
                p = pair[edge]
                s, by = senders[edge], push[p]
                t = s + nodes
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                t0, t1, t2 = turn[edge, 0], turn[edge, 1], turn[edge, 2]
                for j in range(count):
                    f = start + j
                    w, xs = weight[p, 0, f], x[s, 0, f]
                    sums[j] += w * xs
                    sums[_TILE + j] += w * x[t, 0, f] + by * slope[p, 0, f] * xs
                    w, xs = weight[p, 1, f], x[s, 1, f]
                    along, moved = w * xs, w * x[t, 1, f] + by * slope[p, 1, f] * xs
                    sums[2 * _TILE + j] += d0 * along
                    sums[3 * _TILE + j] += d1 * along
                    sums[4 * _TILE + j] += d2 * along
                    sums[5 * _TILE + j] += d0 * moved + t0 * along
                    sums[6 * _TILE + j] += d1 * moved + t1 * along
                    sums[7 * _TILE + j] += d2 * moved + t2 * along
                if vectors:
                    for j in range(count):
                        f = start + j
                        w, xs = weight[p, 2, f], x[s, 2, f]
                        turned, moved = w * xs, w * x[t, 2, f] + by * slope[p, 2, f] * xs
                        m0, m1, m2 = mu[s, 0, f], mu[s, 1, f], mu[s, 2, f]
                        sums[2 * _TILE + j] += turned * m0
                        sums[3 * _TILE + j] += turned * m1
                        sums[4 * _TILE + j] += turned * m2
                        sums[5 * _TILE + j] += moved * m0 + turned * mu[t, 0, f]
                        sums[6 * _TILE + j] += moved * m1 + turned * mu[t, 1, f]
                        sums[7 * _TILE + j] += moved * m2 + turned * mu[t, 2, f]
            for j in range(count):
                out_q[row, start + j] = sums[j]
                out_q[nodes + row, start + j] = sums[_TILE + j]
            for c in range(3):
                for j in range(count):
                    out_mu[row, c, start + j] = sums[(2 + c) * _TILE + j]
                    out_mu[nodes + row, c, start + j] = sums[(5 + c) * _TILE + j]


@shared_rows
@kernel
def _to_senders(
    grads: Any, given: Any, filters: Any, edges: Any, made: Any, first: int, stop: int
) -> None:
    """Gradients of the senders, of their x and mu; edges by sender."""
    grad_q, grad_mu = grads
    x, mu = given
    weight, slope, push = filters
    pair, receivers, offsets, order, direction, turn, mask = edges
    grad_x, grad_mu_in = made
    width = x.shape[2]
    nodes = x.shape[0] // 2
    vectors = x.shape[1] == 3
    sums = stack_numbers(x, _SPACE)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(_SPACE):
                sums[j] = 0
            for k in range(offsets[row], offsets[row + 1]):
                edge = order[k]
                if not mask[edge]:
                    continue
                p = pair[edge]
                r, by = receivers[edge], push[p]
                t = r + nodes
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                t0, t1, t2 = turn[edge, 0], turn[edge, 1], turn[edge, 2]
                for j in range(count):
                    f = start + j
                    w, moved = weight[p, 0, f], grad_q[t, f]
                    sums[j] += w * grad_q[r, f] + by * slope[p, 0, f] * moved
                    sums[_TILE + j] += w * moved
                    g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                    h0, h1, h2 = grad_mu[t, 0, f], grad_mu[t, 1, f], grad_mu[t, 2, f]
                    along = d0 * g0 + d1 * g1 + d2 * g2 + t0 * h0 + t1 * h1 + t2 * h2
                    moved = d0 * h0 + d1 * h1 + d2 * h2
                    w = weight[p, 1, f]
                    sums[2 * _TILE + j] += w * along + by * slope[p, 1, f] * moved
                    sums[3 * _TILE + j] += w * moved
                if vectors:
                    for j in range(count):
                        f = start + j
                        w, push_w = weight[p, 2, f], by * slope[p, 2, f]
                        h0, h1, h2 = grad_mu[t, 0, f], grad_mu[t, 1, f], grad_mu[t, 2, f]
                        sums[4 * _TILE + j] += w * grad_mu[r, 0, f] + push_w * h0
                        sums[5 * _TILE + j] += w * grad_mu[r, 1, f] + push_w * h1
                        sums[6 * _TILE + j] += w * grad_mu[r, 2, f] + push_w * h2
                        sums[7 * _TILE + j] += w * h0
                        sums[8 * _TILE + j] += w * h1
                        sums[9 * _TILE + j] += w * h2
            for part in range(2):
                for j in range(count):
                    grad_x[row, part, start + j] = sums[2 * part * _TILE + j]
                    grad_x[nodes + row, part, start + j] = sums[(2 * part + 1) * _TILE + j]
            if vectors:
                # The sender's own factors are the same for all its edges, so they come last.
                for j in range(count):
                    f = start + j
                    total, moved = x.dtype.type(0), x.dtype.type(0)
                    for c in range(3):
                        a, b = sums[(4 + c) * _TILE + j], sums[(7 + c) * _TILE + j]
                        total += mu[row, c, f] * a + mu[nodes + row, c, f] * b
                        moved += mu[row, c, f] * b
                    grad_x[row, 2, f] = total
                    grad_x[nodes + row, 2, f] = moved
                for c in range(3):
                    for j in range(count):
                        f = start + j
                        a, b = sums[(4 + c) * _TILE + j], sums[(7 + c) * _TILE + j]
                        grad_mu_in[row, c, f] = x[row, 2, f] * a + x[nodes + row, 2, f] * b
                        grad_mu_in[nodes + row, c, f] = x[row, 2, f] * b


@shared_rows
@kernel
def _to_filters(
    grads: Any, given: Any, push: Any, edges: Any, made: Any, first: int, stop: int
) -> None:
    """Gradients of each pair's filters and slopes, from its edges forward[p] and backward[p]."""
    grad_q, grad_mu = grads
    x, mu = given
    forward, backward, receivers, senders, direction, turn, mask = edges
    grad_weight, grad_slope = made
    width = x.shape[2]
    nodes = x.shape[0] // 2
    vectors = x.shape[1] == 3
    sums = stack_numbers(x, _SPACE)
    for row in range(first, stop):
        by = push[row]
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(6 * _TILE):
                sums[j] = 0
            for way in range(2):
                edge = forward[row] if way == 0 else backward[row]
                if (way == 1 and edge == forward[row]) or not mask[edge]:
                    continue
                r, s = receivers[edge], senders[edge]
                rt, st = r + nodes, s + nodes
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                t0, t1, t2 = turn[edge, 0], turn[edge, 1], turn[edge, 2]
                for j in range(count):
                    f = start + j
                    moved = grad_q[rt, f]
                    sums[j] += grad_q[r, f] * x[s, 0, f] + moved * x[st, 0, f]
                    sums[_TILE + j] += moved * x[s, 0, f]
                    g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                    h0, h1, h2 = grad_mu[rt, 0, f], grad_mu[rt, 1, f], grad_mu[rt, 2, f]
                    along = d0 * g0 + d1 * g1 + d2 * g2 + t0 * h0 + t1 * h1 + t2 * h2
                    moved = d0 * h0 + d1 * h1 + d2 * h2
                    sums[2 * _TILE + j] += along * x[s, 1, f] + moved * x[st, 1, f]
                    sums[3 * _TILE + j] += moved * x[s, 1, f]
                if vectors:
                    for j in range(count):
                        f = start + j
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        h0, h1, h2 = grad_mu[rt, 0, f], grad_mu[rt, 1, f], grad_mu[rt, 2, f]
                        m0, m1, m2 = mu[s, 0, f], mu[s, 1, f], mu[s, 2, f]
                        moved = m0 * h0 + m1 * h1 + m2 * h2
                        turned = m0 * g0 + m1 * g1 + m2 * g2
                        turned += mu[st, 0, f] * h0 + mu[st, 1, f] * h1 + mu[st, 2, f] * h2
                        sums[4 * _TILE + j] += turned * x[s, 2, f] + moved * x[st, 2, f]
                        sums[5 * _TILE + j] += moved * x[s, 2, f]
            for part in range(x.shape[1]):
                for j in range(count):
                    grad_weight[row, part, start + j] = sums[2 * part * _TILE + j]
                    grad_slope[row, part, start + j] = by * sums[(2 * part + 1) * _TILE + j]


def painn_tangent_message(
    x: Tensor,
    mu: Tensor | None,
    filters: tuple[Tensor, Tensor, Tensor],
    directions: tuple[Tensor, Tensor, Tensor],
    pairs: EdgePairs,
) -> tuple[Tensor, Tensor]:
    """Scalars [2 N, F] and vectors [2 N, 3, F] that reach each node, and their tangents.

    Args:
        x: [2 N, 3 F], see `painn_message`.
        mu: [2 N, 3, F]; None for zeros, and then x and filters are 2 F wide.
        filters: weight and slope [P, 3 F], and the push [P] of the pairs' distances.
        directions: of the edges [E, 3], their tangents [E, 3], and the mask [E].
        pairs: the edges. Nothing learns from the push and the directions.
    """
    weight, slope, push = filters
    direction, turn, mask = directions
    parts = 2 if mu is None else 3
    width = x.shape[-1] // parts
    edges = len(pairs.tensors[0])
    right = x.shape == (2 * pairs.nodes, parts * width) and width > 0
    right = right and (mu is None or mu.shape == (2 * pairs.nodes, 3, width))
    right = right and weight.shape == slope.shape == (pairs.count, parts * width)
    right = right and push.shape == (pairs.count,) and mask.shape == (edges,)
    right = right and direction.shape == turn.shape == (edges, 3)
    require(right, "x [2 N, 3 F], mu [2 N, 3, F], filters [P, 3 F] needed", x, mu, weight, slope)
    found: tuple[Tensor, Tensor] = _Message.apply(  # type: ignore[no-untyped-call]
        x, mu, weight, slope, push, direction, turn, mask, pairs
    )
    return found


def _parts(tensor: Tensor, parts: int) -> Any:
    return array_of(tensor).reshape(len(tensor), parts, tensor.shape[1] // parts)


class _Message(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *tensors, pairs = arguments
        ctx.save_for_backward(*tensors)
        ctx.pairs = pairs
        (given, filters, around), width = _arrays(tensors)
        _, columns, offsets, _, _, _, _, _, of_edge = pairs.arrays
        q = tensors[0].new_empty(len(tensors[0]), width)
        mu = tensors[0].new_empty(len(tensors[0]), 3, width)
        edges = (of_edge, columns, offsets, *around)
        arguments = (given, filters, edges, (q.numpy(), mu.numpy()))
        _messages.share(arguments, pairs.nodes, _WORK * width * len(columns), offsets)
        return q, mu

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor, grad_mu: Tensor) -> tuple[Any, ...]:
        tensors, pairs = ctx.saved_tensors, ctx.pairs
        (given, filters, around), width = _arrays(tensors)
        rows, columns, _, _, offsets_t, order_t, forward, backward, of_edge = pairs.arrays
        x, mu, weight, slope, *_ = tensors
        parts = given[0].shape[1]
        grads = (array_of(grad_q), array_of(grad_mu))
        operations = _WORK * width * len(columns)
        grad_x = x.new_empty(x.shape)
        grad_mu_in = x.new_empty(0 if mu is None else len(x), 3, width)
        leaving = (of_edge, rows, offsets_t, order_t, *around)
        made = (_parts(grad_x, parts), grad_mu_in.numpy())
        _to_senders.share(
            (grads, given, filters, leaving, made), pairs.nodes, operations, offsets_t
        )
        grad_weight, grad_slope = torch.empty_like(weight), torch.empty_like(slope)
        both = (forward, backward, rows, columns, *around)
        made = (_parts(grad_weight, parts), _parts(grad_slope, parts))
        _to_filters.share((grads, given, filters[2], both, made), pairs.count, operations)
        grad_vectors = None if mu is None else grad_mu_in
        return grad_x, grad_vectors, grad_weight, grad_slope, *(None,) * 5


def _arrays(tensors: Any) -> tuple[Any, int]:
    """x and mu, the filters, the directions as loops take them; F."""
    x, mu, weight, slope, push, *around = tensors
    parts = 2 if mu is None else 3
    width = x.shape[1] // parts
    # An empty array instead of None: a loop of one type is compiled once.
    vectors = array_of(x.new_empty(0, 3, 0) if mu is None else mu)
    filters = (_parts(weight, parts), _parts(slope, parts), array_of(push))
    return ((_parts(x, parts), vectors), filters, tuple(map(array_of, around))), width
