"""The page of a run, written again while it trains: seldom, and never at the training's expense.

`weft.training.Run` is below this room and finds it by the entry point `weft.live_page`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

_NEEDED = ("jinja2", "matplotlib")
_LEAST_SECONDS = 30.0
# A page takes 2% of the time at most.
_TIMES_THE_COST = 50.0


class LivePage:
    """Writes report.html in a run's folder after evaluations, 30 s apart or more.

    A run that is over before the first has none. Without the packages of `weft[report]` nothing is
    written; where a page cannot be written one warning says so, and training continues.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._due = clock() + _LEAST_SECONDS
        self._is_written = False
        self._is_wanted = all(find_spec(name) is not None for name in _NEEDED)

    def evaluated(self) -> None:
        """Write the page, if it is time for it; a browser that shows it loads it again."""
        began = self._clock()
        if self._is_wanted and began >= self._due:
            self._write(refresh_seconds=int(_LEAST_SECONDS))
            now = self._clock()
            self._due = now + max(_LEAST_SECONDS, _TIMES_THE_COST * (now - began))

    def ended(self) -> None:
        """Write the last page of a run that has had one."""
        if self._is_written:
            self._write(refresh_seconds=0)
            self._is_written = False

    def _write(self, *, refresh_seconds: int) -> None:
        try:
            # Most runs end before they need it.
            from weft.report.compose import write_page

            write_page([self._folder], refresh_seconds=refresh_seconds)
            self._is_written = True
        # Whatever is wrong with a page, hours of training are not to end with it.
        except Exception as error:
            self._is_wanted = self._is_written = False
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            warnings.warn(
                f"the page of {self._folder} cannot be written ({reason}); training continues "
                "without it",
                stacklevel=3,
            )
