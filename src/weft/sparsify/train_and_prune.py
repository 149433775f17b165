"""Train, re-weight, prune, retrain: the schedule that SLR and ADMM share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.sparsify.densities import Densities, kept_counts
from weft.sparsify.masks import Masks
from weft.sparsify.matrices import tell
from weft.sparsify.ranking import mask_of, top

Phase = Literal["dense", "reweight", "retrain", "done"]
Objective = Callable[[], "Tensor | float"]


class TrainAndPrune:
    """Three phases of epochs, with a sparse copy Z of the weights W in the second.

    Dense training; re-weighting, in which `penalty()` draws each layer's W to its Z, which has
    exactly as many nonzeros as the layer is to keep; then all but the largest weights of each
    layer are pruned, and the others are retrained under masks. What `penalty()` is made of is
    Λ · (W - Z) + ρ/2 ‖W - Z‖²; how Z and the multipliers Λ move after each epoch is the method's
    own (`SLR`, `ADMM`).

    Attributes:
        masks: all active until weights are pruned, then attached to the optimizer.
        epoch: epochs that have ended.
        targets: Z by name, while weights are re-weighted.
        multipliers: Λ by name, while weights are re-weighted.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        phases: Sequence[int],
        rho: float,
        densities: Densities,
        overrides: Mapping[str, float] | None,
        include: Sequence[str] | None,
        exclude: Sequence[str],
        example: Any,
        keep_one: bool,
        quiet: bool,
    ) -> None:
        if len(phases) != 3 or any(int(epochs) != epochs or epochs < 0 for epochs in phases):
            raise ValueError(
                f"phases is {tuple(phases)}; it must be three whole numbers of epochs, 0 or more: "
                "dense training, re-weighting, retraining"
            )
        if not 0 < rho < math.inf:
            raise ValueError(f"rho is {rho}; it must be above 0")
        self.model, self.optimizer = model, optimizer
        self.phases = (int(phases[0]), int(phases[1]), int(phases[2]))
        self.rho, self.epoch = float(rho), 0
        self.masks = Masks(model, include=include, exclude=exclude, example=example)
        self._kept = kept_counts(
            self.masks.shapes, densities, sparsity, overrides, keep_one=keep_one
        )
        # An optimizer without the weights is better known now than after the dense epochs.
        self.masks.attach(optimizer)
        self.masks.detach()
        tell(self.masks.selection, quiet=quiet)
        self.targets: dict[str, Tensor] = {}
        self.multipliers: dict[str, Tensor] = {}
        self._enter()

    @property
    def phase(self) -> Phase:
        """What the next epoch is: of dense training, re-weighting, retraining, or after all."""
        dense, reweight, retrain = self.phases
        if self.epoch < dense:
            return "dense"
        if self.epoch < dense + reweight:
            return "reweight"
        return "retrain" if self.epoch < dense + reweight + retrain else "done"

    @property
    def total_epochs(self) -> int:
        """Epochs of all phases."""
        return sum(self.phases)

    def penalty(self) -> Tensor:
        """Λ · (W - Z) + ρ/2 ‖W - Z‖², a scalar to add to every batch's loss; 0 in other phases.

        Gradients flow to W alone.
        """
        self._follow()
        parts = []
        for name, target in self.targets.items():
            gap = self.masks.weight(name) - target
            parts.append((self.multipliers[name] * gap).sum() + self.rho / 2 * gap.square().sum())
        if not parts:
            return torch.zeros((), device=self.masks.weight(self.masks.names[0]).device)
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()

    def end_epoch(self, objective: Objective | None = None) -> None:
        """Say that an epoch is over; after the last of a phase the next one begins.

        Args:
            objective: f(W), the loss without `penalty()`; SLR needs it in re-weighting.
        """
        if self.phase == "reweight":
            self._move(objective)
        self.epoch += 1
        self._enter()

    def state_dict(self) -> dict[str, Any]:
        """What training goes on from, beside the model's and the optimizer's states."""
        return {
            "method": type(self).__name__,
            "phases": self.phases,
            "kept": dict(self._kept),
            "epoch": self.epoch,
            "masks": self.masks.state_dict(),
            "targets": _copies(self.targets),
            "multipliers": _copies(self.multipliers),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the model's and optimizer's are loaded before or after.

        Raises:
            ValueError: it is of another method, of other phases or of other counts of weights.
        """
        ours = self.state_dict()
        for key, what in (("method", "method"), ("phases", "phases"), ("kept", "weights to keep")):
            theirs = tuple(state[key]) if key == "phases" else state[key]
            if theirs != ours[key]:
                raise ValueError(
                    f"the state's {what} is {theirs}, here it is {ours[key]}; make this with the "
                    "settings that it was saved with"
                )
        self.masks.detach()
        self.masks.load_state_dict(state["masks"])
        self.epoch = int(state["epoch"])
        self.targets, self.multipliers = _copies(state["targets"]), _copies(state["multipliers"])
        if self.phase in ("retrain", "done"):
            self.masks.attach(self.optimizer)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}: epoch {self.epoch} of {self.total_epochs} "
            f"({' + '.join(map(str, self.phases))}), phase {self.phase}\n{self.masks}"
        )

    def _enter(self) -> None:
        """Do what a phase begins with, where it has not begun yet."""
        if self.phase == "reweight" and not self.targets:
            self._start()
        elif self.phase in ("retrain", "done") and self.masks.optimizer is None:
            self._prune()

    @torch.no_grad()
    def _start(self) -> None:
        self.targets = {name: self._project(name, weight) for name, weight in self._now().items()}
        self.multipliers = {name: torch.zeros_like(z) for name, z in self.targets.items()}

    def _move(self, objective: Objective | None) -> None:
        """Move Z and Λ after an epoch of re-weighting."""
        raise NotImplementedError

    def _prune(self) -> None:
        self.targets, self.multipliers = {}, {}
        # Attached before they are set: the optimizer forgets what it knew of pruned weights.
        self.masks.attach(self.optimizer)
        for name, weight in self._now().items():
            self.masks.set(name, mask_of(self._largest(name, weight), weight))
        self.masks.apply_()

    def _now(self) -> dict[str, Tensor]:
        """The weights themselves, without gradients."""
        return {name: self.masks.weight(name).detach() for name in self.masks}

    def _follow(self) -> None:
        """Bring Z and Λ to where `model.to(device)` has brought the weights."""
        for values in (self.targets, self.multipliers):
            for name, value in values.items():
                values[name] = value.to(self.masks.weight(name).device)

    def _largest(self, name: str, values: Tensor) -> Tensor:
        return top(values.abs().flatten(), self._kept[name])

    def _project(self, name: str, values: Tensor) -> Tensor:
        """The nearest to `values` with as many nonzeros as the layer keeps; a new tensor."""
        return values.masked_fill(~mask_of(self._largest(name, values), values), 0)

    def _projected(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Z = topk(W + Λ/ρ) of each layer, the minimum of the penalty in Z."""
        return {
            name: self._project(name, weight + self.multipliers[name] / self.rho)
            for name, weight in weights.items()
        }


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}
