"""What papers claim, beside what was measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from weft.report.page import Block, Chapter, Facts, Page, Part, Table, Words, write_html
from weft.report.study_report import study_chapter

_HOLDS = {True: "holds", False: "does not hold", None: "not claimed"}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a paper and what this machine says of it.

    Attributes:
        paper: that makes it, such as "Speckhard et al. (2025)"; claims are listed by paper.
        claim: in a sentence.
        published: the paper's figure, as text with its unit.
        measured: ours, as text with its unit.
        command: that measures it.
        holds: whether it is so here; None where the paper leaves it open.
    """

    paper: str
    claim: str
    published: str
    measured: str
    command: str
    holds: bool | None = None


def claims_chapter(
    claims: Sequence[Claim], title: str, *, missing: Mapping[str, str] | None = None
) -> Chapter:
    """A table of claims for each paper, in the order in which papers come up.

    Args:
        claims: of one paper or several.
        title: of the chapter.
        missing: studies that could not be made, and why.
    """
    order = list(dict.fromkeys(claim.paper for claim in claims))
    ordered = sorted(claims, key=lambda claim: order.index(claim.paper))
    papers = [(paper, list(own)) for paper, own in groupby(ordered, lambda claim: claim.paper)]
    held = [claim.holds for claim in claims]
    known = len(held) - held.count(None)
    facts = [("claims", str(known), f"of {len(papers)} papers")]
    facts += [
        (words, str(held.count(what)), remark)
        for what, words, remark in (
            (True, "hold here", f"of {known}"),
            (False, "do not hold here", f"of {known}"),
            (None, "beyond the papers", "what they leave open"),
        )
        if held.count(what)
    ]
    first: list[Block] = [Facts(facts=facts)]
    if missing:
        words = [f"weft study {name} could not be made: {why}" for name, why in missing.items()]
        first.append(Words(words=words, points=len(words) > 1))
    return Chapter(
        kind="Papers",
        title=title,
        lead="Each claim, the published figure, the one measured here, and the command that "
        "measures it. Published times are of other machines: compare ratios.",
        parts=[
            Part(title="All together", blocks=first),
            *(Part(title=paper, blocks=[_table(paper, own)]) for paper, own in papers),
        ],
    )


def write_four_papers(
    claims: Sequence[Claim],
    studies: Sequence[Path],
    path: Path,
    *,
    missing: Mapping[str, str] | None = None,
) -> Path:
    """One page: the claims first, then each study's folder with its tables and plots.

    Raises:
        DataError: jinja2 is not installed, a study is damaged, or the page cannot be written.
    """
    title = "The four papers on this machine"
    chapters = [claims_chapter(claims, title, missing=missing), *map(study_chapter, studies)]
    return write_html(Page(title=title, chapters=chapters), path)


def _table(paper: str, claims: Sequence[Claim]) -> Table:
    return Table(
        caption=f"Claims of {paper}",
        headings=("claim", "published", "measured here", "here it", "command"),
        rows=[
            (each.claim, each.published, each.measured, _HOLDS[each.holds], each.command)
            for each in claims
        ],
        chips=(3,),
        titled=True,
    )
