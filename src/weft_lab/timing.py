"""Timing by turns: what disturbs the machine disturbs everything that is compared alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

# A turn has at most so many calls, however short they are.
_MOST_CALLS = 100


def turn_order(count: int, rounds: int) -> Iterator[tuple[int, list[int]]]:
    """The number of each round, from 0, and who has a turn in it, in another order each time.

    What one leaves in caches and thread pools is then not always found by the same other one.
    """
    for turn in range(rounds):
        yield turn, np.random.default_rng(turn + 1).permutation(count).tolist()


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def time_by_turns(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    turn: float = 0.0,
    warm_up: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each of `works` in each of its turns, by name.

    Args:
        works: what is called.
        rounds: turns of each.
        turn: seconds of a turn: what takes less is called several times (at most 100), and the
            fastest call counts, since what else the machine does lasts for a few calls. By
            default a turn is one call.
        warm_up: calls before anything is timed.
    """
    names = list(works)
    calls = {}
    for name, work in works.items():
        for _ in range(warm_up):
            work()
        calls[name] = min(_MOST_CALLS, 1 + int(turn / seconds_of(work))) if turn else 1
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _, order in turn_order(len(names), rounds):
        for number in order:
            name = names[number]
            samples[name].append(min(seconds_of(works[name]) for _ in range(calls[name])))
    return samples


def median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """The median over turns of one time over the other's, which had its turn beside it."""
    return statistics.median(a / b for a, b in zip(ones, others, strict=True))


def crossover(places: Sequence[float], ratios: Sequence[float]) -> float | str:
    """From which place on a ratio stays above 1, between the places where it was measured.

    Both are taken by their logarithms. Gives "never" where it is not above 1 at the last place,
    "always" where it is at all of them.

    Args:
        places: above 0, in the order in which the ratio is expected to rise.
        ratios: at these places.
    """
    gains = np.log(ratios)
    if gains[-1] <= 0:
        return "never"
    # The last rise above 0: noise may make several.
    points = list(zip(np.log(places), gains, strict=True))
    for (low, below), (high, above) in reversed(list(pairwise(points))):
        if below <= 0 < above:
            return float(np.exp(low + below / (below - above) * (high - low)))
    return "always"
