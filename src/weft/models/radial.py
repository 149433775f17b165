"""Radial functions with their derivatives: Gaussians and the envelope, at pairs or by table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.kernels.chebyshev import TERMS, bin_width, in_bins, nodes_of
from weft.kernels.gaussians import reach
from weft.kernels.radial_tables import interpolate

_Tables = Callable[[Tensor], Tensor]

# Below as many distances for each node of the bins, the functions themselves are faster.
_ROWS_A_NODE = 2
# Exponents of Gaussians that count as 0, and of those that would be denormal.
_NOTHING = -46.0


def gaussians_with_slopes(
    d: Tensor, centres: int, spacing: float, sharpness: float
) -> tuple[Tensor, Tensor]:
    """exp(-sharpness · (d - k spacing)²) for k < centres and its derivative in d, [P, K] each."""
    places = torch.arange(centres, dtype=d.dtype) * spacing
    away = d[:, None] - places
    power = away.square() * -sharpness
    values = power.exp().masked_fill_(power < _NOTHING, 0.0)
    return values, away * values * (-2 * sharpness)


def envelope_with_slope(d: Tensor, cutoff: float) -> tuple[Tensor, Tensor]:
    """Half a cosine of distances d [P], see `envelope`, and its derivative, [P, 1] each."""
    angle, inside = d * (math.pi / cutoff), d < cutoff
    value = 0.5 * (torch.cos(angle) + 1) * inside
    slope = (-0.5 * math.pi / cutoff) * torch.sin(angle) * inside
    return value[:, None], slope[:, None]


def aligned_width(sharpness: float, cutoff: float | None) -> float:
    """Width of a bin, Å, such that the cutoff, where a derivative jumps, is between two bins."""
    width = bin_width(sharpness)
    return width if cutoff is None else cutoff / math.ceil(cutoff / width)


# By model: the weights of its radial functions, and their table at the nodes of the bins.
_KEPT: WeakKeyDictionary[nn.Module, tuple[list[Tensor], Tensor]] = WeakKeyDictionary()


def _table_at(nodes: Tensor, model: nn.Module, weights: list[Tensor], tables: _Tables) -> Tensor:
    """The table; the last one where nothing learns from it and no weight has changed since."""
    if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
        return tables(nodes)
    before, table = _KEPT.get(model, ([], None))
    same = len(before) == len(weights) and all(map(torch.equal, before, weights))
    # Compared by value: a change through `.data` leaves no other trace.
    if table is None or not same or table.shape[1] != len(nodes):
        with torch.no_grad():
            table = tables(nodes)
        _KEPT[model] = [weight.detach().clone() for weight in weights], table
    return table


def at_distances(
    d: Tensor,
    model: nn.Module,
    weights: list[Tensor],
    tables: _Tables,
    *,
    centres: int,
    spacing: float,
    sharpness: float,
    cutoff: float | None,
) -> tuple[Tensor, ...]:
    """Rows [P, F] of several functions of a distance; the graph goes to the weights.

    Args:
        d: [P], Å; nothing learns from it. Fastest by bins of `aligned_width`.
        model: whose functions they are.
        weights: all that the functions depend on.
        tables: gives the functions [L, R, F] at distances [R].
        centres: of the Gaussians that the functions are made of.
        spacing: between the centres, Å.
        sharpness: of the Gaussians, 1 / Å².
        cutoff: where the functions end, Å, or None.
    """
    # The series are loops on the CPU, and elsewhere the largest distance would be waited for.
    if d.is_cpu and d.dtype == torch.float32 and len(d):
        width = aligned_width(sharpness, cutoff)
        end = min((centres - 1) * spacing + reach(sharpness), float(d.max()))
        bins = max(1, math.ceil(end / width))
        if cutoff is not None:
            # What lies beyond the cutoff has a bin of zeros. As many bins whatever the distances,
            # so that atoms that move leave the table as it is.
            bins = round(cutoff / width) + 1
        if len(d) > _ROWS_A_NODE * TERMS * bins:
            table = _table_at(nodes_of(bins, width), model, weights, tables)
            rows = interpolate(table, in_bins(d, width, bins), width)
            if rows is not None:
                return rows
    return tables(d).unbind(0)


def linear_tangents(layer: Any, x: Tensor) -> Tensor:
    """The layer of values and of tangents, the halves of x [2 N, F], which have no bias."""
    out = functional.linear(x, layer.weight)
    return out if layer.bias is None else with_bias(out, layer.bias)


def with_bias(x: Tensor, bias: Tensor) -> Tensor:
    """x [2 N, F] with the bias [F] added to its first half, the values."""
    rows = x.shape[0] // 2
    return torch.cat([x[:rows] + bias, x[rows:]])
