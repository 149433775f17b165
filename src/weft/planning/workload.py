"""What is measured: training without end, with the settings of a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Work(Protocol):
    """A training that the planner can start in a process of its own; it must be picklable.

    Attributes:
        units: what a step's size is counted in: `graphs`, `epochs` or `samples`.
    """

    @property
    def units(self) -> str:
        """What a step's size is counted in."""
        ...

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end under the current pace (see `weft.training.step_hooks`).

        The process is prepared and has its threads set already; it is killed when it has been
        asked enough. What comes before the first step (data, model) is not timed. Nothing should
        be evaluated, written or shown.
        """
        ...
