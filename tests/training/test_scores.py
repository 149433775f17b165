"""Scores against their definitions, and against scikit-learn where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.training.scores import accuracy_score, average_precision, bootstrap, roc_auc

SAMPLES = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30).filter(
    lambda rows: len({label for _, label in rows}) == 2
)


@given(SAMPLES)
def test_the_definitions(rows: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in rows], dtype=np.float32)
    labels = np.array([label for _, label in rows])
    wins = [(a > b) + (a == b) / 2 for a in scores[labels] for b in scores[~labels]]
    assert roc_auc(scores, labels) == pytest.approx(np.mean(wins))
    # The mean over positives of the precision at their score.
    precision = [labels[scores >= score].mean() for score in scores[labels]]
    assert average_precision(scores, labels) == pytest.approx(np.mean(precision))


@given(SAMPLES)
def test_weights_are_repetitions(rows: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in rows], dtype=np.float64)
    labels = np.array([label for _, label in rows])
    counts = np.array([1 + i % 3 for i in range(len(rows))])
    again = np.repeat(np.arange(len(rows)), counts)
    for score in (roc_auc, average_precision):
        assert score(scores, labels, counts) == pytest.approx(score(scores[again], labels[again]))


def test_the_same_as_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    labels = rng.random(500) < 0.3
    scores = np.round(labels + rng.standard_normal(500), 1)
    assert roc_auc(scores, labels) == pytest.approx(metrics.roc_auc_score(labels, scores))
    expected = metrics.average_precision_score(labels, scores)
    assert average_precision(scores, labels) == pytest.approx(expected)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(60):
        labels = np.arange(200) < 100
        found = bootstrap(labels + rng.standard_normal(200), labels, confidence=0.9, seed=trial)
        # Of normal scores one standard deviation apart: Φ(1 / √2).
        covered += found["auc"].low <= 0.7602 <= found["auc"].high
        assert found["ap"].low <= found["ap"].value <= found["ap"].high
    assert 47 <= covered <= 60


def test_a_seed_gives_the_same_interval() -> None:
    scores, labels = np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True])
    assert bootstrap(scores, labels) == bootstrap(scores, labels)
    assert bootstrap(scores, labels)["auc"].value == 0.75


def test_accuracy() -> None:
    found = accuracy_score(8, 10)
    assert found.value == 0.8
    # Wilson's formula by hand.
    z = 1.959964
    middle = (0.8 + z**2 / 20) / (1 + z**2 / 10)
    half = z * (0.8 * 0.2 / 10 + z**2 / 400) ** 0.5 / (1 + z**2 / 10)
    assert (found.low, found.high) == (pytest.approx(middle - half), pytest.approx(middle + half))
    assert accuracy_score(0, 3).low == 0
    assert str(accuracy_score(3, 3)).startswith("1.0000 (")


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="0 of 2 labels are positive; both kinds are needed"):
        roc_auc(np.array([1.0, 2.0]), np.array([False, False]))
    with pytest.raises(ValueError, match="a score is nan"):
        average_precision(np.array([np.nan, 2.0]), np.array([False, True]))
    with pytest.raises(ValueError, match=r"scores have shape \[1\], labels \[2\]"):
        bootstrap(np.array([1.0]), np.array([False, True]))
    with pytest.raises(ValueError, match="4 of 3 are right"):
        accuracy_score(4, 3)
