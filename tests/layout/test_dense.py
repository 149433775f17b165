"""DenseAdjacency against one message an edge."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typed_graphs import assert_as_coo, coo, parameters, typed_graph, with_gradients

from weft.errors import DataError
from weft.graphs import Budget, Graph, assemble, table_from_graphs
from weft.layout import DenseAdjacency
from weft.layout.csr import edges_of


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.sampled_from([None, 9, 12]),
    st.sampled_from([0, 1, 7]),
    st.booleans(),
)
def test_the_product_and_its_gradients(sizes, block, padding, bias):
    graphs = [typed_graph(n, 2 * n if n else 0, reach=9, seed=i) for i, n in enumerate(sizes)]
    table = table_from_graphs(graphs)
    nodes = table.total_nodes + padding
    budget = Budget(nodes=nodes, edges=table.total_edges + padding, graphs=len(sizes) + 2)
    batch = assemble(table, range(len(sizes)), budget if padding else None)
    adjacency = DenseAdjacency.of_batch(batch, 3, block)
    assert int(adjacency.C.sum()) == int(adjacency.deg.sum())
    assert adjacency.block == (block or max(1, *sizes))
    assert_as_coo(adjacency, edges_of(batch), nodes, 3, bias=bias)


def complete(n: int) -> Graph:
    senders, receivers = np.nonzero(~np.eye(n, dtype=bool))
    return Graph(num_nodes=n, senders=senders, receivers=receivers)


def test_graphs_that_fill_their_blocks_are_only_reshaped():
    batch = assemble(table_from_graphs([complete(6)] * 4), range(4))
    adjacency = DenseAdjacency.of_batch(batch, 1)
    assert adjacency.place is None
    assert adjacency.C.shape == (4, 6, 1, 6)
    assert_as_coo(adjacency, edges_of(batch), 24, 1)
    assert DenseAdjacency.of_batch(batch, 1, 7).place is not None


def test_padding_may_hold_anything():
    table = table_from_graphs([complete(4), complete(3)])
    batch = assemble(table, [0, 1], Budget(nodes=20, edges=30, graphs=4))
    h, weight, bias = (x.detach() for x in parameters(20, 1))
    plain = DenseAdjacency.of_batch(batch, 1).propagate(h, weight, bias)
    h[7:] = torch.nan
    found = DenseAdjacency.of_batch(batch, 1).propagate(h, weight, bias)
    assert torch.equal(found, plain)
    assert not found[7:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrower_numbers(dtype):
    batch = assemble(table_from_graphs([complete(6), complete(4)]), [0, 1])
    given_ = [x.detach().to(dtype).requires_grad_() for x in parameters(10, 1)]
    found = with_gradients(DenseAdjacency.of_batch(batch, 1).propagate(*given_), given_)
    wide = [x.detach().double().requires_grad_() for x in given_]
    for actual, wanted in zip(
        found, with_gradients(coo(edges_of(batch), *wide), wide), strict=True
    ):
        assert actual.dtype == dtype
        error = (actual.double() - wanted).abs().max() / wanted.abs().max()
        assert error < {torch.float32: 1e-6, torch.bfloat16: 0.03}[dtype]


def test_a_graph_larger_than_its_block():
    batch = assemble(table_from_graphs([complete(4), complete(7)]), [0, 1])
    with pytest.raises(DataError, match=r"graph 1 has 7 nodes, the blocks have 5; take block=7"):
        DenseAdjacency.of_batch(batch, 1, 5)


def test_an_edge_between_graphs():
    graphs = [Graph(num_nodes=2), Graph(num_nodes=2, senders=[1], receivers=[0])]
    batch = assemble(table_from_graphs(graphs), [0, 1]).replace(senders=torch.tensor([1]))
    with pytest.raises(DataError, match=r"from node 1 to node 2 is between graphs 0 and 1"):
        DenseAdjacency.of_batch(batch, 1)


def test_a_program_is_saved_and_takes_another_batch():
    class Product(nn.Module):
        def forward(self, h, weight, adjacency):
            return adjacency.propagate(h, weight)

    table = table_from_graphs([typed_graph(n, 2 * n, reach=9, seed=n) for n in (4, 6, 5, 7)])
    budget = Budget(nodes=20, edges=40, graphs=3)
    one, other = (assemble(table, ids, budget) for ids in ([0, 1], [2, 3]))
    h, weight, _ = (x.detach() for x in parameters(20, 3))
    program = torch.export.export(Product(), (h, weight, DenseAdjacency.of_batch(one, 3, 7)))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    found = torch.export.load(file).module()(h, weight, DenseAdjacency.of_batch(other, 3, 7))
    torch.testing.assert_close(found, coo(edges_of(other), h, weight, None))


def test_another_device_holds_every_tensor():
    batch = assemble(table_from_graphs([complete(4), complete(3)]), [0, 1])
    moved = DenseAdjacency.of_batch(batch, 1).to("meta")
    assert all(part.is_meta for part in (moved.C, moved.deg, moved.place))
