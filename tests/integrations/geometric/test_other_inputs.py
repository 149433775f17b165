"""Layers on torch.sparse adjacencies and on torch_geometric's EdgeIndex, in float64."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric")

from torch_geometric import EdgeIndex
from torch_geometric.nn import (
    APPNP,
    GATConv,
    GCNConv,
    GINConv,
    GraphConv,
    SAGEConv,
    TransformerConv,
)

from weft.integrations.geometric.edge_cache import _kept
from weft.integrations.geometric.redirect import redirect
from weft.integrations.geometric.running import noted

NODES, WIDTH = 6, 4
# No duplicates, which torch.sparse would sum.
EDGES = torch.tensor([[0, 1, 2, 2, 4, 3, 3, 5], [1, 0, 0, 3, 4, 0, 1, 1]])
VALUES = torch.tensor([0.5, 1.0, -2.0, 0.3, 1.5, 0.7, 2.0, 0.1], dtype=torch.float64)

# torch_geometric warns that it converts these again and again.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Converting sparse tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
]


def adjacency(layout):
    made = torch.sparse_coo_tensor(EDGES.flip(0), VALUES, (NODES, NODES)).coalesce()
    return made if layout == "coo" else getattr(made, f"to_sparse_{layout}")()


def pair(layer):
    stock = layer.double()
    fast = copy.deepcopy(stock)
    redirect(fast)
    return stock, fast


def results(layer, edges, **named):
    x = torch.linspace(-1, 2, NODES * WIDTH, dtype=torch.float64).view(NODES, WIDTH).sin()
    x.requires_grad_()
    with noted() as notes:
        out = layer(x, edges, **named)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out, *torch.autograd.grad((out * weight).sum(), [x, *layer.parameters()])], notes


def compared(layers, edges):
    (expected, _), (found, notes) = (results(layer, edges) for layer in layers)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    return {each for each in notes if not each.endswith(" kept")}


FUSED = {
    "gcn": lambda: GCNConv(WIDTH, 3),
    "sage": lambda: SAGEConv(WIDTH, 3),
    "sage, sum": lambda: SAGEConv(WIDTH, 3, "sum"),
    "gin": lambda: GINConv(nn.Linear(WIDTH, 3)),
    "graph": lambda: GraphConv(WIDTH, 3),
    "appnp": lambda: APPNP(2, 0.1),
}


# torch_geometric has no normalisation of the layout csc.
@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, layout) for name in FUSED for layout in ("csr", "coo")]
    + [("sage", "csc"), ("graph", "csc")],
)
def test_products_with_a_sparse_adjacency(name, layout):
    layers = pair(FUSED[name]())
    edges = adjacency(layout).abs() if name in ("gcn", "appnp") else adjacency(layout)
    for _ in range(2):
        assert compared(layers, edges) == {"sparse product"}
        # Its values, changed in place, are read anew.
        edges.values().mul_(2)


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_attention_over_a_sparse_adjacency(layout):
    for layer in (TransformerConv(WIDTH, 3, heads=2), GATConv(WIDTH, 3, heads=2)):
        edges = adjacency(layout)
        assert "sorted softmax" in compared(pair(layer), edges)


def test_what_is_left_to_torch():
    assert compared(pair(SAGEConv(WIDTH, 3, "max")), adjacency("csr")) == {"as it is"}
    stock, fast = pair(GraphConv(WIDTH, 3, flow="target_to_source"))
    said = []
    for layer in (stock, fast):
        with pytest.raises(ValueError, match="target_to_source") as error:
            results(layer, adjacency("csr"))
        said.append(str(error.value))
    assert said[0] == said[1]
    wrong = torch.sparse_coo_tensor(EDGES, VALUES.float(), (NODES, NODES)).to_sparse_csr()
    for layer in pair(GraphConv(WIDTH, 3)):
        with pytest.raises(RuntimeError):
            results(layer, wrong)


def test_gradients_to_the_values():
    layers = pair(GraphConv(WIDTH, 3))
    found = []
    for layer in layers:
        edges = adjacency("csr").requires_grad_()
        layer(torch.ones(NODES, WIDTH, dtype=torch.float64), edges).pow(2).sum().backward()
        found.append(edges.grad.to_dense())
    torch.testing.assert_close(found[1], found[0])


def test_indices_that_are_not_there():
    ptr, ends = torch.tensor([0, 1, 2]), torch.tensor([0, 5])
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        wrong = torch.sparse_csr_tensor(ptr, ends, torch.ones(2), (2, 2))
    layer = SAGEConv(WIDTH, 3)
    redirect(layer)
    with pytest.raises((ValueError, IndexError)):
        layer(torch.ones(2, WIDTH), wrong)


def test_nothing_outlives_a_sparse_adjacency():
    layer = GCNConv(WIDTH, 3).double()
    redirect(layer)
    edges = adjacency("csr").abs()
    alive = weakref.ref(edges)
    results(layer, edges)
    assert edges in _kept
    del edges
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("order", [None, "row", "col"])
def test_an_edge_index_of_torch_geometric(order):
    edges = EDGES if order is None else EDGES[:, EDGES[0 if order == "row" else 1].argsort()]
    given = EdgeIndex(edges, sparse_size=(NODES, NODES), sort_order=order)
    for layer in (GCNConv(WIDTH, 3), GATConv(WIDTH, 3), SAGEConv(WIDTH, 3)):
        assert "messages reduced in one loop" in compared(pair(layer), given)
    # torch_geometric's product with such an index takes float32 only.
    layer = GraphConv(WIDTH, 3)
    expected = layer(torch.ones(NODES, WIDTH), given)
    redirect(layer)
    torch.testing.assert_close(layer(torch.ones(NODES, WIDTH), given), expected)
    given[0, 0] = 5
    assert "messages reduced in one loop" in compared(pair(SAGEConv(WIDTH, 3)), given)


def test_an_edge_index_whose_gradient_is_another():
    given = EdgeIndex(EDGES, sparse_size=(NODES, NODES)).sort_by("col").values
    assert compared(pair(GraphConv(WIDTH, 3, aggr="max")), given) == {"as it is"}


def test_two_sets_of_nodes():
    senders = torch.linspace(-1, 2, NODES * WIDTH, dtype=torch.float64).view(NODES, WIDTH).sin()
    nodes = (senders, senders[:5] * 2)
    sizes = (NODES, 5)
    sparse = torch.sparse_coo_tensor(EDGES.flip(0), VALUES, sizes[::-1]).to_sparse_csr()
    for layer in (SAGEConv(WIDTH, 3), TransformerConv((WIDTH, WIDTH), 3)):
        stock, fast = pair(layer)
        for edges in (sparse, EdgeIndex(EDGES, sparse_size=sizes)):
            torch.testing.assert_close(fast(nodes, edges), stock(nodes, edges))
