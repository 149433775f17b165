"""The team computes every row once, whatever the number of threads and the shape of the work."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.kernels import loops, threads


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=50), parts=st.integers(1, 12))
def test_cuts_cover_all_rows_in_order(sizes: list[int], parts: int) -> None:
    offsets = np.array([0, *np.cumsum(sizes)], dtype=np.int32)
    for given_offsets in (offsets, None):
        cuts = threads._cut_rows(given_offsets, len(sizes), parts)
        assert cuts[0] == 0
        assert cuts[-1] == len(sizes)
        assert (np.diff(cuts) >= 0).all()


def test_cuts_balance_entries_and_rows() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.zipf(1.8, 5000).clip(max=200)
    offsets = np.array([0, *np.cumsum(sizes)])
    cuts = threads._cut_rows(offsets, 5000, 8)
    work = np.diff(offsets[cuts] + cuts)
    assert work.max() <= work.mean() + 201


@pytest.mark.skipif(not threads.openmp(), reason="torch has no OpenMP pool here")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_row_is_computed_once(count: int) -> None:
    rng = np.random.default_rng(count)
    x = rng.normal(size=(400, 5))
    index = rng.integers(0, 400, 3001)
    out = np.full((3001, 5), np.nan)
    loops.share_gather_rows(threads.openmp(), count, (x, index, out), None, 3001)
    assert np.array_equal(out, x[index])


def test_without_openmp_one_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "openmp", lambda: 0)
    assert threads.threads_for(10**12) == 1
    assert threads.threads_for(1) == 1


def test_uses_as_many_threads_as_torch() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert threads.threads_for(10**9) == (3 if threads.openmp() else 1)
        assert threads.threads_for(10) == 1
    finally:
        torch.set_num_threads(before)


def test_compiled_code_is_cached() -> None:
    script = (
        "import numpy as np, weft.kernels.loops as l, weft.kernels.threads as t\n"
        "l.share_gather_rows(t.openmp(), 1, (np.ones((3, 2)), np.zeros(4, np.int64), "
        "np.empty((4, 2))), None, 4)\n"
        "print(sum(l.share_gather_rows.stats.cache_hits.values()))"
    )
    results = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert results[1].stdout.strip() == "1"
