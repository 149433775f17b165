"""Skip-gram embeddings are the same in every process; sparse ones keep exactly what is asked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from weft.errors import DataError
from weft.graphs import Array
from weft.sources import planted_partition
from weft.walks import skip_gram, sparse_embedding, uniform_walks

NODES = 60


def walks(seed: int = 0) -> Array:
    graph = planted_partition(NODES, 2, mean_degree=12, homophily=0.95, num_features=2, seed=0)
    return uniform_walks(graph, walks=10, length=10, seed=seed)


def embedding(seed: int = 0) -> Array:
    return skip_gram(walks(), NODES, dim=8, window=5, sample=0, epochs=5, seed=seed)


def test_neighbours_come_to_lie_together() -> None:
    graph = planted_partition(NODES, 2, mean_degree=12, homophily=0.95, num_features=2, seed=0)
    x = embedding()
    assert x.shape == (NODES, 8)
    assert x.dtype == np.float32
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    alike = graph.nodes["y"][:, None] == graph.nodes["y"]
    other = ~np.eye(NODES, dtype=bool)
    assert (x @ x.T)[alike & other].mean() > (x @ x.T)[~alike].mean() + 0.1


def test_a_seed_gives_the_same_embedding() -> None:
    assert np.array_equal(embedding(), embedding())
    assert not np.array_equal(embedding(), embedding(seed=1))


SCRIPT = """
import hashlib, numpy
from weft.walks import skip_gram
walks = numpy.random.default_rng(0).integers(0, 40, (400, 6))
print(hashlib.sha256(skip_gram(walks, 40, dim=4, epochs=2).tobytes()).hexdigest())
"""


def test_no_process_is_different() -> None:
    random_walks = np.random.default_rng(0).integers(0, 40, (400, 6))
    here = skip_gram(random_walks, 40, dim=4, epochs=2)
    there = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert there.stdout.strip() == hashlib.sha256(here.tobytes()).hexdigest()


def test_nodes_that_never_meet_another_are_zero() -> None:
    lonely = np.array([[0, 1, -1], [1, 0, 1], [2, -1, -1]])
    x = skip_gram(lonely, 4, dim=3, window=2)
    assert x[:2].all()
    assert not x[2:].any()
    assert not skip_gram(lonely[2:], 4, dim=3).any()
    assert skip_gram(np.empty((0, 5), dtype=np.int32), 0, dim=3).shape == (0, 3)
    assert not skip_gram(np.array([[0], [1]]), 2, dim=3).any()


def test_bad_walks() -> None:
    with pytest.raises(DataError, match="a walk has node 9, out of range for 3 nodes"):
        skip_gram(np.array([[0, 9]]), 3, dim=2)
    with pytest.raises(DataError, match="a walk has node -2"):
        skip_gram(np.array([[0, -2]]), 3, dim=2)
    with pytest.raises(DataError, match=r"integers \[w, length\], got float64\[2\]"):
        skip_gram(np.zeros(2), 3, dim=2)
    for name, value in (("dim", 0), ("window", 0), ("negatives", 0), ("epochs", 0), ("seed", -1)):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be at least"):
            skip_gram(np.array([[0, 1]]), 3, **{"dim": 2, name: value})


def test_without_gensim_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(DataError, match=r"pip install 'weft\[walks\]'"):
        skip_gram(np.array([[0, 1]]), 2, dim=2)


FEW = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0])


@given(
    arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(1, 5)), elements=FEW),
    st.floats(0, 1),
)
def test_the_largest_values_stay(x: Array, keep: float) -> None:
    count = round(keep * x.size)
    # Stable: of equal sizes the first.
    order = np.argsort(-np.abs(x).ravel(), kind="stable")[:count]
    expected = np.zeros_like(x)
    expected.ravel()[order] = x.ravel()[order]
    assert np.array_equal(sparse_embedding(x, keep), expected)


def test_the_count_is_exact() -> None:
    x = np.random.default_rng(0).standard_normal((100, 8))
    for keep in (0.0138, 0.0328, 0.262, 0.469, 1.0):
        assert np.count_nonzero(sparse_embedding(x, keep)) == round(keep * 800)
    assert np.array_equal(sparse_embedding(x, 1.0), x)


def test_bad_fractions_and_values() -> None:
    for keep in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"keep is .*; it is a fraction from 0 to 1"):
            sparse_embedding(np.ones((2, 2)), keep)
    with pytest.raises(DataError, match="not finite"):
        sparse_embedding(np.array([[np.nan, 1.0]]), 0.5)
