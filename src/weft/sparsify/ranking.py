"""Exactly so many of a layer's weights: by score or at random, the same everywhere."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def top(scores: Tensor, count: int) -> Tensor:
    """Ascending int64 indices of exactly `count` largest of scores [n], the first among equals.

    NaN is smaller than anything.
    """
    assert 0 <= count <= len(scores), (count, len(scores))
    if count in (0, len(scores)):
        return torch.arange(count, device=scores.device)
    scores = torch.where(scores.isnan(), -math.inf, scores.detach().to(_comparable(scores.dtype)))
    least = torch.topk(scores, count, sorted=False).values.min()
    above = scores > least
    equal = (scores == least).nonzero().flatten()
    above[equal[: count - int(above.sum())]] = True
    return above.nonzero().flatten()


def random_order(size: int, *key: int) -> Tensor:
    """The numbers below `size` in an order that depends on the key alone, int64 [size]."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def mask_of(indices: Tensor, like: Tensor) -> Tensor:
    """Bool in the shape of `like`, True at these flat indices."""
    mask = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    mask[indices.to(like.device)] = True
    return mask.view(like.shape)


def _comparable(dtype: torch.dtype) -> torch.dtype:
    # float32 has no room for large whole numbers.
    exact = dtype.is_floating_point and dtype != torch.float64
    return torch.float32 if exact else torch.float64
