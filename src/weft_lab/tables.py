"""Tables with what they say, for a terminal and as Markdown: what every study reports with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from weft.files import write_atomically

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table with what it says.

    Attributes:
        title: of the table.
        headings: of its columns.
        rows: cells as text.
        says: sentences below it.
        narrow: columns that a terminal of 80 columns shows; all if empty.
    """

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    says: list[str] = field(default_factory=list)
    narrow: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        title: str,
        items: Iterable[Item],
        columns: Mapping[str, Callable[[Item], str]],
        *,
        says: Sequence[str] = (),
        narrow: tuple[str, ...] = (),
    ) -> Section:
        """A row for each item, with a cell in each of the columns, which are named by heading."""
        rows = [tuple(cell(item) for cell in columns.values()) for item in items]
        return cls(title=title, headings=tuple(columns), rows=rows, says=list(says), narrow=narrow)


class Reported(Protocol):
    """What a page says of a study before its tables."""

    @property
    def title(self) -> str:
        """Of the page."""

    @property
    def method(self) -> str:
        """How it was measured."""

    @property
    def machine(self) -> Mapping[str, Any]:
        """It ran on; may be empty."""

    @property
    def created(self) -> str:
        """When it was begun."""

    @property
    def command(self) -> str:
        """That it was begun with."""


def print_report(sections: Sequence[Section], console: Console) -> None:
    """The tables as a terminal has room for them: Markdown has every column."""
    for section in sections:
        console.print(section.title, style="italic", soft_wrap=True)
        shown = [
            i
            for i, heading in enumerate(section.headings)
            if not section.narrow or heading in section.narrow
        ]
        table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
        for i in shown:
            side = _side(section, i)
            # Headings may break, names may not.
            table.add_column(section.headings[i], justify=side, no_wrap=side == "left")
        for row in section.rows:
            table.add_row(*(row[i] for i in shown))
        console.print(table)
        for sentence in section.says:
            console.print(sentence, soft_wrap=True, highlight=False)
        console.print()


def write_markdown(
    results: Reported, sections: Sequence[Section], path: Path, *, plots: Sequence[Path] = ()
) -> None:
    """The report as a page with every column, and the plots that are beside it."""
    about = results.machine
    lines = [f"# {results.title}", ""]
    if about:
        lines += [f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB.", ""]
    lines += [f"Begun {results.created} with:", "", f"    {results.command}", ""]
    lines += [results.method, ""]
    for section in sections:
        columns = range(len(section.headings))
        sides = ["---" if _side(section, i) == "left" else "--:" for i in columns]
        lines += [f"## {section.title}", ""]
        for row in (section.headings, tuple(sides), *section.rows):
            lines.append(f"| {' | '.join(row)} |")
        lines += ["", *(line for sentence in section.says for line in (sentence, ""))]
    lines += [line for plot in plots for line in (f"![{plot.stem}]({plot.name})", "")]
    text = "\n".join(lines)
    write_atomically(path, lambda file: file.write(text.encode()))


def _side(section: Section, column: int) -> Literal["left", "right"]:
    """Numbers to the right."""
    begins = (row[column][:1] for row in section.rows if row[column])
    return "right" if all(c.isdigit() or c in "+-" for c in begins) else "left"
