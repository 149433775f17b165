"""The study of communication as tables and sentences."""

from __future__ import annotations

import math

from weft_lab.studies.communication_ranks import METHODS
from weft_lab.studies.communication_results import (
    AccuracyRun,
    CommunicationCell,
    CommunicationResults,
)
from weft_lab.studies.sections import Section


def communication_report(results: CommunicationResults) -> list[Section]:
    """All tables of the study of communication, those that have rows."""
    sections = [_volumes(results), _kinds(results), _times(results), _accuracies(results)]
    return [section for section in sections if section.rows]


def largest_difference(run: AccuracyRun, serial: AccuracyRun) -> float:
    """Of the losses of any epoch."""
    pairs = zip(run.losses, serial.losses, strict=True)
    return max((abs(a - b) for a, b in pairs), default=0.0)


def _volumes(results: CommunicationResults) -> Section:
    cells = {(c.grid, c.method): c for c in results.cells}
    rows = []
    for grid in dict.fromkeys(c.grid for c in results.cells if c.ranks > 1):
        own = {method: cells[grid, method] for method in METHODS}
        line = cells[next(g for g, _ in cells if g.ranks == grid.ranks), "published"]
        best = own["sparsity-aware"]
        rows.append(
            (
                str(grid.ranks),
                best.label,
                *(_megabytes(cell.mean) for cell in own.values()),
                _megabytes(max(best.predicted)),
                *(f"{line.mean / cell.mean:.1f}" for cell in (own["reductions"], best)),
                "real" if best.real else f"{len(best.records)} simulated",
            )
        )
    return Section(
        title=f"MB that the mean rank receives in an epoch, GCN of widths "
        f"{'-'.join(map(str, results.config.widths))}, {_graph(results)}",
        headings=(
            "P",
            "grid",
            "published",
            "reductions",
            "sparsity-aware",
            "its busiest rank",
            "reductions, times less",
            "times less",
            "ranks",
        ),
        rows=rows,
        says=_equal(results.cells) + _least(results.cells),
        narrow=("P", "grid", *METHODS, "times less", "ranks"),
    )


def _graph(results: CommunicationResults) -> str:
    about = results.data
    return f"{about['name']}: {about['nodes']:,} nodes, {about['edges']:,} edges"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.3f}"


def _equal(cells: list[CommunicationCell]) -> list[str]:
    differing = [cell for cell in cells if cell.differing]
    if differing:
        first = differing[0]
        return [
            f"Recorded and predicted bytes differ in {len(differing)} of {len(cells)} cases, first "
            f"on {first.label} of {first.ranks} ranks, {first.method}, rank {first.differing[0]}."
        ]
    real = sum(len(cell.records) for cell in cells if cell.real)
    simulated = sum(len(cell.records) for cell in cells if not cell.real)
    return [
        f"Recorded bytes equal the predicted ones on all {real} real and {simulated} simulated "
        "ranks. Times less: than 1d as published, on as many ranks."
    ]


def _least(cells: list[CommunicationCell]) -> list[str]:
    most = max((cell.ranks for cell in cells), default=1)
    if most == 1:
        return []
    said = []
    for method in METHODS:
        own = [cell for cell in cells if cell.method == method and cell.ranks == most]
        best = min(own, key=lambda cell: cell.mean)
        said.append(f"{method} on {best.label} ({_megabytes(best.mean)} MB)")
    return [f"Least on {most} ranks: {', '.join(said)}."]


def _kinds(results: CommunicationResults) -> Section:
    """Of which collectives the bytes are, on the most ranks."""
    most = max((cell.ranks for cell in results.cells), default=1)
    cells = [cell for cell in results.cells if cell.ranks == most and most > 1]
    kinds = sorted({kind for cell in cells for r in cell.records.values() for kind in r.bytes})
    rows = []
    for cell in cells:
        records = list(cell.records.values())
        sums = [sum(record.bytes.get(kind, 0) for record in records) for kind in kinds]
        parts = [_megabytes(total / len(records)) if total else "" for total in sums]
        rows.append((cell.label, cell.method, *parts))
    return Section(
        title=f"The same on {most} ranks by kind of collective, of the ranks that recorded",
        headings=("grid", "method", *(kind.replace("_", " ") for kind in kinds)),
        rows=rows,
    )


def _times(results: CommunicationResults) -> Section:
    parts = ("epoch", "compute", "communication")
    rows = [
        (
            str(cell.ranks),
            cell.label,
            cell.method,
            *(f"{1e3 * cell.seconds(part):.1f}" for part in parts),
            str(cell.records[0].threads),
        )
        for cell in results.cells
        if cell.real
    ]
    return Section(
        title="ms of an epoch on real ranks",
        headings=("P", "grid", "method", "epoch", "compute", "waiting", "threads a rank"),
        rows=rows,
    )


def _accuracies(results: CommunicationResults) -> Section:
    runs = results.accuracies
    if not runs:
        return Section(title="", headings=(), rows=[])
    serial = runs[0]
    rows: list[tuple[str, ...]] = [
        (
            str(run.grid.ranks),
            run.label,
            f"{run.losses[-1]:.6f}",
            f"{100 * run.scores['validation_accuracy']:.2f}",
            f"{100 * run.scores['test_accuracy']:.2f}",
            f"{largest_difference(run, serial):.1e}",
        )
        for run in runs
    ]
    worst = max(largest_difference(run, serial) for run in runs)
    names = ("train_accuracy", "validation_accuracy", "test_accuracy")
    same = all(_same(run.scores[name], serial.scores[name]) for run in runs for name in names)
    verdict = "are the same on every grid" if same else "are not the same on every grid"
    return Section(
        title=f"{len(serial.losses)} epochs on {_graph(results)}, its own features and classes, "
        "dropout 0.5, float64",
        headings=("P", "grid", "loss", "validation %", "test %", "losses apart"),
        rows=rows,
        says=[f"Accuracies {verdict}; losses of any epoch differ by at most {worst:.1e}."],
    )


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
