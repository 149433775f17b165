"""From folders and files to a page: runs, plans and studies; several runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from weft.errors import DataError
from weft.files import read_object
from weft.kernels import triton_certificate
from weft.planning.plan import SCHEMA as PLAN_SCHEMA
from weft.report import bench_report
from weft.report.certificate_report import certificate_chapter
from weft.report.comparison import comparison
from weft.report.leader_board import leader_board, run_folders
from weft.report.page import Chapter, Page, write_html
from weft.report.plan_report import FORMULAS, plan_chapter
from weft.report.record import CONFIG, RunRecord, read_run
from weft.report.run_report import run_chapter
from weft.report.study_report import RESULTS, study_chapter
from weft.sources.progress_bar import progress_bar

REPORT = "report.html"


def page_of(items: Sequence[Path], place: Path = Path()) -> Page:
    """A chapter for each item; several runs are compared first.

    Args:
        items: as of `write_page`.
        place: the folder that the page will be in, from which it links to other pages.

    Raises:
        DataError: an item is neither a run, a plan nor a study, or it is damaged.
    """
    if not items:
        raise DataError("a page needs a run, a plan or a study; name its folder or file")
    runs: list[RunRecord] = []
    chapters: list[Chapter] = []
    for item in items:
        found = _item(item, place)
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


def write_page(
    items: Sequence[str | Path], path: str | Path | None = None, *, refresh_seconds: int = 0
) -> Path:
    """Write one HTML file on runs, plans and studies; returns its path.

    Of a folder with runs it is a leader board, which links to a page of each run: those that are
    missing or older than their run are written too.

    Args:
        items: folders of runs or studies, folders with runs, files or folders of plans.
        path: of the page; by default report.html in the folder (in the current one for several
            items), plan.html beside plan.json.
        refresh_seconds: after which a browser loads the page again, for one that is written while
            a run trains; 0 for never.

    Raises:
        DataError: an item is none of these or is damaged, jinja2 or matplotlib is not installed,
            or the page cannot be written.
    """
    paths = [Path(item) for item in items]
    to = page_path(paths) if path is None else Path(path)
    page = page_of(paths, to.parent)
    outdated = [run for item in paths for run in _linked_runs(item) if _is_outdated(run)]
    show = len(outdated) > 1 and sys.stderr.isatty()
    with progress_bar("pages of runs", len(outdated), show=show, count=True) as move:
        for count, run in enumerate(outdated, start=1):
            # A damaged run is named on the board.
            with suppress(DataError):
                write_page([run])
            move(count)
    return write_html(replace(page, refresh_seconds=refresh_seconds), to)


def _linked_runs(item: Path) -> list[Path]:
    """The runs of a leader board."""
    alone = any((item / name).is_file() for name in (CONFIG, RESULTS, "plan.json"))
    return [] if alone else run_folders(item)


def _is_outdated(run: Path) -> bool:
    """Whether a run has no page, or has written something since."""
    page = run / REPORT
    files = [run / name for name in (CONFIG, "metrics.jsonl", "summary.json")]
    last = max(file.stat().st_mtime for file in files if file.exists())
    return not page.exists() or page.stat().st_mtime < last


def _item(item: Path, place: Path) -> RunRecord | Chapter:
    if not item.exists():
        raise DataError(
            f"{item} does not exist; name the folder of a run or a study, a folder of runs, or a "
            "plan.json"
        )
    if (item / CONFIG).is_file():
        return read_run(item)
    if (item / RESULTS).is_file():
        return study_chapter(item)
    file = item / "plan.json" if item.is_dir() else item
    chapter = _of_values(file) if file.is_file() else None
    if chapter is not None:
        return chapter
    if item.name in (CONFIG, RESULTS) and item.parent != item:
        # The file by which a folder is recognised stands for the folder.
        return _item(item.parent, place)
    if run_folders(item):
        return leader_board(item, place, REPORT)
    raise DataError(
        f"{item} is neither a run (a folder with config.json), a study (a folder with "
        "results.json), a folder with runs, a plan (plan.json of `weft plan`) nor a benchmark "
        "(the file of `weft bench`)"
    )


# By the schema of a file: its chapter, what it is, and what to do if it is damaged.
_OF_VALUES = {
    bench_report.SCHEMA: (bench_report.bench_chapter, "benchmark", "run it again"),
    triton_certificate.SCHEMA: (certificate_chapter, "certificate", "make it again"),
}


def _of_values(file: Path) -> Chapter | None:
    """The chapter of a plan's, a benchmark's or a certificate's file; None for any other file."""
    try:
        value = read_object(file)
    except DataError:
        return None
    schema = str(value.get("schema"))
    if schema in (PLAN_SCHEMA, FORMULAS):
        return plan_chapter(file, value)
    if schema not in _OF_VALUES:
        return None
    chapter, name, remedy = _OF_VALUES[schema]
    try:
        return chapter(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{file} is a damaged {name} ({error!r}); {remedy}") from error
