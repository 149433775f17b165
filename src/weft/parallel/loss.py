"""Cross-entropy and accuracy over classes that the grid's columns share; no logits travel.

For each row its maximum and its sum travel along the columns, one number each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.parallel.layers import slice_of
from weft.parallel.world import World


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
    """What this rank adds to each row's loss, [n]: columns and replicas together give it once."""
    losses = log_sums if world.place.column == 0 else torch.zeros_like(log_sums)
    rows, columns = _own_targets(world, y, classes)
    losses = losses.index_copy(0, rows, losses[rows] - logits[rows, columns])
    return losses if not world.grid.replicated or world.place.layer == 0 else losses * 0


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, y: Tensor, rows: Tensor, classes: int, count: int, world: World
    ) -> Tensor:
        chosen, y = logits[rows], y[rows]
        log_sums = _log_sums(world, chosen)
        ctx.save_for_backward(chosen, log_sums, y, rows)
        ctx.world, ctx.classes, ctx.count, ctx.shape = world, classes, count, logits.shape
        total = _losses(world, chosen, log_sums, y, classes).sum() / count
        return world.all_reduce("world", total, "loss")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        chosen, log_sums, y, rows = ctx.saved_tensors
        slopes = (chosen - log_sums[:, None]).exp()
        right, columns = _own_targets(ctx.world, y, ctx.classes)
        slopes[right, columns] -= 1
        out = slopes.new_zeros(ctx.shape)
        out[rows] = slopes * (grads[0] / ctx.count)
        return out, *(None,) * 5


def cross_entropy(
    world: World, logits: Tensor, y: Tensor, rows: Tensor, *, classes: int, count: int
) -> Tensor:
    """The mean loss over the chosen rows of all ranks, the same number on each.

    Args:
        world: the ranks.
        logits: [n, c / C], this rank's slice.
        y: int64 [n], the class of each row.
        rows: int64 [m], the rows that count.
        classes: c.
        count: chosen rows of all ranks.
    """
    args = (logits, y, rows, classes, count, world)
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
    """The likeliest class of each row, [n]; the first of equal ones."""
    own = slice_of(world, classes)
    if logits.shape[1]:
        highest, found = logits.max(1)
    else:
        highest = logits.new_full((len(logits),), -torch.inf)
        found = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    overall = world.all_reduce("column", highest.clone(), "scores", "max")
    found = torch.where(highest == overall, found + own.start, classes)
    return world.all_reduce("column", found, "scores", "min")
