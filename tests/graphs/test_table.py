import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graph_strategies import assert_same_array, assert_same_graph, data_sets, quick, sorted_edges
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import DataError
from weft.graphs import Graph, assemble, table_from_graphs, write_table


@quick
@given(data_sets(min_size=1), st.data())
def test_select_takes_graphs_in_any_order_and_any_number_of_times(data, pick):
    schema, graphs = data
    ids = pick.draw(st.lists(st.integers(0, len(graphs) - 1), max_size=10))
    chosen = table_from_graphs(graphs, schema).select(ids)
    expected = table_from_graphs([graphs[i] for i in ids], schema)
    assert len(chosen) == len(ids)
    for found, i in zip(chosen, ids, strict=True):
        assert_same_graph(found, sorted_edges(graphs[i]))
    for name, values in expected.columns.items():
        assert_same_array(chosen.columns[name], values, name)


@quick
@given(data_sets())
def test_sizes_are_known_without_the_columns(data):
    schema, graphs = data
    table = table_from_graphs(graphs, schema)
    assert table.num_nodes.tolist() == [g.num_nodes for g in graphs]
    assert table.num_edges.tolist() == [g.num_edges for g in graphs]
    assert (table.total_nodes, table.total_edges) == (sum(table.num_nodes), sum(table.num_edges))
    for name in schema:
        assert table.offsets(name)[-1] == table.column(name).shape[0]


@pytest.fixture
def table():
    return table_from_graphs([Graph(num_nodes=n, graph={"y": np.int64(n)}) for n in range(4)])


def test_indexing_counts_from_either_end(table):
    assert [int(table[i].graph["y"]) for i in (0, 3, -1, -4)] == [0, 3, 3, 0]
    for outside in (4, -5):
        with pytest.raises(IndexError, match=f"graph {outside} of a table of 4"):
            table[outside]


@pytest.mark.parametrize("ids", [[0, 4], [-1], np.array([7])])
def test_a_graph_that_is_not_there_is_named(table, ids):
    with pytest.raises(DataError, match=rf"graph {ids[-1]} is out of range: .* graphs 0 to 3"):
        table.select(ids)


@pytest.mark.parametrize("ids", [[True, False, True, True], [0.0, 1.5]])
def test_masks_and_fractions_are_no_graph_numbers(table, ids):
    with pytest.raises(DataError, match=r"chosen by number, got (bool|float64)"):
        table.select(ids)


def test_an_empty_table_says_so(table):
    empty = table.select([])
    assert len(empty) == 0
    assert list(empty) == []
    with pytest.raises(DataError, match=r"the table holds no graphs"):
        empty.select([0])


def test_a_column_that_is_not_there_lists_what_is(table):
    assert table.column("y").tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"no column 'z' in the table; it has y"):
        table.column("z")


def test_repr_is_for_people(table):
    assert repr(table) == "GraphTable(4 graphs, 6 nodes, 0 edges, columns: y)"


def test_a_mapped_table_travels_as_its_path(tmp_path: Path) -> None:
    graph = Graph(num_nodes=50_000, nodes={"x": np.ones((50_000, 4))})
    table = write_table(tmp_path / "t", [graph])
    sent = pickle.dumps(table)
    assert len(sent) < 1000
    assert pickle.loads(sent).path == table.path
    memory = pickle.loads(pickle.dumps(table_from_graphs([graph])))
    assert np.array_equal(memory.columns["x"], table.columns["x"])


def test_a_copy_with_other_columns_is_checked_anew():
    graph = Graph(num_nodes=2, senders=np.array([0]), receivers=np.array([1]))
    table = table_from_graphs([graph])
    assert table.checked
    assert table.with_columns({}, {}).checked
    bad = replace(table, columns={**table.columns, "senders": np.array([2 * 10**9])})
    assert not bad.checked
    with pytest.raises(DataError, match="column 'senders' is damaged"):
        assemble(bad, [0])
