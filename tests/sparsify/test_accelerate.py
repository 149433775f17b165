"""accelerate: the fastest form of each layer, and the same results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from weft.models.fnn import FNN
from weft.sparsify import Masks
from weft.sparsify.accelerate import accelerate
from weft.sparsify.layers import FusedReLU, SparseLinear


def masked(model: nn.Module, sparsity: float) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                drawn = torch.rand(module.weight.shape, generator=generator)
                module.weight.mul_(drawn >= sparsity)
    return model


def wide(sparsity: float) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
    model = masked(nn.Sequential(*layers), sparsity)
    assert isinstance(model, nn.Sequential)
    return model


@pytest.mark.parametrize("training", [True, False])
def test_sparse_where_nearly_nothing_is_left(training: bool) -> None:
    model = wide(0.99)
    x = torch.randn(256, 256)
    before = copy.deepcopy(model.state_dict())
    fast, table = accelerate(model, x, training=training)
    assert isinstance(fast, nn.Sequential)
    # A hundredth of the work: no noise of the machine makes that slower.
    assert isinstance(fast[2], SparseLinear)
    assert isinstance(fast[0], SparseLinear)
    assert fast[0].relu
    assert isinstance(fast[1], FusedReLU)
    assert not fast[2].relu
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    assert table.training == training
    assert table.speedup > 1
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


def test_shared_weights_stay_dense() -> None:
    model = masked(Tied(), 0.995)
    arguments = (torch.randn(500, 200), torch.randn(200))
    fast, table = accelerate(model, arguments, training=True)
    assert [layer.name for layer in table.layers] == ["third"]
    assert isinstance(fast.get_submodule("first"), nn.Linear)
    got, wanted = fast(*arguments)["out"][0], model(*arguments)["out"][0]
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_single_layer_and_its_buffers_and_random_numbers() -> None:
    layer = masked(nn.Linear(400, 400), 0.995)
    state = torch.get_rng_state()
    fast, _ = accelerate(layer, torch.randn(300, 400), training=False)
    assert isinstance(fast, SparseLinear)
    torch.set_rng_state(state)
    expected = torch.randn(300, 400)
    torch.set_rng_state(state)
    x = torch.randn(300, 400)
    assert torch.equal(x, expected)
    torch.testing.assert_close(fast(x), layer(x), rtol=1e-5, atol=1e-5)
    normed = masked(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), 0.5)
    accelerate(normed, torch.randn(16, 8), training=True)
    assert int(normed.get_buffer("1.num_batches_tracked")) == 0
