"""Runs side by side: those that can be compared in one table, others each in their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.report.figures import curves
from weft.report.metric import (
    Metric,
    baseline,
    best_so_far,
    main_scores,
    metric_of,
    rate_unit,
)
from weft.report.page import (
    Block,
    Chapter,
    Figure,
    Part,
    Table,
    Words,
    in_unit,
    number,
    plain,
    present,
    time_column,
)
from weft.report.record import RunRecord, flat


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one recipe on the same data and target: their scores say the same.

    Attributes:
        title: what they share.
        runs: by name, in the order in which they were given.
    """

    title: str
    runs: Mapping[str, RunRecord]

    @property
    def metrics(self) -> dict[str, Metric]:
        """The final scores that any of them has."""
        found: dict[str, Metric] = {}
        for run in self.runs.values():
            for name in run.scores():
                found.setdefault(name, self.metric(name))
        return found

    def metric(self, name: str) -> Metric:
        """A metric of theirs; a run that is going on does not know its unit yet."""
        known = (metric_of(run, name) for run in self.runs.values())
        return max(known, key=lambda metric: bool(metric.unit))

    @property
    def rate_unit(self) -> str:
        """What their throughput counts."""
        return rate_unit(next(iter(self.runs.values())))


def grouped(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Group]:
    """The runs by what can be compared."""
    found: list[tuple[tuple[str, str, str], dict[str, RunRecord]]] = []
    for name, run in zip(names, runs, strict=True):
        target = str(run.config.get("target") or "")
        task = (run.recipe or "own model", plain(run.config.get("data")), target)
        # The unit of a run that is going on is not known yet.
        own = next(
            (own for known, own in found if known == task and len(_units(*own.values(), run)) < 2),
            None,
        )
        if own is None:
            found.append((task, own := {}))
        own[name] = run
    groups = []
    for (recipe, data, target), own in found:
        words = (recipe, data, in_unit(target, "".join(_units(*own.values()))))
        title = ", ".join(word for word in words if word not in ("", "–"))
        groups.append(Group(title=title, runs=own))
    return groups


def _units(*runs: RunRecord) -> set[str]:
    """The units that are known of their targets."""
    return {run.unit for run in runs} - {""}


def run_names(runs: Sequence[RunRecord]) -> list[str]:
    """Names of the folders, with their parents' where two have the same name."""
    short = [run.name for run in runs]
    if len(set(short)) == len(runs):
        return short
    longer = [f"{run.folder.resolve().parent.name}/{run.name}" for run in runs]
    if len(set(longer)) == len(runs):
        return longer
    return [f"{name} ({place})" for place, name in enumerate(longer, start=1)]


def comparison(runs: Sequence[RunRecord]) -> Chapter:
    """The chapter that compares runs; it comes before their own."""
    names = run_names(runs)
    groups = grouped(runs, names)
    several = [group for group in groups if len(group.runs) > 1]
    parts = []
    for group in several:
        title = group.title if len(groups) > 1 else "What came out"
        parts.append(Part(title=title, blocks=[_outcomes(group), *_differences(group)]))
    headline: list[Block] = [_overview(runs, names)]
    unfinished = [name for run, name in zip(runs, names, strict=True) if not run.summary]
    if unfinished:
        headline.append(Words(words=[f"Not finished: {', '.join(unfinished)}."]))
    lead = f"{', '.join(names)}."
    if len(groups) > 1:
        lead += " Only runs of one recipe on the same data and target are compared in a table."
    return Chapter(
        kind="Comparison",
        title="Side by side",
        lead=lead,
        headline=headline,
        pictures=[figure for group in several for figure in _curves(group, len(groups) > 1)],
        parts=parts,
    )


def _overview(runs: Sequence[RunRecord], names: Sequence[str]) -> Table:
    """What each run is and what it reached, whatever the others are."""
    unit, times = time_column([run.summary.get("seconds") for run in runs])
    rows = []
    for run, name, time in zip(runs, names, times, strict=True):
        (group,) = grouped([run], [name])
        score, guess = _main(run)
        rates = run.series("graphs_per_second")
        rate = f"{number(rates[-1][1], 3)} {rate_unit(run)}" if rates else "–"
        rows.append((name, group.title, score, guess, time, rate))
    headings = (
        *("run", "what", "main score", "without training"),
        *(in_unit("training time", unit), "throughput at the end"),
    )
    return Table(caption="The runs", headings=headings, rows=rows, titled=True).without_empty()


def _main(run: RunRecord) -> tuple[str, str]:
    """The most important score in words, and what needs no training."""
    scores = run.scores()
    if not scores:
        if (best := best_so_far(run)) is None:
            return "–", "–"
        metric = metric_of(run, best[0])
        return f"{metric.words} {metric.with_unit(best[1])} so far", "–"
    name = main_scores(scores)[0]
    metric, guess = metric_of(run, name), baseline(run, name)
    without = "–" if guess is None else f"{metric.with_unit(guess[1])} ({guess[0]})"
    return f"{metric.words} {metric.with_unit(scores[name])}", without


def _outcomes(group: Group) -> Table:
    runs = list(group.runs.values())
    rows: list[tuple[str, ...]] = []
    strong = []
    for name, metric in group.metrics.items():
        values = [run.scores().get(name) for run in runs]
        there = [value for value in values if value is not None]
        best = metric.text((min if metric.better_when_low else max)(there))
        # Compared as shown: what differs by rounding only is equally good.
        cells = [metric.text(value) for value in values]
        if len({metric.text(value) for value in there}) > 1:
            strong += [(len(rows), i + 1) for i, cell in enumerate(cells) if cell == best]
        rows.append((metric.heading, *cells))
    unit, times = time_column([run.summary.get("seconds") for run in runs])
    at_the_end = [run.series("graphs_per_second")[-1:] for run in runs]
    for label, cells in (
        (in_unit("training time", unit), times),
        ("epochs", [number(run.summary.get("epochs")) for run in runs]),
        ("best epoch", [number(run.summary.get("best_epoch")) for run in runs]),
        (
            in_unit("throughput at the end", group.rate_unit),
            [number(points[0][1] if points else None, 3) for points in at_the_end],
        ),
        (
            in_unit("throughput, mean", group.rate_unit),
            [number(run.summary.get("graphs_per_second"), 3) for run in runs],
        ),
    ):
        if set(cells) != {"–"}:
            rows.append((label, *cells))
    return Table(
        caption="Final scores, the best of each in bold; time and throughput",
        headings=("", *group.runs),
        rows=rows,
        strong=tuple(strong),
    )


def settings_that_differ(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """The values, a dash where there is none, of the settings that are not the same in all."""
    # Ranks may change when a run is resumed, so they are not among its settings.
    shared = ("ranks", "grid")
    configs = [
        flat(run.config) | {name: run.summary[name] for name in shared if name in run.summary}
        for run in runs
    ]
    found = {}
    for setting in dict.fromkeys(name for config in configs for name in config):
        cells = [plain(config.get(setting)) if setting in config else "–" for config in configs]
        if len(set(cells)) > 1:
            found[setting] = cells
    return found


def _differences(group: Group) -> list[Block]:
    rows = [(name, *cells) for name, cells in settings_that_differ([*group.runs.values()]).items()]
    if not rows:
        return [Words(words=["Their settings are the same."])]
    return [
        Table(
            caption="Settings that are not the same in all",
            headings=("setting", *group.runs),
            rows=rows,
            folded=len(rows) > 40,
        )
    ]


def _curves(group: Group, named: bool) -> list[Figure]:
    """Metrics that two runs or more have logged, by epoch, and the main one by time."""
    runs = group.runs
    found = [
        group.metric(name)
        for name in dict.fromkeys(name for run in runs.values() for name in run.names())
        if name == "train_loss" or name.startswith("validation_")
        # Where there is nothing to compare, the run's own chapter has the curve.
        if sum(name in run.names() for run in runs.values()) > 1
    ]
    main = main_scores({metric.name: 0.0 for metric in found})[:1]
    where = f"; {group.title}" if named else ""

    def drawn(metric: Metric, by: str, words: str, y: str, *, low: bool) -> Figure | None:
        lines = {name: run.series(metric.name, by, metric.scale) for name, run in runs.items()}
        return curves(
            f"{words[0].upper()}{words[1:]} by {'time' if by == 'seconds' else by}{where}",
            lines,
            x="time since the start [s]" if by == "seconds" else by,
            y=y,
            y_log=low,
            from_zero=metric.name == "graphs_per_second",
        )

    figures = []
    for metric in found:
        y = "loss" if metric.name == "train_loss" else metric.heading
        low = metric.better_when_low
        figures.append(drawn(metric, "epoch", metric.words, y, low=low))
        if metric.name in main:
            figures.append(drawn(metric, "seconds", metric.words, y, low=low))
    throughput = in_unit("throughput", group.rate_unit)
    rate = drawn(Metric("graphs_per_second"), "epoch", "throughput", throughput, low=False)
    return present(*figures, rate)
