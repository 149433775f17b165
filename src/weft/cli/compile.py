"""`weft compile`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Compile:
    """Compile the loops of the recipes' models for this machine, so that training starts at once.

    Loops that are compiled already are only loaded. Without this command, the first steps of the
    first run of each recipe compile what they need. Readers of files, neighbour lists and the
    preparation of a full graph compile theirs when they are first used, within seconds.
    """

    def __call__(self, console: Console) -> int:
        """Compile, and show the progress in one line."""
        from weft.recipes.compile_ahead import compile_all

        start, found = time.perf_counter(), 0
        with console.status("Loading ...") as status:

            def progress(what: str, number: int, of: int, function: str) -> None:
                nonlocal found
                found += bool(function)
                status.update(f"Compiling for {what} ({number + 1} of {of}) {function}")

            compile_all(progress)
        seconds = time.perf_counter() - start
        done = f"compiled {found} functions" if found else "everything was compiled already"
        console.print(f"{done[0].upper()}{done[1:]} ({seconds:.0f} s).")
        return 0


COMMAND = Compile
