"""Copies of a model's values, the way back to them, and evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers, by name."""
    return {name: tensor.detach().clone() for name, tensor in _tensors(model)}


@torch.no_grad()
def restore(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Bring all parameters and buffers back to what `snapshot` gave, in place."""
    for name, tensor in _tensors(model):
        tensor.copy_(values[name])


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Keep the model in evaluation mode; afterwards each of its modules is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(), model.named_buffers())
