"""A page: chapters of tables, figures and words, in one HTML file that needs nothing else.

It also formats the numbers of a page for people.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import weft
from weft.errors import DataError
from weft.files import write_atomically

FIGURE = "@figure@"
"""Placeholder for a plot's number in its ids, because a page may have two equal plots."""

_NONE = ("–", "—")
# Begins with a number that is no date and no name such as 1.5d.
_NUMBER = re.compile(r"(?!\d{4}-\d\d)[+\-−]?\d[\d.,]*(?:e[+-]?\d+)?(?![A-Za-z\d.(])")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts; columns of numbers are set to the right.

    Attributes:
        caption: its subject, in a few words.
        headings: of the columns.
        rows: cells, one for each heading.
        marked: numbers of highlighted rows.
        folded: collapsed until it is opened; printed in full.
        chips: columns whose cells are single words, coloured by their meaning.
        strong: cells in bold, (row, column) each.
        titled: a heading above says the same, so that the caption is for screen readers only.
        links: by row, the page that its first cell links to.
        places: by column, the place of each row when the table is sorted by that column; empty
            for a table that is not to be sorted.
        sorted_by: the column that the rows are sorted by at first.
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
    links: Mapping[int, str] = field(default_factory=dict)
    places: Sequence[Sequence[int]] = ()
    sorted_by: int = 0

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds numbers."""
        columns = [[row[i] for row in self.rows if row[i]] for i in range(len(self.headings))]
        return [
            all(cell in _NONE or _NUMBER.match(cell) for cell in cells)
            and any(cell not in _NONE for cell in cells)
            for cells in columns
        ]

    def without_empty(self) -> Table:
        """The table without columns that have a dash, or nothing, in every row."""
        kept = [
            i
            for i, _ in enumerate(self.headings)
            if any(r[i] not in ("", *_NONE) for r in self.rows)
        ]
        place = {before: now for now, before in enumerate(kept)}
        return replace(
            self,
            headings=tuple(self.headings[i] for i in kept),
            rows=[tuple(row[i] for i in kept) for row in self.rows],
            chips=tuple(place[i] for i in self.chips if i in place),
            strong=tuple((row, place[i]) for row, i in self.strong if i in place),
        )

    def turned(self, heading: str) -> Table:
        """The table with its rows as columns; `heading` is that of the new first column."""
        headings = (heading, *(row[0] for row in self.rows))
        columns = zip(*(row[1:] for row in self.rows), strict=True)
        cells = zip(self.headings[1:], columns, strict=True)
        rows = [(name, *column) for name, column in cells]
        return Table(caption=self.caption, headings=headings, rows=rows, folded=self.folded)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot with its data.

    Attributes:
        title: of the figure.
        svg: the plot, made by `weft.report.figures`; it is not escaped.
        table: the plotted numbers.
        note: a sentence below it.
    """

    kind: ClassVar[str] = "figure"
    title: str
    svg: str
    table: Table
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A plot that was read from a file.

    It is an image of its own, not part of the page's markup: a browser runs no script in an image
    and fetches nothing for it, whatever the file holds.

    Attributes:
        title: of the picture.
        format: `svg+xml` or `png`.
        data: the file in base64.
        wide: whether it takes the whole width of the page; on a narrow screen it scrolls.
    """

    kind: ClassVar[str] = "picture"
    title: str
    format: str
    data: str
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The most important numbers: (name, value, remark) each."""

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


AnyBlock = TypeVar("AnyBlock", bound=Block)


def present(*blocks: AnyBlock | None) -> list[AnyBlock]:
    """The blocks that are not None."""
    return [block for block in blocks if block is not None]


def value_table(
    caption: str, rows: Sequence[tuple[str, str]], name: str = "what", *, folded: bool = False
) -> Table:
    """A table of two columns: what something is, and its value."""
    return Table(caption=caption, headings=(name, "value"), rows=rows, folded=folded)


def machine_rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on the `machine` and the `versions` of a plan or a study."""
    return [
        (f"{name}: {key}", plain(value))
        for name in ("machine", "versions")
        if isinstance(about := values.get(name), Mapping)
        for key, value in about.items()
    ]


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
    """A run, a plan, a study or the like. All of them are read in one order: that of the fields.

    Attributes:
        kind: `Run`, `Plan`, `Study` or the like.
        title: its name.
        lead: an introduction of a sentence or two.
        headline: the main figures, with their units and baselines, and what a reader must know.
        pictures: figures and pictures.
        parts: tables, and what they say.
        again: settings, commands and machines.
    """

    kind: str
    title: str
    lead: str
    headline: Sequence[Block] = ()
    pictures: Sequence[Figure | Picture] = ()
    parts: Sequence[Part] = ()
    again: Sequence[Block] = ()

    @property
    def sections(self) -> list[Part]:
        """All of it under headings; what is empty is left out."""
        every = (
            Part(title="In short", blocks=self.headline),
            Part(title="Pictures", blocks=self.pictures),
            *self.parts,
            Part(title="Settings and commands", blocks=self.again),
        )
        return [part for part in every if part.blocks]


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of one HTML file.

    Attributes:
        title: of a page with several chapters; a single chapter has its own title.
        chapters: from top to bottom.
        refresh_seconds: after which a browser loads it again; 0 for never.
    """

    title: str
    chapters: Sequence[Chapter]
    refresh_seconds: int = 0

    @property
    def most_places(self) -> int:
        """The most columns that a table of the page can be sorted by."""
        sections = [part for chapter in self.chapters for part in chapter.sections]
        blocks = [block for part in sections for block in part.blocks]
        return max((len(b.places) for b in blocks if isinstance(b, Table)), default=0)


def render(page: Page) -> str:
    """The page as HTML, without scripts or external files; equal content gives equal text.

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
    boards = itertools.count(1)
    environment.globals["next_board"] = lambda: next(boards)
    environment.filters["numbered"] = lambda svg: svg.replace(FIGURE, f"f{next(numbers)}")
    template = environment.from_string(here.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        page=page,
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        version=weft.__version__,
    )


def write_html(page: Page, path: Path) -> Path:
    """Write the page to `path` atomically; returns the path.

    Raises:
        DataError: jinja2 is not installed, or the file cannot be written.
    """
    # Undecodable bytes of a file name are shown as question marks.
    data = render(page).encode("utf-8", "replace")
    write_atomically(path, lambda file: file.write(data))
    return path


def number(value: float | None, digits: int = 4) -> str:
    """`value` with so many significant digits; a dash for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def time_column(seconds: Sequence[float | None]) -> tuple[str, list[str]]:
    """The unit that fits the longest of some times, and each of them in it."""
    longest = max((each for each in seconds if each is not None), default=0.0)
    # Minutes and hours only from two on: 90 s says more than 1.5 min.
    fitting = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"))
    scale, unit = next(((s, u) for least, s, u in fitting if longest >= least), (1e-3, "ms"))
    return unit, [number(None if each is None else each / scale, 3) for each in seconds]


def in_unit(words: str, unit: str) -> str:
    """A heading with its unit, if there is one."""
    return f"{words} [{unit}]" if unit else words


def percent(value: float | None) -> str:
    """A share in per cent."""
    return "–" if value is None else f"{value:.1%}"


def plain(value: Any) -> str:
    """The value of a setting."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
