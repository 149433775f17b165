"""Holm, Welch and intervals against values computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from weft_lab.statistics import compare, holm, mean_interval


def test_holm_by_hand():
    # In order: 0.005 · 4 = 0.02, 0.01 · 3 = 0.03, 0.03 · 2 = 0.06, then 0.04 · 1 below the one
    # before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_ends_at_one_and_leaves_one_value_alone():
    assert holm([0.6, 0.5, 0.9]) == [1.0, 1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []
    assert holm([0.02, 0.02]) == [0.04, 0.04]


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_holm_takes_probabilities(wrong):
    with pytest.raises(ValueError, match="p-values are from 0 to 1"):
        holm([0.5, wrong])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_is_between_nothing_and_bonferroni(p):
    corrected = holm(p)
    assert all(before <= after <= 1 for before, after in zip(p, corrected, strict=True))
    assert all(c <= min(1, len(p) * q) for q, c in zip(p, corrected, strict=True))
    order = sorted(range(len(p)), key=p.__getitem__)
    assert [corrected[i] for i in order] == sorted(corrected)


def test_welch_by_hand():
    # Variances 1 and 4 of three samples each: s² = 1/3 + 4/3, t = -2 / s, and the degrees of
    # freedom are s⁴ / ((1/3)²/2 + (4/3)²/2) = 50/17.
    (only,) = compare({"a": [1.0, 2.0, 3.0], "b": [2.0, 4.0, 6.0]})
    expected = 2 * stats.t.sf(2 / math.sqrt(5 / 3), 50 / 17)
    assert only.p == pytest.approx(float(expected))
    assert only.corrected == only.p
    assert (only.first, only.second, only.difference) == ("a", "b", -2.0)


def test_all_pairs_are_corrected_together():
    groups = {"a": [1.0, 1.1, 0.9], "b": [1.0, 1.2, 0.9], "c": [5.0, 5.1, 5.3]}
    found = compare(groups)
    assert [(c.first, c.second) for c in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [c.corrected for c in found] == holm([c.p for c in found])
    assert found[0].corrected > 0.05 > max(found[1].corrected, found[2].corrected)


def test_groups_without_scatter_or_samples():
    found = compare({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [2.0, 2.0], "alone": [3.0]})
    assert [c.p for c in found] == [1.0, 0.0, 0.0]


def test_interval_by_hand():
    found = mean_interval([1.0, 2.0, 3.0])
    # Student's t for 2 degrees of freedom and 95 % is 4.302653; the standard error is 1/√3.
    assert (found.mean, found.high - found.mean) == pytest.approx((2.0, 4.302653 / math.sqrt(3)))
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_interval_of_too_few():
    assert mean_interval([1.0]).high == math.inf
    with pytest.raises(ValueError, match="no samples"):
        mean_interval([])
