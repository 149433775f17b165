"""One self-contained HTML page for a run, a plan or a study."""

from weft.report.compare import comparison
from weft.report.items import page_of, page_path, write_page
from weft.report.page import Chapter, Page, Part, Table, render, write_html
from weft.report.plan import plan_chapter
from weft.report.record import read_run
from weft.report.run import run_chapter
from weft.report.study import study_chapter

__all__ = [
    "Chapter",
    "Page",
    "Part",
    "Table",
    "comparison",
    "page_of",
    "page_path",
    "plan_chapter",
    "read_run",
    "render",
    "run_chapter",
    "study_chapter",
    "write_html",
    "write_page",
]
