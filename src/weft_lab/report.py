"""How every study reports: tables with sentences, figures of panels, and claims on one page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from weft.errors import DataError
from weft.files import write_atomically
from weft.report import page as html
from weft.report.figures import WIDTH, legend_columns
from weft.report.study_report import CLAIMS, study_chapter

Item = TypeVar("Item")

Panel = tuple[Any, ...]
"""A title, what draws below it, and what that takes after matplotlib's axes."""

_HOLDS = {True: "holds", False: "does not hold", None: "not claimed"}


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
        columns: Mapping[str, str | Callable[[Item], str]],
        *,
        says: Sequence[str] = (),
        narrow: tuple[str, ...] = (),
    ) -> Section:
        """A row for each item, with a cell in each of the columns, which are named by heading.

        A column is a function of the item, or a format of it such as "{0.nodes:,}".
        """
        cells = [each.format if isinstance(each, str) else each for each in columns.values()]
        rows = [tuple(cell(item) for cell in cells) for item in items]
        return cls(title=title, headings=tuple(columns), rows=rows, says=list(says), narrow=narrow)

    def side(self, column: int) -> Literal["left", "right"]:
        """Numbers to the right."""
        begins = (row[column][:1] for row in self.rows if row[column])
        return "right" if all(c.isdigit() or c in "+-" for c in begins) else "left"


def print_report(sections: Sequence[Section], console: Console) -> None:
    """The tables as a terminal has room for them: Markdown has every column."""
    for section in sections:
        console.print(section.title, style="italic", soft_wrap=True)
        names = section.headings
        shown = [i for i, name in enumerate(names) if name in (section.narrow or names)]
        table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
        for i in shown:
            side = section.side(i)
            # Headings may break, names may not.
            table.add_column(names[i], justify=side, no_wrap=side == "left")
        for row in section.rows:
            table.add_row(*(row[i] for i in shown))
        console.print(table)
        for sentence in section.says:
            console.print(sentence, soft_wrap=True, highlight=False)
        console.print()


def markdown_of(sections: Sequence[Section]) -> list[str]:
    """Lines of the tables with every column, each below its title and above its sentences."""
    lines = []
    for section in sections:
        columns = range(len(section.headings))
        sides = tuple("---" if section.side(i) == "left" else "--:" for i in columns)
        rows = [f"| {' | '.join(row)} |" for row in (section.headings, sides, *section.rows)]
        said = [line for sentence in section.says for line in (sentence, "")]
        lines += [f"## {section.title}", "", *rows, "", *said]
    return lines


def draw_panels(panels: Sequence[Panel], path: Path) -> Path:
    """Draw `panels` below one another into the file `path`, SVG or PNG by its name.

    They are as wide as the plots of a page, so that their text can be read on a narrow screen.
    Names that the first panel gives become a legend for all.

    Raises:
        DataError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure
    except ImportError as error:
        raise DataError(
            "plots need matplotlib, which is not installed: pip install 'weft[plots]'"
        ) from error

    # Figure itself, not pyplot: no display, no state that outlives this function.
    figure = matplotlib.figure.Figure(
        figsize=(WIDTH, 0.6 + 3.1 * len(panels)), layout="constrained"
    )
    axes = figure.subplots(len(panels), 1, squeeze=False).ravel()
    for (title, draw, *arguments), ax in zip(panels, axes, strict=True):
        draw(ax, *arguments)
        ax.set_title(title, fontsize=10)
        ax.tick_params(labelsize=10)
    marks, names = axes[0].get_legend_handles_labels()
    if names:
        # Above: a legend at the end of a long column would not be seen.
        figure.legend(
            marks, names, loc="outside upper center", ncols=legend_columns(names), fontsize=10
        )
    kind = path.suffix[1:]
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=150))
    return path


@dataclass(frozen=True)
class Claim:
    """One claim of a paper and what this machine says of it.

    Attributes:
        paper: that makes it, such as "Speckhard et al. (2025)"; claims are listed by paper.
        command: that measures it.
        claim: in a sentence.
        published: the paper's figure, as text with its unit.
        measured: ours, as text with its unit.
        holds: whether it is so here; None where the paper leaves it open.
    """

    paper: str
    command: str
    claim: str
    published: str
    measured: str
    holds: bool | None = None


_CLAIM = ("claim", "published", "measured here", "here it", "command")


def _claim_row(claim: Claim) -> tuple[str, ...]:
    return (
        *(claim.claim, claim.published, claim.measured),
        *(_HOLDS[claim.holds], claim.command),
    )


def claims_section(claims: Sequence[Claim]) -> Section:
    """The claims of one paper as a table for the study's own page."""
    rows = [_claim_row(claim)[:-1] for claim in claims]
    return Section(title=CLAIMS, headings=_CLAIM[:-1], rows=rows)


def write_four_papers(
    claims: Sequence[Claim],
    studies: Sequence[Path],
    path: Path,
    *,
    missing: Mapping[str, str] | None = None,
) -> Path:
    """One page: a table of claims for each paper, then each study with its tables and plots.

    Args:
        claims: of all papers, which are listed in the order in which they come up.
        studies: folders of the studies.
        path: the page to write.
        missing: studies that could not be made, and why.

    Raises:
        DataError: jinja2 is not installed, a study is damaged, or the page cannot be written.
    """
    title = "The four papers on this machine"
    order = list(dict.fromkeys(claim.paper for claim in claims))
    ordered = sorted(claims, key=lambda claim: order.index(claim.paper))
    held = [claim.holds for claim in claims]
    known = len(held) - held.count(None)
    facts = [("claims", str(known), f"of {len(order)} papers")]
    facts += [
        (words, str(held.count(what)), remark)
        for what, words, remark in (
            (True, "hold here", f"of {known}"),
            (False, "do not hold here", f"of {known}"),
            (None, "beyond the papers", "what they leave open"),
        )
        if held.count(what)
    ]
    first: list[html.Block] = [html.Facts(facts=facts)]
    if missing:
        words = [f"weft study {name} could not be made: {why}" for name, why in missing.items()]
        first.append(html.Words(words=words, points=len(words) > 1))
    parts = []
    for paper, own in groupby(ordered, lambda claim: claim.paper):
        rows = [_claim_row(claim) for claim in own]
        table = html.Table(
            caption=f"Claims of {paper}", headings=_CLAIM, rows=rows, chips=(3,), titled=True
        )
        parts.append(html.Part(title=paper, blocks=[table]))
    chapter = html.Chapter(
        kind="Papers",
        title=title,
        lead="Each claim, the published figure, the one measured here, and the command that "
        "measures it. Published times are of other machines: compare ratios.",
        headline=first,
        parts=parts,
    )
    chapters = [chapter, *map(study_chapter, studies)]
    return html.write_html(html.Page(title=title, chapters=chapters), path)
