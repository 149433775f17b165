import dataclasses

import numpy as np
import pytest
import torch
from graph_strategies import FIELDS, assert_same_graph, data_sets, quick, sorted_edges
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from weft.errors import DataError
from weft.graphs import Budget, Graph, assemble, table_from_graphs

columns = {"levels": ("node", "edge", "graph")}


@st.composite
def batches(draw, *, padded):
    """(graphs in the batch, GraphBatch, Budget or None), graphs in any order and repeated."""
    schema, graphs = draw(data_sets(min_size=1, max_size=5, **columns))
    ids = draw(st.lists(st.integers(0, len(graphs) - 1), max_size=7))
    chosen = [graphs[i] for i in ids]
    budget = None
    if padded:
        budget = Budget(
            nodes=sum(g.num_nodes for g in chosen) + 1 + draw(st.integers(0, 4)),
            edges=sum(g.num_edges for g in chosen) + draw(st.integers(0, 4)),
            graphs=len(chosen) + 1 + draw(st.integers(0, 3)),
        )
    return chosen, assemble(table_from_graphs(graphs, schema), ids, budget), budget


any_batch = st.booleans().flatmap(lambda padded: batches(padded=padded))


@quick
@given(any_batch)
def test_unbatch_gives_the_graphs_back(case):
    graphs, batch, _ = case
    assert batch.num_real_graphs == len(graphs)
    for found, graph in zip(batch.unbatch(), graphs, strict=True):
        assert_same_graph(found, sorted_edges(graph), levels=columns["levels"])


@quick
@given(any_batch)
def test_both_csr_views_agree_with_the_edges(case):
    _, batch, _ = case
    senders, receivers = batch.senders.numpy(), batch.receivers.numpy()
    nodes = np.arange(batch.num_nodes + 1)
    assert (np.diff(receivers) >= 0).all()
    assert batch.in_offsets.tolist() == np.searchsorted(receivers, nodes).tolist()
    order = batch.out_order.numpy()
    assert sorted(order.tolist()) == list(range(batch.num_edges))
    assert order.tolist() == np.argsort(senders, kind="stable").tolist()
    assert batch.out_offsets.tolist() == np.searchsorted(senders[order], nodes).tolist()
    indices = (batch.senders, batch.receivers, batch.in_offsets, batch.out_offsets)
    indices += (batch.out_order, batch.node_offsets, batch.node_graph)
    assert {index.dtype for index in indices} == {torch.int32}


@quick
@given(any_batch)
def test_node_offsets_and_node_graph_agree(case):
    graphs, batch, _ = case
    offsets = batch.node_offsets.tolist()
    assert len(offsets) == batch.num_graphs + 1
    assert (offsets[0], offsets[-1]) == (0, batch.num_nodes)
    sizes = np.diff(offsets)
    assert sizes[: len(graphs)].tolist() == [g.num_nodes for g in graphs]
    assert batch.node_graph.tolist() == np.repeat(np.arange(batch.num_graphs), sizes).tolist()


@quick
@given(batches(padded=True))
def test_the_padding_contract(case):
    graphs, batch, budget = case
    nodes = sum(g.num_nodes for g in graphs)
    edges = sum(g.num_edges for g in graphs)
    assert (batch.num_nodes, batch.num_edges, batch.num_graphs) == (
        budget.nodes,
        budget.edges,
        budget.graphs,
    )
    for mask, real in (
        (batch.node_mask, nodes),
        (batch.edge_mask, edges),
        (batch.graph_mask, len(graphs)),
    ):
        assert mask.tolist() == [True] * real + [False] * (len(mask) - real)
    dummy = len(graphs)
    assert batch.node_graph[nodes:].tolist() == [dummy] * (budget.nodes - nodes)
    assert batch.node_offsets[dummy + 1 :].tolist() == [budget.nodes] * (budget.graphs - dummy)
    first_padding_node = [nodes] * (budget.edges - edges)
    assert batch.senders[edges:].tolist() == first_padding_node
    assert batch.receivers[edges:].tolist() == first_padding_node
    for level, real in ((batch.nodes, nodes), (batch.edges, edges), (batch.graphs, dummy)):
        for values in level.values():
            assert not values[real:].any()


@quick
@given(batches(padded=False))
def test_an_unpadded_batch_has_no_padding(case):
    graphs, batch, _ = case
    assert batch.num_graphs == len(graphs)
    assert batch.num_nodes == sum(g.num_nodes for g in graphs)
    assert batch.num_edges == sum(g.num_edges for g in graphs)
    assert batch.node_mask.all()
    assert batch.edge_mask.all()
    assert batch.graph_mask.all()


@quick
@given(data_sets(min_size=1, max_size=3))
def test_ragged_columns_stay_behind(data):
    schema, graphs = data
    batch = assemble(table_from_graphs(graphs, schema), range(len(graphs)))
    for level, columns in (("node", batch.nodes), ("edge", batch.edges), ("graph", batch.graphs)):
        assert set(columns) == {name for name, c in schema.items() if c.level == level}
        assert set(columns) == set(getattr(graphs[0], FIELDS[level]))


def rings(*sizes):
    """Undirected rings with node, edge and graph columns."""
    graphs = []
    for n in sizes:
        i = np.arange(n)
        graphs.append(
            Graph(
                num_nodes=n,
                senders=np.concatenate([i, (i + 1) % n]),
                receivers=np.concatenate([(i + 1) % n, i]),
                nodes={"x": np.linspace(0, 1, n, dtype=np.float32)},
                edges={"d": np.arange(2 * n, dtype=np.float32)},
                graph={"y": np.float32(n)},
            )
        )
    return table_from_graphs(graphs)


def test_a_budget_that_fits_exactly():
    batch = assemble(rings(3, 4), [0, 1], Budget(nodes=8, edges=14, graphs=3))
    assert batch.node_mask.tolist() == [True] * 7 + [False]
    assert batch.edge_mask.all()
    assert batch.in_offsets[-2:].tolist() == [14, 14]


@pytest.mark.parametrize(
    "budget",
    [
        Budget(nodes=7, edges=14, graphs=3),
        Budget(nodes=8, edges=13, graphs=3),
        Budget(nodes=8, edges=14, graphs=2),
        Budget(nodes=0, edges=0, graphs=0),
    ],
)
def test_a_budget_that_is_too_small_prints_both_sides(budget):
    message = (
        r"it has 7 nodes, 14 edges and 2 graphs, the budget has room for "
        rf"{budget.nodes - 1}, {budget.edges} and {budget.graphs - 1};"
    )
    with pytest.raises(DataError, match=message):
        assemble(rings(3, 4), [0, 1], budget)


def test_a_graph_that_is_not_there_is_named():
    with pytest.raises(DataError, match="graph 2 is out of range: the table holds graphs 0 to 1"):
        assemble(rings(3, 4), [0, 2])


def test_to_moves_every_tensor():
    batch = assemble(rings(3, 4), [0, 1], Budget(nodes=16, edges=32, graphs=4))
    moved = batch.to("meta")
    tensors = pytree.tree_leaves(moved)
    assert len(tensors) == len(pytree.tree_leaves(batch)) == 13
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert [t.shape for t in tensors] == [t.shape for t in pytree.tree_leaves(batch)]
    assert moved.nodes["x"].dtype == torch.float32


def test_replace_changes_only_what_is_named():
    batch = assemble(rings(3), [0])
    weights = torch.ones(6)
    changed = batch.replace(edges={"weight": weights})
    assert changed.edges == {"weight": weights}
    assert changed.nodes is batch.nodes
    assert "d" in batch.edges


def test_how_many_graphs_are_real_is_known_until_the_mask_changes():
    batch = assemble(rings(3, 4, 5), [0, 2], Budget(nodes=16, edges=32, graphs=4))
    moved = batch.to("meta")
    # Nothing could be read there.
    assert moved.num_real_graphs == moved.replace(edges={}).num_real_graphs == 2
    fewer = batch.graph_mask.clone()
    fewer[1] = False
    assert batch.replace(graph_mask=fewer).num_real_graphs == 1
    batch.graph_mask[1] = False
    assert batch.num_real_graphs == batch.to("cpu").num_real_graphs == 1


def test_repr_is_for_people():
    batch = assemble(rings(3, 4), [0, 1])
    assert repr(batch) == "GraphBatch(2 graphs, 7 nodes, 14 edges, columns: x, d, y)"


def test_a_batch_is_a_pytree():
    batch = assemble(rings(3, 4), [1], Budget(nodes=16, edges=32, graphs=4))
    leaves, spec = pytree.tree_flatten(batch)
    back = pytree.tree_unflatten(leaves, spec)
    assert type(back) is type(batch)
    assert all(a is b for a, b in zip(pytree.tree_leaves(back), leaves, strict=True))
    doubled = pytree.tree_map(lambda tensor: tensor * 2, batch)
    assert torch.equal(doubled.nodes["x"], 2 * batch.nodes["x"])


def test_a_second_batch_of_the_same_padded_shape_does_not_recompile():
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True, dynamic=False)
    def readout(batch):
        messages = batch.nodes["x"][batch.senders] * batch.edges["d"]
        nodes = torch.zeros(batch.num_nodes).index_add(0, batch.receivers, messages)
        graphs = torch.zeros(batch.num_graphs).index_add(0, batch.node_graph, nodes)
        return torch.where(batch.graph_mask, graphs - batch.graphs["y"], 0.0)

    table = rings(3, 4, 5)
    budget = Budget(nodes=16, edges=32, graphs=4)
    for ids in ([0, 1], [2], [1, 0, 2]):
        batch = assemble(table, ids, budget)
        result = readout(batch)
        expected = []
        for g in batch.unbatch():
            expected.append((g.nodes["x"][g.senders] * g.edges["d"]).sum() - g.graph["y"])
        assert result[: len(ids)].tolist() == pytest.approx(expected, rel=1e-5)
        assert not result[len(ids) :].any()
    assert counter.frame_count == 1
    readout(assemble(table, [0], Budget(nodes=32, edges=32, graphs=4)))
    assert counter.frame_count == 2


@st.composite
def symmetric_tables(draw):
    """Graphs whose edges come both ways, several between two nodes, loops in twos."""
    graphs = []
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, 5))
        ends = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=8))
        senders = [a for a, _ in ends] + [b for _, b in ends]
        receivers = [b for _, b in ends] + [a for a, _ in ends]
        image = list(range(1, len(ends) + 1)) + [-i for i in range(1, len(ends) + 1)]
        # The order that the table's contract asks for: by image one way, by -image the other.
        keys = [
            abs(i) * 2 + (i < 0) if s == r else i if s < r else -i
            for s, r, i in zip(senders, receivers, image, strict=True)
        ]
        order = np.argsort(keys, kind="stable")
        graphs.append(
            Graph(
                num_nodes=n,
                senders=np.array(senders, dtype=np.int32)[order],
                receivers=np.array(receivers, dtype=np.int32)[order],
                edges={"image": np.array(image, dtype=np.int32)[order]},
            )
        )
    return table_from_graphs(graphs, metadata={"symmetric": True})


@quick
@given(symmetric_tables(), st.integers(0, 3))
def test_pairs_hold_an_edge_and_its_reverse(table, more):
    budget = Budget(
        nodes=table.total_nodes + 1, edges=table.total_edges + more, graphs=len(table) + 1
    )
    for batch in (assemble(table, range(len(table))), assemble(table, range(len(table)), budget)):
        forward, backward, of_edge = (batch.pairs[n] for n in ("forward", "backward", "of_edge"))
        assert len(forward) == len(backward) == -(-batch.num_edges // 2)
        assert (batch.senders[forward] == batch.receivers[backward]).all()
        assert (batch.receivers[forward] == batch.senders[backward]).all()
        assert (batch.edges["image"][forward] == -batch.edges["image"][backward]).all()
        numbers = torch.arange(len(forward), dtype=torch.int32)
        assert (of_edge[forward] == numbers).all()
        assert (of_edge[backward] == numbers).all()
        both = torch.cat([forward, backward[forward != backward]]).tolist()
        assert sorted(both) == list(range(batch.num_edges))


def test_a_damaged_order_of_edges_is_refused_before_pairs_overflow():
    graph = Graph(num_nodes=2, senders=[1] + [0] * 40, receivers=[0] + [1] * 40)
    table = table_from_graphs([graph], metadata={"symmetric": True})
    # Every edge from 0 to 1 has the only one back for its reverse.
    order = np.zeros_like(table.columns["out_order"])
    order[0] = 1
    damaged = dataclasses.replace(table, columns={**table.columns, "out_order": order})
    with pytest.raises(DataError, match="from node 0 to node 1 of this batch has no reverse"):
        assemble(damaged.known_right(), [0])


def test_edges_that_are_not_symmetric_are_refused():
    graph = Graph(num_nodes=3, senders=[0, 1, 1], receivers=[1, 0, 2])
    table = table_from_graphs([graph], metadata={"symmetric": True})
    with pytest.raises(DataError, match="from node 1 to node 2 of this batch has no reverse"):
        assemble(table, [0])
    assert assemble(table_from_graphs([graph]), [0]).pairs == {}
