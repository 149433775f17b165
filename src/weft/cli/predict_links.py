"""`weft predict RUN FILE` of runs on links and on nodes: probabilities, as CSV or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from weft.errors import DataError
from weft.files import json_text, write_atomically
from weft.recipes.links.prediction import load_links, predict_links
from weft.recipes.nodes.prediction import load_classes, predict_classes
from weft.training import prepare_process

_SHOWN = 10


def predict_pairs(run: Path, file: Path | None, console: Console, *, out: Path | None) -> int:
    """Say of each pair of nodes in `file` how probable an edge is, and show the first."""
    if file is None:
        raise DataError(f"name a file with the lines src dst: weft predict {run} FILE")
    out = _output(out, file)
    prepare_process()
    found = predict_links(load_links(run), file)
    rows = [(*pair, p) for pair, p in zip(found.pairs, found.probability.tolist(), strict=True)]
    _write_and_show(("src", "dst", "probability"), rows, out, console)
    console.print(
        "A probability is that of an edge among as many pairs that are none."
        + (
            f" {found.unseen:,} of the pairs have a node that is on no walk over training edges: "
            "nothing is known of it."
            if found.unseen
            else ""
        ),
        soft_wrap=True,
    )
    return 0


def predict_some_nodes(run: Path, file: Path | None, console: Console, *, out: Path | None) -> int:
    """Give the class of all nodes of the run's graph, or of those in `file`; show the first."""
    out = _output(out, file or run)
    prepare_process()
    found = predict_classes(load_classes(run), file)
    rows = list(zip(found.nodes, found.classes, found.probability.tolist(), strict=True))
    _write_and_show(("node", "class", "probability"), rows, out, console)
    return 0


def _output(out: Path | None, file: Path) -> Path:
    out = out or Path(f"{file.resolve().stem}-predicted.csv")
    if out.suffix not in (".csv", ".json"):
        raise DataError(f"predictions are written as .csv or .json, not as {out.name}")
    if not out.parent.is_dir():
        raise DataError(f"{out} cannot be written: there is no folder {out.parent}")
    if out.resolve() == file.resolve():
        raise DataError(f"{out} is the file to read; choose another name to write to")
    return out


def _write_and_show(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], out: Path, console: Console
) -> None:
    if out.suffix == ".json":
        text = json_text([dict(zip(headings, row, strict=True)) for row in rows], indent=1) + "\n"
    else:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(headings)
        writer.writerows((*row[:-1], f"{row[-1]:.6g}") for row in rows)
        text = buffer.getvalue()
    write_atomically(out, lambda file: file.write(text.encode()))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows[:_SHOWN]:
        table.add_row(*map(str, row[:-1]), f"{row[-1]:.4f}")
    console.print(table)
    more = len(rows) - _SHOWN
    console.print(
        f"{f'... and {more:,} more. ' if more > 0 else ''}Written to {out}.", soft_wrap=True
    )
