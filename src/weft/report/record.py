"""What a run's folder says, however far the run has come."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import DataError
from weft.files import parse_json, read_object
from weft.report.figures import Points

CONFIG = "config.json"
_LABELS = {"molecules", "crystals", "programs", "citations", "full-graph", "nodes", "links"}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as its folder has it.

    Attributes:
        folder: where it is.
        config: what was asked.
        sessions: commands, versions and machines, one for each time it was started.
        rows: of the metrics file.
        summary: what came out; empty while the run goes on.
        about: of the network.
        plan: the one it was made with, as JSON values; empty without one.
        spy: counts of edges before and after reordering; empty without them.
        warnings: what could not be read, in sentences.
    """

    folder: Path
    config: Mapping[str, Any]
    sessions: list[Mapping[str, Any]]
    rows: list[dict[str, Any]]
    summary: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    spy: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.folder.resolve().name

    @property
    def recipe(self) -> str:
        """The one that was trained with, if it was one of weft's own."""
        for session in self.sessions[:1]:
            words = [str(word) for word in _list(session.get("command"))]
            for word in words:
                if word in _LABELS:
                    return word
        return ""

    @property
    def commands(self) -> list[str]:
        """One for each session, to be copied."""
        found = []
        for session in self.sessions:
            words = [str(word) for word in _list(session.get("command"))]
            if words[:1] == ["__main__.py"]:
                # By `python -m weft`, or under torchrun.
                words[:1] = ["python", "-m", "weft"]
            found.append(shlex.join(words))
        return found

    def series(self, name: str, by: str = "step") -> Points:
        """A metric by step, epoch or seconds."""
        return [
            (float(row[by]), float(row[name]))
            for row in self.rows
            if _is_real(row.get(name)) and _is_real(row.get(by))
        ]

    def names(self) -> list[str]:
        """Of all metrics, in the order in which they come up."""
        found = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in found if name not in ("step", "epoch", "seconds")]

    def scores(self) -> dict[str, float]:
        """Final figures by name, such as `test_mae`; empty while the run goes on."""
        plain = {
            name: float(value)
            for name, value in self.summary.items()
            if name.startswith(("train_", "validation_", "test_")) and _is_real(value)
        }
        return plain | {name: score["value"] for name, score in self._measured().items()}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Of those figures that have one, over the choice of what was tested."""
        return {name: (score["low"], score["high"]) for name, score in self._measured().items()}

    def _measured(self) -> dict[str, dict[str, float]]:
        found = {}
        for group in ("test", "accuracy"):
            for name, score in _mapping(self.summary.get(group)).items():
                if all(_is_real(_mapping(score).get(key)) for key in ("value", "low", "high")):
                    label = f"test_{name}" if group == "test" else f"{name}_accuracy"
                    found[label] = score
        return found


def is_run(folder: Path) -> bool:
    """Whether `folder` is one that `weft train` or a `Run` makes."""
    return (folder / CONFIG).is_file()


def read_run(folder: Path) -> RunRecord:
    """Read everything that is there; what is damaged is left out and named in `warnings`.

    Raises:
        DataError: config.json, without which nothing can be said, is damaged.
    """
    fields = {"config": dict, "sessions": list}
    whole = read_object(folder / CONFIG, fields, remedy="no page can be made")
    warnings: list[str] = []
    parts = {
        name: _object(folder / f"{file}.json", warnings)
        for name, file in (
            ("summary", "summary"),
            ("about", "model"),
            ("plan", "plan"),
            ("spy", "spy"),
        )
    }
    return RunRecord(
        folder=folder,
        config=whole["config"],
        sessions=[session for session in whole["sessions"] if isinstance(session, dict)],
        rows=_rows(folder / "metrics.jsonl", warnings),
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
    """The lines that are whole: a run under way, or killed, leaves the last one cut."""
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


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
