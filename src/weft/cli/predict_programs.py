"""`weft predict RUN FILE.py`: what was found in code, as a table, JSON or SARIF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from weft.errors import DataError
from weft.files import write_atomically
from weft.recipes.programs.findings import Finding, findings_json, findings_sarif
from weft.recipes.programs.prediction import Inspection, inspect_code, load_programs
from weft.training import prepare_process

_WRITERS = {"json": findings_json, "sarif": findings_sarif}


def predict_programs(
    run: Path,
    path: Path,
    console: Console,
    *,
    out: Path | None,
    threshold: float,
    every: bool,
    form: Literal["table", "json", "sarif"],
    progress: bool,
) -> int:
    """Inspect a Python file or a folder of them and show what was found.

    Args:
        run: the folder of a run.
        path: the file or folder.
        console: to print to.
        out: a file to write instead.
        threshold: the probability of another name from which on a use is shown.
        every: show every use.
        form: how to show them.
        progress: show a progress bar.

    Returns:
        The exit code: 0, whatever is found.
    """
    if not 0 <= threshold <= 1:
        raise DataError(f"--threshold is {threshold}; a probability is from 0 to 1")
    if out is not None:
        if form == "table":
            raise DataError(f"--out {out} is for --format json or sarif; a table is printed")
        if not out.parent.is_dir():
            raise DataError(f"{out} cannot be written: there is no folder {out.parent}")
        if out.suffix == ".py" or out.is_dir():
            raise DataError(f"{out} is no file for what was found; name one that ends with .{form}")
    prepare_process()
    found = inspect_code(load_programs(run), path, progress=progress)
    # Beside what a program reads from standard output.
    notes = Console(stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False)
    for file, reason in found.skipped.items():
        notes.print(f"weft: {file}: not looked at: {reason}")
    shown = found.findings if every else found.suspicious(threshold)
    if form == "table":
        _print_table(shown, found, threshold, console, every=every)
        return 0
    text = _WRITERS[form](shown, found.skipped)
    if out is None:
        console.out(text, highlight=False, end="")
        return 0
    write_atomically(out, lambda file: file.write(text.encode()))
    count = _count(shown, found, threshold, every=every)
    console.print(f"{count} Written to {out}.", soft_wrap=True)
    return 0


def _print_table(
    shown: Sequence[Finding], found: Inspection, threshold: float, console: Console, *, every: bool
) -> None:
    if shown:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in ("place", "name", "suggestion"):
            table.add_column(heading, overflow="fold")
        for heading in ("probability", "of the name"):
            table.add_column(heading, justify="right")
        for finding in shown:
            chances = (f"{finding.probability:.1%}", f"{finding.written:.1%}")
            table.add_row(finding.place, finding.name, finding.suggestion, *chances)
        console.print(table)
    console.print(_count(shown, found, threshold, every=every), soft_wrap=True)
    if not (shown or every) and found.findings:
        console.print("A lower --threshold shows more, --all every use.", soft_wrap=True)


def _count(shown: Sequence[Finding], found: Inspection, threshold: float, *, every: bool) -> str:
    uses, files = len(found.findings), found.files
    where = f"uses of variables in {files:,} file{'' if files == 1 else 's'}"
    what = "are shown" if every else f"have a likelier name, at {100 * threshold:g}% or more"
    left = f" ({len(found.skipped):,} not or not wholly looked at)" if found.skipped else ""
    return f"{len(shown):,} of {uses:,} {where}{left} {what}."
