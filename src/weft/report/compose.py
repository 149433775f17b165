"""From folders and files to a page: runs, plans and studies; several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.errors import DataError
from weft.planning.explain import seconds_words
from weft.report.figures import Points, curves
from weft.report.page import (
    Block,
    Chapter,
    Page,
    Part,
    Table,
    Words,
    number,
    plain,
    write_html,
)
from weft.report.plan_report import plan_chapter, read_plan
from weft.report.record import CONFIG, RunRecord, flat, read_run
from weft.report.run_report import (
    better_when_low,
    in_unit,
    per_second,
    run_chapter,
    score_text,
    spoken,
    unit_of,
)
from weft.report.study_report import RESULTS, study_chapter

REPORT = "report.html"


def page_of(items: Sequence[Path]) -> Page:
    """A chapter for each item; several runs are compared first.

    Raises:
        DataError: an item is neither a run, a plan nor a study, or it is damaged.
    """
    if not items:
        raise DataError("a page needs a run, a plan or a study")
    runs: list[RunRecord] = []
    chapters: list[Chapter] = []
    for item in items:
        found = _item(item)
        if isinstance(found, RunRecord):
            runs.append(found)
            found = run_chapter(found)
        chapters.append(found)
    if len(runs) > 1:
        chapters.insert(0, comparison(runs))
    title = f"{len(runs)} runs compared" if len(runs) == len(items) else "Report"
    return Page(title=title, chapters=chapters)


def page_path(items: Sequence[Path]) -> Path:
    """The default path of a page: beside a single item, in the current folder for several.

    The page of a file is named after it: plan.json gives plan.html, not the run's report.html.
    """
    if len(items) != 1:
        return Path(REPORT)
    return items[0] / REPORT if items[0].is_dir() else items[0].with_suffix(".html")


def write_page(items: Sequence[str | Path], path: str | Path | None = None) -> Path:
    """Write one HTML file on runs, plans and studies; returns its path.

    Args:
        items: folders of runs or studies, files or folders of plans.
        path: of the page; by default report.html in the folder (in the current one for several
            items), plan.html beside plan.json.

    Raises:
        DataError: an item is none of these or is damaged, jinja2 or matplotlib is not installed,
            or the page cannot be written.
    """
    paths = [Path(item) for item in items]
    return write_html(page_of(paths), page_path(paths) if path is None else Path(path))


def _item(item: Path) -> RunRecord | Chapter:
    if not item.exists():
        raise DataError(
            f"{item} does not exist; name the folder of a run or a study, or a plan.json"
        )
    if (item / CONFIG).is_file():
        return read_run(item)
    if (item / RESULTS).is_file():
        return study_chapter(item)
    file = item / "plan.json" if item.is_dir() else item
    plan = read_plan(file) if file.is_file() else None
    if plan is not None:
        return plan_chapter(file, plan)
    if item.name in (CONFIG, RESULTS) and item.parent != item:
        # The file by which a folder is recognised stands for the folder.
        return _item(item.parent)
    raise DataError(
        f"{item} is neither a run (a folder with config.json), a study (a folder with "
        "results.json) nor a plan (plan.json of `weft plan`)"
    )


def comparison(runs: Sequence[RunRecord]) -> Chapter:
    """The chapter that compares runs; it comes before their own."""
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
    """Names of the folders, with their parents' where two have the same name."""
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
        # Compared as shown: what differs by rounding only is equally good.
        cells = [score_text(metric, value) for value in values]
        if len({score_text(metric, value) for value in there}) > 1:
            strong += [(len(rows), i + 1) for i, cell in enumerate(cells) if cell == best]
        rows.append((_heading(runs, metric), *cells))
    for label, name, show in (
        ("training time", "seconds", seconds_words),
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
    # Ranks may change when a run is resumed, so they are not among its settings.
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
            # There is nothing to compare; the run's own chapter has the curve.
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
