"""Runs side by side: what differs in their settings, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.report.figures import Points, curves
from weft.report.numbers import number, plain, seconds
from weft.report.page import Block, Chapter, Part, Table, Words
from weft.report.record import RunRecord, flat
from weft.report.run import (
    better_when_low,
    in_unit,
    per_second,
    score_text,
    spoken,
    unit_of,
)


def comparison(runs: Sequence[RunRecord]) -> Chapter:
    """A chapter that goes before those of the runs themselves."""
    names = _names(runs)
    return Chapter(
        kind="Comparison",
        title="Side by side",
        lead=", ".join(names) + ".",
        parts=[
            Part(title="What came out", blocks=_outcomes(runs, names)),
            Part(title="What was different", blocks=_differences(runs, names)),
            Part(title="Curves", blocks=_curves(runs, names)),
        ],
    )


def _names(runs: Sequence[RunRecord]) -> list[str]:
    """By folder; with the folder above where two are called the same."""
    short = [run.name for run in runs]
    if len(set(short)) == len(runs):
        return short
    longer = [f"{run.folder.resolve().parent.name}/{run.name}" for run in runs]
    if len(set(longer)) == len(runs):
        return longer
    return [f"{name} ({place})" for place, name in enumerate(longer, start=1)]


def _outcomes(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Block]:
    scores = [run.scores() for run in runs]
    rows: list[tuple[str, ...]] = []
    strong = []
    for metric in dict.fromkeys(name for each in scores for name in each):
        values = [each.get(metric) for each in scores]
        there = [value for value in values if value is not None]
        best = score_text(metric, (min if better_when_low(metric) else max)(there))
        # By what is shown: rounding makes no run the better one.
        cells = [score_text(metric, value) for value in values]
        if len({score_text(metric, value) for value in there}) > 1:
            strong += [(len(rows), i + 1) for i, cell in enumerate(cells) if cell == best]
        rows.append((_heading(runs, metric), *cells))
    for label, name, show in (
        ("training time", "seconds", seconds),
        ("epochs", "epochs", number),
        ("best epoch", "best_epoch", number),
        (f"{_rates(runs)} (mean)", "graphs_per_second", number),
    ):
        if any(name in run.summary for run in runs):
            rows.append((label, *(show(run.summary.get(name)) for run in runs)))
    table = Table(
        caption="Final scores, the best of each in bold; time and throughput",
        headings=("", *names),
        rows=rows,
        strong=tuple(strong),
    )
    unfinished = [name for run, name in zip(runs, names, strict=True) if not run.summary]
    said = [f"Not finished: {', '.join(unfinished)}."] if unfinished else []
    return [table, *([Words(words=said)] if said else [])]


def _heading(runs: Sequence[RunRecord], metric: str) -> str:
    return in_unit(spoken(metric), {unit_of(run, metric) for run in runs})


def _differences(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Block]:
    # A run may go on with other ranks, so that they are no setting of it.
    shared = ("ranks", "grid")
    configs = [
        flat(run.config) | {name: run.summary[name] for name in shared if name in run.summary}
        for run in runs
    ]
    rows = []
    for setting in dict.fromkeys(name for config in configs for name in config):
        cells = [plain(config.get(setting)) if setting in config else "–" for config in configs]
        if len(set(cells)) > 1:
            rows.append((setting, *cells))
    if not rows:
        return [Words(words=["Their settings are the same."])]
    return [
        Table(
            caption="Settings that are not the same in all",
            headings=("setting", *names),
            rows=rows,
            folded=len(rows) > 40,
        )
    ]


def _curves(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Block]:
    blocks: list[Block] = []
    found = dict.fromkeys(name for run in runs for name in run.names())
    units = {"train_loss": "loss", "graphs_per_second": _rates(runs)}
    for metric in found:
        if metric not in units and not metric.startswith("validation_"):
            continue
        if sum(metric in run.names() for run in runs) < 2:
            # Nothing to lay over one another; it is in the run's own chapter.
            continue
        for by in ("epoch", "seconds"):
            lines: dict[str, Points] = {
                name: run.series(metric, by=by) for run, name in zip(runs, names, strict=True)
            }
            figure = curves(
                f"{_title(metric)} by {by}",
                lines,
                x=by if by == "epoch" else "s since the start",
                y=units.get(metric) or _heading(runs, metric),
                y_log=better_when_low(metric),
                from_zero=metric == "graphs_per_second",
            )
            if figure is not None:
                blocks.append(figure)
            if metric == "graphs_per_second":
                break
    return blocks


def _title(metric: str) -> str:
    words = "throughput" if metric == "graphs_per_second" else spoken(metric)
    return words[0].upper() + words[1:]


def _rates(runs: Sequence[RunRecord]) -> str:
    return " or ".join(dict.fromkeys(map(per_second, runs)))
