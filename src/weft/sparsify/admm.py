"""Train and prune by the alternating direction method of multipliers (ADMM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from weft.sparsify.densities import Densities
from weft.sparsify.train_and_prune import Objective, TrainAndPrune


class ADMM(TrainAndPrune):
    """Dense training, re-weighting by ADMM, pruning, retraining (Zhang et al. 2018).

    After each epoch of re-weighting Z = topk(W + U) and U += W - Z; `penalty()` is, but for a
    constant, ρ/2 ‖W - Z + U‖². In the terms of `SLR`, whose baseline this is, Λ = ρ U and a step
    size of ρ. It is used as `SLR` is; `end_epoch()` needs no objective.

    Args:
        model: any module; see `Masks` for which of its weights are pruned.
        optimizer: of the model.
        sparsity: share of the weights to prune.
        phases: epochs of dense training, re-weighting and retraining.
        rho: ρ.
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
        densities: Densities = "uniform",
        overrides: Mapping[str, float] | None = None,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        example: Any = None,
        keep_one: bool = False,
        quiet: bool = False,
    ) -> None:
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

    @torch.no_grad()
    def _move(self, objective: Objective | None) -> None:
        self._follow()
        weights = self._now()
        self.targets = self._projected(weights)
        for name, weight in weights.items():
            self.multipliers[name] = self.multipliers[name] + self.rho * (
                weight - self.targets[name]
            )
