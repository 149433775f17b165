"""A model, data and a loss that are trained in no time, shared by the tests of `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.training import FitConfig, read_metrics

Batch = tuple[Tensor, Tensor]


def data(rows: int = 12) -> Batch:
    x = torch.linspace(-1, 1, rows * 3).reshape(rows, 3)
    return x, (x @ torch.tensor([[1.0], [-2.0], [0.5]])).cos()


def fixed_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            values = torch.arange(parameter.numel(), dtype=torch.float32)
            parameter.copy_(torch.sin(values + number).reshape(parameter.shape) / 2)
    return model


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return ((model(x) - y) ** 2).mean()


def adam(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def quiet(**options: Any) -> FitConfig:
    return FitConfig(**{"epochs": 3, "quiet": True, **options})


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


def scripted(values: list[float]) -> Any:
    """An evaluation that gives these values, one after another."""
    left = iter(values)
    return lambda model: {"score": next(left)}
