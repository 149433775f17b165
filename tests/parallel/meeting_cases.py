"""What ranks that meet do in the tests; imported by their processes."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch

import weft
from weft.errors import DataError
from weft.parallel import meeting, world
from weft.parallel.world import joined

WAIT = timedelta(seconds=120)


def arriving():
    """Rank 1 comes late, then with another version, then not at all: what rank 0 and it say."""
    rank = int(os.environ["RANK"])
    meeting._QUIET_SECONDS, meeting._TELL_SECONDS, meeting._LAST_WORDS_SECONDS = 0.1, 0.3, 0.5
    told, said = [], []
    if rank == 1:
        time.sleep(1)
    with joined("1d", timeout=WAIT, tell=told.append) as found:
        sums = torch.ones(3)
        found.all_reduce("world", sums, "test")
    own = weft.__version__
    weft.__version__ = own if rank == 0 else "0.0"
    try:
        with joined("1d", timeout=WAIT):
            said.append("joined")
    except DataError as error:
        said.append(str(error))
    weft.__version__ = own
    try:
        if rank == 0:
            with joined("1d", timeout=timedelta(seconds=2)):
                said.append("joined")
    except DataError as error:
        said.append(str(error))
    return told, said, sums.tolist()


def timed_or_not():
    """How often each way to record waits for the stream, and what it records."""
    waits, found = [], []
    settle, world.settle = world.settle, waits.append
    try:
        with joined("1d") as ranks:
            for timed in (True, False):
                ranks.recorder.timed = timed
                values = torch.full((4,), 1.0 + ranks.rank)
                ranks.all_reduce("world", values, "test")
                mine = torch.full((2, 3), float(ranks.rank))
                scattered = ranks.reduce_scatter("world", mine, [1, 1], 0, "test")
                pending = ranks.broadcast("world", 0, values, "test")
                pending.wait()
                events = [(e.kind, e.bytes) for e in ranks.recorder.events]
                ranks.recorder.clear()
                found.append((len(waits), events, values.tolist(), scattered.tolist()))
                waits.clear()
    finally:
        world.settle = settle
    return found


def threads_left():
    """Threads of gloo in a group, and after it, where a cycle still holds the ranks."""

    def threads():
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        return sum("gloo" in name for name in names)

    with joined("2d") as ranks:
        ranks.itself, flat = ranks, ranks.flat()
        flat.all_reduce("row", torch.ones(3), "test")
        inside = threads()
    return inside, threads()
