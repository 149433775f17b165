"""The timer of choices that are made here and now, such as that of a layer's form."""

from __future__ import annotations

import time
from collections.abc import Callable

# Runs of each, at least and at most, and seconds after which the least suffice.
_LEAST_RUNS, _MOST_RUNS, _SECONDS = 7, 200, 0.5


def fastest(runs: list[Callable[[], None]]) -> list[float]:
    """The least seconds of each run, timed in turns so that disturbances hit all of them alike."""
    for run in runs:
        run()
    best = [float("inf")] * len(runs)
    begin = time.perf_counter()
    for turn in range(_MOST_RUNS):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[number] = min(best[number], time.perf_counter() - start)
        if turn >= _LEAST_RUNS and time.perf_counter() - begin > _SECONDS:
            break
    return best
