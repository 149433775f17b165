"""What a run's folder holds, whether the run is finished or not."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import DataError
from weft.files import parse_json, read_object
from weft.recipes.recipe import RECIPES
from weft.report.figures import Points

CONFIG = "config.json"
"""The file by which the folder of a run is recognised."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run, read from its folder.

    Attributes:
        folder: where it is.
        config: what was asked.
        recipe: name of the one that was trained with; empty for a model of the user's own.
        sessions: command, versions and machine of each time it was started.
        rows: lines of the metrics file.
        summary: its results; empty while the run is going on.
        plan: the plan it was trained by, as JSON values; empty without one.
        about: what its network was made for, such as the `unit` of its target.
        spy: counts of edges before and after reordering; empty without them.
        warnings: what could not be read, in sentences.
    """

    folder: Path
    config: Mapping[str, Any]
    recipe: str
    sessions: Sequence[Mapping[str, Any]]
    rows: list[dict[str, Any]]
    summary: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    spy: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.folder.resolve().name

    @property
    def unit(self) -> str:
        """Of the target; empty if it has none or it is unknown."""
        return str(self.summary.get("unit") or self.about.get("unit") or "")

    @property
    def commands(self) -> list[str]:
        """The command of each session, to be copied."""
        found = []
        for words in map(_command, self.sessions):
            if words[:1] == ["__main__.py"]:
                # By `python -m weft`, or under torchrun.
                words[:1] = ["python", "-m", "weft"]
            found.append(shlex.join(words))
        return found

    def series(self, name: str, by: str = "step", scale: float = 1.0) -> Points:
        """A metric, times `scale`, by step, epoch or seconds."""
        return [
            (float(row[by]), scale * float(row[name]))
            for row in self.rows
            if _is_real(row.get(name)) and _is_real(row.get(by))
        ]

    def names(self) -> list[str]:
        """Names of all metrics, in order of first appearance."""
        found = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in found if name not in ("step", "epoch", "seconds")]

    def scores(self) -> dict[str, float]:
        """Final scores by name, such as `test_mae`; empty while the run is going on."""
        plain = {
            name: float(value)
            for name, value in self.summary.items()
            if name.startswith(("train_", "validation_", "test_")) and _is_real(value)
        }
        return plain | {name: score["value"] for name, score in self._measured().items()}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """95% intervals (bootstrap over the test set) of the final scores that have one."""
        return {name: (score["low"], score["high"]) for name, score in self._measured().items()}

    def _measured(self) -> dict[str, dict[str, float]]:
        found = {}
        for group in ("test", "accuracy"):
            for name, score in mapping(self.summary.get(group)).items():
                if all(_is_real(mapping(score).get(key)) for key in ("value", "low", "high")):
                    label = f"test_{name}" if group == "test" else f"{name}_accuracy"
                    found[label] = score
        return found


def read_run(folder: Path, *, metrics: bool = True) -> RunRecord:
    """Read a run's folder; damaged files are left out and named in `warnings`.

    Args:
        folder: of the run.
        metrics: read metrics.jsonl too, which may be long.

    Raises:
        DataError: config.json is damaged.
    """
    fields = {"config": dict, "sessions": list}
    whole = read_object(folder / CONFIG, fields, remedy="no page can be made")
    warnings: list[str] = []
    files = {"summary": "summary", "plan": "plan", "spy": "spy", "about": "model"}
    parts = {part: _object(folder / f"{name}.json", warnings) for part, name in files.items()}
    sessions = [session for session in whole["sessions"] if isinstance(session, dict)]
    # Older runs say it in their command only.
    first = _command(sessions[0]) if sessions else []
    recipe = whole.get("recipe") or next((word for word in first if word in RECIPES), "")
    return RunRecord(
        folder=folder,
        config=whole["config"],
        recipe=str(recipe),
        sessions=sessions,
        rows=_rows(folder / "metrics.jsonl", warnings) if metrics else [],
        warnings=warnings,
        **parts,
    )


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by dotted name."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def _object(path: Path, warnings: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return read_object(path)
    except DataError:
        warnings.append(f"{path.name} cannot be read and is left out.")
        return {}


def _rows(path: Path, warnings: list[str]) -> list[dict[str, Any]]:
    """The complete lines; the last one is cut while a run writes it, or when it was killed."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    rows, damaged = [], []
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line, path.name)
        except DataError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            damaged.append(number)
    if damaged == [len(lines)]:
        warnings.append("The last line of metrics.jsonl is not finished; it is left out.")
    elif damaged:
        warnings.append(
            f"{len(damaged)} of {len(lines)} lines of metrics.jsonl cannot be read and are left "
            f"out, the first is line {damaged[0]}."
        )
    return rows


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` where it is a mapping, else an empty one: files may hold anything."""
    return value if isinstance(value, Mapping) else {}


def _command(session: Mapping[str, Any]) -> list[str]:
    words = session.get("command")
    return [str(word) for word in words] if isinstance(words, list) else []
