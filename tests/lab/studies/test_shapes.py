"""Shapes and fill over many steps: exact on sizes of one's own, near the published ones on QM9."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.batching import BatchingConfig
from weft_lab.studies.batch_shapes import count_shapes

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "qm9_3d" / "qm9_3d.npz"


def same_size(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(count, 50), np.full(count, 64)


def test_tails_are_counted_apart():
    # Three graphs a batch and one that is left over: 151 nodes become 192, 51 become 64.
    config = BatchingConfig(policy="static-64", batch_size=4)
    found = count_shapes(*same_size(10), config, steps=8)
    assert (found.shapes, found.shapes_without_tails) == (2, 1)
    assert (found.steps, found.epochs, found.budget) == (8, 2, None)
    assert found.graphs_per_batch == 20 / 8
    assert found.node_fill == pytest.approx(20 * 50 / (6 * 192 + 2 * 64))
    assert found.edge_fill == 1.0


def test_an_epoch_that_is_cut_short_has_no_tail():
    config = BatchingConfig(policy="static-64", batch_size=4)
    found = count_shapes(*same_size(10), config, steps=7)
    assert (found.steps, found.epochs) == (7, 2)
    assert (found.shapes, found.shapes_without_tails) == (2, 1)
    assert count_shapes(*same_size(10), config, steps=3).shapes == 1


def test_one_budget_is_one_shape():
    config = BatchingConfig(policy="dynamic", batch_size=16, paper="qm9")
    found = count_shapes(np.full(100, 18), np.full(100, 306), config, steps=30)
    assert found.budget == (320, 4992, 16)
    assert found.shapes == found.shapes_without_tails == 1


def test_graphs_without_edges_have_no_padding_to_speak_of():
    config = BatchingConfig(policy="unpadded", batch_size=4)
    found = count_shapes(np.ones(8, dtype=int), np.zeros(8, dtype=int), config, steps=2)
    assert (found.node_fill, found.edge_fill) == (1.0, 1.0)


def test_no_steps():
    with pytest.raises(ValueError, match="steps is 0"):
        count_shapes(*same_size(10), BatchingConfig(policy="unpadded", batch_size=4), steps=0)


@pytest.mark.parametrize(
    ("policy", "batch_size", "published"),
    [("static-64", 16, 60), ("static-64", 32, 89), ("static-2^n", 16, 3), ("static-2^n", 32, 4)],
)
def test_as_many_shapes_as_published(policy, batch_size, published):
    if not DATA.exists():
        pytest.skip("needs the QM9 archive beside the repository")
    with np.load(DATA) as archive:
        nodes = archive["n_atoms"].astype(np.int64)
    config = BatchingConfig(policy=policy, batch_size=batch_size)
    found = count_shapes(nodes, nodes * (nodes - 1), config, steps=100_000)
    assert found.steps == 100_000
    # How many of the rarest shapes come up is chance.
    assert found.shapes_without_tails == pytest.approx(published, rel=0.08)
