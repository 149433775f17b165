"""Modules of torch_geometric that weft has a form of its own for: equal to theirs, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

geometric = pytest.importorskip("torch_geometric")

from torch_geometric.nn import GatedGraphConv, NNConv  # noqa: E402
from torch_geometric.nn.models import schnet as theirs  # noqa: E402

from weft.integrations.accelerate import accelerate, restore  # noqa: E402
from weft.integrations.geometric import schnet  # noqa: E402

NODES, WIDTH, ATTRIBUTES = 23, 5, 3


def results(module, arguments, wanted):
    """The output, its gradients in all parameters and in `wanted`, and gradients of these."""
    out = module(*arguments)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    wanted = [*(p for p in module.parameters() if p.requires_grad), *wanted]
    first = torch.autograd.grad((out * weight).sum(), wanted, create_graph=True)
    square = sum((g * g.detach().cos()).sum() for g in first)
    second = torch.autograd.grad(square, wanted, allow_unused=True, materialize_grads=True)
    return [out, *first, *second]


def assert_same(module, arguments, wanted=(), *, tolerance=1e-10):
    fast = accelerate(copy.deepcopy(module), report=None)
    expected, found = (results(m, arguments, wanted) for m in (module, fast))
    for ours, right in zip(found, expected, strict=True):
        scale = max(float(right.detach().abs().max()), 1e-3)
        torch.testing.assert_close(ours / scale, right / scale, rtol=0, atol=tolerance)
    # Without second derivatives, where loops compute the gradients.
    for m in (module, fast):
        m.zero_grad()
        m(*arguments).square().sum().backward()
    for ours, right in zip(fast.parameters(), module.parameters(), strict=True):
        scale = max(float(right.grad.abs().max()), 1e-3)
        torch.testing.assert_close(ours.grad / scale, right.grad / scale, rtol=0, atol=tolerance)


# -- SchNet ----------------------------------------------------------------------------------------


def molecules(count=3, dtype=torch.float64, seed=0):
    """Atomic numbers, positions and molecules of atoms, and a graph of all pairs, in no order."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, 9, (count,), generator=generator)
    batch = torch.repeat_interleave(sizes)
    z = torch.randint(1, 10, batch.shape, generator=generator)
    pos = 2 * torch.randn(len(z), 3, generator=generator, dtype=dtype)
    joined = (batch[:, None] == batch).fill_diagonal_(False)
    edges = joined.nonzero().t()
    edges = edges[:, torch.randperm(edges.shape[1], generator=generator)].contiguous()
    return z, pos, batch, edges


def graph_of(edges):
    def graph(pos, batch):
        return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=-1)

    return graph


def model(edges, dtype=torch.float64, **options):
    torch.manual_seed(0)
    sizes = {"hidden_channels": 12, "num_filters": 10, "num_interactions": 2, "num_gaussians": 9}
    return theirs.SchNet(**sizes, cutoff=4.0, interaction_graph=graph_of(edges), **options).to(
        dtype
    )


OPTIONS = {
    "plain": {},
    "mean": {"readout": "mean", "mean": 0.3, "std": 2.0},
    "references": {"atomref": torch.arange(100.0)[:, None]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_schnet(name):
    z, pos, batch, edges = molecules()
    assert_same(model(edges, **OPTIONS[name]), (z, pos, batch))


def test_forces_of_schnet_and_what_is_learned_from_them():
    z, pos, batch, edges = molecules()
    pos.requires_grad_()
    assert_same(model(edges), (z, pos, batch), [pos])


def test_an_edge_and_its_reverse_have_a_gradient_each():
    z, pos, batch, edges = molecules()
    lengths = graph_of(edges)(pos, batch)[1].requires_grad_()
    network = model(edges)
    network.interaction_graph = lambda *_: (edges, lengths)
    assert_same(network, (z, pos, batch), [lengths])


def test_schnet_of_edges_without_a_reverse_and_of_one_molecule():
    z, pos, _, edges = molecules(1)
    one_way = torch.cat([edges[:, edges[0] < edges[1]], edges[:, :2], edges[:, :1]], dim=1)
    assert_same(model(one_way), (z, pos))


def test_edges_of_two_lengths_are_no_pair():
    z, pos, batch, edges = molecules()
    network = model(edges)
    network.interaction_graph = lambda pos, batch: (edges, edges[0].to(pos.dtype) + 1)
    assert_same(network, (z, pos, batch))


def test_schnet_by_series_in_float32():
    z, pos, batch, edges = molecules(60, torch.float32)
    stock = model(edges, torch.float32)
    fast = accelerate(copy.deepcopy(stock), report=None)
    exact = copy.deepcopy(stock).double()
    expected = results(exact, (z, pos.double(), batch), ())
    for ours, right in zip(results(fast, (z, pos, batch), ()), expected, strict=True):
        scale = max(float(right.detach().abs().max()), 1e-3)
        torch.testing.assert_close(ours.double() / scale, right / scale, rtol=0, atol=2e-5)


def test_what_is_unusual_in_schnet_runs_as_it_was(monkeypatch):
    z, pos, batch, edges = molecules()
    stock = model(edges)
    fast = accelerate(copy.deepcopy(stock), report=None)
    expected = stock(z, pos, batch)
    monkeypatch.setattr(schnet, "_features", None)
    seen = []
    fast.interactions[0].mlp[0].register_forward_hook(lambda *call: seen.append(call))
    torch.testing.assert_close(fast(z, pos, batch=batch), expected)
    assert len(seen) == 1
    other = accelerate(copy.deepcopy(stock), report=None)
    other.interactions[1].act = nn.Identity()
    other(z, pos, batch)
    torch.testing.assert_close(restore(copy.deepcopy(stock))(z, pos, batch), expected)


def test_a_wrong_edge_of_schnet_fails_as_it_did():
    z, pos, batch, edges = molecules()
    lengths = torch.ones(edges.shape[1], dtype=torch.float64)
    edges[0, 0] = len(z)
    stock = model(edges)
    stock.interaction_graph = lambda *_: (edges, lengths)
    for network in (stock, accelerate(copy.deepcopy(stock), report=None)):
        with pytest.raises(IndexError):
            network(z, pos, batch)


def test_the_table_says_what_was_done_with_schnet():
    z, pos, batch, edges = molecules()
    said = []
    accelerate(model(edges), (z, pos, batch), report=said.append)
    assert said[0].count("\n") == 1
    assert "SchNet" in said[0]


# -- NNConv and GatedGraphConv ---------------------------------------------------------------------


def graph(edges=60, *, sorted_edges=False):
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, NODES - 2, (2, edges), generator=generator)
    if sorted_edges:
        edge_index = edge_index[:, edge_index[1].argsort()].contiguous()
    x = torch.randn(NODES, WIDTH, dtype=torch.float64, generator=generator)
    attributes = torch.randn(edges, ATTRIBUTES, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), edge_index, attributes.requires_grad_()


NETWORKS = {
    "linear": lambda: nn.Linear(ATTRIBUTES, WIDTH * 4),
    "deep": lambda: nn.Sequential(
        nn.Linear(ATTRIBUTES, 6), nn.Tanh(), nn.Linear(6, WIDTH * 4, bias=False)
    ),
    "not linear last": lambda: nn.Sequential(nn.Linear(ATTRIBUTES, WIDTH * 4), nn.Tanh()),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
def test_nn_conv(name, aggr):
    torch.manual_seed(0)
    x, edge_index, attributes = graph(sorted_edges=aggr == "mean")
    layer = NNConv(WIDTH, 4, NETWORKS[name](), aggr=aggr, root_weight=aggr == "add").double()
    assert_same(layer, (x, edge_index, attributes), [x, attributes])


def test_nn_conv_between_two_sets_of_nodes_and_against_the_edges():
    torch.manual_seed(0)
    x, edge_index, attributes = graph()
    others = torch.randn(NODES + 4, 2, dtype=torch.float64)
    layer = NNConv((WIDTH, 2), 4, NETWORKS["deep"]()).double()
    assert_same(layer, ((x, others), edge_index, attributes), [x])
    layer = NNConv(WIDTH, 4, NETWORKS["deep"](), flow="target_to_source").double()
    assert_same(layer, (x, edge_index, attributes), [x])


@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
def test_gated_graph_conv(aggr):
    torch.manual_seed(0)
    x, edge_index, attributes = graph()
    layer = GatedGraphConv(WIDTH + 2, 3, aggr=aggr).double()
    assert_same(layer, (x, edge_index), [x])
    weight = attributes[:, 0].detach().requires_grad_()
    assert_same(layer, (x, edge_index, weight), [x, weight])


def test_gru_cells_of_an_accelerated_model():
    torch.manual_seed(0)
    x, *_ = graph()
    state = torch.randn(NODES, 4, dtype=torch.float64, requires_grad=True)
    assert_same(nn.GRUCell(WIDTH, 4).double(), (x, state), [x, state])
    assert_same(nn.GRUCell(WIDTH, 4).double(), (x,), [x])
