"""Band statistics against their definitions on dense matrices."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_graphs import banded, edge_lists

from weft.errors import DataError
from weft.graphs import Graph, table_from_graphs
from weft.layout import band_statistics, block_fill


@settings(deadline=None, max_examples=60)
@given(st.lists(edge_lists(), max_size=4), st.integers(1, 12))
def test_the_definitions(drawn, block):
    graphs = [
        Graph(num_nodes=nodes, senders=edges[0], receivers=edges[1]) for nodes, _, edges in drawn
    ]
    table = table_from_graphs(graphs, {})
    found, blocks = band_statistics(table), block_fill(table, block)
    for i, (nodes, _, (senders, receivers, _)) in enumerate(drawn):
        matrix = np.zeros((nodes, nodes), dtype=bool)
        matrix[receivers, senders] = True
        both = matrix | matrix.T | np.eye(nodes, dtype=bool)
        distance = np.abs(np.subtract.outer(np.arange(nodes), np.arange(nodes)))
        bandwidth = int(distance[matrix].max(initial=0))
        assert found.bandwidth[i] == bandwidth
        assert found.profile[i] == sum(v - int(both[v].argmax()) for v in range(nodes))
        assert found.entries[i] == matrix.sum()
        assert found.fill[i] == matrix.sum() / (distance <= bandwidth).sum()
        assert found.least[i] <= bandwidth
        # Padded to whole blocks, as it would be stored.
        form = banded(
            senders, receivers, np.zeros(len(senders), int), nodes, 1, block=block, outside="drop"
        )
        assert (blocks.inside[i], blocks.outside[i]) == (form.inside, form.outside)
        cells = sum(part.numel() for part in (form.C, form.U, form.L))
        assert blocks.cells[i] == cells
        assert blocks.fill[i] == form.inside / cells


def test_a_hub():
    star = Graph(num_nodes=10, senders=np.zeros(9, int), receivers=np.arange(1, 10))
    found = band_statistics(table_from_graphs([star]))
    assert (found.bandwidth[0], found.least[0]) == (9, 5)


def test_a_graph_without_nodes():
    empty = Graph(num_nodes=0, senders=np.zeros(0, int), receivers=np.zeros(0, int))
    found = band_statistics(table_from_graphs([empty]))
    assert (found.bandwidth[0], found.profile[0], found.fill[0]) == (0, 0, 0)
    assert block_fill(table_from_graphs([empty]), 4).fill[0] == 0


def test_a_damaged_table_is_refused():
    star = Graph(num_nodes=4, senders=np.zeros(3, int), receivers=np.arange(1, 4))
    table = table_from_graphs([star])
    wrong = {**table.columns, "receivers": table.columns["receivers"] + 1}
    damaged = dataclasses.replace(table, columns=wrong)
    with pytest.raises(DataError, match="column 'receivers' is damaged"):
        band_statistics(damaged)


def test_a_block_that_cannot_be():
    with pytest.raises(ValueError, match="block is 0"):
        block_fill(table_from_graphs([], {}), 0)
