"""The feed-forward network against torch's own layers in a row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from weft.models import FNN, FNNConfig

LAYERS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


@pytest.mark.parametrize("activation", list(LAYERS))
@pytest.mark.parametrize("widths", [(16, 128, 1), (64, 256, 128, 10), (3, 2)])
def test_the_same_as_layers_in_a_row(widths: tuple[int, ...], activation: Any) -> None:
    model = FNN(widths, FNNConfig(activation=activation))
    row: list[nn.Module] = []
    for layer in model.layers:
        row += [layer, LAYERS[activation]()]
    x = torch.randn(7, widths[0])
    torch.testing.assert_close(model(x), nn.Sequential(*row[:-1])(x))
    assert [tuple(layer.weight.shape) for layer in model.layers] == [
        (b, a) for a, b in pairwise(widths)
    ]


def test_dropout_is_for_training_only() -> None:
    model = FNN((4, 64, 2), FNNConfig(dropout=0.5))
    x = torch.randn(8, 4)
    assert not torch.equal(model(x), model(x))
    model.eval()
    torch.testing.assert_close(model(x), model.layers[1](model.layers[0](x).relu()))


def test_it_learns() -> None:
    torch.manual_seed(0)
    model = FNN((2, 32, 1))
    x = torch.rand(256, 2) - 0.5
    y = (x[:, 0] * x[:, 1] > 0).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
        loss.backward()
        optimizer.step()
    assert ((model(x)[:, 0] > 0) == y.bool()).double().mean() > 0.95


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropout": 1.0}, r"dropout is 1\.0; it must be in \[0, 1\)"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"activation": "swish"}, "activation is 'swish'; choose from relu, gelu, tanh, sigmoid"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FNNConfig(**settings)


@pytest.mark.parametrize("widths", [(), (3,), (3, 0, 1), (-2, 1)])
def test_bad_widths(widths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"widths are \(.*an input and an output"):
        FNN(widths)
