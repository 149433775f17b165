"""Layers of torch_geometric make no tensor of messages where their algebra allows it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric")

from torch_geometric import nn as geometric

from weft.integrations.accelerate import accelerate
from weft.integrations.geometric.redirect import redirect
from weft.integrations.geometric.running import noted

NODES, EDGES, WIDTH, OUT, ATTRIBUTES = 9, 30, 6, 4, 3
ONE_LOOP = {"messages reduced in one loop"}
ON_NODES = ONE_LOOP | {"products on nodes"}
# The scores of each head are tensors of edges; nothing as wide as messages is.
ATTENTION = ONE_LOOP | {"sorted softmax", "makes [E, 2]"}
FUSED = {"attention in one loop"}

LAYERS = {
    "SuperGATConv": (lambda: geometric.SuperGATConv(WIDTH, OUT, heads=2), None, ATTENTION),
    "SuperGATConv, SD": (
        lambda: geometric.SuperGATConv(WIDTH, OUT, heads=2, attention_type="SD"),
        None,
        FUSED,
    ),
    "GATConv": (lambda: geometric.GATConv(WIDTH, OUT, heads=2), None, FUSED),
    "GATConv, edges": (
        lambda: geometric.GATConv(WIDTH, OUT, heads=2, edge_dim=ATTRIBUTES),
        "attributes",
        ATTENTION,
    ),
    "GATv2Conv": (lambda: geometric.GATv2Conv(WIDTH, OUT, heads=2), None, FUSED),
    "TransformerConv": (lambda: geometric.TransformerConv(WIDTH, OUT, heads=2), None, FUSED),
    "ResGatedGraphConv": (lambda: geometric.ResGatedGraphConv(WIDTH, OUT), None, ONE_LOOP),
    "GeneralConv": (
        lambda: geometric.GeneralConv(WIDTH, OUT, in_edge_channels=ATTRIBUTES),
        "attributes",
        ON_NODES,
    ),
    "GeneralConv, attention": (
        lambda: geometric.GeneralConv(WIDTH, OUT, attention=True, heads=2),
        None,
        ATTENTION | ON_NODES,
    ),
    "FiLMConv": (lambda: geometric.FiLMConv(WIDTH, OUT, num_relations=2), "types", ONE_LOOP),
    "EdgeConv": (lambda: geometric.EdgeConv(nn.Linear(2 * WIDTH, OUT)), None, ON_NODES),
    "LEConv": (lambda: geometric.LEConv(WIDTH, OUT), "weights", ONE_LOOP),
    "ChebConv": (lambda: geometric.ChebConv(WIDTH, OUT, K=3), None, ONE_LOOP),
    "TAGConv": (lambda: geometric.TAGConv(WIDTH, OUT), None, ONE_LOOP),
    "SGConv": (lambda: geometric.SGConv(WIDTH, OUT, K=2), None, ONE_LOOP),
    "APPNP": (lambda: geometric.APPNP(K=3, alpha=0.1), "weights", ONE_LOOP),
    "CGConv": (lambda: geometric.CGConv(WIDTH, ATTRIBUTES), "attributes", ON_NODES),
    "EGConv": (lambda: geometric.EGConv(WIDTH, OUT, num_heads=2), None, ONE_LOOP),
    "ARMAConv": (lambda: geometric.ARMAConv(WIDTH, OUT), None, {"as it is"}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_how_each_layer_is_computed(name):
    make, more, expected = LAYERS[name]
    torch.manual_seed(0)
    given = {
        "attributes": torch.randn(EDGES, ATTRIBUTES, dtype=torch.float64),
        "weights": torch.rand(EDGES, dtype=torch.float64),
        "types": torch.randint(0, 2, (EDGES,)),
    }
    stock = make().double().eval()
    fast = copy.deepcopy(stock)
    redirect(fast)
    edge_index = torch.randint(0, NODES - 1, (2, EDGES))
    results = []
    for layer in (stock, fast):
        x = torch.linspace(-2, 2, NODES * WIDTH, dtype=torch.float64).view(NODES, WIDTH).sin()
        x.requires_grad_()
        with noted() as notes:
            out = layer(x, edge_index, *([] if more is None else [given[more]]))
        wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
        loss = (out * torch.arange(out.shape[-1])).sum()
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        results.append([out, *(torch.zeros(()) if each is None else each for each in found)])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    assert {note for note in notes if not note.endswith(" kept")} == expected


def test_the_table_says_so():
    model = geometric.Sequential(
        "x, edges",
        [(geometric.SAGEConv(WIDTH, WIDTH), "x, edges -> x") for _ in range(2)],
    )
    model[1].register_message_forward_hook(lambda *call: None)
    edge_index = torch.randint(0, NODES, (2, EDGES))
    said = []
    model.bfloat16()
    accelerate(model, (torch.randn(NODES, WIDTH).bfloat16(), edge_index), report=said.append)
    assert "has no loops for this call" in said[-1]
    assert "left alone: a hook reads its messages" in said[-1]
    accelerate(geometric.aggr.MaxAggregation(), report=said.append)
    assert "aggregations and pooling" in said[-1]
