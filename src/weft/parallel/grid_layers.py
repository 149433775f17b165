"""Dense layers and losses on a grid whose columns hold slices of the features and classes.

Weights are whole on every rank; a rank multiplies with the part that its slice meets. The
collectives come in conjugate pairs: what gathers forward sums and scatters backward. For a loss no
logits travel: of each row only its maximum and its sum go along the columns, one number each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.kernels import node_cross_entropy
from weft.parallel.grid import balanced
from weft.parallel.grid_matrix import GridMatrix
from weft.parallel.world import World


def slice_of(world: World, width: int) -> slice:
    """The features of `width` that this rank's column of the grid holds."""
    cuts = balanced(width, world.grid.columns)
    return slice(int(cuts[world.place.column]), int(cuts[world.place.column + 1]))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World, width: int) -> Tensor:
        ctx.world, ctx.width = world, width
        return world.all_gather("column", x, world.grid.slice_widths(width), "gather")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        widths = ctx.world.grid.slice_widths(ctx.width)
        return ctx.world.reduce_scatter("column", grads[0], widths, 1, "gather"), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, world: World) -> Tensor:
        ctx.world, ctx.width = world, partial.shape[1]
        return world.reduce_scatter(
            "column", partial, world.grid.slice_widths(ctx.width), 1, "scatter"
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        widths = ctx.world.grid.slice_widths(ctx.width)
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
        whole = world.all_gather("column", sums, world.grid.slice_widths(weight.shape[0]), "gather")
        return whole @ weight[:, slice_of(world, weight.shape[1])]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        h, weight = ctx.saved_tensors
        world = ctx.transpose.world
        sums = ctx.transpose.multiply(grads[0], "backward")
        whole = world.all_gather("column", sums, world.grid.slice_widths(weight.shape[1]), "gather")
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
    """A weight, and the dimension along which this rank has a slice of its gradient.

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


def _log_sums(world: World, logits: Tensor) -> Tensor:
    """log Σ exp over all classes, [n], of this rank's slice of logits [n, c / C]."""
    highest = logits.amax(1) if logits.shape[1] else logits.new_full(logits.shape[:1], -torch.inf)
    world.all_reduce("column", highest, "loss", "max")
    sums = (logits - highest[:, None]).exp().sum(1)
    world.all_reduce("column", sums, "loss")
    return highest + sums.log()


def _own_targets(world: World, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Which rows' classes are in this rank's slice, and their columns there."""
    own = slice_of(world, classes)
    rows = ((y >= own.start) & (y < own.stop)).nonzero()[:, 0]
    return rows, y[rows] - own.start


def _losses(world: World, logits: Tensor, log_sums: Tensor, y: Tensor, classes: int) -> Tensor:
    """What this rank adds to each row's loss, [n]; columns and replicas together add it once."""
    losses = log_sums if world.place.column == 0 else torch.zeros_like(log_sums)
    rows, columns = _own_targets(world, y, classes)
    losses = losses.index_copy(0, rows, losses[rows] - logits[rows, columns])
    return losses if not world.grid.replicated or world.place.layer == 0 else losses * 0


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        y: Tensor,
        rows: Tensor,
        classes: int,
        count: float,
        weights: Tensor | None,
        world: World,
    ) -> Tensor:
        chosen, y = logits[rows], y[rows]
        log_sums = _log_sums(world, chosen)
        ctx.save_for_backward(chosen, log_sums, y, rows)
        ctx.world, ctx.classes, ctx.count, ctx.shape = world, classes, count, logits.shape
        ctx.weights = weights
        losses = _losses(world, chosen, log_sums, y, classes)
        losses = losses if weights is None else losses * weights
        return world.all_reduce("world", losses.sum() / count, "loss")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        chosen, log_sums, y, rows = ctx.saved_tensors
        gradients = (chosen - log_sums[:, None]).exp()
        right, columns = _own_targets(ctx.world, y, ctx.classes)
        gradients[right, columns] -= 1
        if ctx.weights is not None:
            gradients *= ctx.weights[:, None]
        out = gradients.new_zeros(ctx.shape)
        out[rows] = gradients * (grads[0] / ctx.count)
        return out, *(None,) * 6


def cross_entropy(
    world: World,
    logits: Tensor,
    y: Tensor,
    rows: Tensor,
    *,
    classes: int,
    count: float,
    weights: Tensor | None = None,
) -> Tensor:
    """The mean loss over the chosen rows of all ranks, the same number on each.

    Args:
        world: the ranks.
        logits: [n, c / C], this rank's slice.
        y: int64 [n], the class of each row.
        rows: int64 [m], the rows that count.
        classes: c.
        count: chosen rows of all ranks; with `weights` the sum of all ranks' weights.
        weights: [m], of the rows' losses.
    """
    if world.ranks == 1 and weights is None and len(rows) == count:
        return node_cross_entropy(logits, torch.full_like(y, -1).index_copy(0, rows, y[rows]))
    args = (logits, y, rows, classes, count, weights, world)
    out: Tensor = _CrossEntropy.apply(*args)  # type: ignore[no-untyped-call]
    return out


@torch.no_grad()
def scores(
    world: World, logits: Tensor, y: Tensor, masks: dict[str, Tensor], *, classes: int
) -> dict[str, float]:
    """Loss and accuracy `NAME_loss`, `NAME_accuracy` for each mask [n], over all ranks.

    Rows without a class (y = -1) do not count; a mask without rows gives nan.
    """
    log_sums = _log_sums(world, logits)
    losses = _losses(world, logits, log_sums, y, classes)
    found = _predicted(world, logits, classes)
    counts = world.counts
    sums = []
    for mask in masks.values():
        chosen = mask & (y >= 0)
        right = (found == y) & chosen
        sums += [losses[chosen].sum(), right.sum() * counts, chosen.sum() * counts]
    total = torch.stack([value.double() for value in sums])
    world.all_reduce("world", total, "scores")
    result = {}
    for name, (loss, right, count) in zip(masks, total.view(-1, 3).tolist(), strict=True):
        result[f"{name}_loss"] = loss / count if count else float("nan")
        result[f"{name}_accuracy"] = right / count if count else float("nan")
    return result


def _predicted(world: World, logits: Tensor, classes: int) -> Tensor:
    """The most likely class of each row, [n]; the first among equals."""
    own = slice_of(world, classes)
    if logits.shape[1]:
        highest, found = logits.max(1)
    else:
        highest = logits.new_full((len(logits),), -torch.inf)
        found = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    overall = world.all_reduce("column", highest.clone(), "scores", "max")
    found = torch.where(highest == overall, found + own.start, classes)
    return world.all_reduce("column", found, "scores", "min")
