"""When masks change, and by how much."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, get_args

Shape = Literal["cosine", "constant", "linear"]


@dataclass(frozen=True, kw_only=True)
class DropSchedule:
    """When weights are dropped and grown, and which share of the active ones.

    Steps are those of the optimizer, counted from 1. There is an update after each step that is a
    multiple of `every` and lies before the share `stop` of all steps.

    Attributes:
        total_steps: steps of the whole training.
        every: steps between updates, ΔT.
        death: share of a layer's active weights that is dropped, at step 0.
        shape: how it falls from there: to 0 at the stop by half a cosine or in a straight line,
            or not at all.
        stop: share of the training after which masks stay as they are.
    """

    total_steps: int
    every: int = 100
    death: float = 0.5
    shape: Shape = "cosine"
    stop: float = 0.75

    def __post_init__(self) -> None:
        _check_steps(self.total_steps, self.every, self.stop)
        if not 0 < self.death <= 1:
            raise ValueError(f"death is {self.death}; it must be above 0 and at most 1")
        if self.shape not in get_args(Shape):
            raise ValueError(f"schedule {self.shape!r} is not one of {', '.join(get_args(Shape))}")

    @property
    def end(self) -> float:
        """The step before which all updates take place."""
        return self.stop * self.total_steps

    @property
    def updates(self) -> int:
        """Updates in the whole training."""
        return max(math.ceil(self.end) - 1, 0) // self.every

    def updates_at(self, step: int) -> bool:
        """Whether masks change after this step."""
        return step > 0 and step % self.every == 0 and step < self.end

    def is_over(self, step: int) -> bool:
        """Whether no update comes after this step."""
        return step // self.every >= self.updates

    def rate(self, step: int) -> float:
        """Share of active weights to drop at this step."""
        done = min(step / self.end, 1.0)
        if self.shape == "cosine":
            return self.death / 2 * (1 + math.cos(math.pi * done))
        return self.death * (1 - done) if self.shape == "linear" else self.death

    def warn_if_idle(self) -> None:
        """Warn, with the numbers, where masks never change."""
        if self.updates == 0:
            warnings.warn(
                f"masks never change: the first update would be at step {self.every} (every="
                f"{self.every}), but updates end before step {self.end:g} (stop={self.stop:g} of "
                f"total_steps={self.total_steps}); lower every, or train longer",
                UserWarning,
                stacklevel=3,
            )


@dataclass(frozen=True, kw_only=True)
class CubicSchedule:
    """Gradual pruning's progress (Zhu and Gupta 2017): fast at first, slow at the end.

    Attributes:
        total_steps: steps of the whole training.
        begin: the first step, at which the sparsity is the initial one.
        every: steps between prunings.
        stop: share of the training at which pruning is complete.
    """

    total_steps: int
    begin: int = 0
    every: int = 100
    stop: float = 0.75

    def __post_init__(self) -> None:
        _check_steps(self.total_steps, self.every, self.stop)
        if not 0 <= self.begin < self.end:
            raise ValueError(
                f"begin is {self.begin}; it must be from 0 to below step {self.end}, where pruning "
                f"ends (stop={self.stop:g} of total_steps={self.total_steps})"
            )

    @property
    def end(self) -> int:
        """The step after which the final sparsity is reached."""
        return round(self.stop * self.total_steps)

    def prunes_at(self, step: int) -> bool:
        """Whether masks change after this step."""
        if not self.begin <= step <= self.end:
            return False
        return step == self.end or (step - self.begin) % self.every == 0

    def progress(self, step: int) -> float:
        """How far the sparsity has come from the initial (0) to the final one (1)."""
        done = min(max((step - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return 1 - (1 - done) ** 3

    def warn_if_sudden(self) -> None:
        """Warn, with the numbers, where everything is pruned at once."""
        if self.every >= self.end - self.begin:
            warnings.warn(
                f"pruning is not gradual: all of it is at step {self.end}, as every={self.every} "
                f"is not below the {self.end - self.begin} steps from {self.begin} to {self.end} "
                f"(stop={self.stop:g} of total_steps={self.total_steps}); lower every, or train "
                "longer",
                UserWarning,
                stacklevel=3,
            )


def _check_steps(total_steps: int, every: int, stop: float) -> None:
    for name, value in (("total_steps", total_steps), ("every", every)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if not 0 < stop <= 1:
        raise ValueError(f"stop is {stop}; it must be above 0 and at most 1")
