"""Seconds a unit from timed steps: a median over blocks of steps, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_BLOCKS = 16
_RESAMPLES = 1000
_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a unit takes, in seconds.

    Attributes:
        samples: of each block of consecutive steps.
        median: of them.
        low: where the 95% bootstrap interval of the median begins.
        high: where it ends.
    """

    samples: tuple[float, ...]
    median: float
    low: float
    high: float


def time_a_unit(steps: Sequence[tuple[float, int]]) -> Timing:
    """The time of a unit from steps of (seconds, units); there must be some.

    A run's time is the ratio of the sums, seconds over units: some batches hold more graphs than
    others, some are padded to twice the size, and the median step then says little about their
    sum. A mean, on the other hand, believes every hiccup of the machine. So this is the median of
    ratios of sums: consecutive steps form blocks, from 16 to 31 of them however many steps there
    are (fewer than 16 steps are each their own), each block is the ratio of its sums, and the
    median of the blocks forgets those that something else disturbed. What is resampled for the
    interval are blocks too, since neighbouring steps are disturbed together.
    """
    seconds = np.array([each[0] for each in steps], dtype=np.float64)
    units = np.array([each[1] for each in steps], dtype=np.float64)
    assert units.sum() > 0, "steps without units cannot be timed"
    length = max(1, len(steps) // _BLOCKS)
    starts = np.arange(0, len(steps) - length + 1, length)
    block_units = np.add.reduceat(units, starts)
    rates = (np.add.reduceat(seconds, starts) / np.maximum(block_units, 1e-9))[block_units > 0]
    drawn = np.random.default_rng(0).choice(rates, size=(_RESAMPLES, len(rates)))
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(np.median(drawn, axis=1), (tail, 1 - tail))
    return Timing(
        samples=tuple(rates.tolist()),
        median=float(np.median(rates)),
        low=float(low),
        high=float(high),
    )
