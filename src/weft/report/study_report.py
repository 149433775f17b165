"""The chapter of a study: the tables, sentences and plots of its folder."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import DataError
from weft.files import read_object
from weft.report.page import (
    Block,
    Chapter,
    Code,
    Facts,
    Part,
    Picture,
    Table,
    Words,
    machine_rows,
    value_table,
)
from weft.report.record import mapping

RESULTS = "results.json"
"""The file by which the folder of a study is recognised."""
TABLES = "results.md"
CLAIMS = "Claims of the paper"
"""The section of a study's tables with what was published, what was measured, and whether it holds.
"""
# Larger drawings would make the page slow.
_MOST_BYTES = 4_000_000
# The table has all of them.
_MOST_CLAIMS = 5


def study_chapter(folder: Path) -> Chapter:
    """The study in `folder`, finished or not.

    Raises:
        DataError: results.json is damaged.
    """
    fields = {"schema": str, "command": str}
    values = read_object(folder / RESULTS, fields, remedy="no page can be made")
    schema, command = values["schema"], values["command"]
    try:
        text = (folder / TABLES).read_text(encoding="utf-8")
    except OSError:
        text = ""
    title, intro, parts = _read_tables(text)
    pictures, refused = _pictures(folder)
    notes = list(refused)
    if not text:
        notes.append(f"The study has not come to its end: {TABLES} is not there yet.")
    headline: list[Block] = [Words(words=notes)] if notes else []
    for part in parts:
        if part.title == CLAIMS:
            headline += _verdicts(part)
    begun = ("begun", str(values.get("created", "–")))
    method = [Words(words=[intro])] if intro else []
    return Chapter(
        kind="Study",
        title=title or schema,
        lead=_lead(values),
        headline=headline,
        pictures=pictures,
        parts=parts,
        again=[
            *method,
            Code(caption="Command", text=command),
            value_table("Machine and versions", [begun, *machine_rows(values)]),
        ],
    )


def _lead(values: Mapping[str, Any]) -> str:
    machine = mapping(values.get("machine"))
    where = f" ({machine['cpu']}, {machine.get('cores')} cores)" if "cpu" in machine else ""
    return f"Measured on this machine{where}, beside what was published."


def _verdicts(claims: Part) -> list[Block]:
    """How many of the paper's claims hold here, and what was measured of each."""
    tables = [block for block in claims.blocks if isinstance(block, Table)]
    rows = [row for table in tables for row in table.rows if len(row) >= 4]
    said = [row[3] for row in rows]
    known = [each for each in said if each in ("holds", "does not hold")]
    facts = [("claims that hold here", f"{said.count('holds')} of {len(known)}", "")]
    if len(known) < len(said):
        facts.append(("beyond the paper", str(len(said) - len(known)), "what it leaves open"))
    told = [
        f"{claim}: {measured}; published: {published}. {verdict.capitalize()}."
        for claim, published, measured, verdict in (row[:4] for row in rows)
        if verdict in ("holds", "does not hold")
    ]
    return [Facts(facts=facts), Words(words=told[:_MOST_CLAIMS], points=True)]


def _read_tables(text: str) -> tuple[str, str, list[Part]]:
    """Title, method, and the sections of the Markdown that `write_markdown` writes."""
    head, *sections = re.split(r"^## ", text, flags=re.M)
    titles = [line[2:].strip() for line in head.splitlines() if line.startswith("# ")]
    # The last paragraph before the tables says how it was measured.
    intro = [line for line in _sentences(head.splitlines()) if not line.startswith("# ")]
    parts = []
    for section in sections:
        heading, *lines = section.splitlines()
        blocks: list[Block] = []
        for is_table, group in itertools.groupby(lines, lambda line: line.startswith("|")):
            if is_table:
                blocks += _table(heading.strip(), list(group))
            else:
                blocks += [Words(words=[sentence]) for sentence in _sentences(group)]
        if blocks:
            parts.append(Part(title=heading.strip(), blocks=blocks))
    return "".join(titles[-1:]), "".join(intro[-1:]), parts


def _sentences(lines: Iterable[str]) -> list[str]:
    """Paragraphs of a line each, without pictures and code."""
    return [line.strip() for line in lines if line.strip() and not line.startswith(("![", "    "))]


def _table(heading: str, lines: Sequence[str]) -> list[Table]:
    """The table that the lines are; none where a row of headings stands alone."""
    rows = [tuple(cell.strip() for cell in line.strip().strip("|").split("|")) for line in lines]
    if len(rows) < 2:
        return []
    width = len(rows[0])
    cells = [(*row, *[""] * width)[:width] for row in rows[2:]]
    folded = len(cells) > 40
    return [
        Table(
            caption=heading,
            headings=rows[0],
            rows=cells,
            folded=folded,
            chips=(width - 1,) if heading == CLAIMS else (),
            titled=not folded,
        )
    ]


def _pictures(folder: Path) -> tuple[list[Picture], list[str]]:
    found: list[Picture] = []
    refused = []
    for path in sorted([*folder.glob("*.svg"), *folder.glob("*.png")]):
        title = path.stem.replace("_", " ").replace("-", " ").capitalize()
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise DataError(f"it is larger than {_MOST_BYTES:,} bytes")
            data = path.read_bytes()
            is_svg = path.suffix == ".svg"
            found.append(
                Picture(
                    title=title,
                    format="svg+xml" if is_svg else "png",
                    data=base64.b64encode(data).decode(),
                    wide=is_svg and _is_wide(data),
                )
            )
        except (OSError, ValueError) as error:
            refused.append(f"The plot {path.name} is left out: {error}.")
    return found, refused


def _is_wide(svg: bytes) -> bool:
    box = re.search(rb'<svg\b[^>]*viewBox="[\d.]+ [\d.]+ ([\d.]+) ([\d.]+)"', svg)
    if box is None:
        raise DataError("it holds no drawing of a known size")
    return float(box[1]) > 2 * float(box[2])
