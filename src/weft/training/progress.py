"""Progress on a terminal as a live line, elsewhere as a few plain ones."""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_REFRESH_SECONDS = 0.1
_LINE_SECONDS = 10.0
_LINE_GAP_SECONDS = 1.0
_LINE_FRACTION = 0.1
_BAR_WIDTH = 10
_RECENT_SECONDS = 10.0


class RecentRate:
    """Graphs a second over the latest steps: as many as fit in 10 s, one at least.

    A step that compiled takes longer than that and is forgotten with the next.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[int, float]] = deque()
        self._graphs, self._seconds = 0, 0.0

    def add(self, graphs: int, seconds: float) -> None:
        """One more step over `graphs`."""
        self._steps.append((graphs, seconds))
        self._graphs += graphs
        self._seconds += seconds
        while self._seconds > _RECENT_SECONDS and len(self._steps) > 1:
            graphs, seconds = self._steps.popleft()
            self._graphs -= graphs
            self._seconds -= seconds

    def value(self) -> float:
        """Graphs a second; 0 before the first step."""
        return self._graphs / self._seconds if self._seconds > 0 else 0.0


class FitProgress:
    """Shows epoch, step, loss, graphs per second and the time left, on standard error.

    On a terminal one line is kept up to date. Elsewhere (a file, a batch system's log) a line is
    written every 10 s, or every tenth of the run if that comes first.
    """

    def __init__(
        self,
        *,
        epochs: int,
        counts: str = "graphs",
        quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._epochs, self._counts = epochs, counts
        self._silent = quiet
        self._live: Progress | None = None
        self._shown_at = self._began_at = time.perf_counter()
        self._shown_step = 0
        self._first_step: int | None = None
        self._metrics: list[str] = []
        # step, total, epoch, loss, graphs per second
        self._latest: tuple[int, int | None, int, float, float] | None = None

    def __enter__(self) -> FitProgress:
        if not self._silent and self._console.is_terminal:
            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=_BAR_WIDTH),
                TextColumn("ETA"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[metrics]}"),
                console=self._console,
                refresh_per_second=4,
            )
            self._live.add_task("starting", total=None, metrics="")
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._latest is not None and self._latest[0] > self._shown_step:
            self._show(time.perf_counter())
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Say something once, such as that a run goes on from a checkpoint."""
        if not self._silent:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Show these values beside the loss from now on."""
        self._metrics = [f"{name} {value:.4g}" for name, value in metrics.items()]

    def step(
        self, *, epoch: int, step: int, total: int | None, loss: float, graphs_per_second: float
    ) -> None:
        """One more step is done; `total` steps in the whole run, if that is known."""
        if self._silent:
            return
        now = time.perf_counter()
        if self._first_step is None:
            self._first_step, self._began_at, self._shown_step = step, now, step - 1
        self._latest = (step, total, epoch, loss, graphs_per_second)
        gap = now - self._shown_at
        if self._live is not None:
            due = gap >= _REFRESH_SECONDS
        else:
            tenth = total is not None and step - self._shown_step >= _LINE_FRACTION * total
            due = gap >= _LINE_SECONDS or (tenth and gap >= _LINE_GAP_SECONDS)
        if due:
            self._show(now)

    def _show(self, now: float) -> None:
        assert self._latest is not None
        step, total, epoch, loss, rate = self._latest
        speed = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        text = (
            f"epoch {epoch}/{self._epochs}, step {step}{f'/{total}' if total else ''}, "
            f"loss {loss:.4g}, {speed} {self._counts}/s"
        )
        if self._live is not None:
            # On a narrow terminal metrics are left out, never the rate or the time left.
            room = self._console.width - len(text) - _BAR_WIDTH - len(" ETA 0:00:00   ")
            fitting = list(self._metrics)
            while len(", ".join(fitting)) > max(room, 0):
                fitting.pop()
            self._live.update(
                self._live.task_ids[0],
                description=text,
                completed=step,
                total=total,
                metrics=", ".join(fitting),
            )
        else:
            self.note(", ".join([text + self._time_left(step, total, now), *self._metrics]))
        self._shown_at, self._shown_step = now, step

    def _time_left(self, step: int, total: int | None, now: float) -> str:
        assert self._first_step is not None
        done = step - self._first_step
        if total is None or done < 1 or step >= total:
            return ""
        seconds = (now - self._began_at) / done * (total - step)
        return f", {timedelta(seconds=round(seconds))} left"
