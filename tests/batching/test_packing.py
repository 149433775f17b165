from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from size_lists import quick, sizes

from weft.batching.epoch_plan import pack_evenly


@given(sizes(min_size=0), st.integers(1, 9))
@quick
def test_no_batch_is_too_full_or_empty(both: tuple[np.ndarray, np.ndarray], graphs: int) -> None:
    nodes, edges = both
    room = np.array([nodes.max(initial=0) + 3, edges.max(initial=0) + 5, graphs])
    batch = pack_evenly(nodes, edges, room)
    for number in range(batch.max(initial=-1) + 1):
        inside = batch == number
        assert 1 <= inside.sum() <= graphs
        assert nodes[inside].sum() <= room[0]
        assert edges[inside].sum() <= room[1]


def test_complete_graphs_fill_nodes_and_edges_together() -> None:
    rng = np.random.default_rng(0)
    nodes = rng.integers(9, 28, 20_000)
    edges = nodes * (nodes - 1)
    room = np.ceil(np.array([nodes.mean() * 63, edges.mean() * 63, 63]) * [1.005, 1.005, 1])
    batch = pack_evenly(nodes, edges, room.astype(np.int64))
    count = batch.max() + 1
    assert nodes.sum() / (count * room[0]) > 0.98
    assert edges.sum() / (count * room[1]) > 0.98


def test_graphs_that_fill_batches_exactly() -> None:
    nodes = np.full(700, 5)
    batch = pack_evenly(nodes, nodes, np.array([35, 35, 7]))
    assert (np.bincount(batch) == 7).all()


def test_large_graphs_leave_room_only_for_small_ones() -> None:
    nodes = np.array([90, 10] * 300)
    batch = pack_evenly(nodes, nodes, np.array([100, 100, 50]))
    assert batch.max() + 1 == 300
    # In the worst order there is little to choose from, yet nothing is lost.
    batch = pack_evenly(np.sort(nodes), np.sort(nodes), np.array([100, 100, 50]))
    assert 300 <= batch.max() + 1 <= 330
