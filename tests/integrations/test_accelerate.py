"""`weft.accelerate` with masks: the fastest form of each layer, the same results, and back."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import geometric
from torch import Tensor, nn

import weft
from weft.integrations.accelerate import accelerate, restore
from weft.models.fnn import FNN
from weft.sparsify import Masks, random_masks
from weft.sparsify.sparse_layers import SparseLinear, to_dense


def masked(model: nn.Module, sparsity: float) -> dict[str, Tensor]:
    """Zeros in the linear layers of a model, and where they are not."""
    generator = torch.Generator().manual_seed(0)
    masks = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            mask = torch.rand(module.weight.shape, generator=generator) >= sparsity
            module.weight.data.mul_(mask)
            masks[f"{name}.weight".lstrip(".")] = mask
    return masks


def sparse_layers(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, SparseLinear)]


@pytest.fixture
def sparse_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form runs; the clock says that the last is the fastest, however busy the machine."""

    def fastest(runs: list[Callable[[], None]]) -> list[float]:
        for run in runs:
            run()
        return [1.0 / (1 + number) for number in range(len(runs))]

    monkeypatch.setattr(f"{accelerate.__module__}.fastest", fastest)


def wide(sparsity: float) -> tuple[nn.Sequential, dict[str, Tensor]]:
    torch.manual_seed(0)
    layers = (nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
    model = nn.Sequential(*layers)
    return model, masked(model, sparsity)


@pytest.mark.usefixtures("sparse_wins")
@pytest.mark.parametrize("training", [True, False])
def test_sparse_where_that_is_faster_and_back(training: bool) -> None:
    model, masks = wide(0.99)
    model.train(training)
    x = torch.randn(256, 256)
    before, layers, parameters = model(x), list(model), list(model.parameters())
    first = model[0](x)
    state = copy.deepcopy(model.state_dict())
    said: list[str] = []
    assert accelerate(model, x, masks=masks, report=said.append) is model
    assert isinstance(model[0], SparseLinear)
    assert isinstance(model[2], SparseLinear)
    torch.testing.assert_close(model[0](x), first, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model[:1](x), first, rtol=1e-5, atol=1e-5)
    assert model[1] is layers[1]
    assert all(layer.training == training for layer in model)
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)
    table = said[0].splitlines()
    assert "0: Linear" in table[1]
    assert "sparse: 1.0% of 512 x 256 weights" in table[1]
    assert float(table[1].split()[4]) < 1e-4
    assert "whole model: 3 of 3 masked layers are sparse" in table[4]

    # As often as one likes, and from a copy.
    accelerate(model, x, masks=masks, report=None)
    for each in (restore(copy.deepcopy(model)), restore(model)):
        assert type(each) is nn.Sequential
        assert [type(layer) for layer in each] == [type(layer) for layer in layers]
        torch.testing.assert_close(each.state_dict(), state, rtol=0, atol=0)
    assert list(model) == layers
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


@pytest.mark.usefixtures("sparse_wins")
def test_what_is_learnt_comes_back_to_the_same_optimizer() -> None:
    model, masks = wide(0.9)
    x = torch.randn(16, 256)
    optimizer = torch.optim.Adam(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    for name, mask in masks.items():
        model.get_parameter(name).data.mul_(mask)
    accelerate(model, x, masks=masks, report=None)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().sum().backward()
    own.step()
    learnt = model(x)
    again = pickle.loads(pickle.dumps(model))
    for each in (model, again):
        torch.testing.assert_close(restore(each)(x), learnt)
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    assert not torch.allclose(model(x), learnt)


def test_without_zeros_all_stays_as_it_is() -> None:
    model, masks = wide(0.0)
    kinds = [type(module) for module in model.modules()]
    said: list[str] = []
    accelerate(model, torch.randn(8, 256), masks=masks, report=said.append)
    assert [type(module) for module in model.modules()] == kinds
    assert "0 of 0 masked layers" in said[0]


def test_the_table_says_what_was_chosen() -> None:
    model, masks = wide(0.9)
    said: list[str] = []
    accelerate(model, torch.randn(16, 256), masks=masks, report=said.append)
    rows = [line.split(":")[0] for line in said[0].splitlines() if "sparse: 10" in line]
    assert sparse_layers(model) == rows


@pytest.mark.usefixtures("sparse_wins")
def test_masks_keep_active_zeros() -> None:
    model = FNN((300, 400, 3))
    masks = Masks(model)
    name = "layers.0.weight"
    masks.set(name, torch.rand(400, 300) < 0.01)
    masks.apply_()
    with torch.no_grad():
        masks.weight(name).zero_()
    active = masks[name]
    accelerate(model, torch.randn(200, 300), masks=masks, report=None)
    layer = model.get_submodule("layers.0")
    assert isinstance(layer, SparseLinear)
    assert torch.equal(layer.active_mask(), active)
    assert isinstance(model.get_submodule("layers.1"), nn.Linear)


class Tied(nn.Module):
    """One weight in two layers, one layer in two places, and outputs in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(50, 50), nn.Linear(50, 50)
        self.second.weight = self.first.weight
        self.third = nn.Linear(50, 50)
        self.fourth = nn.Sequential(self.third, nn.ReLU())
        self.watched = nn.Linear(50, 50)
        self.watched.register_forward_hook(lambda *call: None)
        self.table = nn.Embedding(50, 50)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        x = self.watched(self.third(self.second(self.first(x))))
        return {"out": (self.fourth(x) + y + self.table.weight[0], None)}


@pytest.mark.usefixtures("sparse_wins")
def test_layers_that_stay_dense() -> None:
    model = Tied()
    masks = masked(model, 0.9)
    masks["table.weight"] = model.table.weight > 0
    arguments = {"x": torch.randn(60, 50), "y": torch.randn(50)}
    wanted = model(**arguments)["out"][0]
    said: list[str] = []
    accelerate(model, arguments, masks=masks, report=said.append)
    for words in (
        "first: Linear shares its weight",
        "second: Linear shares its weight",
        "watched: Linear it has hooks",
        "table: Embedding only linear layers have a sparse form",
    ):
        assert any(all(word in line for word in words.split()) for line in said[0].splitlines())
    assert sparse_layers(model) == ["third"]
    assert model.fourth[0] is model.third
    assert isinstance(model.fourth[1], nn.ReLU)
    torch.testing.assert_close(model(**arguments)["out"][0], wanted, rtol=1e-5, atol=1e-5)


def test_masks_that_do_not_fit() -> None:
    model, masks = wide(0.5)
    x = torch.randn(8, 256)
    with pytest.raises(ValueError, match="masks need an example"):
        accelerate(model, masks=masks)
    with pytest.raises(ValueError, match=r"mask for 'other.weight', which is no parameter"):
        accelerate(model, x, masks={"other.weight": masks["0.weight"]})
    attached = Masks(model)
    attached.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    for training in (True, False):
        with pytest.raises(ValueError, match=r"masks.detach\(\)"):
            accelerate(model.train(training), x, masks=attached)
    # Weights that are not 0 where the mask says so.
    model[4].weight.data += 1
    said: list[str] = []
    accelerate(model, x, masks={"4.weight": masks["4.weight"]}, report=said.append)
    assert "left alone: its result would differ" in said[0]
    layer, x = model[0], torch.randn(8, 256)
    accelerate(layer, x, masks={"weight": masks["0.weight"]}, report=said.append)
    assert "it is the whole model" in said[1]
    accelerate(model, x, masks={"0.bias": torch.zeros(512) > 0}, report=said.append)
    assert "left alone: the mask is of its bias" in said[2]


class Keeping(nn.Module):
    """Keeps an activation; other code of it wants a linear layer."""

    wants = nn.Module
    last: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.first, self.wants):
            raise TypeError("a linear layer please")
        h = self.first(x)
        self.last = {"h": [h]}
        return self.end(self.second(h))

    def end(self, out: Tensor) -> Tensor:
        return out


@pytest.mark.usefixtures("sparse_wins")
def test_a_model_that_keeps_what_it_computed() -> None:
    model = Keeping()
    masks, x = masked(model, 0.5), torch.randn(5, 8)
    model(x).sum().backward()
    accelerate(model, x, masks=masks, report=None)
    assert sparse_layers(model) == ["first", "second"]
    assert model.last["h"][0].grad_fn is not None
    restore(model).wants = nn.Linear
    said: list[str] = []
    accelerate(model, x, masks=masks, report=said.append)
    assert sparse_layers(model) == []
    assert said[0].count("left alone: TypeError: a linear layer please") == 2
    # The dense model itself cannot be compared, for lack of gradients.
    vars(model)["end"] = lambda out: out.register_hook(lambda grad: None) and out
    accelerate(model, x, masks=masks, report=said.append)
    assert "left alone: RuntimeError: cannot register a hook" in said[1]
    model.last = (each for each in ())
    with pytest.raises(ValueError, match=r"model cannot be copied.* without an example"):
        accelerate(model, x, masks=masks)


@pytest.mark.usefixtures("sparse_wins")
@pytest.mark.parametrize("kind", ["GCN", "GAT", "GraphSAGE"])
def test_layers_of_torch_geometric_are_both(kind: str) -> None:
    pytest.importorskip("torch_geometric")
    model, _ = geometric(kind)
    x, edges = torch.randn(20, 6, dtype=torch.float64), torch.randint(20, (2, 60))
    masks = Masks(model)
    random_masks(model, masks, dict.fromkeys(masks, 0.25))
    expected = model(x, edges)
    before = [name for name, m in model.named_modules() if type(m).__name__ == "Linear"]
    said: list[str] = []
    accelerate(model, (x, edges), masks=masks, report=said.append)
    assert sparse_layers(model) == before
    assert "in one loop" in said[0]
    assert f"{len(before)} of {len(before)} masked layers are sparse" in said[0]
    torch.testing.assert_close(model(x, edges), expected)
    torch.testing.assert_close(to_dense(model)(x, edges), expected)
    assert not sparse_layers(restore(model))
    torch.testing.assert_close(model(x, edges), expected)


@pytest.mark.usefixtures("sparse_wins")
def test_buffers_and_random_numbers_are_left() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout())
    masks = masked(model, 0.5)
    x = torch.randn(16, 8)
    state = torch.get_rng_state()
    accelerate(model, x, masks=masks, report=None)
    assert torch.equal(torch.get_rng_state(), state)
    assert int(model.get_buffer("1.num_batches_tracked")) == 0


@pytest.mark.usefixtures("sparse_wins")
@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GAT", "GIN"])
def test_models_of_torch_geometric_can_be_reset(kind: str) -> None:
    """The new weights are those of the masked model that is reset from the same seed."""
    model, loss = geometric(kind)
    masks = Masks(model)
    random_masks(model, masks, dict.fromkeys(masks, 0.5))
    example = tuple(inspect.getclosurevars(loss).nonlocals[name] for name in ("x", "edges"))
    fast: Any = accelerate(copy.deepcopy(model), example, masks=masks, report=None)
    assert sparse_layers(fast)
    before = fast(*example)
    for each in (model, fast):
        torch.manual_seed(1)
        each.reset_parameters()
    masks.apply_()
    torch.testing.assert_close(fast(*example), model(*example))
    assert not torch.allclose(fast(*example), before)
    # As often as one likes, in a copy too.
    again = copy.deepcopy(fast)
    torch.manual_seed(1)
    again.reset_parameters()
    torch.testing.assert_close(again(*example), model(*example))
    for name, layer in model.named_modules():
        if hasattr(layer, "in_channels"):
            assert fast.get_submodule(name).in_channels == layer.in_channels


@pytest.mark.usefixtures("sparse_wins")
def test_layers_of_torch_can_be_reset() -> None:
    model, masks = wide(0.9)
    fast: Any = accelerate(copy.deepcopy(model), torch.randn(8, 256), masks=masks, report=None)
    for each in (model, fast):
        torch.manual_seed(1)
        for layer in each:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    dense = to_dense(fast).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(dense[name], value * masks[name] if name in masks else value)


@pytest.mark.usefixtures("sparse_wins")
def test_without_torch_geometric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.delitem(sys.modules, "torch_geometric.nn", raising=False)
    model, masks = wide(0.5)
    said: list[str] = []
    weft.accelerate(model, report=said.append)
    assert said[0].startswith("Sequential has no layer of torch_geometric, and there are no masks")
    weft.accelerate(model, torch.randn(4, 256), masks=masks, report=said.append)
    assert "whole model" in said[1]
    weft.restore(model)
