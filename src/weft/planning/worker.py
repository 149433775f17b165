"""A candidate's training in a process of its own, which steps only when it is asked to."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import secrets
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any, NoReturn

from weft.planning.candidate import Candidate
from weft.planning.processes import descendants, hush_tracker, kill_all, peak_of_all
from weft.planning.worker_client import PaceAddress
from weft.planning.worker_process import run_worker
from weft.planning.workload import Work
from weft.training.launch import start_fork_server

OUT_OF_MEMORY = "out of memory"

_LOOK_SECONDS = 0.25
_START_LOOK_SECONDS = 0.02
# Bounds for what takes milliseconds, unless the machine is very busy.
_END_SECONDS = 60.0
_LAST_SECONDS = 60.0
# What every worker would load sooner or later: once for all of them instead.
_PRELOADED = ("weft.planning.worker_process", "torch._dynamo")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a worker has done in its turn.

    Attributes:
        samples: seconds and units of each timed step.
        start: the same of the steps that warmed up or compiled, which are not timed.
        compile_seconds: of all its turns so far.
        compilations: so far.
        eager_calls: so far; see `weft.training.Compilation`.
        peak_memory: bytes that its process and that one's children have held at most.
    """

    samples: tuple[tuple[float, int], ...]
    start: tuple[tuple[float, int], ...]
    compile_seconds: float
    compilations: int
    eager_calls: int
    peak_memory: float


class WorkerStopped(Exception):
    """A worker is at its end before it was told to be.

    Attributes:
        outcome: `out of memory`, `failed: ...` or `stopped: ...`.
        spent: seconds on anything but timed steps, where these were more than it was given.
    """

    def __init__(self, outcome: str, *, spent: float | None = None) -> None:
        super().__init__(outcome)
        self.outcome, self.spent = outcome, spent


class Worker:
    """One candidate's process. It sleeps unless it has its turn; `stop` must be called.

    Attributes:
        candidate: what it trains with.
        is_ready: whether it has come to its first step.
        peak_memory: bytes that it and its children have held at most, as far as was seen.
        spent: seconds of all its turns that were not timed steps.
    """

    def __init__(
        self, work: Work, candidate: Candidate, *, memory_limit: float | None = None
    ) -> None:
        """Start the process; it gets everything ready by itself, up to its first step.

        Args:
            work: the training.
            candidate: with what settings.
            memory_limit: bytes at which it is ended; None for no limit.

        Raises:
            ValueError: the work cannot be pickled.
        """
        self.candidate, self.peak_memory = candidate, 0.0
        self._limit = memory_limit
        self.spent = 0.0
        self.is_ready = False
        self._connection: Connection[Any, Any] | None = None
        try:
            task = pickle.dumps((work, dict(candidate.settings)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the work to be measured cannot be sent to another process ({error}); its parts "
                "must be importable by name, at the top of a module"
            ) from error
        key = secrets.token_bytes(32)
        self._listener = Listener(authkey=key)
        self._address = PaceAddress(place=self._listener.address, key=key)
        context = _context(type(work).__module__)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_worker, args=(theirs, self._address))
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._process.start()
        try:
            theirs.close()
            self._accepting.start()
            with suppress(OSError):
                # A process that has ended already is found out about when it is waited for.
                self._pipe.send_bytes(task)
        except BaseException:
            # Ctrl-C: nobody has this worker yet who could stop it.
            self.stop()
            raise

    def ready(self, *, patience: float) -> None:
        """Wait until it is at its first step.

        Raises:
            WorkerStopped: it has ended, or was ended after `patience` seconds.
        """
        if not self.is_ready:
            message = self._hear(patience)
            assert message["kind"] == "ready"
            self.is_ready = True

    def turn(self, *, steps: int, seconds: float, patience: float) -> Turn:
        """Let it train for a while; the others sleep.

        Args:
            steps: timed steps at least, unless they take five times `seconds`.
            seconds: of timed steps at least.
            patience: seconds that it may spend, in all its turns, on anything but timed steps:
                compiling, warming up, hanging.

        Raises:
            WorkerStopped: it has ended, or was ended.
        """
        self.ready(patience=patience)
        assert self._connection is not None
        with suppress(OSError):
            asked = {"steps": steps, "seconds": seconds}
            self._connection.send_bytes(json.dumps(asked).encode())
        while (message := self._hear(patience))["kind"] != "turn":
            self.spent = message["start_seconds"]
        self.spent = message["start_seconds"]
        self.peak_memory = max(self.peak_memory, self._memory(), message["peak_memory"])
        self._check_memory()
        return Turn(
            samples=tuple((each[0], each[1]) for each in message["samples"]),
            start=tuple((each[0], each[1]) for each in message["start"]),
            compile_seconds=message["compile_seconds"],
            compilations=message["compilations"],
            eager_calls=message["eager_calls"],
            peak_memory=self.peak_memory,
        )

    def stop(self) -> None:
        """End the process and whatever it has started."""
        if self._process.pid is not None and self._process.is_alive():
            others = descendants(self._process.pid)
            self._process.kill()
            kill_all(others)
        self._process.join(_END_SECONDS)
        if self._accepting.is_alive():
            with suppress(OSError, EOFError, multiprocessing.AuthenticationError):
                Client(self._address.place, authkey=self._address.key).close()
            self._accepting.join(_END_SECONDS)
        self._listener.close()
        self._pipe.close()
        if self._connection is not None:
            self._connection.close()

    def _accept(self) -> None:
        """Take the one connection of the one who steps; on a thread, since it can only wait."""
        with suppress(OSError, EOFError, multiprocessing.AuthenticationError):
            self._connection = self._listener.accept()

    def _hear(self, patience: float) -> dict[str, Any]:
        """The next message; looks at memory and at the clock meanwhile."""
        since = time.perf_counter()
        while True:
            heard: list[Any] = [self._pipe, self._process.sentinel]
            if self._connection is not None:
                heard.append(self._connection)
            came = wait(heard, timeout=_LOOK_SECONDS if self.is_ready else _START_LOOK_SECONDS)
            if self._connection in came:
                with suppress(EOFError, OSError):
                    message: dict[str, Any] = json.loads(self._connection.recv_bytes())
                    return message
            if self._connection in came or self._pipe in came or self._process.sentinel in came:
                self._fail(self._last_words())
            self.peak_memory = max(self.peak_memory, self._memory())
            self._check_memory()
            spent = self.spent + time.perf_counter() - since
            if spent > patience:
                self._fail(f"stopped: {spent:.1f} s without a timed step", spent=spent)

    def _check_memory(self) -> None:
        if self._limit is not None and self.peak_memory > self._limit:
            self._fail(OUT_OF_MEMORY)

    def _fail(self, outcome: str, *, spent: float | None = None) -> NoReturn:
        self.stop()
        raise WorkerStopped(outcome, spent=spent)

    def _last_words(self) -> str:
        """What has ended it: its own answer, else how its process ended."""
        with suppress(EOFError, OSError):
            if self._pipe.poll(_LAST_SECONDS):
                outcome, sentence = self._pipe.recv()
                return f"{outcome}: {sentence}" if sentence else str(outcome)
        self._process.join(_LAST_SECONDS)
        code = self._process.exitcode
        if code == -signal.SIGKILL:
            # The system does this when memory runs out.
            return OUT_OF_MEMORY
        if code is not None and code < 0:
            return f"failed: its process was ended by {signal.Signals(-code).name}"
        return f"failed: its process ended with exit code {code}"

    def _memory(self) -> float:
        return 0.0 if self._process.pid is None else peak_of_all(self._process.pid)


def prepare_workers(*modules: str) -> None:
    """Have what workers need loaded once for all of them, while this process does other things.

    Args:
        modules: to be loaded besides, such as the one of the work.
    """
    if _has_server():
        hush_tracker()
        start_fork_server(*_PRELOADED, *modules)


def _has_server() -> bool:
    # Elsewhere than on Linux the system's libraries may not survive a fork, once loaded.
    return sys.platform == "linux" and "forkserver" in multiprocessing.get_all_start_methods()


def _context(module: str) -> ForkServerContext | SpawnContext:
    """How processes are started; a fork of one that has torch loaded takes milliseconds."""
    if not _has_server():
        return multiprocessing.get_context("spawn")
    # The work's module too, unless it is a script: that would run.
    prepare_workers(*([module] if module != "__main__" else []))
    return multiprocessing.get_context("forkserver")
