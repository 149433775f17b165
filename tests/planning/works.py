"""Small trainings with known times, for the tests of this folder; workers import them by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba.core import event
from torch import nn

from weft.planning import Candidate, Worker, pace_address, pace_at, worker_client
from weft.training import Compilation, FitConfig, fit
from weft.training.compilation import CompileEvent
from weft.training.launch import launch
from weft.training.step_hooks import current_pace


class Clock:
    """The clock of a worker's process that only goes on when something sleeps.

    What the steps take is then the same on a machine that is busy with other things.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if seconds >= FOR_EVER:
            time.sleep(seconds)
        self.now += seconds


FOR_EVER = 3600.0
clock = Clock()


@dataclass(frozen=True)
class Sleeper:
    """Steps of a known time for each policy, some of which are troublesome.

    Compiling takes `compile_seconds` in the first step and halves the others.
    """

    seconds: Mapping[str, float]
    compile_seconds: float = 3.0
    graphs: int = 10
    units: str = "graphs"

    def train(self, settings: Mapping[str, Any]) -> None:
        worker_client.time = clock  # type: ignore[attr-defined]
        event.timer = clock.perf_counter
        pace = current_pace()
        assert pace is not None
        name = settings["batching.policy"]
        compilation = Compilation("eager")
        compiled = settings.get("compile", "eager") != "eager"
        if name == "sleeps before":
            clock.sleep(FOR_EVER)
        for step in range(6 if name == "ends" else 10**9):
            pace.before_step()
            misbehave(name, step)
            if compiled and step == 0:
                clock.sleep(self.compile_seconds)
                note(compilation, self.compile_seconds)
            disturbed = name == "disturbed" and step < 7
            clock.sleep(self.seconds[name] / (2 if compiled else 1) * (5 if disturbed else 1))
            pace.after_step(self.graphs)


def note(compilation: Compilation, seconds: float) -> None:
    compilation.events.append(
        CompileEvent(seconds=seconds, graph_breaks=(), recompile=False, cause="the first call")
    )


_held: list[Any] = []


def misbehave(name: str, step: int) -> None:
    if name == "raises" and step == 1:
        raise ValueError("the widget has 3 sides; it must have 4")
    if name == "breaks":
        raise RuntimeError("first line\nsecond line")
    if name == "killed" and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "segfaults" and step == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "exits":
        os._exit(7)
    if name == "hangs" and step == 1:
        clock.sleep(FOR_EVER)
    if name == "grows":
        _held.append(np.ones(2**22))
    if name == "holds" and step == 0:
        _held.append(np.ones(2**26))
    if name == "loops" and step in (0, 3):
        # As numba does when it has to compile one.
        with event.trigger_event("numba:compile"):
            clock.sleep(1.0)
    if name == "memory":
        raise MemoryError


@dataclass(frozen=True)
class Recompiler:
    """Every step is compiled anew, until the limit makes it run uncompiled."""

    units: str = "graphs"

    def train(self, settings: Mapping[str, Any]) -> None:
        worker_client.time = clock  # type: ignore[attr-defined]
        pace = current_pace()
        assert pace is not None
        compilation = Compilation("eager", limit=4)
        while True:
            pace.before_step()
            clock.sleep(0.01)
            if settings["compile"] != "eager":
                if compilation.compilations < compilation.limit:
                    note(compilation, 0.01)
                else:
                    compilation.eager_calls += 1
            pace.after_step(1)


@dataclass(frozen=True)
class TinyFit:
    """A real training of a linear layer; `width` says how much there is to do."""

    units: str = "graphs"

    def train(self, settings: Mapping[str, Any]) -> None:
        torch.manual_seed(0)
        width = int(settings["width"])
        model = nn.Linear(width, width)
        batches = [torch.randn(8, width) for _ in range(5)]
        fit(
            model,
            torch.optim.SGD(model.parameters(), lr=1e-6),
            batches,
            lambda model, batch: model(batch).square().mean(),
            config=FitConfig(epochs=10**9, quiet=True),
        )


@dataclass(frozen=True)
class Children:
    """Has a process of its own that does nothing."""

    units: str = "graphs"

    def train(self, settings: Mapping[str, Any]) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        pace = current_pace()
        assert pace is not None
        while True:
            pace.before_step()
            time.sleep(0.3)
            pace.after_step(1)


@dataclass(frozen=True)
class Group:
    """Two ranks, of which the first is timed."""

    folder: str
    units: str = "epochs"

    def train(self, settings: Mapping[str, Any]) -> None:
        launch(step_together, (pace_address(),), ranks=2, logs=Path(self.folder))


def step_together(address: Any) -> None:
    torch.distributed.init_process_group("gloo")
    with pace_at(address):
        pace = current_pace()
        assert pace is not None
        while True:
            pace.before_step()
            torch.distributed.all_reduce(torch.ones(1))
            pace.after_step(1)


def leave_workers_behind() -> None:
    """Start two workers, print their processes, and be killed."""
    workers = [Worker(TinyFit(), Candidate({"width": 8, "threads": 1})) for _ in range(2)]
    for worker in workers:
        worker.turn(steps=1, seconds=0.01, patience=600.0)
    sys.stdout.write(" ".join(str(worker._process.pid) for worker in workers))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    leave_workers_behind()
