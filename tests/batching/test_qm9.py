"""The published numbers on the real QM9, where its data are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.batching import BatchingConfig, BatchStatistics, GraphSampler

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "qm9_3d" / "qm9_3d.npz"


@pytest.fixture(scope="module")
def sizes() -> tuple[np.ndarray, np.ndarray]:
    if not DATA.exists():
        pytest.skip("needs the QM9 archive beside the repository")
    with np.load(DATA) as archive:  # one small member of it
        nodes = archive["n_atoms"].astype(np.int64)
    return nodes, nodes * (nodes - 1)


def statistics(
    sizes: tuple[np.ndarray, np.ndarray], policy: Any, batch_size: int, **options: Any
) -> BatchStatistics:
    return GraphSampler(
        *sizes, BatchingConfig(policy=policy, batch_size=batch_size, **options)
    ).statistics()


@pytest.mark.parametrize(
    ("batch_size", "graphs", "node_fill", "edge_fill"),
    [
        (16, 14.669, 0.824, 0.923),
        (32, 30.420, 0.950, 0.957),
        (64, 62.003, 0.968, 0.975),
        (128, 125.357, 0.978, 0.986),
    ],
)
def test_dynamic_is_as_published(
    sizes: tuple[np.ndarray, np.ndarray],
    batch_size: int,
    graphs: float,
    node_fill: float,
    edge_fill: float,
) -> None:
    found = statistics(sizes, "dynamic", batch_size, paper="qm9")
    assert found.graphs_per_batch == pytest.approx(graphs, rel=0.005)
    assert found.node_fill == pytest.approx(node_fill, abs=0.003)
    assert found.edge_fill == pytest.approx(edge_fill, abs=0.004)
    assert found.distinct_shapes == 1


@pytest.mark.parametrize("batch_size", [16, 32, 64, 128])
def test_packed_is_full(sizes: tuple[np.ndarray, np.ndarray], batch_size: int) -> None:
    found = statistics(sizes, "packed", batch_size)
    assert found.node_fill >= 0.98
    assert found.edge_fill >= 0.98
    assert found.distinct_shapes == 1


def test_powers_of_two_waste_as_published(sizes: tuple[np.ndarray, np.ndarray]) -> None:
    found = statistics(sizes, "static-2^n", 64)
    assert found.node_fill == pytest.approx(0.55, abs=0.01)
    assert found.edge_fill == pytest.approx(0.60, abs=0.01)
