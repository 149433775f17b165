"""One self-contained HTML page for a run, a plan or a study."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.report.comparison import comparison as comparison
    from weft.report.compose import page_of as page_of
    from weft.report.compose import page_path as page_path
    from weft.report.compose import write_page as write_page
    from weft.report.page import Chapter as Chapter
    from weft.report.page import Page as Page
    from weft.report.page import Part as Part
    from weft.report.page import Table as Table
    from weft.report.page import render as render
    from weft.report.page import write_html as write_html
    from weft.report.plan_report import plan_chapter as plan_chapter
    from weft.report.record import read_run as read_run
    from weft.report.run_report import run_chapter as run_chapter
    from weft.report.study_report import study_chapter as study_chapter
else:
    __all__ = lazy_names(__name__)
