"""Redirected layers in everything that torch does with modules: as without weft."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric")

from torch_geometric.nn import GATConv, GCNConv, GINEConv, MessagePassing, SAGEConv

from weft.integrations.geometric import redirect as redirects
from weft.integrations.geometric.lazy_edges import EdgeTensor
from weft.integrations.geometric.redirect import is_redirected, redirect, undo

NODES, WIDTH = 6, 4
EDGES = torch.tensor([[0, 1, 2, 2, 4, 0, 3], [1, 0, 0, 3, 4, 1, 1]])


def features(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NODES, WIDTH, dtype=torch.float64, generator=generator)


def pair(layer):
    """The layer in float64, and a redirected copy."""
    stock = layer.double()
    fast = copy.deepcopy(stock)
    redirect(fast)
    return stock, fast


class Own(MessagePassing):
    """A message that a test gives."""

    def __init__(self, function, aggr="add"):
        super().__init__(aggr=aggr)
        self.linear, self.function, self.calls = nn.Linear(WIDTH, WIDTH), function, 0

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j, index, size_i):
        self.calls += 1
        return self.function(self.linear(x_j), x_i, index, size_i)


def test_shallow_copies_and_replicas_have_parameters_of_their_own():
    layer = GATConv(WIDTH, 3).double()
    redirect(layer)
    other = GATConv(WIDTH, 3).double()
    for made in (copy.copy(layer), layer._replicate_for_data_parallel()):
        assert not is_redirected(made)
        made._modules, made._parameters = dict(other._modules), dict(other._parameters)
        torch.testing.assert_close(made(features(), EDGES), other(features(), EDGES))
        redirect(made)
        torch.testing.assert_close(made(features(), EDGES), other(features(), EDGES))
    assert is_redirected(layer)


def test_a_pickle_has_nothing_of_weft():
    layer = GATConv(WIDTH, 3)
    plain = pickle.dumps(layer)
    redirect(layer)
    assert b"weft" not in pickle.dumps(layer)
    undo(layer)
    assert pickle.dumps(layer) == plain


def test_a_class_with_a_state_of_its_own():
    class Kept(SAGEConv):
        def __getstate__(self):
            return {**self.__dict__, "extra": 1}

    layer = Kept(WIDTH, 3)
    redirect(layer)
    assert copy.copy(layer).extra == 1
    deep = copy.deepcopy(layer)
    assert deep.extra == 1
    assert deep.propagate.__self__ is deep


@pytest.mark.parametrize("make", [GCNConv, GATConv, SAGEConv])
def test_another_device(make):
    # torch's meta device has shapes only.
    stock, fast = pair(make(WIDTH, 3))
    for layer in (stock, fast):
        layer.to("meta")
    x = features().to("meta")
    results = []
    for layer in (stock, fast):
        try:
            results.append(layer(x, EDGES.to("meta")).shape)
        except (NotImplementedError, RuntimeError) as error:
            results.append(str(error))
    assert results[0] == results[1]


def of_the_size(h, x_i, index, size_i):
    return h * size_i + index[:, None]


def random(h, x_i, index, size_i):
    return h * torch.rand_like(h) + nn.functional.dropout(x_i, 0.5)


def by_value(h, x_i, index, size_i):
    return h * x_i if bool((h > 0).any()) and h.sum().item() < 100 else h


@pytest.mark.parametrize("function", [of_the_size, random, by_value])
def test_messages_with_sizes_randomness_and_branches(function):
    stock, fast = pair(Own(function))
    results = []
    for layer in (stock, fast):
        torch.manual_seed(3)
        out = layer(features(), EDGES)
        gradients = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
        results.append((out, *gradients, torch.rand(1)))
        assert layer.calls == 1
    torch.testing.assert_close(*results)


def test_under_data_parallel_ranks(tmp_path):
    stock, fast = pair(GINEConv(nn.Linear(WIDTH, 3), edge_dim=2))
    attributes = torch.randn(EDGES.shape[1], 2, dtype=torch.float64)
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/s", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(fast)
        wrapped(features(), EDGES, attributes).square().sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    stock(features(), EDGES, attributes).square().sum().backward()
    for ours, theirs in zip(fast.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("make", [GCNConv, GATConv, lambda a, b: SAGEConv(a, b, "max")])
def test_functions_of_torch_func(make):
    stock, fast = pair(make(WIDTH, 3))
    values = {name: p.detach() for name, p in stock.named_parameters()}
    x = features()

    def results(layer):
        def loss(values, x):
            return torch.func.functional_call(layer, values, (x, EDGES)).square().sum()

        _, tangent = torch.func.jvp(lambda x: layer(x, EDGES), (x,), (torch.ones_like(x),))
        return torch.func.grad(loss, argnums=(0, 1))(values, x), tangent

    torch.testing.assert_close(results(fast), results(stock))


@pytest.mark.parametrize("make", [GCNConv, GATConv, lambda a, b: SAGEConv(a, b, "max")])
def test_gradients_of_gradients(make):
    stock, fast = pair(make(WIDTH, 3))

    def second(layer):
        x = features().requires_grad_()
        (first,) = torch.autograd.grad(layer(x, EDGES).pow(3).sum(), x, create_graph=True)
        wanted = [x, *layer.parameters()]
        found = torch.autograd.grad(first.square().sum(), wanted, allow_unused=True)
        return [torch.zeros(()) if each is None else each for each in found]

    torch.testing.assert_close(second(fast), second(stock), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("make", [GCNConv, GATConv, SAGEConv])
def test_few_edges_run_as_before(make, monkeypatch):
    kinds = []
    layer = make(WIDTH, 3).double()
    redirect(layer)
    layer.message_of = layer.message
    layer.message = lambda x_j, *more, **named: (
        kinds.append(type(x_j)) or layer.message_of(x_j, *more, **named)
    )
    layer(features(), EDGES)
    monkeypatch.setattr(redirects, "LEAST_NUMBERS", EDGES.shape[1] * WIDTH * 10)
    layer(features(), EDGES)
    assert kinds == [EdgeTensor, torch.Tensor]


class Ends(MessagePassing):
    """Messages of the senders, of the receivers, or of a difference."""

    def forward(self, x, edge_index, which, size=None):
        return self.propagate(edge_index, x=x, which=which, size=size)

    def message(self, x_i, x_j, which):
        own, column = (x_j, x_j[:, :1]) if which != "i" else (x_i, x_i)
        return {"minus": column - own, "plus": own - column}.get(which, own)


def test_results_that_are_kept_are_those_of_the_same_call():
    x, edges = features(), EDGES.clone()
    calls = [("j", None), ("i", None), ("minus", None), ("plus", None)]
    for flow in ("source_to_target", "target_to_source"):
        stock, fast = pair(Ends(flow=flow))
        for which, size in calls * 3:
            found, expected = (layer(x, edges, which, size) for layer in (fast, stock))
            torch.testing.assert_close(found, expected)
    stock, fast = pair(SAGEConv((WIDTH, WIDTH), 3, root_weight=False))
    for size in ((NODES, NODES), (NODES, NODES - 1)) * 3:
        found, expected = (layer((x, None), edges, size) for layer in (fast, stock))
        torch.testing.assert_close(found, expected)


def test_sparse_features():
    stock, fast = pair(GCNConv(WIDTH, 3))
    x = features().relu().to_sparse()
    for _ in range(2):
        torch.testing.assert_close(fast(x, EDGES), stock(x, EDGES))
