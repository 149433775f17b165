"""Learning-rate schedules as a function of the step, on torch's own schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from weft.training.config import ScheduleConfig


class PlateauLR(LambdaLR):
    """A warm-up, then a rate that is lowered where a metric has not become better for a while.

    `fit` steps it after every optimizer step, and tells it of every evaluation of a whole epoch.
    """

    def __init__(
        self, optimizer: Optimizer, config: ScheduleConfig, mode: Literal["min", "max"]
    ) -> None:
        self._rule, self._sign = config, 1 if mode == "min" else -1
        self.level, self.bad = 1.0, 0
        self.best: float | None = None
        super().__init__(optimizer, lambda step: _warm(config, step) * self.level)

    def evaluated(self, value: float) -> None:
        """Take in the metric of an evaluation; those during the warm-up do not count."""
        rule, best = self._rule, self.best
        if self.last_epoch < rule.warmup:
            return
        if best is None or self._sign * (best - value) > rule.threshold * abs(best):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.bad > rule.patience:
            self.level, self.bad = max(self.level * rule.reduction, rule.floor), 0
            for group, base, rate in zip(
                self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=True
            ):
                group["lr"] = base * rate(self.last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """All but the configuration."""
        return {name: each for name, each in super().state_dict().items() if name != "_rule"}


def make_scheduler(
    optimizer: Optimizer,
    config: ScheduleConfig,
    total_steps: int,
    mode: Literal["min", "max"] = "min",
) -> LambdaLR:
    """A scheduler to be stepped after every optimizer step; `fit` does that.

    Args:
        optimizer: its learning rates are the ones that `config` scales.
        config: the shape of the curve.
        total_steps: steps of the whole run, the warm-up included; linear and cosine end there
            and stay at their floor after it.
        mode: whether a smaller or a larger value of the monitored metric is better, for plateau.
    """
    if total_steps < 1:
        raise ValueError(f"a schedule over {total_steps} steps; at least 1 is needed")
    if config.warmup > total_steps:
        raise ValueError(
            f"the warm-up of {config.warmup} steps is longer than the run of {total_steps}"
        )
    if config.shape == "plateau":
        return PlateauLR(optimizer, config, mode)
    return LambdaLR(optimizer, _factor_at(config, total_steps))


def _warm(config: ScheduleConfig, step: int) -> float:
    """The factor of a step on the rate by the scale and the warm-up alone."""
    # Step 0 is the first one that is taken; with a warm-up it moves already.
    return config.scale * min(1.0, (step + 1) / max(1, config.warmup))


def _factor_at(config: ScheduleConfig, total_steps: int) -> Callable[[int], float]:
    def factor(step: int) -> float:
        if step < config.warmup:
            return _warm(config, step)
        step -= config.warmup
        left = max(0.0, 1 - step / max(1, total_steps - config.warmup))
        if config.shape == "linear":
            curve = config.floor + (1 - config.floor) * left
        elif config.shape == "cosine":
            curve = config.floor + (1 - config.floor) * (1 - math.cos(math.pi * left)) / 2
        elif config.shape == "exponential":
            curve = config.factor ** (step / config.every)
        else:
            curve = 1.0
        return config.scale * curve

    return factor
