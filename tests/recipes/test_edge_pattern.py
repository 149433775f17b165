"""The small picture of a supergraph that a run of programs keeps."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np

from weft.graphs import Graph, table_from_graphs
from weft.layout import band_statistics
from weft.recipes.programs.data import SPY, spy_of_programs, write_spy
from weft.sources.program_graph import EdgeType


def chained(order: list[int]) -> Graph:
    """A program of tokens alone; `order` is where each of them stands in the table."""
    edges = np.array([(b, a) for a, b in pairwise(order)])
    edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
    return Graph(
        num_nodes=len(order),
        senders=edges[:, 1],
        receivers=edges[:, 0],
        edges={"type": np.full(len(edges), EdgeType.NEXT_TOKEN)},
    )


def test_orders_before_and_after(tmp_path):
    table = table_from_graphs([chained([0, 1, 2, 3]), chained([0, 3, 1, 2])])
    spy = spy_of_programs(table, np.array([1, 0]))
    assert (spy["graphs"], spy["nodes"], spy["edges"]) == (2, 8, 6)
    text, stored = spy["orders"]
    # In the order of the text a chain is next to the diagonal, and the counts are the edges.
    assert text["bandwidth"] == 1
    assert [row.index(1) for row in text["counts"] if 1 in row] == [0, 1, 2, 4, 5, 6]
    assert stored["bandwidth"] == int(band_statistics(table).bandwidth.max()) == 3
    assert np.array(stored["counts"]).shape == (8, 8)
    assert stored["near"][0] == 1.0
    write_spy(tmp_path, table, np.array([1, 0]))
    assert json.loads((tmp_path / SPY).read_text()) == spy


def test_many_nodes_share_cells():
    table = table_from_graphs([chained(list(range(1000)))])
    picture = spy_of_programs(table, np.array([0]))["orders"][0]
    counts = np.array(picture["counts"])
    assert counts.shape == (96, 96)
    assert counts.sum() == 999
    assert np.abs(np.subtract(*np.nonzero(counts))).max() <= 1
