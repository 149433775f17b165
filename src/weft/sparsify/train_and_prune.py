"""Train, re-weight, prune, retrain: by surrogate Lagrangian relaxation (SLR) or by ADMM."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from typing_extensions import Unpack

from weft.sparsify.densities import Densities, LayerChoice, choose_target
from weft.sparsify.masks import best
from weft.sparsify.snapshots import in_evaluation, restore, snapshot

Phase = Literal["dense", "reweight", "retrain", "done"]
Alpha = Literal["slr", "printed"]
Objective = Callable[[], "Tensor | float"]


class TrainAndPrune:
    """Three phases of epochs, with a sparse copy Z of the weights W in the second.

    Dense training; re-weighting, in which `penalty()` draws each layer's W to its Z, which has
    exactly as many nonzeros as the layer is to keep; then all but the largest weights of each
    layer are pruned, and the others are retrained under masks. `penalty()` is
    Λ · (W - Z) + ρ/2 ‖W - Z‖²; how Z and the multipliers Λ move after each epoch depends on the
    method (`SLR`, `ADMM`).

    Attributes:
        masks: all active until weights are pruned, then attached to the optimizer.
        epoch: epochs that have ended.
        targets: Z by name, while weights are re-weighted.
        multipliers: Λ by name, while weights are re-weighted.

    Args:
        model: any module.
        optimizer: of the model.
        sparsity: share of the weights to prune.
        phases: epochs of dense training, re-weighting and retraining.
        rho: ρ.
        densities: of the layers: the same for all, as in the papers, or Erdős-Rényi-kernel, which
            spares narrow ones.
        **choice: which weights, and how sparse single layers become; see `LayerChoice`.

    Raises:
        ValueError: a setting is out of its range, a layer would be empty, a name or pattern
            matches nothing, or the optimizer does not have one of the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        phases: Sequence[int] = (20, 10, 10),
        rho: float = 0.01,
        densities: Densities = "uniform",
        **choice: Unpack[LayerChoice],
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
        self.masks, _, self._kept = choose_target(model, sparsity, densities, **choice)
        # This refuses an optimizer without the weights now, not after the dense epochs.
        self.masks.attach(optimizer)
        self.masks.detach()
        self.targets: dict[str, Tensor] = {}
        self.multipliers: dict[str, Tensor] = {}
        self._enter()

    @property
    def phase(self) -> Phase:
        """The phase of the next epoch; `done` after the last."""
        names: tuple[Phase, ...] = ("dense", "reweight", "retrain", "done")
        return names[sum(self.epoch >= end for end in accumulate(self.phases))]

    @property
    def total_epochs(self) -> int:
        """Epochs of all phases together."""
        return sum(self.phases)

    def penalty(self) -> Tensor:
        """Λ · (W - Z) + ρ/2 ‖W - Z‖², a scalar to add to every batch's loss; 0 in other phases.

        Gradients flow to W alone.
        """
        self._follow()
        weights = {name: self.masks.weight(name) for name in self.masks}
        device = weights[self.masks.names[0]].device
        parts = [part.to(device) for part in self._penalties(weights, self.targets)]
        return torch.stack(parts).sum() if parts else torch.zeros((), device=device)

    def end_epoch(self, objective: Objective | None = None) -> None:
        """Say that an epoch is over; after the last of a phase the next one begins.

        Args:
            objective: computes f(W), the loss without `penalty()`, from the model as it is; SLR
                needs it in re-weighting. It is called with the present weights and with those of
                an epoch ago, in evaluation mode and without gradients, and must use the same data
                both times: the whole training set, or a fixed part of it. Under
                DistributedDataParallel each rank may use its own.

        Raises:
            ValueError: SLR is given no objective in re-weighting, or one that is not finite.
        """
        if self.phase == "reweight":
            self._move(objective)
        self.epoch += 1
        self._enter()

    def state_dict(self) -> dict[str, Any]:
        """The state that training resumes from, beside those of the model and the optimizer."""
        return {
            "method": type(self).__name__,
            "phases": self.phases,
            "kept": dict(self._kept),
            "structure": str(self.masks.structure),
            "epoch": self.epoch,
            "masks": self.masks.state_dict(),
            "targets": _copies(self.targets),
            "multipliers": _copies(self.multipliers),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; those of the model and the optimizer are loaded before or after.

        Raises:
            ValueError: it is of another method, of other phases or of other counts of weights.
        """
        ours = self.state_dict()
        # Older states know no structure.
        state = {"structure": "weights", **state}
        named = {"method": "method", "phases": "phases", "kept": "weights to keep"}
        for key, what in {**named, "structure": "structure"}.items():
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
        """Begin the present phase, unless it has begun already."""
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
            self.masks.set(name, self._largest(name, weight))
        self.masks.apply_()

    def _penalties(
        self, weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Λ · (W - Z) + ρ/2 ‖W - Z‖² of each layer that has a target, in the weights' dtype."""
        parts = []
        for name, target in targets.items():
            gap = weights[name] - target.to(weights[name].dtype)
            linear = (self.multipliers[name].to(gap.dtype) * gap).sum()
            parts.append(linear + self.rho / 2 * gap.square().sum())
        return parts

    def _climb(
        self, step: float, weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]
    ) -> None:
        """Λ += step (W - Z)."""
        for name, weight in weights.items():
            self.multipliers[name] = self.multipliers[name] + step * (weight - targets[name])

    def _now(self) -> dict[str, Tensor]:
        """The weights themselves, without gradients."""
        return {name: self.masks.weight(name).detach() for name in self.masks}

    def _follow(self) -> None:
        """Bring Z and Λ to where `model.to(device)` has brought the weights."""
        for values in (self.targets, self.multipliers):
            for name, value in values.items():
                values[name] = value.to(self.masks.weight(name).device)

    def _largest(self, name: str, values: Tensor) -> Tensor:
        """The mask of the largest groups of values, as many as the layer keeps."""
        groups = self.masks.groups(name)
        return groups.mask(best(groups.magnitudes(values), self._kept[name]))

    def _project(self, name: str, values: Tensor) -> Tensor:
        """The tensor nearest to `values` with as many nonzeros as the layer keeps; a new one."""
        return values.masked_fill(~self._largest(name, values), 0)

    def _projected(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Z = topk(W + Λ/ρ) of each layer, the minimum of the penalty in Z."""
        return {
            name: self._project(name, weight + self.multipliers[name] / self.rho)
            for name, weight in weights.items()
        }


class ADMM(TrainAndPrune):
    """Dense training, re-weighting by ADMM, pruning, retraining (Zhang et al. 2018).

    After each epoch of re-weighting Z = topk(W + U) and U += W - Z; `penalty()` is, but for a
    constant, ρ/2 ‖W - Z + U‖². In the terms of `SLR`, whose baseline this is, Λ = ρ U and a step
    size of ρ. It is used as `SLR` is; `end_epoch()` needs no objective.

    Arguments and errors are those of `TrainAndPrune`.
    """

    @torch.no_grad()
    def _move(self, objective: Objective | None) -> None:
        self._follow()
        weights = self._now()
        self.targets = self._projected(weights)
        self._climb(self.rho, weights, self.targets)


def step_factor(k: int, M: float = 200.0, r: float = 0.1, alpha: Alpha = "slr") -> float:
    """αₖ, by which SLR's step size shrinks in iteration k = 1, 2, ...

    αₖ = 1 - 1 / (M k^p) with p = 1 - k^-r as in the papers on SLR, which rises to 1 step by step;
    or `printed` by Peng et al. (2022), p = 1 - 1 / (k r), which falls to 0.92 first.
    """
    power = 1 - (math.pow(k, -r) if alpha == "slr" else 1 / (k * r))
    return 1 - 1 / (M * math.pow(k, power))


class SLR(TrainAndPrune):
    """Dense training, re-weighting by SLR, pruning, retraining (Gurevin et al. 2021).

    An epoch of re-weighting is an iteration k: the epoch itself lowers
    L(W, Z, Λ) = f(W) + Λ · (W - Z) + ρ/2 ‖W - Z‖² in W; then, with the step size s,

    - if L(Wᵏ, Zᵏ⁻¹, Λ) < L(Wᵏ⁻¹, Zᵏ⁻¹, Λ): s *= αₖ ‖Wᵏ⁻¹ - Zᵏ⁻¹‖ / ‖Wᵏ - Zᵏ⁻¹‖ and
      Λ += s (Wᵏ - Zᵏ⁻¹);
    - Zᵏ = topk(Wᵏ + Λ/ρ), by layer;
    - if L(Wᵏ, Zᵏ, Λ) < L(Wᵏ, Zᵏ⁻¹, Λ): s *= αₖ ‖Wᵏ⁻¹ - Zᵏ⁻¹‖ / ‖Wᵏ - Zᵏ‖ and Λ += s (Wᵏ - Zᵏ);
      otherwise the next epoch is iteration k again, from the latest W and Z.

    Norms, and the step size, are of all layers together, as L is.

    ```
    slr = SLR(model, optimizer, sparsity=0.9)
    for epoch in range(slr.total_epochs):
        for batch in batches:
            optimizer.zero_grad()
            (loss(model, batch) + slr.penalty()).backward()
            optimizer.step()
        slr.end_epoch(lambda: loss(model, data))
    ```

    Attributes:
        iteration: k of the next epoch of re-weighting.
        step: s.
        conditions: whether the two inequalities held after the last epoch of re-weighting.

    Args are those of `TrainAndPrune`, whose errors these are too, and:
        rho: ρ; the paper has 0.01 for link prediction, 0.02 for node classification.
        step: s before the first iteration; the paper has the same as ρ.
        M: of αₖ, above 1.
        r: of αₖ, between 0 and 1.
        alpha: which αₖ, see `step_factor`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        phases: Sequence[int] = (20, 10, 10),
        rho: float = 0.01,
        step: float = 0.01,
        M: float = 200.0,
        r: float = 0.1,
        alpha: Alpha = "slr",
        densities: Densities = "uniform",
        **choice: Unpack[LayerChoice],
    ) -> None:
        if not 0 < step < math.inf:
            raise ValueError(f"step is {step}; it must be above 0")
        if not M > 1:
            raise ValueError(f"M is {M}; it must be above 1")
        if not 0 < r < 1:
            raise ValueError(f"r is {r}; it must be between 0 and 1")
        if alpha not in get_args(Alpha):
            raise ValueError(f"alpha is {alpha!r}; choose from {', '.join(get_args(Alpha))}")
        self.alpha: Alpha = alpha
        self.step, self.M, self.r, self.iteration = float(step), float(M), float(r), 1
        self.conditions = (False, False)
        self._before: dict[str, Tensor] = {}
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            phases=phases,
            rho=rho,
            densities=densities,
            **choice,
        )

    def state_dict(self) -> dict[str, Any]:
        """The state that training resumes from, beside those of the model and the optimizer."""
        return {
            **super().state_dict(),
            "iteration": self.iteration,
            "step": self.step,
            "conditions": self.conditions,
            "before": _copies(self._before),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, see `TrainAndPrune.load_state_dict`."""
        super().load_state_dict(state)
        self.iteration, self.step = int(state["iteration"]), float(state["step"])
        self.conditions = (bool(state["conditions"][0]), bool(state["conditions"][1]))
        self._before = _copies(state["before"])

    def _start(self) -> None:
        super()._start()
        self._before = snapshot(self.model)

    def _prune(self) -> None:
        super()._prune()
        self._before = {}

    @torch.no_grad()
    def _move(self, objective: Objective | None) -> None:
        if objective is None:
            raise ValueError(
                f"epoch {self.epoch} was one of re-weighting: SLR compares losses there; give "
                "end_epoch a function that computes the loss from the model"
            )
        fell = self._change(objective)
        self._follow()
        now = self._now()
        old = {name: self._before[name].to(weight.device) for name, weight in now.items()}
        gap = _distance(old, self.targets)
        first = fell + self._penalty_of(now, self.targets) < self._penalty_of(old, self.targets)
        if first:
            self._climb_by_gap(now, self.targets, gap)
        targets = self._projected(now)
        second = self._penalty_of(now, targets) < self._penalty_of(now, self.targets)
        if second:
            self._climb_by_gap(now, targets, gap)
            self.iteration += 1
        self.conditions, self.targets, self._before = (first, second), targets, snapshot(self.model)

    def _climb_by_gap(
        self, weights: Mapping[str, Tensor], targets: Mapping[str, Tensor], gap: float
    ) -> None:
        """Move Λ along W - Z; `gap` is the distance an epoch ago."""
        gap_now = _distance(weights, targets)
        if gap == 0 or gap_now == 0:
            return  # No step size follows from a ratio with 0; nor does a direction.
        self.step *= step_factor(self.iteration, self.M, self.r, self.alpha) * gap / gap_now
        self._climb(self.step, weights, targets)

    def _penalty_of(self, weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> float:
        exact = {name: weight.double() for name, weight in weights.items()}
        return sum(map(float, self._penalties(exact, targets)))

    def _change(self, objective: Objective) -> float:
        """f now minus f an epoch ago, the mean of all ranks."""
        with in_evaluation(self.model):
            new = float(objective())
            with self._as_before():
                old = float(objective())
        if not (math.isfinite(new) and math.isfinite(old)):
            raise ValueError(
                f"the objective is {new} after epoch {self.epoch}, {old} before it; SLR needs "
                "finite losses: lower the learning rate, or rho"
            )
        change = new - old
        if distributed.is_available() and distributed.is_initialized():
            # Every rank must decide the same.
            device = self.masks.weight(self.masks.names[0]).device
            share = change / distributed.get_world_size()
            mean = torch.tensor(share, dtype=torch.float64, device=device)
            distributed.all_reduce(mean)
            change = float(mean)
        return change

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        """Parameters and buffers of an epoch ago; afterwards the present ones again, to the bit."""
        now = snapshot(self.model)
        try:
            restore(self.model, self._before)
            yield
        finally:
            restore(self.model, now)


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((one[n] - other[n]).double().square().sum()) for n in one))


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}
