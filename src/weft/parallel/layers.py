"""Dense layers on a grid whose columns hold slices of the features.

Weights are whole on every rank; a rank multiplies with the part that its slice meets. The
collectives come in conjugate pairs: what gathers forward sums and scatters backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.parallel.grid import balanced
from weft.parallel.matrix import GridMatrix
from weft.parallel.world import World


def slice_of(world: World, width: int) -> slice:
    """The features of `width` that this rank's column of the grid holds."""
    cuts = balanced(width, world.grid.columns)
    return slice(int(cuts[world.place.column]), int(cuts[world.place.column + 1]))


def _widths(world: World, width: int) -> list[int]:
    widths: list[int] = np.diff(balanced(width, world.grid.columns)).tolist()
    return widths


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World, width: int) -> Tensor:
        ctx.world, ctx.width = world, width
        return world.all_gather("column", x, _widths(world, width), "gather")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        widths = _widths(ctx.world, ctx.width)
        return ctx.world.reduce_scatter("column", grads[0], widths, 1, "gather"), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, world: World) -> Tensor:
        ctx.world, ctx.width = world, partial.shape[1]
        return world.reduce_scatter("column", partial, _widths(world, ctx.width), 1, "scatter")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        widths = _widths(ctx.world, ctx.width)
        return ctx.world.all_gather("column", grads[0], widths, "scatter"), None


def gather_columns(world: World, x: Tensor, width: int) -> Tensor:
    """All features [n, width] of rows whose slices the grid's columns hold."""
    if world.grid.columns == 1:
        return x
    out: Tensor = _Gather.apply(x, world, width)  # type: ignore[no-untyped-call]
    return out


def multiply(
    world: World, inputs: Sequence[Tensor], weights: Sequence[Tensor], *, gather: bool
) -> Tensor:
    """This rank's slice of Σ inputs[t] @ weights[t].

    Args:
        world: the ranks.
        inputs: slices [n, f_in / C], or the gathered [n, f_in] where `gather` says so.
        weights: whole, [f_in, f_out].
        gather: inputs are gathered; otherwise the partial products are summed and scattered.
    """
    width_in, width_out = weights[0].shape
    if gather or world.grid.columns == 1:
        own = slice_of(world, width_out)
        terms = [x @ weight[:, own] for x, weight in zip(inputs, weights, strict=True)]
        return sum(terms[1:], terms[0])
    own = slice_of(world, width_in)
    terms = [x @ weight[own] for x, weight in zip(inputs, weights, strict=True)]
    out: Tensor = _Scatter.apply(sum(terms[1:], terms[0]), world)  # type: ignore[no-untyped-call]
    return out


class _Published(torch.autograd.Function):
    """(AᵀH) W; backward by Y = A G, dW = Hᵀ Y, dH = Y Wᵀ."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, matrix: GridMatrix, transpose: GridMatrix
    ) -> Tensor:
        world = matrix.world
        ctx.save_for_backward(h, weight)
        ctx.transpose = transpose
        sums = matrix.multiply(h, "forward")
        whole = world.all_gather("column", sums, _widths(world, weight.shape[0]), "gather")
        return whole @ weight[:, slice_of(world, weight.shape[1])]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        h, weight = ctx.saved_tensors
        world = ctx.transpose.world
        sums = ctx.transpose.multiply(grads[0], "backward")
        whole = world.all_gather("column", sums, _widths(world, weight.shape[1]), "gather")
        own = slice_of(world, weight.shape[0])
        grad_weight = torch.zeros_like(weight)
        grad_weight[own] = h.T @ whole
        return whole @ weight[own].T, grad_weight, None, None


def published_layer(h: Tensor, weight: Tensor, matrix: GridMatrix, transpose: GridMatrix) -> Tensor:
    """This rank's slice of (AᵀH) W, with the backward pass of the published algorithms."""
    out: Tensor = _Published.apply(h, weight, matrix, transpose)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Sliced:
    """A weight and the part of it whose gradient this rank has.

    Attributes:
        weight: whole.
        dim: which of its dimensions is cut over the grid's columns.
    """

    weight: nn.Parameter
    dim: int


def sum_gradients(world: World, weights: Sequence[Sliced]) -> None:
    """Replace every gradient by its sum over all nodes, whole on every rank.

    Slices are summed over the ranks that have the same slice, as one message, then gathered.
    """
    if world.grid.ranks == 1:
        return
    pieces = []
    for item in weights:
        grad = item.weight.grad
        assert grad is not None
        own = slice_of(world, grad.shape[item.dim])
        pieces.append(grad[own] if item.dim == 0 else grad[:, own])
    flat = torch.cat([piece.flatten() for piece in pieces])
    world.all_reduce("weights", flat, "weights")
    columns = world.grid.columns
    cuts = [balanced(item.weight.shape[item.dim], columns) for item in weights]
    others = [item.weight.numel() // item.weight.shape[item.dim] for item in weights]
    sizes = [
        [int(cut[j + 1] - cut[j]) * other for cut, other in zip(cuts, others, strict=True)]
        for j in range(columns)
    ]
    found = world.all_gather("column", flat[None], [sum(of) for of in sizes], "weights")[0]
    parts = iter(torch.split(found, [size for of in sizes for size in of]))
    for column in range(columns):
        for item, cut in zip(weights, cuts, strict=True):
            grad = item.weight.grad
            assert grad is not None
            part = slice(int(cut[column]), int(cut[column + 1]))
            target = grad[part] if item.dim == 0 else grad[:, part]
            target.copy_(next(parts).view(target.shape))
