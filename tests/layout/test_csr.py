"""TypedEdges against one message an edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_graphs import assert_as_coo, coo, edge_lists, parameters, typed_graph

from weft.errors import DataError
from weft.graphs import Budget, assemble, table_from_graphs
from weft.layout.csr import TypedEdges, distinct_edges, edges_of

NONE = np.zeros(0, np.int64)


@settings(deadline=None, max_examples=60)
@given(edge_lists(), st.sampled_from([True, False, None]), st.booleans())
def test_the_product_and_its_gradients(drawn, aggregate, bias):
    nodes, types, edges = drawn
    adjacency = TypedEdges.of(*edges, nodes, types, aggregate=aggregate)
    assert_as_coo(adjacency, edges, nodes, types, bias=bias)


def test_more_rows_than_a_chunk_holds():
    rng = np.random.default_rng(0)
    nodes, types = 3000, 2
    edges = rng.integers(0, nodes, 9000), rng.integers(0, nodes, 9000), rng.integers(0, 2, 9000)
    for aggregate in (True, False):
        adjacency = TypedEdges.of(*edges, nodes, types, aggregate=aggregate)
        assert len(adjacency.chunk_types) > types
        assert_as_coo(adjacency, edges, nodes, types)


def test_the_side_with_fewer_rows_is_chosen_for_each_type():
    one, others = np.zeros(9, np.int64), np.arange(1, 10)
    edges = np.concatenate([one, others]), np.concatenate([others, one]), np.repeat([0, 1], 9)
    adjacency = TypedEdges.of(*edges, 10, 2)
    assert (adjacency.num_rows, adjacency.num_edges) == (2, 18)
    for aggregate in (True, False):
        assert TypedEdges.of(*edges, 10, 2, aggregate=aggregate).num_rows == 10
    assert_as_coo(adjacency, edges, 10, 2)


@pytest.mark.parametrize("nodes", [0, 1, 5])
@pytest.mark.parametrize("aggregate", [True, False, None])
def test_no_edges(nodes, aggregate):
    adjacency = TypedEdges.of(NONE, NONE, NONE, nodes, 2, aggregate=aggregate)
    assert (adjacency.num_nodes, adjacency.num_rows) == (nodes, 0)
    assert_as_coo(adjacency, (NONE, NONE, NONE), nodes, 2)


def test_duplicates_count_once():
    edges = np.array([0, 0, 0, 1]), np.array([1, 1, 1, 1]), np.array([0, 0, 1, 0])
    found = distinct_edges(*edges, 2, 2)
    assert [part.tolist() for part in found] == [[0, 1, 0], [1, 1, 1], [0, 0, 1]]
    assert_as_coo(TypedEdges.of(*edges, 2, 2), edges, 2, 2)


def test_a_padded_batch():
    table = table_from_graphs([typed_graph(n, 2 * n) for n in (4, 7, 1)])
    plain = assemble(table, [0, 1, 2])
    padded = assemble(table, [0, 1, 2], Budget(nodes=20, edges=40, graphs=6))
    edges = edges_of(padded)
    assert len(edges[0]) == table.total_edges
    assert_as_coo(TypedEdges.of_batch(padded, 3), edges, 20, 3)
    given = [x.detach() for x in parameters(20, 3)]
    found = TypedEdges.of_batch(padded, 3).propagate(*given)
    expected = TypedEdges.of_batch(plain, 3).propagate(given[0][:12], *given[1:])
    assert torch.equal(found[:12], expected)
    assert not found[12:].any()


def test_edges_without_a_type_are_of_type_0():
    table = table_from_graphs([typed_graph(5, 9)])
    batch = assemble(table, [0])
    batch = batch.replace(edges={})
    assert edges_of(batch)[2].tolist() == [0] * 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrower_numbers(dtype):
    graph = typed_graph(30, 90)
    edges = graph.senders, graph.receivers, graph.edges["type"]
    given = [x.detach().to(dtype) for x in parameters(30, 3)]
    found = TypedEdges.of(*edges, 30, 3).propagate(*given)
    assert found.dtype == dtype
    expected = coo(edges, *(x.double() for x in given))
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < {torch.float32: 1e-6, torch.bfloat16: 0.03}[dtype]


def test_another_device_holds_every_tensor():
    moved = TypedEdges.of(NONE, NONE, NONE, 3, 2).to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 11
    assert all(tensor.is_meta for tensor in tensors)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (([3], [0], [0]), r"edge 0 has sender 3; there are 3"),
        (([0, 0], [0, -1], [0, 0]), r"edge 1 has receiver -1; there are 3"),
        (([0], [0], [2]), r"edge 0 has type 2; there are 2"),
        (([0, 1], [0], [0]), r"2 senders, 1 receivers and 1 types"),
    ],
)
def test_edges_that_cannot_be(edges, message):
    with pytest.raises(DataError, match=message):
        TypedEdges.of(*map(np.array, edges), 3, 2)
