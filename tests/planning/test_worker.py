"""A candidate's process: its turns, and all the ways in which it may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import works
from works import Children, Group, Recompiler, Sleeper, TinyFit

from weft.planning import Candidate, Worker
from weft.planning import worker as processes
from weft.planning.worker import WorkerStopped, available_memory, descendants, peak_of_all
from weft.planning.worker_client import PaceAddress, pace_address, pace_at
from weft.training.step_hooks import current_pace

Start = Callable[..., Worker]
# Only what hangs is not waited for so long.
PATIENCE = 600.0


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Worker] = []

    def begin(work: Any, settings: dict[str, Any], **options: Any) -> Worker:
        started.append(Worker(work, Candidate(settings), **options))
        return started[-1]

    yield begin
    for worker in started:
        worker.stop()


def sleeper(name: str) -> tuple[Sleeper, dict[str, Any]]:
    return Sleeper({name: 0.01}), {"batching.policy": name}


def ending(worker: Worker, turns: int = 3, patience: float = PATIENCE) -> WorkerStopped:
    try:
        for _ in range(turns):
            worker.turn(steps=5, seconds=0.05, patience=patience)
    except WorkerStopped as stopped:
        return stopped
    raise AssertionError("the worker goes on")


def test_a_turn_times_its_steps(start):
    worker = start(*sleeper("packed"))
    first = worker.turn(steps=5, seconds=0.02, patience=PATIENCE)
    assert first.samples == ((pytest.approx(0.01), 10),) * 5
    assert len(first.start) == 2, "the first two steps warm up"
    assert first.peak_memory > 1e7
    assert first.compilations == 0
    second = worker.turn(steps=3, seconds=0.1, patience=PATIENCE)
    assert second.start == ()
    assert sum(seconds for seconds, _ in second.samples) == pytest.approx(0.1, abs=0.011)
    slow = worker.turn(steps=10**6, seconds=0.02, patience=PATIENCE)
    assert sum(seconds for seconds, _ in slow.samples) == pytest.approx(5 * 0.02, abs=0.011)


def test_two_workers_wait_for_each_other(start):
    fast, slow = start(TinyFit(), {"width": 8, "threads": 1}), start(TinyFit(), {"width": 256})
    for _ in range(2):
        for worker in (fast, slow):
            turn = worker.turn(steps=2, seconds=0.05, patience=PATIENCE)
            assert turn.samples
            assert all(graphs == 8 for _, graphs in turn.samples)


def test_compiling_is_counted_apart(start):
    work = Sleeper({"packed": 0.02}, compile_seconds=0.3)
    worker = start(work, {"batching.policy": "packed", "compile": "static"})
    turn = worker.turn(steps=5, seconds=0.05, patience=PATIENCE)
    assert turn.compilations == 1
    assert turn.compile_seconds == 0.3
    # The first step and the compiler, and another step: both at half of an uncompiled one's time.
    assert turn.start == ((pytest.approx(0.31), 10), (pytest.approx(0.01), 10))
    assert all(seconds == pytest.approx(0.01) for seconds, _ in turn.samples)
    assert worker.spent == pytest.approx(0.32)


def test_loops_that_are_compiled_count_for_nothing(start):
    turn = start(*sleeper("loops")).turn(steps=5, seconds=0.05, patience=PATIENCE)
    assert len(turn.start) == 2
    assert all(seconds == pytest.approx(0.01) for seconds, _ in turn.start + turn.samples)


def test_a_limit_of_compilations_is_told(start):
    turn = start(Recompiler(), {"compile": "static"}).turn(steps=5, seconds=0.05, patience=PATIENCE)
    assert turn.compilations == 4
    assert turn.eager_calls >= 1
    assert len(turn.start) == 4


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("raises", "failed: the widget has 3 sides; it must have 4"),
        ("breaks", "failed: RuntimeError: first line"),
        ("ends", "failed: the training came to its end, which it should not"),
        ("exits", "failed: its process ended with exit code 7"),
        ("segfaults", "failed: its process was ended by SIGSEGV"),
        ("killed", "out of memory"),
        ("memory", "out of memory"),
    ],
)
def test_every_end_has_its_words(start, name, outcome):
    stopped = ending(start(*sleeper(name)))
    assert stopped.outcome == outcome
    assert stopped.spent is None


def test_one_that_hangs_is_stopped(start):
    worker = start(*sleeper("hangs"))
    worker.ready(patience=PATIENCE)
    stopped = ending(worker, patience=0.5)
    assert stopped.outcome.startswith("stopped: ")
    assert stopped.spent > 0.5


def test_one_that_never_begins_is_stopped(start):
    worker = start(*sleeper("sleeps before"))
    with pytest.raises(WorkerStopped, match="stopped"):
        worker.ready(patience=0.3)


def test_memory_beyond_the_limit(start):
    usual = start(*sleeper("packed")).turn(steps=1, seconds=0.05, patience=PATIENCE).peak_memory
    stopped = ending(start(*sleeper("grows"), memory_limit=usual + 3e8), turns=100)
    assert stopped.outcome == "out of memory"


def test_children_are_counted_and_ended(start):
    if not descendants(os.getpid()) and not Path("/proc/self/task").exists():
        pytest.skip("this system does not tell a process's children")
    worker = start(Children(), {})
    turn = worker.turn(steps=1, seconds=0.05, patience=PATIENCE)
    pid = worker._process.pid
    children = descendants(pid)
    assert children
    own = float(
        next(
            line.split()[1]
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
    )
    assert turn.peak_memory > own * 1024
    worker.stop()
    assert all_end(children)


def all_end(pids: list[int]) -> bool:
    """Whether these processes are gone, or about to be; one that is not reaped holds nothing."""
    until = time.monotonic() + 300
    while any(peak_of_all(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(peak_of_all(pid) for pid in pids)


def test_a_planner_that_is_killed_leaves_nobody_behind():
    done = subprocess.run(
        [sys.executable, works.__file__], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == -signal.SIGKILL
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert all_end(pids)


def test_a_rank_of_a_group_keeps_the_pace(start, tmp_path):
    worker = start(Group(str(tmp_path)), {})
    turn = worker.turn(steps=4, seconds=0.05, patience=PATIENCE)
    assert turn.samples
    assert all(graphs == 1 for _, graphs in turn.samples)


def test_only_rank_0_speaks_with_the_planner(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pace_at(PaceAddress(place="nowhere", key=b"")):
        pace = current_pace()
        assert pace is not None
        pace.before_step()
        pace.after_step(1)
        with pytest.raises(ValueError, match="no planner"):
            pace_address()
    assert current_pace() is None


def test_work_that_cannot_be_pickled():
    class Inner:
        units = "graphs"

        def train(self, settings):
            pass

    with pytest.raises(ValueError, match="cannot be sent to another process"):
        Worker(Inner(), Candidate({}))


def test_memory_that_is_there():
    assert 1e6 < available_memory() < 1e15


def test_files_in_the_memory_of_a_container_can_make_room(monkeypatch, tmp_path):
    stat = "anon 100\nfile 850\ninactive_file 700\nactive_file 100\nshmem 50\n"
    for name, text in {"max": "1000", "current": "950", "stat": stat}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(processes, "_CGROUP", tmp_path)
    assert available_memory() == 850
    (tmp_path / "memory.max").write_text("max")
    assert available_memory() > 1e6
