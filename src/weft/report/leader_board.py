"""The chapter of a folder with runs: the best of each task first, to be sorted as one likes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import DataError
from weft.report.comparison import Group, grouped, settings_that_differ
from weft.report.figures import Bar, bars
from weft.report.metric import Metric, baseline, best_so_far, main_scores
from weft.report.page import (
    Block,
    Chapter,
    Facts,
    Figure,
    Part,
    Table,
    Words,
    in_unit,
    number,
    present,
    time_column,
)
from weft.report.record import CONFIG, RunRecord, read_run

# So many of the best are drawn.
_MOST_BARS = 12
# The runs' own pages have the others.
_MOST_SCORES = 4


def run_folders(folder: Path) -> list[Path]:
    """The runs in a folder, members of ensembles included, in the order of their names."""
    found = [path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{CONFIG}")]
    return sorted(found)


def leader_board(folder: Path, pages: Path, page: str) -> Chapter:
    """The runs in `folder`, by what can be compared.

    Args:
        folder: where the runs are.
        pages: the folder that the chapter's page will be in.
        page: the name of the page in a run's folder, which the board links to.

    Raises:
        DataError: no run in it can be read.
    """
    runs: dict[str, RunRecord] = {}
    damaged = []
    for path in run_folders(folder):
        try:
            runs[path.relative_to(folder).as_posix()] = read_run(path)
        except DataError as error:
            damaged.append(f"{error}.")
    if not runs:
        raise DataError(f"{folder} holds no run that can be read: {damaged[0]}")
    links = {
        name: Path(os.path.relpath(run.folder / page, pages)).as_posix()
        for name, run in runs.items()
    }
    groups = grouped(list(runs.values()), list(runs))
    facts = [fact for fact in map(_fact, groups) if fact is not None]
    headline: list[Block] = [Facts(facts=facts)] if facts else []
    if damaged:
        headline.append(Words(words=damaged, points=True))
    parts = []
    for group in groups:
        tables = [_board(group, links), _commands(group)]
        parts.append(Part(title=group.title, blocks=tables))
    return Chapter(
        kind="Leader board",
        title=folder.resolve().name,
        lead=f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} of {len(groups)} "
        f"{'task' if len(groups) == 1 else 'tasks'}: a task is a recipe, its data and its target.",
        headline=headline,
        pictures=present(*map(_picture, groups)),
        parts=parts,
    )


def _main_metric(group: Group) -> Metric | None:
    """The score that most of the runs have as their main one."""
    mains = [main_scores(run.scores())[:1] for run in group.runs.values()]
    names = [name for each in mains for name in each]
    return group.metric(max(names, key=names.count)) if names else None


def _ranked(group: Group, metric: Metric) -> list[tuple[str, float]]:
    """The runs that have this score, the best first."""
    scores = {name: run.scores().get(metric.name) for name, run in group.runs.items()}
    known = [(name, score) for name, score in scores.items() if score is not None]
    return sorted(known, key=lambda each: each[1], reverse=not metric.better_when_low)


def _without_training(group: Group, metric: Metric) -> tuple[str, float] | None:
    """Of the best run: others may have learnt from other parts of the data."""
    return baseline(group.runs[_ranked(group, metric)[0][0]], metric.name)


def _fact(group: Group) -> tuple[str, str, str] | None:
    if (metric := _main_metric(group)) is None:
        return None
    name, best = _ranked(group, metric)[0]
    remark = name
    if (guess := _without_training(group, metric)) is not None:
        remark += f"; without training ({guess[0]}): {metric.with_unit(guess[1])}"
    return f"{group.title}: best {metric.words}", metric.with_unit(best), remark


def _picture(group: Group) -> Figure | None:
    """The best runs beside what needs no training."""
    if len(group.runs) < 2 or (metric := _main_metric(group)) is None:
        return None
    ranked = _ranked(group, metric)
    shown: list[Bar] = []
    for name, score in ranked[:_MOST_BARS]:
        low, high = group.runs[name].intervals().get(metric.name, (score, score))
        shown.append((name, metric.scale * score, metric.scale * low, metric.scale * high))
    if (guess := _without_training(group, metric)) is not None:
        value = metric.scale * guess[1]
        shown.append((f"without training: {guess[0]}", value, value, value))
    lower = "lower" if metric.better_when_low else "higher"
    note = f"The {lower} the better."
    if any(low < value for _, value, low, _ in shown):
        note += " Whiskers are 95% intervals over the test set."
    if len(ranked) > _MOST_BARS:
        note += f" The best {_MOST_BARS} of {len(ranked)} runs."
    title = f"{metric.words[0].upper()}{metric.words[1:]}; {group.title}"
    return bars(title, shown, x=metric.heading, of="run", marked=[0], note=note)


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column that can be sorted by: values, None where there is none, and how they are shown."""

    heading: str
    values: Sequence[Any]
    texts: Sequence[str]
    high_first: bool = False

    @property
    def places(self) -> list[int]:
        """The place of each row in this column's order; what is missing comes last."""

        def key(row: int) -> tuple[bool, bool, Any]:
            value = self.values[row]
            if isinstance(value, int | float):
                return False, False, -value if self.high_first else value
            return value is None, True, str(value)

        rows = sorted(range(len(self.values)), key=key)
        if self.high_first and all(isinstance(v, str | None) for v in self.values):
            known = [row for row in rows if self.values[row] is not None]
            rows = [*reversed(known), *rows[len(known) :]]
        return [rows.index(row) for row in range(len(rows))]


def _board(group: Group, links: Mapping[str, str]) -> Table:
    """A table of the runs, the best first."""
    main = _main_metric(group)
    best = [] if main is None else [name for name, _ in _ranked(group, main)]
    names = [*best, *(name for name in group.runs if name not in best)]
    runs = [group.runs[name] for name in names]
    columns = [_Column(heading="run", values=names, texts=names)]
    columns += _score_columns(group, runs, main)
    columns += _other_columns(group, runs)
    settings = settings_that_differ(runs)
    columns += [
        _Column(heading=name, values=[_sortable(text) for text in texts], texts=texts)
        for name, texts in settings.items()
    ]
    columns = [column for column in columns if set(column.texts) - {"–"}]
    by = next((i for i, c in enumerate(columns) if main and c.heading == main.heading), 0)
    return Table(
        caption=group.title + (": press a heading to sort by it" if len(names) > 1 else ""),
        headings=tuple(column.heading for column in columns),
        rows=list(zip(*(column.texts for column in columns), strict=True)),
        links={row: links[name] for row, name in enumerate(names)},
        places=[column.places for column in columns],
        sorted_by=by,
    )


def _sortable(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return None if text == "–" else text


def _score_columns(group: Group, runs: Sequence[RunRecord], main: Metric | None) -> list[_Column]:
    """The main score, then others that matter, then the best validation score."""
    names = main_scores(dict.fromkeys(group.metrics, 0.0))
    shown = [] if main is None else [main]
    shown += [group.metrics[name] for name in names[:_MOST_SCORES] if group.metrics[name] != main]
    columns = []
    for metric in shown:
        values = [run.scores().get(metric.name) for run in runs]
        columns.append(
            _Column(
                heading=metric.heading,
                values=values,
                texts=[metric.text(value) for value in values],
                high_first=not metric.better_when_low,
            )
        )
    if main is not None:
        guesses = [guess and guess[1] for guess in (baseline(run, main.name) for run in runs)]
        columns.append(
            _Column(
                heading=in_unit("without training", main.unit),
                values=guesses,
                texts=[main.text(guess) for guess in guesses],
                high_first=not main.better_when_low,
            )
        )
    so_far = [best_so_far(run) for run in runs]
    names = [each[0] for each in so_far if each is not None]
    if names:
        metric = group.metric(max(names, key=names.count))
        scores = [each[1] if each and each[0] == metric.name else None for each in so_far]
        columns.append(
            _Column(
                heading=f"best {metric.heading}",
                values=scores,
                texts=[metric.text(value) for value in scores],
                high_first=not metric.better_when_low,
            )
        )
    return columns


def _other_columns(group: Group, runs: Sequence[RunRecord]) -> list[_Column]:
    """Time, throughput, how it ended, and when it was begun."""
    seconds = [run.summary.get("seconds") for run in runs]
    unit, times = time_column(seconds)
    last = [run.series("graphs_per_second")[-1:] for run in runs]
    rates = [points[0][1] if points else None for points in last]
    begun = [str(run.sessions[0].get("started", "")) if run.sessions else "" for run in runs]
    # To the minute: 2026-01-31 23:59.
    dates = [each[:16].replace("T", " ") or "–" for each in begun]
    ended = [str(run.summary.get("stopped") or "not finished") for run in runs]
    return [
        _Column(heading=in_unit("training time", unit), values=seconds, texts=times),
        _Column(
            heading=in_unit("throughput at the end", group.rate_unit),
            values=rates,
            texts=[number(rate, 3) for rate in rates],
            high_first=True,
        ),
        _Column(heading="ended", values=ended, texts=ended),
        _Column(heading="begun [UTC]", values=begun, texts=dates, high_first=True),
    ]


def _commands(group: Group) -> Table:
    rows = [(name, "; ".join(run.commands) or "–") for name, run in group.runs.items()]
    return Table(caption="Commands", headings=("run", "command"), rows=rows, folded=True)
