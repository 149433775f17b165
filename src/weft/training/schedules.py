"""Learning-rate schedules as a function of the step, on torch's own schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Shape = Literal["constant", "linear", "cosine", "exponential"]


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate moves from step to step.

    Attributes:
        shape: after the warm-up: constant; a straight line or a half cosine down to `floor` at
            the last step; or exponential.
        warmup: steps over which the rate rises in a straight line from 0.
        scale: factor on the optimizer's rate, for the linear scaling rule: k times the graphs in
            a batch (or k ranks), k times the rate.
        floor: where linear and cosine end, as a fraction of the rate.
        factor: exponential: what the rate is multiplied by in `every` steps.
        every: exponential: steps in which the rate falls, continuously, by `factor`.
    """

    shape: Shape = "constant"
    warmup: int = 0
    scale: float = 1.0
    floor: float = 0.0
    factor: float = 0.96
    every: int = 100_000

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise ValueError(f"shape {self.shape!r} is not one of {', '.join(get_args(Shape))}")
        for name, low, high in (
            ("warmup", 0, math.inf),
            ("scale", 0, math.inf),
            ("floor", 0, 1),
            ("factor", 0, math.inf),
            ("every", 1, math.inf),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; it is from {low} to {high}")


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
