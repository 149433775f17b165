"""Gradual magnitude pruning: from dense to sparse while the model trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from weft.sparsify.densities import kept_shares, layer_nnz, uniform
from weft.sparsify.masks import Masks
from weft.sparsify.matrices import tell
from weft.sparsify.ranking import mask_of, top
from weft.sparsify.schedules import CubicSchedule


class GradualPruning:
    """Prunes the smallest weights of each layer by and by (GMP, Zhu and Gupta 2017).

    The sparsity is s + (initial - s) · (1 - t)³, t going from 0 at step `begin` to 1 at `stop` of
    the training. Hooks of the optimizer do it; the loop stays as it is. What is pruned stays so.

    Args:
        model: any module; see `Masks` for which of its weights are masked.
        optimizer: of the model.
        total_steps: optimizer steps of the whole training.
        sparsity: final share of weights that is 0, of every layer.
        initial: the sparsity at step `begin`.
        begin: step at which pruning begins.
        every: steps between prunings.
        stop: share of the training at which the final sparsity is there.
        overrides: final sparsities of single layers, by name or pattern.
        include: names or patterns of weights to make sparse; None: all weight matrices.
        exclude: names or patterns of weights to leave dense.
        example: a batch as the model takes it, which shows what multiplies features in layers
            that are not known; see `Masks`.
        keep_one: keep one weight of a layer that would have none, rather than refuse.
        quiet: do not print which weights were chosen and which are left dense.

    Raises:
        ValueError: a setting is out of its range, a layer would be empty, a name or pattern
            matches nothing, or the optimizer does not have one of the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        total_steps: int,
        sparsity: float = 0.9,
        initial: float = 0.0,
        begin: int = 0,
        every: int = 100,
        stop: float = 0.75,
        overrides: Mapping[str, float] | None = None,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        example: Any = None,
        keep_one: bool = False,
        quiet: bool = False,
    ) -> None:
        self.schedule = CubicSchedule(total_steps=total_steps, begin=begin, every=every, stop=stop)
        if not 0 <= initial < 1:
            raise ValueError(f"initial is {initial}; it must be from 0 to below 1")
        self.masks = Masks(model, include=include, exclude=exclude, example=example)
        self.step, self.initial = 0, initial
        shapes = self.masks.shapes
        self._final = uniform(shapes, *kept_shares(sparsity, overrides))
        layer_nnz(shapes, self._final, keep_one=keep_one)
        self.schedule.warn_if_sudden()
        self._prune_if_due()
        self.masks.attach(optimizer, after=self._after)
        tell(self.masks.selection, quiet=quiet)

    def state_dict(self) -> dict[str, Any]:
        """What training goes on from, beside the model's and the optimizer's states."""
        return {"step": self.step, "masks": self.masks.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the model's and optimizer's are loaded before or after.

        Raises:
            ValueError: it is of other weights.
        """
        self.masks.load_state_dict(state["masks"])
        self.masks.apply_()
        self.step = int(state["step"])

    def __repr__(self) -> str:
        plan = self.schedule
        return (
            f"GradualPruning: step {self.step} of {plan.total_steps}, every {plan.every} steps "
            f"from {plan.begin} to {plan.end}\n{self.masks}"
        )

    def _after(self) -> None:
        self.step += 1
        self._prune_if_due()
        self.masks.apply_()

    def _prune_if_due(self) -> None:
        if not self.schedule.prunes_at(self.step):
            return
        left, first = 1 - self.schedule.progress(self.step), 1 - self.initial
        densities = {
            # A layer that ends denser than others begin is pruned to there at once.
            name: last + max(first - last, 0.0) * left
            for name, last in self._final.items()
        }
        for name, count in layer_nnz(self.masks.shapes, densities, keep_one=True).items():
            active, weight = self.masks[name], self.masks.weight(name)
            scores = weight.detach().abs().masked_fill(~active, -1)
            count = min(count, int(active.sum()))
            self.masks.set(name, mask_of(top(scores.flatten(), count), active))
