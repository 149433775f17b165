"""Sums over a receiver's edges of the outer product of an edge's row and its sender's.

What a network of edges does to the features of senders is linear in both, so its last matrix can
be applied to these sums: once for each node, and no edge has a matrix of its own. E edges, M
senders, N receivers, K features of an edge, F of a node.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from weft.kernels.custom_op import array_of, differentiable_gradients, have_one_loop, require
from weft.kernels.fused_messages import EdgeWalks
from weft.runtime import compiled, shared_rows

# Sums of features may be taken in any fixed order, so that vectors can be used.
_loop = compiled(error_model="numpy", fastmath={"contract", "reassoc"})


@shared_rows
@_loop
def _sum_rows(
    edge_rows: Any, x: Any, offsets: Any, far_of: Any, edge_of: Any, out: Any, first: int, stop: int
) -> None:
    """out[r, k] = Σ edge_rows[e, k] · x[sender of e] over the edges e into r."""
    count, width = out.shape[1], out.shape[2]
    for near in range(first, stop):
        sums = out[near]
        sums[:] = 0
        for place in range(offsets[near], offsets[near + 1]):
            edge = place if edge_of is None else edge_of[place]
            row, weights = x[far_of[place]], edge_rows[edge]
            for k in range(count):
                own, weight = sums[k], weights[k]
                for f in range(width):
                    own[f] += weight * row[f]


@shared_rows
@_loop
def _edge_gradients(
    grad: Any, x: Any, offsets: Any, far_of: Any, edge_of: Any, out: Any, first: int, stop: int
) -> None:
    """out[e, k] = grad[r, k] · x[sender of e] for the edges e into receivers r of first:stop."""
    count, width = grad.shape[1], grad.shape[2]
    for near in range(first, stop):
        given = grad[near]
        for place in range(offsets[near], offsets[near + 1]):
            edge = place if edge_of is None else edge_of[place]
            row, made = x[far_of[place]], out[edge]
            for k in range(count):
                own, total = given[k], grad.dtype.type(0)
                for f in range(width):
                    total += own[f] * row[f]
                made[k] = total


@shared_rows
@_loop
def _sender_gradients(
    grad: Any,
    edge_rows: Any,
    offsets: Any,
    far_of: Any,
    edge_of: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """out[s] = Σ edge_rows[e, k] · grad[receiver of e, k] over k and the edges e from s."""
    count, width = grad.shape[1], grad.shape[2]
    for near in range(first, stop):
        sums = out[near]
        sums[:] = 0
        for place in range(offsets[near], offsets[near + 1]):
            edge = place if edge_of is None else edge_of[place]
            given, weights = grad[far_of[place]], edge_rows[edge]
            for k in range(count):
                own, weight = given[k], weights[k]
                for f in range(width):
                    sums[f] += weight * own[f]


def outer_sums(edge_rows: Tensor, x: Tensor, edges: EdgeWalks) -> Tensor:
    """Σ edge_rows[e] ⊗ x[sender of e] over the edges e into each receiver, [N, K, F].

    Args:
        edge_rows: [E, K].
        x: [M, F].
        edges: from M senders to N receivers.
    """
    right = edge_rows.ndim == x.ndim == 2 and have_one_loop(edge_rows, x)
    right = right and (len(edge_rows), len(x)) == (edges.num_edges, edges.num_senders)
    require(right, "rows [E, K] and x [M, F] of one dtype needed, on the CPU", edge_rows, x)
    out: Tensor = _OuterSums.apply(edge_rows, x, edges)  # type: ignore[no-untyped-call]
    return out


def _plain(edge_rows: Tensor, x: Tensor, *, edges: EdgeWalks) -> Tensor:
    products = edge_rows[:, :, None] * x.index_select(0, edges.senders)[:, None]
    zeros = x.new_zeros(edges.num_receivers, *products.shape[1:])
    return zeros.index_add(0, edges.receivers, products)


class _OuterSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        edge_rows, x, edges = arguments
        ctx.save_for_backward(edge_rows, x)
        ctx.edges = edges
        shape = (edges.num_receivers, edge_rows.shape[1], x.shape[1])
        out = torch.empty(shape, dtype=x.dtype)
        given = (array_of(edge_rows), array_of(x), *edges.into, out.numpy())
        _sum_rows.share(given, shape[0], len(edge_rows) * shape[1] * shape[2], edges.into[0])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        edge_rows, x = ctx.saved_tensors
        edges: EdgeWalks = ctx.edges
        if torch.is_grad_enabled():
            function = functools.partial(_plain, edges=edges)
            return *differentiable_gradients(ctx, function, (edge_rows, x), grads), None
        (grad,) = map(array_of, grads)
        work = edge_rows.numel() * x.shape[1]
        of_rows = of_x = None
        if ctx.needs_input_grad[0]:
            of_rows = torch.empty(edge_rows.shape, dtype=x.dtype)
            given = (grad, array_of(x), *edges.into, of_rows.numpy())
            _edge_gradients.share(given, edges.num_receivers, work, edges.into[0])
        if ctx.needs_input_grad[1]:
            of_x = torch.empty(x.shape, dtype=x.dtype)
            given = (grad, array_of(edge_rows), *edges.out, of_x.numpy())
            _sender_gradients.share(given, edges.num_senders, work, edges.out[0])
        return of_rows, of_x, None
