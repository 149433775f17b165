"""accelerate: the fastest form of each layer, and the same results."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import geometric
from torch import nn
from torch.nn.utils import prune

from weft.models.fnn import FNN
from weft.sparsify import Masks, random_masks
from weft.sparsify.accelerate import accelerate
from weft.sparsify.sparse_layers import FusedReLU, SparseLinear, to_dense


def masked(model: nn.Module, sparsity: float) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                drawn = torch.rand(module.weight.shape, generator=generator)
                module.weight.mul_(drawn >= sparsity)
    return model


@pytest.fixture
def sparse_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form runs; the clock says that the last is the fastest, however busy the machine."""

    def fastest(runs: list[Callable[[], None]]) -> list[float]:
        for run in runs:
            run()
        return [1.0 / (1 + number) for number in range(len(runs))]

    # By its name: as an attribute of the package, `accelerate` is the function.
    monkeypatch.setattr(sys.modules[accelerate.__module__], "fastest", fastest)


def wide(sparsity: float) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
    model = masked(nn.Sequential(*layers), sparsity)
    assert isinstance(model, nn.Sequential)
    return model


@pytest.mark.usefixtures("sparse_wins")
@pytest.mark.parametrize("training", [True, False])
def test_sparse_where_that_is_faster(training: bool) -> None:
    model = wide(0.99)
    x = torch.randn(256, 256)
    before = copy.deepcopy(model.state_dict())
    fast, table = accelerate(model, x, training=training)
    assert isinstance(fast, nn.Sequential)
    assert isinstance(fast[2], SparseLinear)
    assert isinstance(fast[0], SparseLinear)
    assert fast[0].relu
    assert isinstance(fast[1], FusedReLU)
    assert not fast[2].relu
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    assert table.training == training
    assert table.speedup == 2
    assert [layer.name for layer in table.layers] == ["0", "2", "4"]
    assert table.layers[0].shape == (512, 256)
    assert table.layers[0].sparsity == pytest.approx(0.99, abs=0.002)
    assert "512 x 256" in str(table)
    assert "whole model" in str(table)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_dense_stays_dense() -> None:
    model = wide(0.0)
    fast, table = accelerate(model, torch.randn(8, 256), training=True)
    assert [type(m) for m in fast.modules()] == [type(m) for m in model.modules()]
    assert table.layers == ()
    assert table.speedup == 1.0


def test_what_is_timed_is_never_slower() -> None:
    model = wide(0.9)
    fast, table = accelerate(model, torch.randn(16, 256), training=True)
    assert table.chosen_ms <= table.dense_ms
    sparse = [name for name, layer in fast.named_modules() if isinstance(layer, SparseLinear)]
    assert sparse == [layer.name for layer in table.layers if layer.form == "sparse"]


@pytest.mark.usefixtures("sparse_wins")
def test_masks_keep_active_zeros() -> None:
    model = FNN((300, 400, 3))
    masks = Masks(model)
    name = "layers.0.weight"
    masks.set(name, torch.rand(400, 300) < 0.01)
    masks.apply_()
    with torch.no_grad():
        masks.weight(name).zero_()
    fast, _ = accelerate(model, torch.randn(200, 300), training=True, masks=masks)
    layer = fast.get_submodule("layers.0")
    assert isinstance(layer, SparseLinear)
    assert torch.equal(layer.active_mask(), masks[name])
    assert isinstance(fast.get_submodule("layers.1"), nn.Linear)


class Tied(nn.Module):
    """One weight in two layers, and outputs in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(200, 200), nn.Linear(200, 200)
        self.second.weight = self.first.weight
        self.third = nn.Linear(200, 200)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"out": (self.third(self.second(self.first(x))) + y, None)}


@pytest.mark.usefixtures("sparse_wins")
def test_shared_weights_stay_dense() -> None:
    model = masked(Tied(), 0.995)
    arguments = (torch.randn(500, 200), torch.randn(200))
    fast, table = accelerate(model, arguments, training=True)
    assert [layer.name for layer in table.layers] == ["third"]
    assert isinstance(fast.get_submodule("first"), nn.Linear)
    assert isinstance(fast.get_submodule("third"), SparseLinear)
    got, wanted = fast(*arguments)["out"][0], model(*arguments)["out"][0]
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("sparse_wins")
@pytest.mark.parametrize("kind", ["GCN", "GAT", "GraphSAGE"])
def test_layers_of_torch_geometric(kind: str) -> None:
    pytest.importorskip("torch_geometric")
    model, _ = geometric(kind)
    x, edges = torch.randn(20, 6, dtype=torch.float64), torch.randint(20, (2, 60))
    masks = Masks(model)
    random_masks(model, masks, dict.fromkeys(masks, 0.25))
    before = [name for name, m in model.named_modules() if type(m).__name__ == "Linear"]
    fast, table = accelerate(model, (x, edges), training=True, masks=masks)
    assert [layer.name for layer in table.layers] == before
    assert [n for n, m in fast.named_modules() if isinstance(m, SparseLinear)] == before
    torch.testing.assert_close(fast(x, edges), model(x, edges))
    torch.testing.assert_close(to_dense(fast)(x, edges), model(x, edges))


def test_a_weight_that_is_computed_stays_dense() -> None:
    layer = nn.Linear(8, 8)
    prune.random_unstructured(layer, "weight", 0.9)  # type: ignore[no-untyped-call]
    x = torch.randn(4, 8)
    with torch.no_grad():
        layer(x)
    fast, table = accelerate(layer, x, training=False)
    assert type(fast) is nn.Linear
    assert table.layers == ()


@pytest.mark.usefixtures("sparse_wins")
def test_a_single_layer_and_its_buffers_and_random_numbers() -> None:
    layer = masked(nn.Linear(400, 400), 0.995)
    x = torch.randn(300, 400)
    state = torch.get_rng_state()
    fast, _ = accelerate(layer, x, training=False)
    assert isinstance(fast, SparseLinear)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(fast(x), layer(x), rtol=1e-5, atol=1e-5)
    normed = masked(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), 0.5)
    accelerate(normed, torch.randn(16, 8), training=True)
    assert int(normed.get_buffer("1.num_batches_tracked")) == 0


@pytest.mark.usefixtures("sparse_wins")
@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GAT", "GIN"])
def test_models_of_torch_geometric_can_be_reset(kind: str) -> None:
    """The new weights are those of the masked model that is reset from the same seed."""
    model, loss = geometric(kind)
    masks = Masks(model)
    random_masks(model, masks, dict.fromkeys(masks, 0.5))
    example = tuple(inspect.getclosurevars(loss).nonlocals[name] for name in ("x", "edges"))
    fast: Any = accelerate(model, example, training=True, masks=masks)[0]
    assert any(isinstance(module, SparseLinear) for module in fast.modules())
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
    model = wide(0.9)
    masks = {f"{name}.weight": model[name].weight != 0 for name in (0, 2, 4)}
    fast: Any = accelerate(model, torch.randn(8, 256), training=True)[0]
    for each in (model, fast):
        torch.manual_seed(1)
        for layer in each:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    dense = to_dense(fast).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(dense[name], value * masks[name] if name in masks else value)
