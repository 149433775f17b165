"""Adam's update of all weights in one loop.

A step of a small batch takes less time than torch's update of the model's weights, most of which is
spent on the lists of tensors that it makes first.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.kernels.custom_op import is_plain
from weft.runtime import array_at, kernel, shared_rows

# Weights that a thread takes at a time: with their gradients and moments they fit its cache.
_BLOCK = 4096


class AdamSettings(NamedTuple):
    """As torch.optim.Adam has them; `decoupled` is AdamW's weight decay."""

    rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool


@shared_rows
@kernel
def _blocks(
    like: Any, places: Any, sizes: Any, blocks: Any, settings: Any, first: int, stop: int
) -> None:
    """Blocks first:stop of the update.

    Args:
        like: an empty array of the weights' dtype.
        places: [T, 5], addresses of each tensor, its gradient, its first and second moments, and of
            its steps so far, a float32.
        sizes: [T], numbers in each.
        blocks: [B, 2], a tensor and the first of its numbers in each block.
        settings: of Adam, and the steps of each tensor, [T], this one included.
        first: of the blocks.
        stop: behind the last of the blocks.
    """
    (rate, beta1, beta2, eps, weight_decay, decoupled), steps = settings
    number = like.dtype.type
    keep, take = number(beta2), number(1 - beta2)
    small, fresh, kept = number(eps), number(1 - beta1), number(beta1)
    shrink = number(1 - rate * weight_decay) if decoupled else number(1)
    decay = number(0) if decoupled else number(weight_decay)
    for block in range(first, stop):
        tensor, start = blocks[block, 0], blocks[block, 1]
        count = sizes[tensor]
        end = min(start + _BLOCK, count)
        weights = array_at(like, places[tensor, 0], count)[start:end]
        grads = array_at(like, places[tensor, 1], count)[start:end]
        means = array_at(like, places[tensor, 2], count)[start:end]
        squares = array_at(like, places[tensor, 3], count)[start:end]
        step = number(rate / (1 - beta1 ** steps[tensor]))
        root = number(np.sqrt(1 - beta2 ** steps[tensor]))
        for i in range(weights.shape[0]):
            weight = weights[i] * shrink
            grad = grads[i] + decay * weight
            # Two forms of one sum: exact where a beta is 0 or 1.
            change = grad - means[i]
            mean = means[i] + fresh * change if fresh < 0.5 else grad - change * kept
            square = keep * squares[i] + take * (grad * grad)
            means[i], squares[i] = mean, square
            weights[i] = weight - step * mean / (np.sqrt(square) / root + small)


@kernel
def _count_steps(places: Any, steps: Any, like: Any) -> None:
    """Add 1 to the float32 at each address; the results are also `steps`."""
    for k in range(places.shape[0]):
        own = array_at(like, places[k, 4], 1)
        own[0] += np.float32(1)
        steps[k] = own[0]


_FLOAT32, _FLOAT64 = np.empty(0, np.float32), np.empty(0, np.float64)


class Weights:
    """Weights and Adam's states of them, all of one dtype that the loop takes.

    Args:
        given: the optimizer's, in order.
        learned: the state of each of the T that have one, as torch.optim.Adam has them.
    """

    def __init__(
        self, given: Sequence[Tensor], learned: Mapping[Tensor, dict[str, Tensor]]
    ) -> None:
        self._given = list(given)
        self._weights, self._states = list(learned), list(learned.values())
        self._others = [weight for weight in given if weight not in learned]
        self._moments = self._moments_now()
        self._sizes = [weight.numel() for weight in self._weights]
        self._dtypes = {weight.dtype for weight in self._weights}
        self._places = np.empty((len(self._weights), 5), dtype=np.int64)
        self._addresses = self._addresses_now()
        for column, tensors in zip((0, 2, 3, 4), (self._weights, *self._moments), strict=True):
            self._places[:, column] = [t.data_ptr() for t in tensors]
        self._like = _FLOAT32 if self._dtypes == {torch.float32} else _FLOAT64
        blocks = [(k, i) for k, size in enumerate(self._sizes) for i in range(0, size, _BLOCK)]
        self._blocks = np.array(blocks, dtype=np.int64).reshape(-1, 2)
        self._rows = np.array(self._sizes, dtype=np.int64)

    @staticmethod
    def can_be(weight: Tensor, state: dict[str, Tensor]) -> bool:
        """Whether the loop takes a weight and its state."""
        mean, square, steps = (state[name] for name in _STATES)
        if weight.dtype not in (torch.float32, torch.float64):
            return False
        right = all(
            is_plain(t) and t.layout == torch.strided and t.is_cpu and t.is_contiguous()
            for t in (weight, mean, square)
        )
        right = right and mean.shape == square.shape == weight.shape
        right = right and mean.dtype == square.dtype == weight.dtype
        return right and steps.is_cpu and steps.dtype == torch.float32 and steps.numel() == 1

    def are_still(self, given: Sequence[Tensor], states: Sequence[dict[str, Tensor]]) -> bool:
        """Whether these are the same ones, and nobody has replaced what they hold."""
        return (
            _same(given, self._given)
            and _same(states, self._states)
            and all(map(_same, self._moments_now(), self._moments))
            and self._addresses_now() == self._addresses
        )

    def update(self, settings: AdamSettings) -> bool:
        """Update them in place; False where a gradient is none that the loop takes."""
        grads: list[Any] = [weight.grad for weight in self._weights]
        if {type(grad) for grad in grads} != {Tensor} or {g.dtype for g in grads} != self._dtypes:
            return False
        if {grad.layout for grad in grads} != {torch.strided}:
            return False
        if {grad.is_contiguous() for grad in grads} != {True}:
            return False
        if [grad.numel() for grad in grads] != self._sizes:
            return False
        if self._others and not all(weight.grad is None for weight in self._others):
            return False
        self._places[:, 1] = [grad.data_ptr() for grad in grads]
        steps = np.empty(len(self._places), dtype=np.float64)
        _count_steps(self._places, steps, _FLOAT32)
        arguments = (self._like, self._places, self._rows, self._blocks, (tuple(settings), steps))
        # A root and two divisions take as long as a dozen products.
        _blocks.share(arguments, len(self._blocks), 16 * _BLOCK * len(self._blocks))
        torch.autograd.graph.increment_version(self._weights)
        return True

    def _moments_now(self) -> list[list[Tensor]]:
        return [[state[name] for state in self._states] for name in _STATES]

    def _addresses_now(self) -> list[int]:
        return [weight.data_ptr() for weight in self._weights]


_STATES = ("exp_avg", "exp_avg_sq", "step")


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
