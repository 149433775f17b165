"""One progress bar for everything that reads or downloads data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich import progress as rich
from rich.console import Console


class Move(Protocol):
    """Moves a bar to a position, and its end to `total` where that is known only now."""

    def __call__(self, position: int, *, total: int | None = None) -> None:
        """Draw the bar there."""


@contextmanager
def progress_bar(
    text: str, total: int | None, *, show: bool, count: bool = False
) -> Iterator[Move]:
    """A bar on standard error; yields the function that moves it.

    Args:
        text: what is being done.
        total: where it ends; None if that is not known.
        show: False draws nothing.
        count: positions are things, not bytes.
    """
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn() if count else rich.DownloadColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), disable=not show) as progress:
        task = progress.add_task(text, total=total)

        def move(position: int, *, total: int | None = None) -> None:
            progress.update(task, completed=position, total=total)

        yield move
