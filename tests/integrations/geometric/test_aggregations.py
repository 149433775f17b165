"""torch_geometric's aggregations: alone and in layers, in float64."""

from __future__ import annotations

import copy

import pytest
import torch

pytest.importorskip("torch_geometric")

from torch_geometric.nn import GENConv, SimpleConv, aggr

from weft.integrations.geometric import segments
from weft.integrations.geometric.redirect import redirect
from weft.integrations.geometric.running import noted

ROWS, GROUPS, WIDTH = 30, 6, 4
DEGREES = torch.tensor([1, 2, 3, 1])

ALONE = {
    "sum": aggr.SumAggregation,
    "mean": aggr.MeanAggregation,
    "max": aggr.MaxAggregation,
    "min": aggr.MinAggregation,
    "var": aggr.VarAggregation,
    "std": aggr.StdAggregation,
    "softmax": lambda: aggr.SoftmaxAggregation(t=0.5),
    "power": lambda: aggr.PowerMeanAggregation(p=2.0),
    "vpa": aggr.VariancePreservingAggregation,
    "multi": lambda: aggr.MultiAggregation(["sum", "mean", "max", "std"]),
    "multi, sum": lambda: aggr.MultiAggregation(["mean", "var"], mode="sum"),
    "scaler": lambda: aggr.DegreeScalerAggregation(["mean", "min"], ["linear"], DEGREES),
    "attention": lambda: aggr.AttentionalAggregation(torch.nn.Linear(WIDTH, 1)),
    "multi, with others": lambda: aggr.MultiAggregation(["sum", "softmax"]),
}
# torch has another gradient of these than for an index.
WITHOUT_PTR = {"max", "min"}


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch):
    monkeypatch.setattr(segments, "gains", lambda *call: True)


def rows():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)


def results(module, x, *arguments, **named):
    x = x.clone().requires_grad_()
    with noted() as notes:
        out = module(x, *arguments, **named)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    wanted = [x, *module.parameters()]
    return [out, *torch.autograd.grad((out * weight).sum(), wanted)], notes


def pair(module):
    stock = module.double()
    fast = copy.deepcopy(stock)
    for part in fast.modules():
        redirect(part)
    return stock, fast


@pytest.mark.parametrize("name", ALONE)
def test_alone(name):
    stock, fast = pair(ALONE[name]())
    index = torch.randint(0, GROUPS - 1, (ROWS,), generator=torch.Generator().manual_seed(2))
    for given in (index, index.sort().values):
        for named in ({}, {"dim_size": GROUPS}, {"dim": 0}):
            (expected, _), (found, notes) = (
                results(module, rows(), given, **named) for module in (stock, fast)
            )
            assert notes
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    ptr = torch.tensor([0, 4, 4, 11, ROWS])
    if name in ("scaler", "attention", "multi, with others"):
        return
    (expected, _), (found, notes) = (results(m, rows(), ptr=ptr) for m in (stock, fast))
    assert bool(notes) == (name not in WITHOUT_PTR)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_errors_are_torch_geometrics():
    stock, fast = pair(aggr.DegreeScalerAggregation("sum", "linear", DEGREES))
    index = torch.arange(ROWS) % GROUPS
    for named in ({"ptr": torch.tensor([0, ROWS])}, {"index": index, "dim_size": 2}, {"dim": 3}):
        said = []
        for module in (stock, fast):
            with pytest.raises(Exception) as error:  # noqa: PT011
                module(rows(), **named)
            said.append((type(error.value), str(error.value)))
        assert said[0] == said[1]


def test_a_hook_of_an_aggregation_is_called():
    _, fast = pair(aggr.MultiAggregation(["var", "softmax"]))
    seen = []
    fast.aggrs[1].register_forward_hook(lambda *call: seen.append(call))
    fast(rows(), torch.arange(ROWS) % GROUPS)
    assert len(seen) == 1


def test_a_softmax_of_messages_makes_no_messages():
    edge_index = torch.randint(0, GROUPS - 1, (2, ROWS), generator=torch.Generator().manual_seed(3))
    torch.manual_seed(0)
    stock, fast = pair(GENConv(WIDTH, 3, edge_dim=2, learn_t=True, t=0.7))
    attributes = torch.randn(ROWS, 2, dtype=torch.float64)
    x = rows()[:GROUPS]
    (expected, _), (found, notes) = (results(m, x, edge_index, attributes) for m in (stock, fast))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert list(notes) == ["messages reduced in one loop"]


def test_any_aggregation_in_a_layer():
    edge_index = torch.randint(0, GROUPS - 1, (2, ROWS), generator=torch.Generator().manual_seed(3))
    for name in ("power", "vpa", "softmax", "median"):
        module = aggr.MedianAggregation() if name == "median" else ALONE[name]()
        stock, fast = pair(SimpleConv(aggr=module))
        (expected, _), (found, _) = (results(m, rows()[:GROUPS], edge_index) for m in (stock, fast))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
