"""The side of the process that trains: it steps in its turns, and reports what steps took."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any

from numba.core import event

from weft.training.hardware import peak_memory
from weft.training.step_hooks import current_pace, noted_compilations, paced

SLOW_TURNS = 5
"""A turn of slow steps ends with what it has after so many times the seconds requested."""

_WARM_UP = 2
_TELL_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class PaceAddress:
    """Where the planner listens for the process that trains; can be pickled for another one.

    Attributes:
        place: a socket's file, or a host and port.
        key: that shows to be one of the planner's own.
    """

    place: str | tuple[str, int]
    key: bytes


def pace_address() -> PaceAddress:
    """In a worker's process: where rank 0 of a group that it starts has to connect."""
    pace = current_pace()
    if not isinstance(pace, TurnPace):
        raise ValueError(
            "there is no planner to connect to: this process is not one of its workers"
        )
    return pace.address


@contextmanager
def pace_at(address: PaceAddress) -> Iterator[None]:
    """Train in the block at the pace of the planner at `address`, from whatever process.

    It connects when the first step is about to begin. All ranks of a group come here: rank 0
    connects, the others wait for it in their collectives.
    """
    with paced(_Still() if int(os.environ.get("RANK", "0")) else TurnPace(address)):
        yield


class _Still:
    """The pace of a rank that follows another one's."""

    def before_step(self) -> None:
        pass

    def after_step(self, graphs: int) -> None:
        pass


class TurnPace:
    """Waits for its turn, times its steps, answers, and waits again.

    The first two steps of all, and every step that compiles, are not timed but counted as start.
    What numba takes to compile a loop counts for nothing: it is kept on disk, for the others and
    for the run, and the candidate that comes first would pay for all.
    The wait for the next turn is in `after_step`: what comes between two steps, an evaluation, is
    then part of a turn too and does not disturb another worker's.
    """

    def __init__(self, address: PaceAddress) -> None:
        self.address = address
        self._connection: Connection[Any, Any] | None = None
        self._turn: dict[str, float] = {}
        self._samples: list[tuple[float, int]] = []
        self._start: list[tuple[float, int]] = []
        self._start_seconds = 0.0
        self._steps = 0
        self._compiled = 0
        self._loops = event.TimingListener()
        self._began = self._told = self._looped = 0.0

    def before_step(self) -> None:
        """Wait, before the first step, for the first turn."""
        if self._connection is None:
            self._connection = Client(self.address.place, authkey=self.address.key)
            event.register("numba:compile", self._loops)
            self._say(kind="ready")
            self._wait()
        self._looped = self._loop_seconds()
        self._compiled = sum(each.compilations for each in noted_compilations())
        self._began = time.perf_counter()

    def after_step(self, graphs: int) -> None:
        """Note the step; at the end of the turn, answer and wait for the next."""
        now = time.perf_counter()
        seconds = now - self._began
        self._steps += 1
        compiled = sum(each.compilations for each in noted_compilations())
        started = self._steps <= _WARM_UP or compiled > self._compiled
        if started:
            self._start_seconds += seconds
        steps = self._start if started else self._samples
        steps.append((max(0.0, seconds - (self._loop_seconds() - self._looped)), graphs))
        if self._is_over():
            self._answer()
            self._wait()
        elif started or now - self._told > _TELL_SECONDS:
            self._say(kind="under way", start_seconds=self._start_seconds)

    def _loop_seconds(self) -> float:
        return float(self._loops.duration) if self._loops.done else 0.0

    def _is_over(self) -> bool:
        timed, asked = sum(seconds for seconds, _ in self._samples), self._turn["seconds"]
        enough = len(self._samples) >= self._turn["steps"] and timed >= asked
        return bool(self._samples) and (enough or timed >= SLOW_TURNS * asked)

    def _answer(self) -> None:
        compilations = noted_compilations()
        self._say(
            kind="turn",
            start_seconds=self._start_seconds,
            samples=self._samples,
            start=self._start,
            compile_seconds=sum(each.seconds for each in compilations),
            compilations=sum(each.compilations for each in compilations),
            eager_calls=sum(each.eager_calls for each in compilations),
            # Ranks hold about the same each, and are no children of the worker.
            peak_memory=peak_memory() * int(os.environ.get("WORLD_SIZE", "1")),
        )
        self._samples, self._start = [], []

    def _wait(self) -> None:
        assert self._connection is not None
        try:
            self._turn = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            # The planner has what it wanted, or is gone.
            raise SystemExit(0) from None
        self._told = time.perf_counter()

    def _say(self, **message: Any) -> None:
        assert self._connection is not None
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError:
            raise SystemExit(0) from None
        self._told = time.perf_counter()
