"""The time of a unit: the ratio of the sums, undisturbed by hiccups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.planning.search import time_a_unit


@given(st.lists(st.tuples(st.floats(1e-6, 10), st.integers(1, 100)), min_size=1, max_size=200))
def test_the_median_is_among_the_samples_and_in_its_interval(steps):
    timing = time_a_unit(steps)
    assert min(timing.samples) <= timing.low <= timing.median <= timing.high <= max(timing.samples)
    assert len(timing.samples) == (len(steps) if len(steps) < 32 else len(timing.samples)) <= 31
    assert timing == time_a_unit(steps)


def test_hiccups_are_forgotten():
    steps = [(0.01, 1)] * 200
    for position in (20, 100, 170):
        steps[position] = (5.0, 1)
    timing = time_a_unit(steps)
    assert timing.median == pytest.approx(0.01)
    assert timing.high == pytest.approx(0.01)


def test_large_and_small_batches_count_by_their_sums():
    # A little more than half of the steps take 1, the others 2: the median step would say 1.
    generator = np.random.default_rng(0)
    steps = [(float(1 + (generator.random() < 0.45)), 10) for _ in range(1600)]
    assert time_a_unit(steps).median == pytest.approx(0.145, rel=0.02)


def test_more_graphs_in_a_step_take_more_time():
    generator = np.random.default_rng(1)
    steps = [(0.001 * n, int(n)) for n in generator.integers(1, 60, size=500)]
    timing = time_a_unit(steps)
    assert timing.median == pytest.approx(0.001)
    assert timing.low == pytest.approx(timing.high)


def test_batches_of_padding_alone_do_not_matter():
    assert time_a_unit([(1.0, 0), (1.0, 2), (1.0, 2)]).median == 0.5
