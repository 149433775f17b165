"""A page: chapters of tables, figures and words, in one HTML file that needs nothing else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

import weft
from weft.errors import DataError
from weft.files import write_atomically
from weft.report.svg import FIGURE

_NONE = ("–", "—")
# Begins with a number that is no date and no name such as 1.5d.
_NUMBER = re.compile(r"(?!\d{4}-\d\d)[+\-−]?\d[\d.,]*(?:e[+-]?\d+)?(?![A-Za-z\d.(])")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts; columns of numbers are set to the right.

    Attributes:
        caption: what it says, in a few words.
        headings: of its columns.
        rows: cells; as many in each as there are headings.
        marked: rows that stand out.
        folded: shown only when asked for; printed all the same.
        chips: columns whose cells are a word that is coloured by what it says.
        strong: cells that stand out, (row, column) each.
        titled: what the caption says stands above it already; only readers aloud need it.
    """

    kind: ClassVar[str] = "table"
    caption: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    marked: tuple[int, ...] = ()
    folded: bool = False
    chips: tuple[int, ...] = ()
    strong: tuple[tuple[int, int], ...] = ()
    titled: bool = False

    @property
    def numeric(self) -> list[bool]:
        """Of each column, whether it holds numbers."""
        columns = [[row[i] for row in self.rows if row[i]] for i in range(len(self.headings))]
        return [
            all(cell in _NONE or _NUMBER.match(cell) for cell in cells)
            and any(cell not in _NONE for cell in cells)
            for cells in columns
        ]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot and its numbers.

    Attributes:
        title: of the figure.
        svg: the plot, made by `weft.report.figures`: it is put into the page as it is.
        table: the plotted numbers; None for a plot that was drawn elsewhere.
        note: a sentence below it.
        wide: takes the whole width of the page.
    """

    kind: ClassVar[str] = "figure"
    title: str
    svg: str
    table: Table | None
    note: str = ""
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture of points, inside the page.

    Attributes:
        title: of it.
        data: a PNG file in base64.
    """

    kind: ClassVar[str] = "picture"
    title: str
    data: str
    wide: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The few numbers to see first: (name, value, remark) each."""

    kind: ClassVar[str] = "facts"
    facts: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True)
class Words:
    """Paragraphs, or the points of a list."""

    kind: ClassVar[str] = "words"
    words: Sequence[str]
    points: bool = False


@dataclass(frozen=True, kw_only=True)
class Code:
    """Commands to copy."""

    kind: ClassVar[str] = "code"
    caption: str
    text: str


Block = Table | Figure | Picture | Facts | Words | Code


@dataclass(frozen=True, kw_only=True)
class Part:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]

    @property
    def groups(self) -> list[list[Block]]:
        """The blocks; figures that follow each other stand side by side."""
        groups: list[list[Block]] = []
        for block in self.blocks:
            pictured = isinstance(block, Figure | Picture)
            if pictured and groups and isinstance(groups[-1][0], Figure | Picture):
                groups[-1].append(block)
            else:
                groups.append([block])
        return groups


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A run, a plan or a study.

    Attributes:
        kind: what it is, in a word or two.
        title: its name.
        lead: a sentence or two on what it is.
        parts: the rest.
    """

    kind: str
    title: str
    lead: str
    parts: Sequence[Part] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Page:
    """What becomes one file.

    Attributes:
        title: of the page, where it has several chapters; one gives its own.
        chapters: from top to bottom.
    """

    title: str
    chapters: Sequence[Chapter]


def render(page: Page) -> str:
    """The page as HTML: no script, nothing that is fetched, the same for the same content.

    Raises:
        DataError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise DataError(
            "a page needs jinja2, which is not installed: pip install 'weft[report]'"
        ) from error
    here = files("weft.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    numbers = itertools.count(1)
    environment.filters["numbered"] = lambda svg: svg.replace(FIGURE, f"f{next(numbers)}")
    template = environment.from_string(here.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        page=page,
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        version=weft.__version__,
    )


def write_html(page: Page, path: Path) -> Path:
    """Write `render`'s text to `path`, whole or not at all; gives the path.

    Raises:
        DataError: jinja2 is not installed, or the file cannot be written.
    """
    # What a file name cannot say in Unicode is shown as a question mark.
    data = render(page).encode("utf-8", "replace")
    write_atomically(path, lambda file: file.write(data))
    return path
