"""How good predictions are: ROC AUC, average precision, accuracy, each with an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from weft.graphs import Array

_RESAMPLES = 400


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score and its interval of confidence.

    Attributes:
        value: of the sample itself.
        low: where the interval begins.
        high: where it ends.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


def roc_auc(scores: Array, labels: Array, weights: Array | None = None) -> float:
    """The chance that a positive scores above a negative; equal scores count one half.

    Args:
        scores: float [n].
        labels: bool [n].
        weights: [n], how often each counts; once by default.

    Raises:
        ValueError: all labels are alike, or a score is nan.
    """
    positive, negative = _by_threshold(scores, labels, weights)
    return _auc(positive, negative)


def average_precision(scores: Array, labels: Array, weights: Array | None = None) -> float:
    """Σ (Rₖ - Rₖ₋₁) Pₖ over the thresholds k from the highest score down; arguments as `roc_auc`.

    Pₖ is the precision and Rₖ the recall of calling positive what scores at least threshold k.
    """
    positive, negative = _by_threshold(scores, labels, weights)
    return _precision(positive, negative)


def _auc(positive: Array, negative: Array) -> float:
    above = np.cumsum(positive) - positive
    total = float(positive.sum()) * float(negative.sum())
    return float((negative * (above + positive / 2)).sum() / total)


def _precision(positive: Array, negative: Array) -> float:
    right = np.cumsum(positive)
    called = right + np.cumsum(negative)
    precision = np.divide(right, called, out=np.zeros_like(right), where=called > 0)
    return float((positive * precision).sum() / right[-1])


def _by_threshold(scores: Array, labels: Array, weights: Array | None) -> tuple[Array, Array]:
    """Positives and negatives of each distinct score, from the highest down, as float64."""
    order, group = _groups(scores, labels)
    weight = np.ones(len(order)) if weights is None else np.asarray(weights, np.float64)
    return _grouped(weight[order], np.asarray(labels, np.bool_)[order], group)


def _groups(scores: Array, labels: Array) -> tuple[Array, Array]:
    """The order of falling scores, and where in it a new score begins."""
    scores, labels = np.asarray(scores), np.asarray(labels, np.bool_)
    if scores.shape != labels.shape or scores.ndim != 1:
        raise ValueError(
            f"scores have shape {list(scores.shape)}, labels {list(labels.shape)}; both are [n]"
        )
    if not 0 < int(labels.sum()) < len(labels):
        raise ValueError(
            f"{int(labels.sum())} of {len(labels)} labels are positive; both kinds are needed"
        )
    if np.isnan(scores).any():
        raise ValueError("a score is nan")
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    return order, np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])


def _grouped(weight: Array, label: Array, group: Array) -> tuple[Array, Array]:
    positive = np.where(label, weight, 0.0)
    return np.add.reduceat(positive, group), np.add.reduceat(weight - positive, group)


def bootstrap(
    scores: Array, labels: Array, *, confidence: float = 0.95, seed: int = 0
) -> dict[str, Score]:
    """`auc` and `ap` with percentile intervals over 400 resamples of the n predictions.

    Positives and negatives are drawn among themselves, as the test set has a fixed number of
    each. What the interval covers is the choice of the test pairs, not that of the training.
    """
    order, group = _groups(scores, labels)
    label = np.asarray(labels, np.bool_)[order]
    kinds = [np.flatnonzero(label), np.flatnonzero(~label)]
    rng = np.random.default_rng(seed)
    functions: dict[str, Callable[[Array, Array], float]] = {"auc": _auc, "ap": _precision}
    drawn: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(_RESAMPLES):
        weight = np.zeros(len(label))
        for members in kinds:
            weight[members] = np.bincount(
                rng.integers(len(members), size=len(members)), minlength=len(members)
            )
        counts = _grouped(weight, label, group)
        for name, function in functions.items():
            drawn[name].append(function(*counts))
    whole = _grouped(np.ones(len(label)), label, group)
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    found = {}
    for name, function in functions.items():
        low, high = np.quantile(drawn[name], ends)
        found[name] = Score(value=function(*whole), low=float(low), high=float(high))
    return found


def accuracy_score(right: int, total: int, *, confidence: float = 0.95) -> Score:
    """The share that is right, with Wilson's interval."""
    if not 0 <= right <= total or total < 1:
        raise ValueError(f"{right} of {total} are right; a share needs at least one prediction")
    interval = stats.binomtest(right, total).proportion_ci(confidence, method="wilson")
    return Score(value=right / total, low=float(interval.low), high=float(interval.high))


def mean_score(values: Sequence[float], *, confidence: float = 0.95) -> Score:
    """The mean of a score over trainings, with Student's interval over them."""
    if len(values) < 2:
        raise ValueError(f"{len(values)} values have no interval; at least 2 are needed")
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    half = error * float(stats.t.ppf((1 + confidence) / 2, len(values) - 1))
    return Score(value=mean, low=mean - half, high=mean + half)
