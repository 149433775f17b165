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
from weft.files import write_atomically
from weft_lab.bench.machine import machine

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
        details: of each step, where samples are seconds per graph: its `seconds`, the `graphs` it
            trained on, the seconds of work on `batching` and, where a thread did some of that
            during the update, those of `waiting` for a batch.
        figures: named values, shown instead of the median where a case has them.
    """

    samples: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    absent: str = ""
    failed: bool = False
    against: list[str] = field(default_factory=list)
    details: list[dict[str, float]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float | None:
        """Median of the samples, or None if absent."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def mean(self) -> float | None:
        """Mean of the samples, or None if absent."""
        return statistics.fmean(self.samples) if self.samples else None

    @property
    def throughput(self) -> dict[str, float]:
        """What the details amount to; empty without them."""
        if not self.details:
            return {}
        totals = {name: sum(step[name] for step in self.details) for name in self.details[0]}
        return {
            "graphs_per_second": 1 / statistics.median(self.samples),
            "seconds_per_step": statistics.median(step["seconds"] for step in self.details),
            "graphs_per_step": totals["graphs"] / len(self.details),
            "batching_share": totals["batching"] / totals["seconds"],
            "waiting_share": totals.get("waiting", totals["batching"]) / totals["seconds"],
        }

    def to_json(self) -> dict[str, Any]:
        """All of it, with median and mean; details, throughput and figures where there are any."""
        fields = {**asdict(self), "median": self.median, "mean": self.mean}
        for name in ("details", "figures"):
            if not fields[name]:
                del fields[name]
        return {**fields, **self.throughput}


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """All contenders over the same work; `weft` is ours.

    Attributes:
        case: its name.
        what: was done.
        unit: of the samples.
        contenders: by name.
        says: sentences below the table.
        missed: sentences about what ought to be reached and was not.
    """

    case: str
    what: str
    unit: str
    contenders: dict[str, Contender]
    says: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

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
            contenders = {name: c.to_json() for name, c in case.contenders.items()}
            ratios = {own: case.ratios(own) for own in case.own}
            cases.append(
                {
                    "case": case.case,
                    "what": case.what,
                    "unit": case.unit,
                    "contenders": contenders,
                    "ratios": ratios,
                    **({"says": case.says} if case.says else {}),
                    **({"missed": case.missed} if case.missed else {}),
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
        # Times are compared by their medians; a mean is for accuracies.
        timed = case.unit.partition("/")[0] == "s"
        scale, unit = (1e3, f"m{case.unit}") if timed else (1.0, case.unit)
        detailed = any(c.details for c in case.contenders.values())
        console.print(f"{result.name}: {case.case} ({case.what})", style="italic", soft_wrap=True)
        if any(c.figures for c in case.contenders.values()):
            _print_figures(case, console)
            continue
        table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
        # Eighty columns are enough: with throughput names fold, and the file has the spread.
        width = 17 if detailed else 26
        table.add_column(
            "contender", min_width=width, max_width=width if detailed else None, overflow="fold"
        )
        spread = ("graphs/s", "ms/step", "batching\n(waits)") if detailed else ("min – max",)
        median = f"median\n{unit}" if detailed else f"median {unit}"
        for heading in (median, *(() if timed else ("mean",)), *spread):
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
                *(_throughput(contender) if detailed else (f"{_short(low)} – {_short(high)}",)),
                *(multiples if peers else []),
            )
        console.print(table)
        _print_words(case, console)


def _print_figures(case: CaseResult, console: Console) -> None:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    # In the order in which contenders bring them up.
    names = list(dict.fromkeys(name for c in case.contenders.values() for name in c.figures))
    for name in names:
        table.add_column(name, justify="right")
    for name, contender in case.contenders.items():
        # All are ours here.
        own = name.removeprefix("weft").lstrip(", ")
        if contender.figures:
            cells = (contender.figures.get(each) for each in names)
            table.add_row(own, *("" if cell is None else _short(cell) for cell in cells))
        else:
            table.add_row(own, "failed" if contender.failed else "absent")
    console.print(table)
    _print_words(case, console)


def _print_words(case: CaseResult, console: Console) -> None:
    for name, contender in case.contenders.items():
        if contender.absent:
            console.print(f" {name}: {contender.absent}", soft_wrap=True)
    for sentence in case.says:
        console.print(f" {sentence}", soft_wrap=True, highlight=False)
    for sentence in case.missed:
        console.print(f" Missed: {sentence}", soft_wrap=True, highlight=False)


def _throughput(contender: Contender) -> tuple[str, str, str]:
    found = contender.throughput
    return (
        _short(found["graphs_per_second"]),
        _short(1e3 * found["seconds_per_step"]),
        f"{100 * found['batching_share']:.1f} ({100 * found['waiting_share']:.1f}) %",
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
