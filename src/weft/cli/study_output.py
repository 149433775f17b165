"""What every `weft study` command does with its results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from weft.errors import DataError
from weft.studies import Section, print_report, write_markdown
from weft.studies.sections import Reported

__all__ = ["check_folder", "interrupted", "show_study"]


def check_folder(folder: Path) -> None:
    """Look whether a study can go to `folder`."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; --folder names a folder")


def interrupted(folder: Path, console: Console) -> int:
    """Say how to go on; gives the exit code."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    console.print(
        f"Interrupted; what was measured is in {folder}. Go on with:\n"
        f"  {shlex.join(['weft', *words, '--resume'])}",
        soft_wrap=True,
    )
    return 130


def show_study(
    results: Reported,
    sections: Sequence[Section],
    plot: Callable[[], list[Path]],
    folder: Path,
    console: Console,
) -> int:
    """Print the tables, draw the plots and write the page; gives the exit code."""
    print_report(sections, console)
    plots = []
    try:
        plots = plot()
    except DataError as error:
        # Hours of measuring are not to end with an error for want of pictures.
        console.print(f"No plots: {error}", soft_wrap=True)
    write_markdown(results, sections, folder / "results.md", plots=plots)
    console.print(
        f"Everything is in {folder}: results.md, results.json"
        + "".join(f", {path.name}" for path in plots),
        soft_wrap=True,
    )
    return 0
