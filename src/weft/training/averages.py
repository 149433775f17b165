"""Moving averages of a model's weights, which `fit` evaluates and keeps where they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import DataError
from weft.sparsify.sparse_layers import SparseLinear
from weft.training.checkpoint import as_sparse, plain_module


class AveragedWeights:
    """The exponential moving average of every parameter, updated after each optimizer step.

    After step t it becomes d · average + (1 - d) · weight with d = min(decay, (1 + t) / (10 + t)):
    the smaller d of the first steps lets a short run forget the weights that it began with. Buffers
    are not averaged. Where a weight is exactly 0, as a masked one is, its average counts as 0.

    Args:
        model: whose weights are averaged.
        decay: above 0 and below 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay, self._steps = decay, 0
        model = plain_module(model)
        # By every name that a shared parameter has: a state_dict has them all.
        self._weights: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        self._averages = {name: weight.detach().clone() for name, weight in self._weights.items()}
        for path, layer in model.named_modules():
            if isinstance(layer, SparseLinear):
                # A weight that is moved to another place takes its average along.
                values = f"{path}.values" if path else "values"
                layer.companions = [*layer.companions, self._averages[values]]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        averages, weights = list(self._averages.values()), list(self._weights.values())
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @torch.no_grad()
    def put(self) -> dict[str, Tensor]:
        """Put the averages into the model; returns copies of the weights that were there."""
        before = {name: weight.detach().clone() for name, weight in self._weights.items()}
        for name, average in as_sparse(self._averages, before).items():
            self._weights[name].copy_(average)
        return before

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Have the averages in the model; afterwards it has its own weights again, to the bit."""
        before = self.put()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in self._weights.items():
                    weight.copy_(before[name])

    def state_dict(self) -> dict[str, Any]:
        """The averages by the names of the parameters, and the steps that they are of."""
        return {"steps": self._steps, "averages": self._averages}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back.

        Raises:
            DataError: they are of another model.
        """
        given = state["averages"]
        if {name: each.shape for name, each in given.items()} != {
            name: each.shape for name, each in self._averages.items()
        }:
            raise DataError("the averaged weights in the checkpoint are of another model")
        self._steps = state["steps"]
        for name, average in self._averages.items():
            average.copy_(given[name])
