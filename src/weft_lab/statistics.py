"""What repeated measurements say: means with intervals, Welch's t-tests, Holm's correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and its interval of confidence, in the unit of the samples.

    Attributes:
        mean: of the samples.
        low: where the interval begins; -inf with a single sample.
        high: where it ends; inf with a single sample.
    """

    mean: float
    low: float
    high: float


def mean_interval(samples: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """The mean of `samples` with the interval that Student's t gives it."""
    if not samples:
        raise ValueError("there are no samples to take the mean of")
    mean = float(np.mean(samples))
    if len(samples) == 1:
        return Interval(mean=mean, low=-np.inf, high=np.inf)
    error = float(np.std(samples, ddof=1)) / len(samples) ** 0.5
    half = float(stats.t.ppf((1 + confidence) / 2, len(samples) - 1)) * error
    return Interval(mean=mean, low=mean - half, high=mean + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for being several, by Holm's step-down method, in the order given.

    The smallest is multiplied by their number m, the next by m - 1 and so on; none is smaller than
    one before it in that order, or above 1. Rejecting those below α keeps the chance of a single
    false alarm among all of them below α, whatever depends on what.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.size and not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values are from 0 to 1, got {p.min()} to {p.max()}")
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * factors))
    return [float(value) for value in corrected]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two groups of samples and whether their means differ.

    Attributes:
        first: name of the one group.
        second: name of the other.
        difference: mean of the first less that of the second.
        p: of Welch's t-test, two-sided.
        corrected: the same by Holm over all comparisons.
    """

    first: str
    second: str
    difference: float
    p: float
    corrected: float


def compare(groups: Mapping[str, Sequence[float]]) -> list[Comparison]:
    """Every pair of groups with at least two samples each, by Welch's t-test.

    The test does not assume equal variances. Groups without any scatter are told apart by their
    means alone: p is 0 where these differ and 1 where they do not.
    """
    names = [name for name, samples in groups.items() if len(samples) >= 2]
    pairs = list(combinations(names, 2))
    p_values = [_welch(groups[a], groups[b]) for a, b in pairs]
    return [
        Comparison(
            first=a,
            second=b,
            difference=float(np.mean(groups[a]) - np.mean(groups[b])),
            p=p,
            corrected=corrected,
        )
        for (a, b), p, corrected in zip(pairs, p_values, holm(p_values), strict=True)
    ]


def _welch(first: Sequence[float], second: Sequence[float]) -> float:
    if np.ptp(first) == 0 and np.ptp(second) == 0:
        return float(first[0] == second[0])
    return float(stats.ttest_ind(first, second, equal_var=False).pvalue)
