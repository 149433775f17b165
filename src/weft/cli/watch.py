"""`weft watch RUN`: how a run that another process trains is getting on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from weft.errors import DataError

if TYPE_CHECKING:
    from weft.report.metric import Metric
    from weft.report.record import RunRecord

_REFRESH_SECONDS = 1.0
_LINE_SECONDS = 10.0
_RECENT_SECONDS = 60.0
# How long a run without a lock, on another machine for instance, may write nothing.
_SILENT_SECONDS = 120.0
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Watch a run while it trains, from another terminal: loss, speed, time left, scores.

    It ends when the run does, or with Ctrl-C, which leaves the run alone. Away from a terminal (a
    file, a pipe) it prints a line every 10 s. Examples:
      weft watch runs/molecules-qm9-u0
      weft watch runs/molecules-qm9-u0 --once

    Attributes:
        run: The run's folder; of an ensemble, its newest member is watched.
        once: Print the current progress and stop.
    """

    run: tyro.conf.Positional[Path]
    once: bool = False

    def __call__(self, console: Console) -> int:
        """Watch until the run or the watcher ends."""
        watch(self.run, console, once=self.once)
        return 0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run at one moment.

    Attributes:
        state: `training`, or why it no longer is.
        is_going_on: whether more is to be expected.
        silent_seconds: since it last wrote anything.
        record: what its folder holds.
        total_epochs: that were requested; None if that is not known.
        total_steps: of the whole run, as far as the epochs so far tell.
        steps_per_second: over the last minute, evaluations included.
        losses: of training, in order.
        scores: of the last evaluation, with the epoch and the best value so far, the main one
            first.
    """

    state: str
    is_going_on: bool
    silent_seconds: float
    record: RunRecord
    total_epochs: int | None
    total_steps: int | None
    steps_per_second: float | None
    losses: list[float]
    scores: list[tuple[Metric, float, float, int]]

    @property
    def epoch(self) -> int:
        """The epoch under way, or the last."""
        return int(self.record.rows[-1].get("epoch") or 0) if self.record.rows else 0

    @property
    def step(self) -> int:
        """Steps done when it last wrote."""
        return int(self.record.rows[-1].get("step") or 0) if self.record.rows else 0

    @property
    def seconds_left(self) -> float | None:
        """At the speed of the last minute; None if that or the end is not known."""
        if not self.is_going_on or self.total_steps is None or not self.steps_per_second:
            return None
        left = (self.total_steps - self.step) / self.steps_per_second
        return max(0.0, left - self.silent_seconds)


def watch(
    run: Path,
    console: Console,
    *,
    once: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show how the run in a folder stands until it ends; Ctrl-C ends it too.

    Raises:
        DataError: the folder holds no run.
    """
    every = _readings(Look(run), sleep)
    first = next(every)
    if once or not first.is_going_on:
        text = panel(first) if console.is_terminal else Text(line(first))
        console.print(text, soft_wrap=True)
        return
    with suppress(KeyboardInterrupt):
        if console.is_terminal:
            with Live(panel(first), console=console, auto_refresh=False) as live:
                for now in every:
                    live.update(panel(now), refresh=True)
            return
        shown = -_LINE_SECONDS
        for now in chain([first], every):
            if not now.is_going_on or clock() - shown >= _LINE_SECONDS:
                console.print(Text(line(now)), soft_wrap=True)
                shown = clock()


def _readings(look: Look, sleep: Callable[[float], None]) -> Iterator[Progress]:
    """The progress of the run, read every second until it ends."""
    while True:
        now = look.progress()
        yield now
        if not now.is_going_on:
            return
        sleep(_REFRESH_SECONDS)


class Look:
    """Looks at a run's folder again and again; of the metrics only what is new is read.

    Raises:
        DataError: the folder holds no run.
    """

    def __init__(self, run: Path) -> None:
        from weft.recipes.recipe import member_folders
        from weft.report.record import CONFIG

        if not run.exists():
            raise DataError(f"{run} does not exist; name the folder of a run")
        self.folder = member_folders(run)[-1]
        if not (self.folder / CONFIG).is_file():
            raise DataError(
                f"{run} holds no run (no {CONFIG}); name the folder that `weft train` writes to"
            )
        self._rows: list[dict[str, Any]] = []
        self._file, self._offset = 0, 0

    def progress(self) -> Progress:
        """Read the current progress."""
        from weft.report.record import flat, read_run

        record = replace(read_run(self.folder, metrics=False), rows=self._read_rows())
        state, is_going_on, silent = self._state(record)
        settings = flat(record.config)
        epochs = next((v for k, v in settings.items() if k.split(".")[-1] == "epochs"), None)
        most = next((v for k, v in settings.items() if k.split(".")[-1] == "max_steps"), None)
        whole = record.series("graphs_per_second")
        total = most if isinstance(most, int) else None
        if isinstance(epochs, int) and whole:
            ends = record.series("graphs_per_second", by="epoch")
            of_epochs = round(epochs * whole[-1][0] / max(1.0, ends[-1][0]))
            total = of_epochs if total is None else min(total, of_epochs)
        return Progress(
            state=state,
            is_going_on=is_going_on,
            silent_seconds=silent,
            record=record,
            total_epochs=epochs if isinstance(epochs, int) else None,
            total_steps=total,
            steps_per_second=_recent_steps(record),
            losses=[y for _, y in record.series("loss") or record.series("train_loss")],
            scores=_scores(record),
        )

    def _read_rows(self) -> list[dict[str, Any]]:
        """The metrics so far; a run that was resumed has written them again."""
        from weft.files import parse_json

        path = self.folder / "metrics.jsonl"
        try:
            with path.open("rb") as file:
                about = os.fstat(file.fileno())
                if about.st_ino != self._file or about.st_size < self._offset:
                    self._rows, self._file, self._offset = [], about.st_ino, 0
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return self._rows
        # A last line without an end is being written.
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.splitlines():
            with suppress(DataError):
                row = parse_json(text, path.name)
                if isinstance(row, dict):
                    self._rows.append(row)
        return list(self._rows)

    def _state(self, record: RunRecord) -> tuple[str, bool, float]:
        """In words, whether it goes on, and for how many seconds it has written nothing."""
        from weft.training.run_lock import is_held

        held = is_held(self.folder)
        names = ("config.json", "metrics.jsonl", "last.pt", "summary.json")
        times = {n: (self.folder / n).stat().st_mtime for n in names if (self.folder / n).exists()}
        silent = max(0.0, time.time() - max(times.values(), default=0.0))
        if held:
            return "training", True, silent
        # A summary older than the metrics is of an earlier session.
        if record.summary and times.get("summary.json", 0.0) >= times.get("metrics.jsonl", 0.0):
            return str(record.summary.get("stopped") or "finished"), False, silent
        if silent < _SILENT_SECONDS:
            return "training, or just killed", True, silent
        return "not running: it was killed or has failed; resume it with --resume", False, silent


def _recent_steps(record: RunRecord) -> float | None:
    """Steps a second over the last minute that metrics were written in."""
    points = record.series("step", by="seconds")
    if len(points) < 2:
        return None
    end, steps = points[-1]
    # Two lines at least: long steps write less than one in a minute.
    start, before = next((p for p in points if end - p[0] <= _RECENT_SECONDS), points[-2])
    if start == end:
        start, before = next((p for p in reversed(points) if p[0] < end), (end, steps))
    return (steps - before) / (end - start) if end > start else None


def _scores(record: RunRecord) -> list[tuple[Metric, float, float, int]]:
    """Each validation metric: its last value, the best so far and the epoch of that."""
    from weft.report.metric import main_scores, metric_of

    found = []
    for name in main_scores({n: 0.0 for n in record.names() if n.startswith("validation_")}):
        metric, points = metric_of(record, name), record.series(name, by="epoch")
        if points:
            better = min if metric.better_when_low else max
            epoch, best = better(points, key=lambda point: point[1])
            found.append((metric, points[-1][1], best, int(epoch)))
    return found


def line(now: Progress) -> str:
    """The progress of a run in one line."""
    parts = [now.state, f"epoch {_of(now.epoch, now.total_epochs)}"]
    parts.append(f"step {_of(now.step, now.total_steps)}")
    if now.losses:
        parts.append(f"loss {now.losses[-1]:.4g}")
    parts += _speeds(now).values()
    if now.is_going_on and now.seconds_left is not None:
        parts.append(f"{_duration(now.seconds_left)} left")
    for metric, last, best, epoch in now.scores[:2]:
        text = f"{metric.words} {metric.with_unit(last)}"
        parts.append(f"{text} (best {metric.with_unit(best)}, epoch {epoch})")
    return ", ".join(parts)


def panel(now: Progress) -> Table:
    """The progress of a run as a table for a terminal."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    recipe = f" ({now.record.recipe})" if now.record.recipe else ""
    table.add_row("run", Text(f"{now.record.folder}{recipe}", style="bold"))
    alive = now.state
    if now.is_going_on:
        alive += f"; last wrote {_duration(now.silent_seconds)} ago"
    table.add_row("state", Text(alive, style="green" if now.is_going_on else "yellow"))
    reached = f"epoch {_of(now.epoch, now.total_epochs)}, step {_of(now.step, now.total_steps)}"
    table.add_row("progress", Text(reached))
    if now.total_steps:
        bar = ProgressBar(total=now.total_steps, completed=now.step, width=40)
        table.add_row("", bar)
    for name, text in _speeds(now).items():
        table.add_row(name, Text(text))
    if now.seconds_left is not None:
        table.add_row("time left", Text(_duration(now.seconds_left)))
    if now.losses:
        table.add_row("loss", Text(f"{now.losses[-1]:.4g}  {sparkline(now.losses)}"))
    for metric, last, best, epoch in now.scores[:4]:
        text = f"{metric.with_unit(last)}, best {metric.with_unit(best)} (epoch {epoch})"
        table.add_row(metric.words, Text(text))
    return table


def _speeds(now: Progress) -> Mapping[str, str]:
    """The recent speed, beside the mean of the epochs."""
    from weft.report.metric import rate_unit
    from weft.report.page import number

    found = {}
    if now.steps_per_second is not None:
        found["speed"] = f"{number(now.steps_per_second, 3)} steps/s"
    if rates := [rate for _, rate in now.record.series("graphs_per_second")]:
        mean = sum(rates) / len(rates)
        unit = rate_unit(now.record)
        text = f"{number(rates[-1], 3)} {unit}"
        # Of the whole run it is only known at its end.
        whole = now.record.summary.get("graphs_per_second")
        words = f"mean {number(mean if now.is_going_on or whole is None else whole, 3)}"
        found["throughput"] = f"{text} ({words})"
    return found


def sparkline(values: list[float], width: int = 40) -> str:
    """Values as a row of blocks, the means of adjacent ones where there are many."""
    parts = min(width, len(values))
    ends = [round(i * len(values) / parts) for i in range(parts + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


def _of(count: int, total: int | None) -> str:
    return f"{count:,}" if total is None else f"{count:,}/{total:,}"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


COMMAND = Watch
