"""The order of edges against numpy's, and where walks go on against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.walks.walk_loops import by_sender, time_order

FINITE = st.floats(allow_nan=False, allow_infinity=False)
# Few different ones, so that many are equal; two zeros, which are equal too.
FEW = st.sampled_from([-2.5, -0.0, 0.0, 5e-324, 1.0, 1.2e9, 1.2e9 + 1])


@given(st.lists(FINITE | FEW, max_size=60))
def test_it_is_the_stable_order(times: list[float]) -> None:
    time = np.array(times, dtype=np.float64)
    found = time_order(time)
    assert found.dtype == np.int32
    assert found.tolist() == np.argsort(time, kind="stable").tolist()


@pytest.mark.parametrize("kind", ["seconds", "fractions", "years", "sorted"])
def test_many_edges(kind: str) -> None:
    rng = np.random.default_rng(0)
    seconds = rng.integers(1_200_000_000, 1_400_000_000, 50_000).astype(np.float64)
    time = {
        "seconds": seconds,
        "fractions": rng.normal(size=50_000),
        "years": rng.integers(1963, 2000, 50_000).astype(np.float64),
        "sorted": np.sort(seconds),
    }[kind]
    assert np.array_equal(time_order(time), np.argsort(time, kind="stable"))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), FEW | FINITE), max_size=40))
def test_edges_by_sender(edges: list[tuple[int, int, float]]) -> None:
    senders = np.array([a for a, _, _ in edges], dtype=np.int64)
    receivers = np.array([b for _, b, _ in edges], dtype=np.int64)
    time = np.array([t for _, _, t in edges], dtype=np.float64)
    offsets, found = by_sender(senders, receivers, time, 6)
    order = np.lexsort((time, senders))
    assert offsets.tolist() == np.searchsorted(senders[order], np.arange(7)).tolist()
    assert found["receiver"].tolist() == receivers[order].tolist()
    assert found["time"].tolist() == time[order].tolist()
    for edge in found:
        own = found["time"][offsets[edge["receiver"]] : offsets[edge["receiver"] + 1]]
        later = np.searchsorted(own, edge["time"], side="right")
        assert edge["later"] == offsets[edge["receiver"]] + later
