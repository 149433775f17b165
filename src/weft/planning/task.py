"""A recipe of `weft train` as something that can be planned, and what all of them share."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from weft.graphs import Array, GraphTable
from weft.graphs.checksums import checksum, table_checksums
from weft.planning.candidate import Candidate
from weft.planning.halving import Waves
from weft.planning.plan import Measured, Plan
from weft.planning.workload import Work
from weft.training.hardware import cores

ENDLESS = 10**9
"""Epochs of a training that is measured: it is ended from outside."""


class Recipe(ABC):
    """What `weft train` was asked for, with its data, before anything is trained.

    Attributes:
        name: of the recipe.
        config: its configuration, as asked for.
        work: what is measured.
        data: a hash of the data.
        known: candidates of which the outcome is known without a trial, as they come up.
        remarks: why, in sentences.
    """

    planned: tuple[str, ...] = ()
    """Settings of the configuration that a plan decides."""
    idle: ClassVar[tuple[str, ...]] = ()
    """Settings of the configuration that do not change how long a step takes."""

    def __init__(self, name: str, config: Any, work: Work, data: str) -> None:
        self.name, self.config, self.work, self.data = name, config, work, data
        self.known: list[Measured] = []
        self.remarks: list[str] = []

    @property
    @abstractmethod
    def steps(self) -> int:
        """Of the run that is asked for."""

    @property
    @abstractmethod
    def step_units(self) -> float:
        """What the work is counted in, in a step as asked for."""

    @abstractmethod
    def waves(self) -> Waves:
        """The candidates, those first that decide which others are worth a try."""

    def explain(self, plan: Plan) -> Sequence[str]:
        """What is known of the candidates beside their times, in sentences."""
        return ()

    def note(self, candidate: Candidate, outcome: str, why: str = "") -> None:
        """Add a candidate to the `known`."""
        found = Measured(label=candidate.label, settings=candidate.settings, outcome=outcome)
        self.known.append(found)
        self.remarks.append(f"{candidate.label}: {outcome}{why}")


def thread_counts() -> list[int]:
    """Compute threads worth a try: all cores first, half of them, about their root, one.

    Small batches are often fastest with a few of many cores.
    """
    every = cores()
    return sorted({every, max(1, every // 2), math.isqrt(every), 1}, reverse=True)


def best_of(results: Sequence[Measured], name: str, most: int = 1) -> list[Any]:
    """The different values that the best results have of a setting; fewer where fewer ran."""
    values = [each.settings[name] for each in results if each.median is not None]
    return list(dict.fromkeys(values))[:most]


def content_of(table: GraphTable) -> str:
    """A hash of what a table holds, the same in memory and on disk."""
    return _hash(table_checksums(table))


def content_of_arrays(arrays: Mapping[str, Array]) -> str:
    """A hash of some arrays with their names."""
    return _hash({name: checksum(array) for name, array in arrays.items()})


def _hash(sums: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()
