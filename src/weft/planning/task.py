"""A training that can be planned: what it tries, and a plan that is made, kept and found again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numba
import torch

import weft
from weft.errors import DataError
from weft.files import json_text
from weft.graphs import Array, GraphTable
from weft.graphs.checksums import checksum, table_checksums
from weft.planning.candidate import Candidate
from weft.planning.plan import NOT_TRIED, UNFINISHED, Measured, Plan, Target
from weft.planning.search import Waves, best_plan
from weft.planning.worker import Work
from weft.sources.table_cache import data_folder
from weft.training.hardware import cores, hardware
from weft.training.run import first_difference

ENDLESS = 10**9
"""Epochs of a training that is measured: it is ended from outside."""

# A run of half the length, or twice, is much the same.
_SIMILAR = 0.5
_FOLDER = "plans"


class PlanTask(ABC):
    """The training that `weft train` was given, with its data, before anything is trained.

    Attributes:
        name: of the recipe.
        config: its configuration, as requested.
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
        """Of the run that is requested."""

    @property
    @abstractmethod
    def step_units(self) -> float:
        """What the work is counted in, in a step as requested."""

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


def content_of(table: GraphTable, *, without: str = "") -> str:
    """A hash of what a table holds but this column, the same in memory and on disk."""
    found = table_checksums(table)
    return _hash({name: value for name, value in found.items() if name != without})


def content_of_arrays(arrays: Mapping[str, Array]) -> str:
    """A hash of some arrays with their names."""
    return _hash({name: checksum(array) for name, array in arrays.items()})


def _hash(values: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def plan_key(
    *,
    recipe: str,
    data: str,
    config: Any,
    planned: Iterable[str],
    target: Target,
    total_units: float,
) -> dict[str, Any]:
    """What a plan holds for, as JSON values; two alike need only one plan.

    Args:
        recipe: its name.
        data: a hash of the data's content.
        config: the recipe's configuration, a dataclass, or a mapping that describes the work.
        planned: dotted names of its settings that the plan decides, and so does not depend on.
        target: what is to be least.
        total_units: how much is to be trained: the time of compiling is spread over it.
    """
    given = dict(config) if isinstance(config, Mapping) else dataclasses.asdict(config)
    plain = json.loads(json_text(given, default=str))
    for name in planned:
        part = plain
        *path, last = name.split(".")
        for each in path:
            part = part.get(each) or {}
        part.pop(last, None)
    machine = hardware()
    if "memory_gib" in machine:
        # Whole ones: what the system keeps for itself changes with every start.
        machine["memory_gib"] = round(machine["memory_gib"])
    return {
        "recipe": recipe,
        "data": data,
        "config": plain,
        "target": target,
        "total_units": total_units,
        "machine": machine,
        "versions": {
            "weft": weft.__version__,
            "torch": str(torch.__version__),
            "numba": str(numba.__version__),
        },
    }


def plan_path(key: Mapping[str, Any], data_dir: Path | None = None) -> Path:
    """Where the plan of this key is kept, whether it is there or not."""
    return data_folder(data_dir) / _FOLDER / f"{_hash(key)}.json"


def cached_plan(key: Mapping[str, Any], data_dir: Path | None = None) -> Plan | None:
    """The plan made for this key; None where there is none that can be read."""
    try:
        return Plan.load(plan_path(key, data_dir))
    except DataError:
        # None yet, of an older version, or damaged: a new plan takes its place.
        return None


def keep_plan(plan: Plan, data_dir: Path | None = None) -> Path:
    """Keep a plan for the next time its `key` comes up; gives its file.

    Raises:
        DataError: the data folder cannot be written.
    """
    assert plan.key, "a plan is kept under its key"
    path = plan_path(plan.key, data_dir)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the folder {path.parent} cannot be made ({error.strerror}); choose another with "
            "--data-dir or the environment variable WEFT_DATA_DIR"
        ) from None
    plan.save(path)
    return path


def key_of(task: PlanTask, *, steps: int | None = None, target: Target = "time") -> dict[str, Any]:
    """What a plan for this recipe, data, machine and length of training is kept under."""
    return plan_key(
        recipe=task.name,
        data=task.data,
        config=task.config,
        planned=(*task.planned, *task.idle),
        target=target,
        total_units=round(_steps(task, steps) * task.step_units),
    )


def make_plan(
    task: PlanTask,
    *,
    steps: int | None = None,
    target: Target = "time",
    seconds: float | None = None,
    data_dir: Path | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> Plan:
    """Measure the ways to train a recipe and choose the best; the plan is kept for `find_plan`.

    A plan that `seconds` were too few for is not kept.

    Raises:
        DataError: no way of training works.
    """
    count = _steps(task, steps)
    plan = best_plan(
        task.work,
        task.waves(),
        total_units=count * task.step_units,
        seconds=seconds,
        target=target,
        tell=tell,
        recipe=task.name,
        steps=count,
        explain=lambda plan: [*task.explain(plan), *task.remarks],
    )
    hurried = seconds is not None and any(
        each.outcome.startswith((NOT_TRIED, UNFINISHED)) for each in plan.measured
    )
    plan = dataclasses.replace(
        plan,
        measured=(*plan.measured, *task.known),
        key=key_of(task, steps=steps, target=target),
        command=shlex.join(["weft", *sys.argv[1:]]),
    )
    if not hurried:
        keep_plan(plan, data_dir)
    return plan


def find_plan(
    task: PlanTask,
    *,
    data_dir: Path | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> tuple[Plan, bool]:
    """The plan that was kept for this recipe, data, machine and versions, else a new one.

    Returns:
        The plan, and whether it is new.
    """
    kept = cached_plan(key_of(task), data_dir)
    if kept is not None:
        return kept, False
    return make_plan(task, data_dir=data_dir, tell=tell), True


def made_for(plan: Plan, task: PlanTask) -> str:
    """What the plan was made for, in words, where that is other than this recipe; else empty.

    The first difference among data, settings, machine and length of the run.
    """
    asked = json.loads(json_text(key_of(task, target=plan.target)))
    if plan.key.get("data") != asked["data"]:
        return "other data"
    for part in ("config", "machine", "versions"):
        found = first_difference(plan.key.get(part), asked[part])
        if found is not None:
            name, before, now = found
            return f"{name} = {before}, and here it is {now}"
    planned, wanted = plan.total_units, asked["total_units"]
    if not _SIMILAR <= wanted / planned <= 1 / _SIMILAR:
        return f"a run of {planned:,.0f} {plan.units}, and this one is of {wanted:,.0f}"
    return ""


def _steps(task: PlanTask, steps: int | None) -> int:
    count = task.steps if steps is None else steps
    if count < 1:
        raise ValueError(f"steps is {count}; it must be at least 1")
    return count
