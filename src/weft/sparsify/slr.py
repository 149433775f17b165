"""Train and prune by surrogate Lagrangian relaxation (SLR)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from weft.sparsify.densities import Densities
from weft.sparsify.snapshots import in_evaluation, restore, snapshot
from weft.sparsify.train_and_prune import Objective, TrainAndPrune


def step_factor(k: int, M: float = 200.0, r: float = 0.1) -> float:
    """αₖ = 1 - 1 / (M k^(1 - k^-r)), by which SLR's step size shrinks in iteration k = 1, 2, ..."""
    return 1 - 1 / (M * math.pow(k, 1 - math.pow(k, -r)))


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

    Args:
        model: any module; see `Masks` for which of its weights are pruned.
        optimizer: of the model.
        sparsity: share of the weights to prune.
        phases: epochs of dense training, re-weighting and retraining.
        rho: ρ; the paper has 0.01 for link prediction, 0.02 for node classification.
        step: s before the first iteration; the paper has the same as ρ.
        M: of αₖ, above 1.
        r: of αₖ, between 0 and 1.
        densities: of the layers: the same for all, as in the paper, or Erdős-Rényi-kernel, which
            spares narrow ones.
        overrides: sparsities of single layers, by name or pattern; `sparsity` is that of the
            others.
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
        sparsity: float,
        phases: Sequence[int] = (20, 10, 10),
        rho: float = 0.01,
        step: float = 0.01,
        M: float = 200.0,
        r: float = 0.1,
        densities: Densities = "uniform",
        overrides: Mapping[str, float] | None = None,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        example: Any = None,
        keep_one: bool = False,
        quiet: bool = False,
    ) -> None:
        if not 0 < step < math.inf:
            raise ValueError(f"step is {step}; it must be above 0")
        if not M > 1:
            raise ValueError(f"M is {M}; it must be above 1")
        if not 0 < r < 1:
            raise ValueError(f"r is {r}; it must be between 0 and 1")
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
            overrides=overrides,
            include=include,
            exclude=exclude,
            example=example,
            keep_one=keep_one,
            quiet=quiet,
        )

    def end_epoch(self, objective: Objective | None = None) -> None:
        """Say that an epoch is over; after the last of a phase the next one begins.

        Args:
            objective: computes f(W), the loss without `penalty()`, from the model as it is; needed
                in re-weighting. It is called with the weights of now and of an epoch ago, in
                evaluation mode and without gradients, and must use the same data both times: the
                whole training set, or a fixed part of it. Under DistributedDataParallel each rank
                may use its own.

        Raises:
            ValueError: there is no objective in re-weighting, or it is not finite.
        """
        super().end_epoch(objective)

    def state_dict(self) -> dict[str, Any]:
        """What training goes on from, beside the model's and the optimizer's states."""
        return {
            **super().state_dict(),
            "iteration": self.iteration,
            "step": self.step,
            "conditions": self.conditions,
            "before": {name: value.clone() for name, value in self._before.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the model's and optimizer's are loaded before or after.

        Raises:
            ValueError: it is of another method, of other phases or of other counts of weights.
        """
        super().load_state_dict(state)
        self.iteration, self.step = int(state["iteration"]), float(state["step"])
        self.conditions = (bool(state["conditions"][0]), bool(state["conditions"][1]))
        self._before = {name: value.clone() for name, value in state["before"].items()}

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
            self._climb(now, self.targets, gap)
        targets = self._projected(now)
        second = self._penalty_of(now, targets) < self._penalty_of(now, self.targets)
        if second:
            self._climb(now, targets, gap)
            self.iteration += 1
        self.conditions, self.targets, self._before = (first, second), targets, snapshot(self.model)

    def _climb(
        self, weights: Mapping[str, Tensor], targets: Mapping[str, Tensor], gap: float
    ) -> None:
        """Move Λ along W - Z; `gap` is the distance an epoch ago."""
        gap_now = _distance(weights, targets)
        if gap == 0 or gap_now == 0:
            return  # No step size follows from a ratio with 0; nor does a direction.
        self.step *= step_factor(self.iteration, self.M, self.r) * gap / gap_now
        for name, weight in weights.items():
            self.multipliers[name] = self.multipliers[name] + self.step * (weight - targets[name])

    def _penalty_of(self, weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> float:
        total = 0.0
        for name, weight in weights.items():
            gap = weight.double() - targets[name].double()
            linear = (self.multipliers[name].double() * gap).sum()
            total += float(linear + self.rho / 2 * gap.square().sum())
        return total

    def _change(self, objective: Objective) -> float:
        """f now less f an epoch ago, the mean of all ranks."""
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
        """All parameters and buffers as they were an epoch ago; then as now, to the bit."""
        now = snapshot(self.model)
        try:
            restore(self.model, self._before)
            yield
        finally:
            restore(self.model, now)


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((one[n] - other[n]).double().square().sum()) for n in one))
