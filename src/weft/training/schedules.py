"""Learning-rate schedules as a function of the step, on torch's own schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from weft.training.config import ScheduleConfig


def make_scheduler(optimizer: Optimizer, config: ScheduleConfig, total_steps: int) -> LambdaLR:
    """A scheduler to be stepped after every optimizer step; `fit` does that.

    Args:
        optimizer: its learning rates are the ones that `config` scales.
        config: the shape of the curve.
        total_steps: steps of the whole run, the warm-up included; linear and cosine end there
            and stay at their floor after it.
    """
    if total_steps < 1:
        raise ValueError(f"a schedule over {total_steps} steps; at least 1 is needed")
    if config.warmup > total_steps:
        raise ValueError(
            f"the warm-up of {config.warmup} steps is longer than the run of {total_steps}"
        )
    return LambdaLR(optimizer, _factor_at(config, total_steps))


def _factor_at(config: ScheduleConfig, total_steps: int) -> Callable[[int], float]:
    def factor(step: int) -> float:
        # Step 0 is the first one that is taken; with a warm-up it moves already.
        if step < config.warmup:
            return config.scale * (step + 1) / config.warmup
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
