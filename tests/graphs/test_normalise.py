import numpy as np
import pytest
import torch
from graph_strategies import assert_same_array, assert_same_graph, graphs_of, quick, sorted_edges
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weft.errors import DataError
from weft.graphs import Column, Graph, gcn_weights, row_weights, symmetrised, with_self_loops

schema = {
    "x": Column(level="node", dtype="float32"),
    "d": Column(level="edge", dtype="float64", shape=(2,)),
    "kind": Column(level="edge", dtype="int8"),
    "y": Column(level="graph", dtype="float64"),
    "s": Column(level="ragged", dtype="uint8"),
}
any_graph = graphs_of(schema)


def pairs(graph):
    return list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


@quick
@given(any_graph)
def test_with_self_loops_adds_the_missing_ones_only(graph):
    looped = with_self_loops(graph, fill={"kind": 7})
    new = looped.num_edges - graph.num_edges
    missing = [(v, v) for v in range(graph.num_nodes) if (v, v) not in pairs(graph)]
    assert pairs(looped) == pairs(graph) + missing
    assert_same_array(looped.edges["kind"], np.append(graph.edges["kind"], np.full(new, 7, "int8")))
    assert_same_array(looped.edges["d"], np.concatenate([graph.edges["d"], np.zeros((new, 2))]))
    assert (looped.nodes, looped.graph, looped.ragged) == (graph.nodes, graph.graph, graph.ragged)
    assert_same_graph(with_self_loops(looped), looped)


def test_a_fill_for_no_column_is_refused():
    with pytest.raises(DataError, match="fill names the edge column 'w'; the graph has no edge"):
        with_self_loops(Graph(num_nodes=1), fill={"w": 1})


@quick
@given(any_graph)
def test_symmetrised_has_each_edge_once_in_both_directions(graph):
    found = symmetrised(graph)
    both = set(pairs(graph)) | {(r, s) for s, r in pairs(graph)}
    assert pairs(found) == sorted(both, key=lambda edge: edge[::-1])
    firsts = {}
    for i, edge in enumerate(pairs(graph)):
        firsts.setdefault(edge, i)
    for i, (s, r) in enumerate(pairs(found)):
        source = firsts[s, r] if (s, r) in firsts else firsts[r, s]
        assert_same_array(found.edges["d"][i], graph.edges["d"][source])
        assert_same_array(found.edges["kind"][i], graph.edges["kind"][source])
    assert_same_graph(symmetrised(found), found)


@st.composite
def weighted_graphs(draw):
    graph = draw(graphs_of({}, max_nodes=8, max_edges=20))
    loops = graph.senders[graph.senders == graph.receivers]
    # torch_geometric keeps one of several self-loops of a node, we keep them all.
    assume(np.unique(loops).size == loops.size)
    if draw(st.booleans()):
        graph = symmetrised(graph)
    weights = draw(hnp.arrays(np.float32, graph.num_edges, elements=st.floats(0, 5, width=32)))
    return graph, weights if draw(st.booleans()) else None


def by_edge(senders, receivers, weights):
    order = np.lexsort((weights, senders, receivers))
    return senders[order].tolist(), receivers[order].tolist(), weights[order]


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("float64", 1e-14)])
@quick
@given(case=weighted_graphs())
def test_gcn_weights_are_torch_geometrics(case, dtype, close):
    gcn_conv = pytest.importorskip("torch_geometric.nn.conv.gcn_conv")
    graph, weights = case
    ends = torch.from_numpy(np.stack([graph.senders, graph.receivers]).astype(np.int64))
    index, expected = gcn_conv.gcn_norm(
        ends,
        None if weights is None else torch.from_numpy(weights).to(getattr(torch, dtype)),
        num_nodes=graph.num_nodes,
        dtype=getattr(torch, dtype),
    )
    columns = {} if weights is None else {"weight": weights}
    found = gcn_weights(
        Graph(
            num_nodes=graph.num_nodes,
            senders=graph.senders,
            receivers=graph.receivers,
            edges=columns,
        ),
        dtype=dtype,
    )
    assert found.edges["weight"].dtype == dtype
    *ends, values = by_edge(found.senders, found.receivers, found.edges["weight"])
    *pyg_ends, pyg_values = by_edge(*index.numpy(), expected.numpy())
    assert ends == pyg_ends
    np.testing.assert_allclose(values, pyg_values, rtol=close, atol=close / 100)


def test_isolated_nodes_get_weight_one_from_their_self_loop():
    graph = gcn_weights(Graph(num_nodes=3, senders=np.array([0, 1]), receivers=np.array([1, 0])))
    weights = dict(zip(pairs(graph), graph.edges["weight"].tolist(), strict=True))
    assert weights == pytest.approx({(0, 1): 0.5, (1, 0): 0.5, (0, 0): 0.5, (1, 1): 0.5, (2, 2): 1})


def test_gcn_weights_keep_other_columns():
    graph = Graph(
        num_nodes=2,
        senders=np.array([0]),
        receivers=np.array([1]),
        edges={"kind": np.array([3], np.int8)},
    )
    assert gcn_weights(graph).edges["kind"].tolist() == [3, 0, 0]
    assert "weight" not in graph.edges


def test_a_node_with_negative_weight_is_named():
    graph = Graph(
        num_nodes=2,
        senders=np.array([0]),
        receivers=np.array([1]),
        edges={"weight": np.array([-3.0])},
    )
    with pytest.raises(DataError, match="enter node 1 sum to -2"):
        gcn_weights(graph)


@pytest.mark.parametrize("normalise", [gcn_weights, row_weights])
def test_a_weight_is_one_number_an_edge(normalise):
    graph = Graph(
        num_nodes=2,
        senders=np.array([0]),
        receivers=np.array([1]),
        edges={"weight": np.ones((1, 4))},
    )
    with pytest.raises(DataError, match=r"'weight' has shape \[1, 4\]"):
        normalise(graph)


@pytest.mark.parametrize("normalise", [gcn_weights, row_weights, symmetrised, with_self_loops])
def test_an_edge_out_of_range_is_named(normalise):
    graph = Graph(num_nodes=2, senders=np.array([0, 9]), receivers=np.array([1, 0]))
    with pytest.raises(DataError, match="edge 1 has senders = 9, out of range"):
        normalise(graph)


@quick
@given(weighted_graphs())
def test_row_weights_make_a_sum_a_mean(case):
    graph, _ = case
    found = row_weights(graph)
    assert pairs(found) == pairs(graph)
    degrees = np.bincount(graph.receivers, minlength=graph.num_nodes)
    assert_same_array(found.edges["weight"], (1 / degrees[graph.receivers]).astype(np.float32))


def test_row_weights_weigh_the_mean_by_weights_that_are_there():
    graph = Graph(
        num_nodes=3,
        senders=np.array([0, 1, 0]),
        receivers=np.array([2, 2, 1]),
        edges={"weight": np.array([1, 3, 0])},
    )
    assert row_weights(graph).edges["weight"].tolist() == [0.25, 0.75, 0]


@pytest.mark.parametrize("normalise", [gcn_weights, row_weights, symmetrised, with_self_loops])
def test_unsigned_ends_are_fine(normalise):
    ends = np.array([0, 1, 1]), np.array([1, 0, 1])
    signed = Graph(num_nodes=2, senders=ends[0], receivers=ends[1])
    unsigned = Graph(
        num_nodes=2, senders=ends[0].astype(np.uint64), receivers=ends[1].astype(np.uint64)
    )
    assert_same_graph(normalise(unsigned), normalise(signed))


@quick
@given(any_graph)
def test_the_result_fits_a_table(graph):
    from weft.graphs import table_from_graphs

    weighted = gcn_weights(graph)
    assert_same_graph(table_from_graphs([weighted])[0], sorted_edges(weighted))


def test_self_loops_of_nodes_beyond_a_narrow_dtype() -> None:
    ends = np.array([0, 1], dtype=np.uint8)
    looped = with_self_loops(Graph(num_nodes=300, senders=ends, receivers=ends[::-1]))
    loops = looped.senders[looped.senders == looped.receivers]
    assert sorted(loops) == list(range(300))
