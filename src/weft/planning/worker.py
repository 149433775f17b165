"""A candidate's training in a process of its own, which steps only when it is asked to.

First the planner's side; then what the process does; then what is asked of the system.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from weft.planning.candidate import Candidate, set_threads
from weft.planning.worker_client import PaceAddress, pace_at
from weft.training.launch import has_fork_server, start_fork_server
from weft.training.numerics import prepare_process

if TYPE_CHECKING:
    # Windows has no fork server.
    from multiprocessing.context import ForkServerContext, SpawnContext

OUT_OF_MEMORY = "out of memory"

_LOOK_SECONDS = 0.25
_START_LOOK_SECONDS = 0.02
# Bounds for what takes milliseconds, unless the machine is very busy.
_END_SECONDS = 60.0
_LAST_SECONDS = 60.0
# What every worker would load sooner or later: once for all of them instead.
_PRELOADED = ("weft.planning.worker", "torch._dynamo")
_CGROUP = Path("/sys/fs/cgroup")
# Windows knows no SIGKILL; there SIGTERM ends a process at once.
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_FILE_PAGES = ("active_file ", "inactive_file ")


class Work(Protocol):
    """A training that the planner can start in a process of its own; it must be picklable."""

    @property
    def units(self) -> str:
        """What a step's size is counted in: `graphs`, `epochs` or `samples`."""
        ...

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end under the current pace (see `weft.training.step_hooks`).

        The process is prepared and has its threads set already; it is killed when it has been
        asked enough. What comes before the first step (data, model) is not timed. Nothing should
        be evaluated, written or shown.
        """
        ...


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
    """A worker has ended before it was asked to.

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
            # Ctrl-C: the caller does not have this worker yet, and could not stop it.
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
        self._look_at_memory(message["peak_memory"])
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
        """Take the connection of the process that trains; on a thread, since it can only wait."""
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
            self._look_at_memory()
            spent = self.spent + time.perf_counter() - since
            if spent > patience:
                self._fail(f"stopped: {spent:.1f} s without a timed step", spent=spent)

    def _look_at_memory(self, told: float = 0.0) -> None:
        """Note the most that it has held, or says it has; it is ended beyond the limit."""
        seen = 0.0 if self._process.pid is None else peak_of_all(self._process.pid)
        self.peak_memory = max(self.peak_memory, seen, told)
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
        if code == -_KILL:
            # The system does this when memory runs out.
            return OUT_OF_MEMORY
        if code is not None and code < 0:
            return f"failed: its process was ended by {signal.Signals(-code).name}"
        return f"failed: its process ended with exit code {code}"


def prepare_workers(*modules: str) -> None:
    """Have what workers need loaded once for all of them, while this process does other things.

    Args:
        modules: to be loaded besides, such as the one of the work.
    """
    if has_fork_server():
        hush_tracker()
        start_fork_server(*_PRELOADED, *modules)


def _context(module: str) -> ForkServerContext | SpawnContext:
    """How processes are started; a fork of one that has torch loaded takes milliseconds."""
    if not has_fork_server():
        return multiprocessing.get_context("spawn")
    # The work's module too, unless it is a script: that would run.
    prepare_workers(*([module] if module != "__main__" else []))
    return multiprocessing.get_context("forkserver")


def run_worker(pipe: Connection[Any, Any], address: PaceAddress) -> None:
    """Take work and settings from `pipe`, train, and say there what stopped it.

    The answer is `outcome, sentence`, of which one is empty.
    """
    if hasattr(os, "setsid"):
        # Ctrl-C in a terminal is for the planner, which ends its workers.
        os.setsid()
    threading.Thread(target=_end_with_planner, daemon=True).start()
    _be_quiet()
    try:
        work, settings = pipe.recv()
        set_threads(settings)
        prepare_process()
        with pace_at(address):
            work.train(settings)
        answer = "failed", "the training came to its end, which it should not"
    except Exception as error:
        traceback.print_exc()
        answer = ("out of memory", "") if _is_memory(error) else ("failed", _sentence(error))
    with suppress(OSError):
        pipe.send(answer)


def _end_with_planner() -> None:
    planner = multiprocessing.parent_process()
    if planner is not None:
        planner.join()
        os._exit(1)


def _be_quiet() -> None:
    """Nothing that a candidate prints or warns of belongs on the planner's screen."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _is_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # torch's allocator on the CPU, and a rank of a group that the system has ended.
    return "can't allocate memory" in str(error) or "killed by SIGKILL" in str(error)


def _sentence(error: Exception) -> str:
    """An error's own words where it is meant for people, else with its kind."""
    lines = str(error).strip().splitlines()
    words = lines[0] if lines else ""
    if isinstance(error, ValueError) and words:
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def descendants(pid: int) -> list[int]:
    """Children of a process, theirs and so on; none where the system does not tell."""
    found: list[int] = []
    # Without a look at all processes of the machine, which would disturb what is being timed.
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += [int(word) for word in (thread / "children").read_text().split()]
    return found + [each for child in found for each in descendants(child)]


def peak_of_all(pid: int) -> float:
    """The most bytes that a process and its descendants have held, each for itself; 0: unknown.

    Pages of files, the libraries above all, are counted once: processes share them.
    """
    found = [_status(each) for each in (pid, *descendants(pid))]
    files = [each.get("RssFile", 0.0) for each in found]
    return sum(each.get("VmHWM", 0.0) for each in found) - sum(files) + max(files)


def kill_all(pids: list[int]) -> None:
    """End processes at once, those that are still there."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, _KILL)


def available_memory() -> float:
    """Bytes that new processes can have before the system, or this container, runs out."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        free = []
    if not free and hasattr(os, "sysconf"):
        free = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    with suppress(OSError, ValueError):
        limit = float((_CGROUP / "memory.max").read_text())
        used = float((_CGROUP / "memory.current").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        # Pages of files that were read are given up when memory is needed.
        kept = [float(line.split()[1]) for line in lines if line.startswith(_FILE_PAGES)]
        free.append(max(0.0, limit - used + sum(kept)))
    return min(free, default=math.inf)


def _status(pid: int) -> dict[str, float]:
    """Sizes in a process's status, bytes; none where there is no such process, or system."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {each[0].rstrip(":"): 1024.0 * int(each[1]) for each in words}


def hush_tracker() -> None:
    """Have the semaphores of processes that are killed cleared without a word.

    A process of Python's own does that when the program ends, and would warn of each on the screen.
    """
    name, before = "PYTHONWARNINGS", os.environ.get("PYTHONWARNINGS")
    os.environ[name] = "ignore::UserWarning:multiprocessing.resource_tracker"
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
