"""Attention layers of torch_geometric as one operator: same results, and nothing missed."""

from __future__ import annotations

import copy

import pytest
import torch

pytest.importorskip("torch_geometric")

from torch_geometric import seed_everything
from torch_geometric.nn import GATConv, GATv2Conv, SuperGATConv, TransformerConv

from weft.integrations.geometric import attention_layers
from weft.integrations.geometric import redirect as redirects
from weft.integrations.geometric.running import noted

NODES, EDGES, WIDTH, OUT = 9, 30, 6, 4
LAYERS = {
    "gat": lambda **given: GATConv(WIDTH, OUT, heads=2, residual=True, **given),
    "gat, mean of heads": lambda **given: GATConv(WIDTH, OUT, heads=2, concat=False, **given),
    "gatv2": lambda **given: GATv2Conv(WIDTH, OUT, heads=2, **given),
    "transformer": lambda **given: TransformerConv(WIDTH, OUT, heads=2, beta=True, **given),
    "supergat": lambda **given: SuperGATConv(WIDTH, OUT, 2, attention_type="SD", **given),
}
FUSED = "attention in one loop"


@pytest.fixture(autouse=True)
def small_graphs(monkeypatch):
    monkeypatch.setattr(redirects, "LEAST_NUMBERS", 0)


@pytest.fixture(params=[0, attention_layers.LARGE], ids=["large", "small"])
def size(request, monkeypatch):
    monkeypatch.setattr(attention_layers, "LARGE", request.param)


def pair(layer):
    stock = layer.double()
    fast = copy.deepcopy(stock)
    redirects.redirect(fast)
    return stock, fast


def graph(seed=0):
    torch.manual_seed(seed)
    x = torch.randn(NODES, WIDTH, dtype=torch.float64)
    return x, torch.randint(0, NODES - 1, (2, EDGES))


def results(layer, x, *given, **named):
    """Output and gradients, with the same random numbers."""
    x = x.clone().requires_grad_()
    seed_everything(1)
    with noted() as notes:
        out = layer(x, *given, **named)
    wanted = [x, *layer.parameters()]
    found = torch.autograd.grad(out.sin().sum(), wanted, allow_unused=True, materialize_grads=True)
    return [out, *found], notes


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_same_results_also_with_dropout(name, dropout):
    """The weights that torch would drop are dropped."""
    x, edge_index = graph()
    stock, fast = pair(LAYERS[name](dropout=dropout))
    for training in (True, False):
        expected, _ = results(stock.train(training), x, edge_index)
        found, notes = results(fast.train(training), x, edge_index)
        assert FUSED in notes
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    if name == "supergat":
        torch.testing.assert_close(fast.att_x, stock.att_x)
        torch.testing.assert_close(fast.get_attention_loss(), stock.get_attention_loss())


def test_two_sets_of_nodes():
    x, edge_index = graph()
    edge_index = edge_index % (NODES - 3)
    for layer, nodes in (
        (GATConv((WIDTH, WIDTH), OUT), (x, x[3:])),
        (GATConv((WIDTH, WIDTH), OUT, add_self_loops=False), (x, None)),
        (GATv2Conv((WIDTH, WIDTH), OUT), (x, x[3:])),
        (TransformerConv((WIDTH, WIDTH), OUT), (x, x[3:])),
    ):
        stock, fast = pair(layer)
        with noted() as notes:
            found = fast(nodes, edge_index)
        assert FUSED in notes
        torch.testing.assert_close(found, stock(nodes, edge_index), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["gat", "gatv2", "transformer"])
def test_weights_are_there_for_whoever_asks(name):
    x, edge_index = graph()
    stock, fast = pair(LAYERS[name](dropout=0.3).eval())
    expected = stock(x, edge_index, return_attention_weights=True)
    found = fast(x, edge_index, return_attention_weights=True)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    seen = []
    for layer in (stock, fast):
        layer.register_message_forward_hook(lambda _, __, messages: seen.append(messages))
        layer(x, edge_index)
    assert seen[0].shape == (seen[0].shape[0], 2, OUT)
    torch.testing.assert_close(seen[1], seen[0])


class _Scaled(GATConv):
    def message(self, x_j, alpha):
        return 2 * super().message(x_j, alpha)


def test_other_layers_keep_their_messages():
    x, edge_index = graph()
    other_aggregation = GATConv(WIDTH, OUT, aggr="max")
    other_direction = GATv2Conv(WIDTH, OUT, flow="target_to_source")
    for layer in (_Scaled(WIDTH, OUT), other_aggregation, other_direction):
        stock, fast = pair(layer)
        expected, _ = results(stock, x, edge_index)
        found, notes = results(fast, x, edge_index)
        assert FUSED not in notes
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("make", [TransformerConv, GATConv])
def test_an_edge_to_a_node_that_is_not_there(make):
    x, edge_index = graph()
    edge_index[0, 3] = NODES
    stock, fast = pair(make(WIDTH, OUT))
    messages = []
    for layer in (stock, fast):
        with pytest.raises((IndexError, ValueError, RuntimeError)) as caught:
            layer(x, edge_index)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_derivatives_of_derivatives():
    x, edge_index = graph()
    _, fast = pair(GATv2Conv(WIDTH, 2))
    x.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: fast(x, edge_index).tanh(), (x,))
