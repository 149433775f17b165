"""Case: accuracy of a GCN on Cora, dense and sparse in several ways, over seeds."""

from __future__ import annotations

import statistics
from dataclasses import replace

from rich.progress import Progress

from weft.graphs import GraphTable
from weft_lab.bench.result import CaseResult, Contender
from weft_lab.bench.runner import Entry, run_case
from weft_lab.studies.statistics import mean_interval

_MOST = 1.5
_DENSE, _RIGL = "weft, dense", "weft, RigL at 90 %"


def _entry(way: str, sparsity: float) -> Entry:
    settings = {"sparsify": way, "sparsity": sparsity}
    return Entry(script="weft_nodes", peer=False, settings=settings)


_ENTRIES = {
    _DENSE: _entry("none", 0.0),
    _RIGL: _entry("rigl", 0.90),
    "weft, RigL at 97 %": _entry("rigl", 0.97),
    "weft, SET at 97 %": _entry("set", 0.97),
    "weft, static random at 97 %": _entry("random", 0.97),
}


def accuracy_case(
    table: GraphTable, *, seeds: int, epochs: int | None, progress: Progress
) -> CaseResult:
    """Test accuracy in %, with intervals; a seed is split, weights and dropout, alike for all."""
    case = run_case(
        "accuracy",
        f"GCN of 16 hidden features on Cora, 60/20/20, {seeds} seeds; test accuracy in % with "
        "95 % intervals of the mean",
        _ENTRIES,
        {"table": str(table.path), "epochs": epochs},
        rounds=seeds,
        steps=1,
        warmup=0,
        unit="%",
        progress=progress,
    )
    dense = case.contenders[_DENSE].samples
    contenders = {name: _with_figures(each, dense) for name, each in case.contenders.items()}
    missed = []
    below = contenders[_RIGL].figures.get("below dense")
    if below is not None and below > _MOST:
        missed.append(f"RigL at 90 % is {below:.2f} points below dense, not within {_MOST:g}.")
    return replace(case, contenders=contenders, missed=missed)


def _with_figures(contender: Contender, dense: list[float]) -> Contender:
    if not contender.samples:
        return contender
    found = mean_interval(contender.samples)
    figures = {"mean": found.mean}
    if len(contender.samples) > 1:
        figures |= {"low": found.low, "high": found.high}
    if len(dense) == len(contender.samples):
        lost = [a - b for a, b in zip(dense, contender.samples, strict=True)]
        figures["below dense"] = statistics.fmean(lost)
        if len(lost) > 1:
            apart = mean_interval(lost)
            figures |= {"below: low": apart.low, "below: high": apart.high}
    return replace(contender, figures=figures)
