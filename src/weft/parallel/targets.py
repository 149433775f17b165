"""Losses and scores of what a network on a grid gives: classes, labels, or numbers.

On a grid of several columns a rank has a slice of each node's outputs. A class needs the sums over
all slices; labels and numbers are independent of each other, so that only the loss travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from weft.parallel.grid_layers import cross_entropy, scores, slice_of
from weft.parallel.labels import TargetKind
from weft.parallel.shard import GraphShard
from weft.parallel.world import World

BALANCED = "balanced"


class Target:
    """The loss of the training nodes and the scores of all parts; all ranks call each method.

    Attributes:
        count: what the sum of the losses is divided by: known values, or the sum of their weights.
        class_weights: of classes or labels, as numbers; nothing where there are none.
    """

    count: float = 0.0
    class_weights: tuple[str, ...] = ()

    def __init__(self, shard: GraphShard, width: int) -> None:
        self.shard, self.world, self.width = shard, shard.world, width

    def loss(self, outputs: Tensor) -> Tensor:
        """The mean loss of the training nodes of all ranks, of this rank's outputs [n, w / C]."""
        raise NotImplementedError

    def scores(self, outputs: Tensor, *, ranking: bool) -> dict[str, float]:
        """`PART_loss` and more for each part of the split; `ranking` those that need a sort."""
        raise NotImplementedError


class ClassTarget(Target):
    """One class for each node: cross-entropy and accuracy."""

    def __init__(self, shard: GraphShard, width: int, weights: Sequence[str] = ()) -> None:
        """Weigh a node's loss by its class where there are `weights`, see `target_of`."""
        super().__init__(shard, width)
        self._rows = (shard.masks["train"] & (shard.y >= 0)).nonzero()[:, 0]
        self.count = shard.counts["train"]
        self._weights: Tensor | None = None
        if weights:
            own = torch.bincount(shard.y[self._rows].cpu(), minlength=width).double()
            counts = _over_ranks(self.world, own, counted=self.world.counts)
            balanced = counts.sum() / ((counts > 0).sum() * counts.clamp(min=1))
            found = _given(weights, balanced, "classes")
            self.class_weights = tuple(map(str, found.tolist()))
            self.count = float((found * counts).sum())
            if not self.count > 0:
                raise ValueError("the class weights of all training nodes are 0; raise one")
            self._weights = found.to(self.world.device, shard.dtype)[shard.y[self._rows]]

    def loss(self, outputs: Tensor) -> Tensor:
        """See `Target`."""
        return cross_entropy(
            self.world,
            outputs,
            self.shard.y,
            self._rows,
            classes=self.width,
            count=self.count,
            weights=self._weights,
        )

    def scores(self, outputs: Tensor, *, ranking: bool) -> dict[str, float]:
        """Loss, without weights of the classes, and accuracy."""
        shard = self.shard
        return scores(self.world, outputs, shard.y, shard.masks, classes=self.width)


class _Summed(torch.autograd.Function):
    """The sum of what the ranks add to a loss; each has the gradient of its own part."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, world: World) -> Tensor:
        counted = not world.grid.replicated or world.place.layer == 0
        return world.all_reduce("world", own.clone() if counted else own * 0, "loss")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


class _Elementwise(Target):
    """Targets [n, t] with a loss for each number that is known; nan is not."""

    def __init__(self, shard: GraphShard, width: int) -> None:
        super().__init__(shard, width)
        if width != shard.classes:
            raise ValueError(
                f"the model has {width} outputs, the graph {shard.classes} targets a node; make "
                "them as many"
            )
        self._own = slice_of(self.world, width)
        y = shard.y[:, self._own]
        self._known, self._y = ~y.isnan(), y.nan_to_num(0.0)
        self._replica = self.world.grid.replicated and self.world.place.layer > 0
        self._rows = shard.masks["train"].nonzero()[:, 0]
        known = self._known[self._rows].sum().double().cpu()[None]
        self.count = float(_over_ranks(self.world, known, counted=not self._replica))

    def _losses(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """The loss of each number [m, t / C] of some rows; of unknown ones it does not count."""
        raise NotImplementedError

    def loss(self, outputs: Tensor) -> Tensor:
        """See `Target`."""
        losses = self._losses(outputs, self._rows) * self._known[self._rows]
        out: Tensor = _Summed.apply(losses.sum() / self.count, self.world)  # type: ignore[no-untyped-call]
        return out

    def _sums(self, outputs: Tensor, mask: Tensor) -> list[Tensor]:
        """What this rank adds to the sums that the scores of a part are made of."""
        raise NotImplementedError

    def _totals(self, outputs: Tensor) -> dict[str, list[float]]:
        """The sums of all ranks by part: the losses, their number, then the target's own."""
        own, length = [], 0
        for mask in self.shard.masks.values():
            rows = mask.nonzero()[:, 0]
            known = self._known[rows]
            losses = self._losses(outputs, rows) * known
            each = [losses.sum(), known.sum(), *self._sums(outputs, rows)]
            length = len(each)
            own += [value.double() * (not self._replica) for value in each]
        total = self.world.all_reduce("world", torch.stack(own), "scores")
        parts = total.view(-1, length).tolist()
        return dict(zip(self.shard.masks, parts, strict=True))


class LabelTarget(_Elementwise):
    """Several labels for each node: binary cross-entropy, micro-averaged F1 and mean ROC AUC."""

    def __init__(self, shard: GraphShard, width: int, weights: Sequence[str] = ()) -> None:
        """Weigh positive labels where there are `weights`, see `target_of`."""
        super().__init__(shard, width)
        self._positive: Tensor | None = None
        if weights:
            counts = torch.zeros(2, width, dtype=torch.float64)
            known, y = self._known[self._rows], self._y[self._rows]
            counts[0, self._own] = (y * known).sum(0).double().cpu()
            counts[1, self._own] = known.sum(0).double().cpu()
            positive, every = _over_ranks(self.world, counts, counted=not self._replica)
            balanced = torch.where(positive > 0, (every - positive) / positive.clamp(min=1), 1.0)
            found = _given(weights, balanced, "labels")
            self.class_weights = tuple(map(str, found.tolist()))
            self._positive = found[self._own].to(self.world.device, shard.dtype)

    def _losses(self, outputs: Tensor, rows: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(
            outputs[rows], self._y[rows], pos_weight=self._positive, reduction="none"
        )

    def _sums(self, outputs: Tensor, rows: Tensor) -> list[Tensor]:
        """Labels that are there and found, that are found, and that are there."""
        known, there = self._known[rows], self._y[rows] > 0
        found = (outputs[rows] > 0) & known
        return [(found & there).sum(), found.sum(), (there & known).sum()]

    def scores(self, outputs: Tensor, *, ranking: bool) -> dict[str, float]:
        """Loss, F1 over all labels together, and with `ranking` the mean AUC of the labels."""
        result = {}
        for part, (loss, count, both, found, there) in self._totals(outputs).items():
            result[f"{part}_loss"] = loss / count if count else float("nan")
            result[f"{part}_f1"] = 2 * both / (found + there) if found + there else float("nan")
        if ranking:
            for part, mask in self.shard.masks.items():
                result[f"{part}_auc"] = self._mean_auc(outputs, mask)
        return result

    def _mean_auc(self, outputs: Tensor, mask: Tensor) -> float:
        """The mean over labels that have both values; rank 0 ranks all nodes of the part."""
        rows = mask.nonzero()[:, 0] if not self._replica else mask.nonzero()[:0, 0]
        y = self.shard.y[rows][:, self._own]
        own = (self._own.start, outputs[rows].float().cpu().numpy(), y.float().cpu().numpy())
        world = self.world
        if world.ranks == 1 or world.dry:
            return mean_auc([own], self.width)
        everyone: list[Any] | None = [None] * world.ranks if world.rank == 0 else None
        dist.gather_object(own, everyone)
        found: float = world.broadcast_from_rank0(lambda: mean_auc(everyone or [], self.width))
        return found


class NumberTarget(_Elementwise):
    """Numbers for each node: squared errors in standard deviations of the training nodes."""

    def __init__(self, shard: GraphShard, width: int) -> None:
        """Take the scale from the shard's table."""
        super().__init__(shard, width)
        scale = shard.table.metadata["target_scale"]
        self._mean, self._std = (
            torch.tensor(scale[name], dtype=shard.dtype, device=self.world.device)
            for name in ("mean", "std")
        )

    def _losses(self, outputs: Tensor, rows: Tensor) -> Tensor:
        mean, std = self._mean[self._own], self._std[self._own]
        return (outputs[rows] - (self._y[rows] - mean) / std) ** 2

    def _sums(self, outputs: Tensor, rows: Tensor) -> list[Tensor]:
        """Errors and their squares in the target's own unit, and the spread of the target."""
        mean, std = self._mean[self._own], self._std[self._own]
        known, y = self._known[rows], self._y[rows].double()
        error = ((outputs[rows] * std + mean).double() - y) * known
        # From the training mean, which guesses as well as one can without the network.
        spread = ((y - mean.double()) * known) ** 2
        return [error.abs().sum(), (error**2).sum(), spread.sum()]

    def scores(self, outputs: Tensor, *, ranking: bool) -> dict[str, float]:
        """Loss; mean absolute and root mean squared error in the target's unit; R².

        R² is 1 - Σ error² / Σ (y - mean of the training nodes)²: 0 for that mean as a guess.
        """
        nan = float("nan")
        result = {}
        for part, (loss, count, error, square, spread) in self._totals(outputs).items():
            result[f"{part}_loss"] = loss / count if count else nan
            result[f"{part}_mae"] = error / count if count else nan
            result[f"{part}_rmse"] = (square / count) ** 0.5 if count else nan
            result[f"{part}_r2"] = 1 - square / spread if spread else nan
        return result


def target_of(shard: GraphShard, width: int, class_weights: Sequence[str] = ()) -> Target:
    """The target of a prepared graph, for a network of `width` outputs; all ranks together.

    Args:
        shard: this rank's part.
        width: outputs of the network.
        class_weights: nothing, `balanced`, or a number for each class (for each label: of nodes
            that have it). Balanced gives each class the same weight in all, n / (c nᵢ), and of each
            label those that have it as much as those that have not.

    Raises:
        ValueError: on every rank: they do not fit the target.
    """
    kind = shard.table.metadata.get("target", "classes")
    if kind == "classes":
        return ClassTarget(shard, width, class_weights)
    if kind == "multilabel":
        return LabelTarget(shard, width, class_weights)
    if class_weights:
        raise ValueError("class weights are given, but the target is numbers; leave them out")
    return NumberTarget(shard, width)


def predictions_of(
    outputs: Tensor, kind: TargetKind, scale: Mapping[str, Sequence[float]] | None
) -> Tensor:
    """What outputs [n, w] say: probabilities of classes or labels, or numbers in their own unit.

    Args:
        outputs: whole rows.
        kind: of the target.
        scale: of numbers, see `weft.parallel.labels.target_scale`.
    """
    if kind == "classes":
        return outputs.softmax(1)
    if kind == "multilabel":
        return outputs.sigmoid()
    assert scale is not None
    return outputs * outputs.new_tensor(scale["std"]) + outputs.new_tensor(scale["mean"])


def mean_auc(parts: Sequence[tuple[int, Any, Any]], width: int) -> float:
    """The mean ROC AUC over the labels of which there are both values, nan for none.

    Args:
        parts: of each rank its first label, scores and labels, both [m, k], nan for unknown.
        width: labels in all.
    """
    # Imported here: SciPy's statistics take a second, and only labels need them.
    from scipy.stats import rankdata

    found = []
    for label in range(width):
        columns = [
            (scores[:, label - first], y[:, label - first])
            for first, scores, y in parts
            if 0 <= label - first < scores.shape[1]
        ]
        ranked = np.concatenate([each for each, _ in columns])
        y = np.concatenate([each for _, each in columns])
        known = ~np.isnan(y)
        there = y[known] > 0
        if there.any() and not there.all():
            positive, negative = int(there.sum()), int((~there).sum())
            above = rankdata(ranked[known])[there].sum() - positive * (positive + 1) / 2
            found.append(above / (positive * negative))
    return float(np.mean(found)) if found else float("nan")


def _over_ranks(world: World, own: Tensor, *, counted: bool) -> Tensor:
    """The sum over all ranks of float64 values on the CPU, of those that are `counted`."""
    total = own if counted else torch.zeros_like(own)
    world.reduce(total)
    return total


def _given(weights: Sequence[str], balanced: Tensor, what: str) -> Tensor:
    """The weights [w] that the words ask for."""
    if list(weights) == [BALANCED]:
        return balanced
    found = torch.tensor([float(word) for word in weights], dtype=torch.float64)
    if len(found) != len(balanced):
        raise ValueError(
            f"{len(found)} class weights for {len(balanced)} {what}: give one for each, or balanced"
        )
    return found
