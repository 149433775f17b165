"""The plan: what was chosen, what it was measured against, and why; one small JSON file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

from weft.batching import BatchingConfig
from weft.errors import DataError
from weft.files import json_text, parse_json, write_atomically
from weft.planning.candidate import Candidate
from weft.training.config import CompileMode

SCHEMA = "weft plan 2"
CHOSEN = "chosen"
STOPPED, UNFINISHED, NOT_TRIED = "stopped: ", "unfinished: ", "not tried: "
Target = Literal["time", "memory"]

_REMEDY = "make a plan with `weft plan RECIPE --out plan.json`"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A candidate and what is known of it; times in seconds, memory in bytes.

    Attributes:
        label: of its settings, in words.
        settings: by dotted name.
        outcome: `chosen`, `slower`, `dropped` (clearly slower at once), `larger` (in memory),
            `out of memory`, `recompile limit`, or the beginning of a sentence: `stopped: ...`
            (it cannot be faster any more), `unfinished: ...` (nor timed in the time for planning),
            `failed: ...`, `not tried: ...`.
        samples: seconds a unit, each over a few consecutive steps; see `weft.planning.search`.
        steps: that were timed.
        step_units: units in a step, the mean.
        median: of the samples; None, as `low` and `high`, where no step was timed.
        low: where the 95% bootstrap interval of the median begins.
        high: where it ends.
        start_seconds: what compiling and warming up took beyond normal steps.
        compile_seconds: of compiling alone.
        compilations: how many.
        eager_calls: calls that ran uncompiled because of the limit of compilations.
        peak_memory: of its process and that one's children.
        projected_seconds: the whole run: start_seconds and all units at the median.
    """

    label: str
    settings: Mapping[str, Any]
    outcome: str
    samples: tuple[float, ...] = ()
    steps: int = 0
    step_units: float = 0.0
    median: float | None = None
    low: float | None = None
    high: float | None = None
    start_seconds: float = 0.0
    compile_seconds: float = 0.0
    compilations: int = 0
    eager_calls: int = 0
    peak_memory: float = 0.0
    projected_seconds: float | None = None

    @property
    def candidate(self) -> Candidate:
        """Its settings, as something that can be measured."""
        return Candidate(self.settings)

    @property
    def compiles(self) -> bool:
        """Whether torch.compile is part of it."""
        return self.candidate.compiles


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings found to be best, and how they were found.

    Attributes:
        recipe: what was planned: a recipe's name, or the user's own model.
        settings: the chosen settings by dotted name; see `weft.planning.applied`.
        target: what was minimised.
        units: what the work is counted in.
        total_units: size of the planned run, in `units`.
        steps: steps of that run, where its size was given in steps.
        measured: all candidates: the chosen one, then the others from fast to slow, then those
            without a time.
        reasons: why, in sentences.
        planning_seconds: how long planning took.
        key: the data, model, machine and versions that the plan holds for; see
            `weft.planning.plan_key`.
        command: the command that makes the plan again.
        created: when, UTC, ISO 8601.
    """

    recipe: str
    settings: Mapping[str, Any]
    target: Target
    units: str
    total_units: float
    steps: int | None = None
    measured: tuple[Measured, ...] = ()
    reasons: tuple[str, ...] = ()
    planning_seconds: float = 0.0
    key: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    @property
    def chosen(self) -> Measured:
        """The measurements of the chosen settings."""
        return next(each for each in self.measured if each.outcome == CHOSEN)

    @property
    def compile(self) -> CompileMode:
        """For `weft.training.Compilation`."""
        mode: CompileMode = self.settings.get("compile", "eager")
        return mode

    def batching(self, batch_size: int) -> BatchingConfig:
        """The chosen policy for a `weft.batching.GraphSampler`; shuffled again in every epoch.

        Raises:
            ValueError: the plan is of work without a policy of batching.
        """
        if "batching.policy" not in self.settings:
            raise ValueError(f"a plan for {self.recipe} has no batching")
        return BatchingConfig(policy=self.settings["batching.policy"], batch_size=batch_size)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Plan:
        """The plan of JSON values that `to_json` gave; `where` names them in errors.

        Raises:
            DataError: they are something else.
        """
        schema = value.get("schema") if isinstance(value, dict) else None
        if schema != SCHEMA:
            found = "no plan" if schema is None else f"of the schema {schema!r}"
            raise DataError(f"{where} is {found}, not of {SCHEMA!r}; {_REMEDY}")
        try:
            fields = {name: each for name, each in value.items() if name != "schema"}
            measured = tuple(
                Measured(**{**each, "samples": tuple(each["samples"])})
                for each in fields.pop("measured")
            )
            plan = cls(**{**fields, "measured": measured, "reasons": tuple(fields["reasons"])})
            sound = (
                isinstance(plan.settings, dict)
                and isinstance(plan.key, dict)
                and plan.target in get_args(Target)
                and all(isinstance(each, str) for each in (plan.recipe, plan.units, *plan.reasons))
                and _is_number(plan.total_units)
                and plan.total_units > 0
                and all(map(_is_sound, measured))
                and any(each.outcome == CHOSEN for each in measured)
                and plan.chosen.median is not None
            )
        except (TypeError, KeyError, AttributeError):
            sound = False
        if not sound:
            raise DataError(
                f"{where} says it is a {SCHEMA!r}, but its fields are not those of one; {_REMEDY}"
            )
        return plan

    def save(self, path: Path) -> None:
        """Write it as JSON, whole or not at all."""
        text = json_text(self.to_json(), indent=1, default=str) + "\n"
        write_atomically(path, lambda file: file.write(text.encode()))

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a plan.

        Raises:
            DataError: there is none, or the file is something else; one sentence says what.
        """
        try:
            value = parse_json(path.read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"cannot read the plan {path}: {error.strerror}; {_REMEDY}") from None
        except DataError as error:
            raise DataError(f"{error}, so it is no plan; {_REMEDY}") from None
        return cls.from_json(value, str(path))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_sound(each: Measured) -> bool:
    """Whether values read from a file are what they should be."""
    numbers = (each.start_seconds, each.compile_seconds, each.peak_memory, each.step_units)
    times = (each.median, each.low, each.high)
    return (
        isinstance(each.label, str)
        and isinstance(each.outcome, str)
        and isinstance(each.settings, dict)
        and all(map(_is_number, (*numbers, *each.samples)))
        and (times.count(None) == len(times) or all(map(_is_number, times)))
        and (each.projected_seconds is None or _is_number(each.projected_seconds))
    )
