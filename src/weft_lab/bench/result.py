"""What a benchmark measured: its file, and the table that people read."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from weft.errors import DataError
from weft_lab.results import (
    Provenance,
    document,
    from_plain,
    machine,
    read_document,
    write_document,
)

SCHEMA = "weft bench 1"

Data = TypeVar("Data")


@dataclass(frozen=True, kw_only=True)
class CandidateResult:
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
        peak_bytes: the most memory that its process held; 0 where it is not known.
        data_bytes: what it held before its first step, peak and data both with its libraries.
        work: what a step computes and moves, and what it reaches of the machine's speeds: `flops`,
            `bytes`, `gemm_share`, `bandwidth_share`, `limit_seconds`, `limit_share`.
    """

    samples: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    absent: str = ""
    failed: bool = False
    against: list[str] = field(default_factory=list)
    details: list[dict[str, float]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    data_bytes: int = 0
    work: dict[str, float] = field(default_factory=dict)

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
        """All of it, with median and mean; what is empty or 0 is left out but for the samples."""
        fields = {**asdict(self), "median": self.median, "mean": self.mean}
        for name in ("details", "figures", "peak_bytes", "data_bytes", "work"):
            if not fields[name]:
                del fields[name]
        return {**fields, **self.throughput}


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """All candidates over the same work; `weft` is ours.

    Attributes:
        case: its name.
        what: was done.
        unit: of the samples.
        candidates: by name.
        says: sentences below the table.
        missed: sentences about what ought to be reached and was not.
    """

    case: str
    what: str
    unit: str
    candidates: dict[str, CandidateResult]
    says: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def ratios(self, ours: str) -> dict[str, float]:
        """Peer median / median of `ours`, for each peer that ran the same work."""
        base = self.candidates[ours].median
        if base is None:
            return {}
        return {
            name: c.median / base
            for name, c in self.candidates.items()
            if c.median is not None
            and not name.startswith("weft")
            and (not c.against or ours in c.against)
        }

    @classmethod
    def no_data(cls, case: str, why: object, *, unit: str = "s") -> CaseResult:
        """A case that was not measured, and why."""
        absent = {"weft": CandidateResult(absent=str(why))}
        return cls(case=case, what="no data", unit=unit, candidates=absent)

    @property
    def own_failures(self) -> list[str]:
        """Those of ours that ended with an error."""
        return [name for name in self.own if self.candidates[name].failed]

    @property
    def own(self) -> list[str]:
        """Our variants: `weft` and those that begin with it."""
        return [name for name in self.candidates if name.startswith("weft")]


@dataclass(kw_only=True)
class BenchResult(Provenance):
    """A whole benchmark: what ran, where, with which command."""

    name: str
    cases: list[CaseResult]
    machine: dict[str, Any] = field(default_factory=machine)

    def to_json(self) -> dict[str, Any]:
        """The schema: machine, versions, command; by case raw samples, medians and ratios."""
        cases = [
            {
                "case": case.case,
                "what": case.what,
                "unit": case.unit,
                "contenders": {name: each.to_json() for name, each in case.candidates.items()},
                "ratios": {own: case.ratios(own) for own in case.own},
                **({"says": case.says} if case.says else {}),
                **({"missed": case.missed} if case.missed else {}),
            }
            for case in self.cases
        ]
        return document(SCHEMA, self, {"cases": cases}, name=self.name)

    def save(self, path: Path) -> None:
        """Write the JSON file, whole or not at all."""
        write_document(path, self.to_json())

    @classmethod
    def read(cls, path: Path) -> BenchResult:
        """What `save` wrote.

        Raises:
            DataError: it is no such file.
        """
        try:
            values = read_document(path, [SCHEMA])
            for case in values["cases"]:
                # What a file leaves out is empty.
                case |= {"says": [], "missed": [], **case}
                case["candidates"] = {
                    name: {
                        "details": [],
                        "figures": {},
                        "peak_bytes": 0,
                        "data_bytes": 0,
                        "work": {},
                        **each,
                    }
                    for name, each in case["contenders"].items()
                }
            result: BenchResult = from_plain(cls, values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is not the file of a benchmark ({error})") from error
        return result


def data_or_error(get: Callable[[], Data], named: object) -> Data | DataError:
    """What `get` gives, or why it is not there.

    Raises:
        DataError: it is not there, and `named` by the user.
    """
    try:
        return get()
    except DataError as error:
        if named:
            raise
        return error


def print_result(result: BenchResult, console: Console) -> None:
    """A table a case: its figures, or medians, spread and each peer as a multiple of ours."""
    about = result.machine
    console.print(
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; matrix products "
        f"{about['gemm_gflop_per_s']:.0f} GFLOP/s, copies {about['copy_gb_per_s']:.0f} GB/s",
        soft_wrap=True,
    )
    for case in result.cases:
        console.print(f"{result.name}: {case.case} ({case.what})", style="italic", soft_wrap=True)
        console.print(_table(case))
        if any(each.work for each in case.candidates.values()):
            console.print(_work_table(case))
        for name, candidate in case.candidates.items():
            if candidate.absent:
                console.print(f" {name}: {candidate.absent}", soft_wrap=True)
        for sentence in (*case.says, *(f"Missed: {each}" for each in case.missed)):
            console.print(f" {sentence}", soft_wrap=True, highlight=False)


def _table(case: CaseResult) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    figures = any(c.figures for c in case.candidates.values())
    # Eighty columns are enough: with throughput names fold, and the file has the spread.
    folded = 17 if any(c.details for c in case.candidates.values()) else None
    if figures:
        table.add_column("", no_wrap=True)
    else:
        table.add_column("candidate", min_width=folded or 26, max_width=folded, overflow="fold")
    cells = {
        name: {key: _short(value) for key, value in each.figures.items()}
        if figures
        else _times(case, name)
        for name, each in case.candidates.items()
    }
    # In the order in which candidates bring them up.
    headings = list(dict.fromkeys(key for each in cells.values() for key in each))
    for heading in headings:
        ratio = heading.startswith("× ") and not figures
        least, most = (7, 9) if ratio else (None, None)
        table.add_column(heading, justify="right", min_width=least, max_width=most)
    for name, candidate in case.candidates.items():
        # All are ours where there are figures.
        label = name.removeprefix("weft").lstrip(", ") if figures else name
        if cells[name]:
            table.add_row(label, *(cells[name].get(heading, "") for heading in headings))
        else:
            table.add_row(label, "failed" if candidate.failed else "absent")
    return table


def _work_table(case: CaseResult) -> Table:
    """What a step computes and moves, and its share of what the machine can."""
    headings = ("GFLOP", "of products", "GB", "of copies", "limit ms", "of time")
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("a step", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, candidate in case.candidates.items():
        if work := candidate.work:
            table.add_row(
                name,
                _short(work["flops"] / 1e9),
                f"{work['gemm_share']:.0%}",
                _short(work["bytes"] / 1e9),
                f"{work['bandwidth_share']:.0%}",
                _short(1e3 * work["limit_seconds"]),
                f"{work['limit_share']:.0%}",
            )
    return table


def _times(case: CaseResult, name: str) -> dict[str, str]:
    """Cells of a candidate by heading: its median, spread or throughput, and ratios to ours."""
    candidate = case.candidates[name]
    if candidate.median is None or candidate.mean is None:
        return {}
    # Times are compared by their medians; a mean is for accuracies.
    timed = case.unit.partition("/")[0] == "s"
    scale, unit = (1e3, f"m{case.unit}") if timed else (1.0, case.unit)
    found = candidate.throughput
    heading = f"median\n{unit}" if found else f"median {unit}"
    cells = {heading: _short(candidate.median * scale)}
    if not timed:
        cells["mean"] = _short(candidate.mean)
    if found:
        cells["graphs/s"] = _short(found["graphs_per_second"])
        cells["ms/step"] = _short(1e3 * found["seconds_per_step"])
        shares = 100 * found["batching_share"], 100 * found["waiting_share"]
        cells["batching\n(waits)"] = f"{shares[0]:.1f} ({shares[1]:.1f}) %"
    else:
        low, high = min(candidate.samples) * scale, max(candidate.samples) * scale
        cells["min – max"] = f"{_short(low)} – {_short(high)}"
    if len(case.own) < len(case.candidates):
        for own in case.own:
            ratio = case.ratios(own).get(name)
            cells[f"× {own}"] = "" if ratio is None else f"{ratio:.2f}"
    return cells


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
