"""The team computes every row once, whatever the number of threads and the shape of the work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import runtime
from weft.kernels import segment_ops


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=50), parts=st.integers(1, 12))
def test_cuts_cover_all_rows_in_order(sizes: list[int], parts: int) -> None:
    offsets = np.array([0, *np.cumsum(sizes)], dtype=np.int32)
    for given_offsets in (offsets, None):
        cuts = runtime._cut_rows(given_offsets, len(sizes), parts)
        assert cuts[0] == 0
        assert cuts[-1] == len(sizes)
        assert (np.diff(cuts) >= 0).all()


def test_cuts_balance_entries_and_rows() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.zipf(1.8, 5000).clip(max=200)
    offsets = np.array([0, *np.cumsum(sizes)])
    cuts = runtime._cut_rows(offsets, 5000, 8)
    work = np.diff(offsets[cuts] + cuts)
    assert work.max() <= work.mean() + 201


@pytest.mark.skipif(not runtime.POOL, reason="torch has no pool of threads here")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_row_is_computed_once(count: int) -> None:
    rng = np.random.default_rng(count)
    x = rng.normal(size=(400, 5))
    index = rng.integers(0, 400, 3001)
    out = np.full((3001, 5), np.nan)
    segment_ops._gather_rows.run(runtime.POOL, count, (x, index, out), None, 3001)
    assert np.array_equal(out, x[index])


def test_without_a_pool_one_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "POOL", 0)
    assert runtime.threads_for(10**12) == 1
    assert runtime.threads_for(1) == 1


def test_uses_as_many_threads_as_torch() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert runtime.threads_for(10**9) == (3 if runtime.POOL else 1)
        assert runtime.threads_for(10) == 1
    finally:
        torch.set_num_threads(before)


def run(script: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return result.stdout.strip()


def test_compiled_code_is_cached() -> None:
    script = (
        "import numpy as np\n"
        "from weft.runtime import POOL\n"
        "from weft.kernels.segment_ops import _gather_rows as g\n"
        "arguments = np.ones((3, 2)), np.zeros(4, np.int64), np.empty((4, 2))\n"
        "g.run(POOL, 1, arguments, None, 4)\n"
        "print(sum(g.run.stats.cache_hits.values()))"
    )
    assert [run(script) for _ in range(2)][1] == "1"


@pytest.mark.skipif(not runtime._IN_TORCH, reason="this torch has no C function for parallel loops")
def test_torchs_own_entry_computes_every_row_once_too(tmp_path: Path) -> None:
    script = (
        "import numpy as np, torch\n"
        "from weft import runtime\n"
        "runtime._THROUGH_TORCH, runtime.POOL = True, runtime._IN_TORCH\n"
        "from weft.kernels.segment_ops import _gather_rows as g\n"
        "x, index = np.arange(800.0).reshape(400, 2), np.arange(3001) * 7 % 400\n"
        "for threads in (1, 2, 3):\n"
        "    torch.set_num_threads(threads)\n"
        "    out = np.full((3001, 2), np.nan)\n"
        "    g.share((x, index, out), 3001, 10**9)\n"
        "    print(np.array_equal(out, x[index]))"
    )
    assert run(script, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["True"] * 3
