"""Fewer threads while another program keeps a core busy.

A loop that threads share ends when the slowest of them ends, and torch's threads wait by spinning.
With one busy program beside a training on all cores, a step of milliseconds waits for the scheduler
to give back a core: it takes twice as long, now and then ten times. With a thread less, it does not
notice.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

# Seconds from one look to the next: long beside the system's clock ticks of 10 ms.
_EVERY = 0.3


def busy_seconds() -> float | None:
    """Seconds that the cores of this process have been busy with anything; None if unknown."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return None
    total = 0
    for line in lines:
        name, *counts = line.split()
        if name in cores:
            user, nice, system, _, _, interrupts, soft, *_ = map(int, counts)
            total += user + nice + system + interrupts + soft
    return total / ticks


@functools.cache
def products_keep_bits() -> bool:
    """Whether torch's products give the same bits with any number of threads, as weft's loops do.

    The gradients of weights sum over many rows: some libraries cut these sums by the threads (MKL
    on Intel's processors), others do not. Products of such shapes are tried.
    """
    generator = torch.Generator().manual_seed(0)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            generator.manual_seed(0)
            for rows, out, inner in ((250, 1, 32), (750, 128, 64), (4000, 1, 64), (4000, 64, 64)):
                grad = torch.randn(rows, out, generator=generator)
                found.append(grad.t() @ torch.randn(rows, inner, generator=generator))
    finally:
        torch.set_num_threads(before)
    count = len(found) // 3
    return all(torch.equal(found[k % count], product) for k, product in enumerate(found))


class FreeCores:
    """Sets torch's number of threads by the cores that other programs leave.

    What weft's loops compute does not change with it; for torch's products see
    `products_keep_bits`.

    Args:
        busy: seconds that the cores have been busy, ever growing; None where nobody can tell.
        own: seconds of them that were this process's.
    """

    def __init__(
        self,
        busy: Callable[[], float | None] = busy_seconds,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        self.most = torch.get_num_threads()
        self._busy, self._own = busy, own
        self._last = (time.monotonic(), busy(), own())

    def look(self) -> None:
        """Set the threads again where it is time; costs nothing otherwise. Call it at each step."""
        then, busy_then, own_then = self._last
        now = time.monotonic()
        if self.most == 1 or busy_then is None or now - then < _EVERY:
            return
        busy, own = self._busy(), self._own()
        self._last = (now, busy, own)
        if busy is None:
            return
        others = ((busy - busy_then) - (own - own_then)) / (now - then)
        threads = max(1, self.most - max(0, round(others)))
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def restore(self) -> None:
        """All threads again."""
        if torch.get_num_threads() != self.most:
            torch.set_num_threads(self.most)
