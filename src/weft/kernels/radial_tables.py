"""Radial functions and their derivatives at many distances, from a table at few.

P distances, L functions, F features, B bins of M nodes each (see `chebyshev`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.chebyshev import Binned, series_at, series_gradients


def interpolate(tables: Tensor, binned: Binned, width: float) -> tuple[Tensor, ...] | None:
    """Values [P, F] of each function at the distances; None if the series do not converge.

    Args:
        tables: float32 [L, B · M, F], each function's values at `nodes_of` the bins.
        binned: the distances; nothing learns from them.
        width: of a bin, Å.
    """
    values = series_at(binned, list(tables.detach().numpy()), width)
    if values is None:
        return None
    rows: tuple[Tensor, ...] = _Rows.apply(tables, tuple(values), binned, width)  # type: ignore[no-untyped-call]
    return rows


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tables: Tensor, values: Any, binned: Binned, width: float) -> Any:
        ctx.given = binned, width
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        binned, width = ctx.given
        found = series_gradients(binned, grads, width)
        return torch.stack([torch.from_numpy(part) for part in found]), None, None, None
