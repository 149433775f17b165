"""From folders and files to a page: which of them is a run, a plan or a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.errors import DataError
from weft.report.compare import comparison
from weft.report.page import Chapter, Page, write_html
from weft.report.plan import plan_chapter, read_plan
from weft.report.record import RunRecord, is_run, read_run
from weft.report.run import run_chapter
from weft.report.study import is_study, study_chapter

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
    """Where the page of these items goes if nobody says: beside the one, here for several.

    A file's page has its name: in a run's folder plan.json gives plan.html, not the run's page.
    """
    if len(items) != 1:
        return Path(REPORT)
    return items[0] / REPORT if items[0].is_dir() else items[0].with_suffix(".html")


def write_page(items: Sequence[Path], path: Path | None = None) -> Path:
    """Write one HTML file on runs, plans and studies; gives its path.

    Args:
        items: folders of runs or studies, files or folders of plans.
        path: the page; by default report.html in the one folder or here for several, plan.html
            beside plan.json.

    Raises:
        DataError: an item is none of these or is damaged, jinja2 or matplotlib is not installed,
            or the page cannot be written.
    """
    return write_html(page_of(items), page_path(items) if path is None else path)


def _item(item: Path) -> RunRecord | Chapter:
    if not item.exists():
        raise DataError(
            f"{item} does not exist; name the folder of a run or a study, or a plan.json"
        )
    if item.is_dir() and is_run(item):
        return read_run(item)
    if item.is_dir() and is_study(item):
        return study_chapter(item)
    file = item / "plan.json" if item.is_dir() else item
    plan = read_plan(file) if file.is_file() else None
    if plan is not None:
        return plan_chapter(file, plan)
    if item.name in ("config.json", "results.json") and item.parent != item:
        # The file that makes a folder one of ours stands for the folder.
        return _item(item.parent)
    raise DataError(
        f"{item} is neither a run (a folder with config.json), a study (a folder with "
        "results.json) nor a plan (plan.json of `weft plan`)"
    )
