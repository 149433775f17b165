"""Counts of a graph on a grid against sets of nodes in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from weft.parallel.grid import balanced, grid_of, grids_for
from weft.parallel.traffic_formulas import count_graph

NODES = 23


@pytest.mark.parametrize("grid", [*grids_for(4), *grids_for(8), grid_of("3x1x2", 6)], ids=str)
def test_every_stage_is_counted(grid):
    rng = np.random.default_rng(3)
    senders, receivers = rng.integers(NODES, size=(2, 60))
    training = rng.random(NODES) < 0.5
    offsets = balanced(NODES, grid.blocks)
    counts = count_graph(grid, offsets, senders, receivers, training)
    for rank, sizes in enumerate(counts):
        place = grid.place(rank)
        panel = grid.blocks_of_row(place.row)
        own = range(offsets[panel.start], offsets[panel.stop])
        for direction, sources, targets in (
            (sizes.forward, senders, receivers),
            (sizes.backward, receivers, senders),
        ):
            for number, stage in enumerate(grid.stages(place)):
                block = range(offsets[stage.block], offsets[stage.block + 1])
                edges = [
                    s
                    for s, t in zip(sources.tolist(), targets.tolist(), strict=True)
                    if s in block and t in own
                ]
                assert direction.nonzeros[number] == len(edges)
                assert direction.wanted[number] == len(set(edges))
            assert 0 < direction.rounds <= grid.rows - 1
        block = grid.block_of(place)
        assert sizes.training == training[offsets[block] : offsets[block + 1]].sum()


def test_a_graph_without_edges():
    none = np.zeros(0, dtype=np.int64)
    grid = grid_of("1d", 3)
    counts = count_graph(grid, balanced(5, 3), none, none, np.ones(5, dtype=bool))
    for sizes in counts:
        assert sizes.forward.nonzeros.tolist() == sizes.forward.wanted.tolist() == [0, 0, 0]
    assert [sizes.training for sizes in counts] == [1, 2, 2]
