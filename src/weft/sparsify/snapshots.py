"""Copies of a model's values, and the way back to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor, nn

__all__ = ["restore", "snapshot"]


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers, by name."""
    return {name: tensor.detach().clone() for name, tensor in _tensors(model)}


@torch.no_grad()
def restore(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Bring all parameters and buffers back to what `snapshot` gave, in place."""
    for name, tensor in _tensors(model):
        tensor.copy_(values[name])


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(), model.named_buffers())
