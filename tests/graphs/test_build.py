import numpy as np
import pytest
from graph_strategies import assert_same_array, assert_same_graph, data_sets, quick, sorted_edges
from hypothesis import given

from weft.errors import DataError
from weft.graphs import Column, Graph, table_from_columns, table_from_graphs


@quick
@given(data_sets())
def test_random_graphs_in_the_same_graphs_out(data):
    schema, graphs = data
    table = table_from_graphs(graphs, schema)
    assert len(table) == len(graphs)
    for found, graph in zip(table, graphs, strict=True):
        assert_same_graph(found, sorted_edges(graph))
        assert found.senders.dtype == found.receivers.dtype == np.int32


@quick
@given(data_sets())
def test_both_csr_views_list_every_nodes_edges(data):
    schema, graphs = data
    table = table_from_graphs(graphs, schema)
    for i, graph in enumerate(table):
        nodes = slice(*table.node_offsets[i : i + 2])
        edges = slice(*table.edge_offsets[i : i + 2])
        numbers = np.arange(graph.num_nodes)
        order = table.columns["out_order"][edges]
        assert order.tolist() == np.argsort(graph.senders, kind="stable").tolist()
        starts = np.searchsorted(graph.receivers, numbers)
        assert table.columns["in_start"][nodes].tolist() == starts.tolist()
        starts = np.searchsorted(graph.senders[order], numbers)
        assert table.columns["out_start"][nodes].tolist() == starts.tolist()


@quick
@given(data_sets(min_size=1))
def test_concatenated_columns_make_the_same_table(data):
    schema, graphs = data
    expected = table_from_graphs(graphs, schema)
    fields = {"node": "nodes", "edge": "edges", "graph": "graph", "ragged": "ragged"}
    columns = {
        name: np.concatenate(
            [
                getattr(g, fields[c.level])[name][None if c.level == "graph" else slice(None)]
                for g in graphs
            ]
        )
        for name, c in schema.items()
    }
    ends = {
        name: np.concatenate([getattr(g, name) for g in graphs])
        for name in ("senders", "receivers")
    }
    table = table_from_columns(
        schema,
        num_nodes=np.array([g.num_nodes for g in graphs]),
        num_edges=np.array([g.num_edges for g in graphs]),
        columns={**columns, **ends},
        ragged_rows={
            name: np.array([len(g.ragged[name]) for g in graphs])
            for name, c in schema.items()
            if c.level == "ragged"
        },
    )
    assert table.columns.keys() == expected.columns.keys()
    for name, values in expected.columns.items():
        assert_same_array(table.columns[name], values, name)
    assert_same_array(table.node_offsets, expected.node_offsets)
    assert_same_array(table.edge_offsets, expected.edge_offsets)


def test_edge_ends_of_any_integer_dtype():
    graphs = [
        Graph(num_nodes=3, senders=np.array([2, 0], dtype), receivers=np.array([0, 1], dtype))
        for dtype in (np.uint64, np.int64, np.uint8, np.int16)
    ]
    for found in table_from_graphs(graphs, {}):
        assert (found.senders.tolist(), found.receivers.tolist()) == ([2, 0], [0, 1])


def test_columns_take_the_schemas_dtype_if_no_value_changes():
    graph = Graph(num_nodes=2, nodes={"z": np.array([1, 8]), "x": np.array([1.5, 2.5])})
    schema = {
        "z": Column(level="node", dtype="uint8"),
        "x": Column(level="node", dtype="float32"),
    }
    found = table_from_graphs([graph], schema)[0]
    assert_same_array(found.nodes["z"], np.array([1, 8], np.uint8))
    assert_same_array(found.nodes["x"], np.array([1.5, 2.5], np.float32))


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([1, 300], "uint8", "'x' has values that do not fit uint8"),
        ([1, -1], "uint16", "'x' has values that do not fit uint16"),
        ([1, 2], "bool", "'x' has values that do not fit bool"),
        ([1.5, 2.0], "int32", "'x' holds float64 values; the schema says int32"),
        ([1.0, 1e300], "float32", "graph 0: node column 'x' is inf in row 1"),
    ],
)
def test_values_that_would_change_are_refused(values, dtype, message):
    graph = Graph(num_nodes=2, nodes={"x": np.array(values)})
    with pytest.raises(DataError, match=message):
        table_from_graphs([graph], {"x": Column(level="node", dtype=dtype)})


def molecule(**fields):
    whole = {
        "num_nodes": 2,
        "senders": np.array([0, 1]),
        "receivers": np.array([1, 0]),
        "nodes": {"x": np.zeros((2, 3))},
        "graph": {"y": np.float64(0)},
    }
    return Graph(**{**whole, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": {}}, "graph 12: no node column 'x'"),
        ({"graph": {}}, "graph 12: no graph column 'y'"),
        ({"nodes": {"x": np.zeros((2, 4))}}, r"graph 12: .*'x' has shape \[4\].* says \[3\]"),
        ({"nodes": {"x": np.zeros((1, 3))}}, r"graph 12: node column 'x' has shape \[1, 3\]"),
        ({"graph": {"y": np.zeros(2)}}, r"graph 12: .*'y' has shape \[2\].* says \[\]"),
        ({"senders": np.array([0, 2])}, "graph 12: edge 1 has senders = 2, out of range for 2"),
        ({"receivers": np.array([-1, 0])}, "graph 12: edge 0 has receivers = -1, out of range"),
        ({"edges": {"d": np.zeros(2)}}, r"graph 12: edge column 'd' is not in .*schema \(x, y\)"),
        (
            {"graph": {"y": np.float64("nan")}},
            "graph 12: graph column 'y' is nan in row 0; .*missing=True",
        ),
        (
            {"nodes": {"x": np.array([[0, 0, 0], [0, np.inf, 0]])}},
            "graph 12: node column 'x' is inf in row 1",
        ),
    ],
)
def test_a_bad_graph_is_named_with_its_field(fields, message):
    with pytest.raises(DataError, match=message):
        table_from_graphs([molecule(), molecule(), molecule(**fields)], first=10)


def test_nan_is_kept_where_it_means_missing_and_inf_is_not():
    schema = {"y": Column(level="graph", dtype="float64", missing=True)}
    table = table_from_graphs([Graph(num_nodes=0, graph={"y": np.float64("nan")})], schema)
    assert np.isnan(table.columns["y"]).tolist() == [True]
    with pytest.raises(DataError, match="graph 0: graph column 'y' is inf in row 0; correct"):
        table_from_graphs([Graph(num_nodes=0, graph={"y": np.float64("inf")})], schema)


def test_no_graphs_need_a_schema():
    with pytest.raises(DataError, match="no graphs and no schema"):
        table_from_graphs([])
    assert len(table_from_graphs([], {"x": Column(level="node", dtype="float32", shape=(3,))})) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": {}}, "column 'x' is in the schema but has no values"),
        ({"columns": {"x": np.zeros(4)}}, r"node column 'x' has shape \[4\]; \[3\] expected"),
        ({"num_edges": np.array([1, 1])}, r"senders has shape \[0\]; \[2\] needed"),
        ({"num_edges": np.array([0])}, "num_edges counts the rows of 1 graphs, num_nodes of 2"),
        (
            {
                "num_edges": np.array([0, 1]),
                "columns": {
                    "x": np.zeros(3),
                    "senders": np.array([1]),
                    "receivers": np.array([0]),
                },
            },
            "graph 1: edge 0 has senders = 1, out of range for 1 nodes",
        ),
        (
            {
                "num_edges": np.array([1, 0]),
                "columns": {"x": np.zeros(3), "senders": np.zeros(1), "receivers": np.zeros(1)},
            },
            "senders holds float64 values; integers needed",
        ),
    ],
)
def test_bad_columns_are_named(arguments, message):
    whole = {"num_nodes": np.array([2, 1]), "columns": {"x": np.zeros(3)}}
    with pytest.raises(DataError, match=message):
        table_from_columns({"x": Column(level="node", dtype="float64")}, **{**whole, **arguments})


def test_a_ragged_column_needs_its_row_counts():
    with pytest.raises(DataError, match="ragged column 's' has no entry in ragged_rows"):
        table_from_columns(
            {"s": Column(level="ragged", dtype="uint8")},
            num_nodes=np.array([1]),
            columns={"s": np.zeros(3, np.uint8)},
        )
