"""Spreads a compiled loop over the cores that torch may use.

The loops release the interpreter lock, so plain threads run them in parallel. One small pool,
asleep between calls, avoids a second OpenMP runtime whose spinning threads would fight torch's.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["reset_threads", "run_rows"]

# Below this many multiply-adds, waking a thread costs more than it saves.
_WORTH_SHARING = 200_000
# More parts than threads, so that one slow core does not hold up the others.
_PARTS_PER_THREAD = 4

_pool: ThreadPoolExecutor | None = None
_pool_threads = 0


def reset_threads() -> None:
    """Forget the pool: the next call starts new threads, which inherit the float control word."""
    global _pool, _pool_threads
    if _pool is not None:
        _pool.shutdown(wait=False)
    _pool, _pool_threads = None, 0


def _forget_pool() -> None:
    global _pool, _pool_threads
    _pool, _pool_threads = None, 0


# A forked child has the pool object but none of its threads.
os.register_at_fork(after_in_child=_forget_pool)


def run_rows(
    loop: Callable[[int, int], None],
    rows: int,
    width: int,
    offsets: npt.NDArray[np.integer] | None = None,
) -> None:
    """Call loop(first, stop) over all rows, cut into parts of about equal work.

    Args:
        loop: computes the output rows first:stop; parts run at the same time.
        rows: number of output rows.
        width: operations an entry.
        offsets: int [rows + 1], CSR offsets; a row's work is its number of entries. None: one each.
    """
    threads = torch.get_num_threads()
    entries = rows if offsets is None else int(offsets[-1])
    if threads == 1 or (entries + rows) * width < _WORTH_SHARING:
        loop(0, rows)
        return
    parts = threads * _PARTS_PER_THREAD
    goals = [(entries + rows) * part // parts for part in range(1, parts)]
    if offsets is None:
        cuts = [goal // 2 for goal in goals]
    else:
        # A row costs something even when it is empty, so row r stands at offsets[r] + r.
        cuts = [bisect_left(range(rows), goal, key=lambda r: int(offsets[r]) + r) for goal in goals]
    cuts = [0, *cuts, rows]
    turns = itertools.count()

    def work() -> None:
        while (turn := next(turns)) < parts:
            loop(cuts[turn], cuts[turn + 1])

    pool = _get_pool(threads - 1)
    others = [pool.submit(work) for _ in range(threads - 1)]
    work()
    for other in others:
        other.result()


def _get_pool(threads: int) -> ThreadPoolExecutor:
    global _pool, _pool_threads
    if _pool is None or _pool_threads < threads:
        reset_threads()
        _pool = ThreadPoolExecutor(threads, thread_name_prefix="weft-kernel")
        _pool_threads = threads
    return _pool
