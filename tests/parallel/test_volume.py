"""Rows that travel between blocks, counted as sets of nodes."""

from __future__ import annotations

import numpy as np
import pytest

from weft.graphs import Graph, symmetrised
from weft.parallel.grid import grid_of
from weft.parallel.partition import partition_nodes
from weft.parallel.traffic_formulas import count_graph
from weft.parallel.volume import with_less_volume
from weft.sources import planted_partition


def volume(graph, blocks):
    """Rows that travel forward and backward."""
    found = 0
    for sources, targets in ((graph.senders, graph.receivers), (graph.receivers, graph.senders)):
        wanted = {
            (source, blocks[target])
            for source, target in zip(sources.tolist(), targets.tolist(), strict=True)
            if blocks[source] != blocks[target]
        }
        found += len(wanted)
    return found


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("count", [2, 7, 40])
def test_less_travels_than_before(count, directed):
    rng = np.random.default_rng(count)
    ends = rng.integers(100, size=(2, 300)) ** 2 // 100
    graph = Graph(num_nodes=100, senders=ends[0], receivers=ends[1])
    graph = graph if directed else symmetrised(graph)
    before = rng.permutation(np.arange(100) % count)
    after = with_less_volume(graph, before, count)
    assert volume(graph, after) < 0.9 * volume(graph, before)
    held = np.bincount(after, minlength=count)
    assert held.min() >= 1
    assert held.max() <= max(np.bincount(before).max(), np.ceil(1.05 * 100 / count))


def test_fewer_rows_than_metis_as_ranks_count_them():
    graph = planted_partition(2000, 8, mean_degree=10, homophily=0.8, num_features=1, seed=0)
    rows = {}
    for how in ("metis", "volume"):
        parts = partition_nodes(graph, 16, how)
        place = np.argsort(parts.order)
        ends = place[graph.senders], place[graph.receivers]
        every = np.ones(2000, dtype=bool)
        sizes = count_graph(grid_of("1d", 16), parts.offsets, *ends, every)
        wanted = np.array([own.forward.wanted for own in sizes])
        rows[how] = wanted.sum() - np.trace(wanted)
    assert rows["volume"] < 0.99 * rows["metis"]


def test_nothing_to_save():
    none = np.zeros(0, dtype=np.int64)
    graph = Graph(num_nodes=4, senders=none, receivers=none)
    blocks = np.array([0, 0, 1, 1])
    assert with_less_volume(graph, blocks, 2).tolist() == [0, 0, 1, 1]
