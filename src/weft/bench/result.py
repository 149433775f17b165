"""The one JSON schema of every benchmark, and the table that people read."""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import sys
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import weft
from weft.bench.machine import machine
from weft.files import write_atomically

__all__ = ["BenchResult", "CaseResult", "Contender", "print_result"]

SCHEMA = "weft bench 1"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One library in one case.

    Attributes:
        samples: seconds of each timed step (or values in the case's unit), in order.
        versions: of the libraries it used.
        absent: why it could not run; empty if it did.
        failed: it was there but ended with an error.
        against: which of ours does the same work; all of them if empty.
    """

    samples: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    absent: str = ""
    failed: bool = False
    against: list[str] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        """Median of the samples, or None if absent."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def mean(self) -> float | None:
        """Mean of the samples, or None if absent."""
        return statistics.fmean(self.samples) if self.samples else None


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """All contenders over the same work; `weft` is ours."""

    case: str
    what: str
    unit: str
    contenders: dict[str, Contender]

    def ratios(self, ours: str) -> dict[str, float]:
        """Peer median / median of `ours`, for each peer that ran the same work."""
        base = self.contenders[ours].median
        if base is None:
            return {}
        return {
            name: c.median / base
            for name, c in self.contenders.items()
            if c.median is not None
            and not name.startswith("weft")
            and (not c.against or ours in c.against)
        }

    @property
    def own_failures(self) -> list[str]:
        """Those of ours that ended with an error."""
        return [name for name in self.own if self.contenders[name].failed]

    @property
    def own(self) -> list[str]:
        """Our variants: `weft` and those that begin with it."""
        return [name for name in self.contenders if name.startswith("weft")]


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """A whole benchmark: what ran, where, with which command."""

    name: str
    cases: list[CaseResult]
    command: str = field(default_factory=lambda: shlex.join(["weft", *sys.argv[1:]]))
    machine: dict[str, Any] = field(default_factory=machine)
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    def to_json(self) -> dict[str, Any]:
        """The schema: machine, versions, command; by case raw samples, medians and ratios."""
        cases = []
        for case in self.cases:
            contenders = {
                name: {**asdict(c), "median": c.median, "mean": c.mean}
                for name, c in case.contenders.items()
            }
            ratios = {own: case.ratios(own) for own in case.own}
            cases.append(
                {
                    "case": case.case,
                    "what": case.what,
                    "unit": case.unit,
                    "contenders": contenders,
                    "ratios": ratios,
                }
            )
        return {
            "schema": SCHEMA,
            "name": self.name,
            "created": self.created,
            "command": self.command,
            "machine": self.machine,
            "versions": {"weft": weft.__version__, "python": platform.python_version()},
            "cases": cases,
        }

    def save(self, path: Path) -> None:
        """Write the JSON file, whole or not at all."""
        text = json.dumps(self.to_json(), indent=1)
        write_atomically(path, lambda file: file.write(text.encode()))


def print_result(result: BenchResult, console: Console) -> None:
    """A table a case: medians, spread, and each peer's median as a multiple of each of ours."""
    about = result.machine
    console.print(
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; matrix products "
        f"{about['gemm_gflop_per_s']:.0f} GFLOP/s, copies {about['copy_gb_per_s']:.0f} GB/s",
        soft_wrap=True,
    )
    for case in result.cases:
        scale, unit = (1e3, "ms") if case.unit == "s" else (1.0, case.unit)
        title = f"{result.name}: {case.case} ({case.what})"
        table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
        table.add_column("contender", min_width=26, overflow="fold")
        # Times are compared by their medians; a mean is for accuracies.
        timed = case.unit == "s"
        for heading in (f"median {unit}", *(() if timed else ("mean",)), "min – max"):
            table.add_column(heading, justify="right")
        peers = len(case.own) < len(case.contenders)
        for own in case.own if peers else []:
            table.add_column(f"× {own}", justify="right", min_width=7, max_width=9)
        ratios = {own: case.ratios(own) for own in case.own}
        for name, contender in case.contenders.items():
            if contender.median is None or contender.mean is None:
                table.add_row(name, "failed" if contender.failed else "absent")
                continue
            low, high = min(contender.samples) * scale, max(contender.samples) * scale
            multiples = [
                f"{ratios[own][name]:.2f}" if name in ratios[own] else "" for own in case.own
            ]
            table.add_row(
                name,
                _short(contender.median * scale),
                *(() if timed else (_short(contender.mean * scale),)),
                f"{_short(low)} – {_short(high)}",
                *(multiples if peers else []),
            )
        console.print(table)
        for name, contender in case.contenders.items():
            if contender.absent:
                console.print(f" {name}: {contender.absent}", soft_wrap=True)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
