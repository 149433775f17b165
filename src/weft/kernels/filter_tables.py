"""SchNet's filters and their derivatives in the distance, at some distances, in one call each way.

A filter is a network of Gaussians: a layer, softplus, a layer, perhaps another softplus, times an
envelope. Forces need its derivative in the distance beside it, and training on forces the gradients
of both in the weights. Blocks of rows go through all networks in one thread's cache.

R distances, K centres, L networks, F features, C chunks of rows. Gradients of the weights are
summed by chunk first: how many threads there are changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.custom_op import array_of, require
from weft.kernels.gaussians import band_of, fill_gaussians, form_of
from weft.kernels.vector_math import (
    add_and_activate,
    add_rows,
    multiply_by_derivative,
    softplus_derivative_of,
)
from weft.runtime import gemm, gemm_address, kernel, shared_rows

_BLOCK_ROWS = 64
# A chunk sums the weights' gradients for itself: enough of them to share, not to fill memory.
_CHUNKS = 16


class TableSettings(NamedTuple):
    """What the networks have beside weights.

    Attributes:
        spacing: between the Gaussians' centres, Å.
        sharpness: of the Gaussians, 1 / Å².
        cutoff: where the envelope ends, Å; 0 without.
        activate: softplus after the second layer too.
    """

    spacing: float
    sharpness: float
    cutoff: float
    activate: bool


@kernel
def _basis(d: Any, form: Any, centres: int, space: Any) -> Any:
    """Gaussians of these distances and their derivatives [rows, band], and the first's number."""
    spacing, sharpness, reach = form
    low, high = band_of(d, spacing, reach, centres)
    rows, band = d.shape[0], high - low
    values = space[: rows * band].reshape(rows, band)
    slopes = space[rows * band : 2 * rows * band].reshape(rows, band)
    fill_gaussians(d, low, spacing, sharpness, values)
    number = d.dtype.type
    for i in range(rows):
        for k in range(band):
            away = d[i] - number(low + k) * number(spacing)
            slopes[i, k] = number(-2 * sharpness) * away * values[i, k]
    return values, slopes, low


@kernel
def _envelope(d: Any, cutoff: float, fade: Any, fall: Any) -> None:
    """As `envelope` and its derivative; 1 and 0 without a cutoff."""
    number = d.dtype.type
    for i in range(d.shape[0]):
        fade[i], fall[i] = number(1), number(0)
        if cutoff > 0:
            angle = d[i] * number(math.pi / cutoff)
            inside = number(1) if d[i] < cutoff else number(0)
            fade[i] = number(0.5) * (np.cos(angle) + number(1)) * inside
            fall[i] = number(-0.5 * math.pi / cutoff) * np.sin(angle) * inside


@shared_rows
@kernel
def _value_blocks(
    address: int,
    d: Any,
    weights: Any,
    first_bias: Any,
    second_bias: Any,
    form: Any,
    ends: Any,
    saved: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Blocks first:stop of out [2 L, R, F].

    weights are [K, L · F], its bands rows, and [L, F, F], out by in. Saved are activations and
    their derivatives in d, and those of the second layer, [R, L · F] each.
    """
    table, second = weights
    cutoff, activate = ends
    inner, inner_slope, outer, outer_slope = saved
    centres, (networks, width) = table.shape[0], second.shape[:2]
    space = np.empty(2 * _BLOCK_ROWS * centres, dtype=d.dtype)
    fade, fall = np.empty(_BLOCK_ROWS, d.dtype), np.empty(_BLOCK_ROWS, d.dtype)
    for block in range(first, stop):
        start = block * _BLOCK_ROWS
        end = min(start + _BLOCK_ROWS, d.shape[0])
        rows, here = end - start, d[start:end]
        basis, slopes, low = _basis(here, form, centres, space)
        _envelope(here, cutoff, fade, fall)
        near, band = table[low:], basis.shape[1]
        one, two = inner[start:end], inner_slope[start:end]
        gemm(address, False, False, rows, one.shape[1], band, basis, near, one, False)
        gemm(address, False, False, rows, one.shape[1], band, slopes, near, two, False)
        add_and_activate(one, first_bias, True)
        multiply_by_derivative(one, two)
        for k in range(networks):
            columns = k * width
            mine, moved = outer[start:end, columns:], outer_slope[start:end, columns:]
            weight = second[k]
            gemm(address, False, True, rows, width, width, one[:, columns:], weight, mine, False)
            gemm(address, False, True, rows, width, width, two[:, columns:], weight, moved, False)
            for i in range(rows):
                for f in range(width):
                    if second_bias is not None:
                        mine[i, f] += second_bias[k, f]
            if activate:
                add_and_activate(mine[:, :width], None, True)
                multiply_by_derivative(mine[:, :width], moved[:, :width])
            values, slopes_out = out[k, start:end], out[networks + k, start:end]
            for i in range(rows):
                for f in range(width):
                    values[i, f] = mine[i, f] * fade[i]
                    slopes_out[i, f] = moved[i, f] * fade[i] + mine[i, f] * fall[i]


@kernel
def _back_through(active: Any, slope: Any, grad: Any, grad_slope: Any) -> None:
    """Gradients before a softplus, in place, of those in its value and in its derivative in d.

    `active` are its values, and `slope` their derivatives in d.
    """
    for i in range(grad.shape[0]):
        for f in range(grad.shape[1]):
            d = softplus_derivative_of(active[i, f])
            # slope is d times the derivative before the softplus, whose factor is d (1 - d).
            grad[i, f] = d * grad[i, f] + (1 - d) * slope[i, f] * grad_slope[i, f]
            grad_slope[i, f] *= d


@kernel
def _add_product(address: int, a: Any, b: Any, out: Any) -> None:
    """out += aᵀ b."""
    gemm(address, True, False, a.shape[1], b.shape[1], a.shape[0], a, b, out, True)


@shared_rows
@kernel
def _gradient_chunks(
    address: int,
    d: Any,
    second: Any,
    form: Any,
    ends: Any,
    saved: Any,
    grads: Any,
    chunk: int,
    made: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the weights' gradients [C, ...], which must be 0 before."""
    cutoff, activate = ends
    inner, inner_slope, outer, outer_slope = saved
    of_table, of_first_bias, of_second, of_second_bias = made
    centres, (networks, width) = of_table.shape[1], second.shape[:2]
    space = np.empty(2 * _BLOCK_ROWS * centres, dtype=d.dtype)
    fade, fall = np.empty(_BLOCK_ROWS, d.dtype), np.empty(_BLOCK_ROWS, d.dtype)
    upper = np.empty((_BLOCK_ROWS, width), dtype=d.dtype)
    upper_slope = np.empty((_BLOCK_ROWS, width), dtype=d.dtype)
    lower = np.empty((_BLOCK_ROWS, networks * width), dtype=d.dtype)
    lower_slope = np.empty((_BLOCK_ROWS, networks * width), dtype=d.dtype)
    for number in range(first, stop):
        stopped = min((number + 1) * chunk, d.shape[0])
        for start in range(number * chunk, stopped, _BLOCK_ROWS):
            end = min(start + _BLOCK_ROWS, stopped)
            rows, here = end - start, d[start:end]
            _envelope(here, cutoff, fade, fall)
            one, two = inner[start:end], inner_slope[start:end]
            for k in range(networks):
                columns = k * width
                g, g_slope = upper[:rows], upper_slope[:rows]
                value, slope = grads[k, start:end], grads[networks + k, start:end]
                for i in range(rows):
                    for f in range(width):
                        g[i, f] = value[i, f] * fade[i] + slope[i, f] * fall[i]
                        g_slope[i, f] = slope[i, f] * fade[i]
                after, weight, target = columns + width, second[k], of_second[number, k]
                if activate:
                    mine, moved = outer[start:end, columns:], outer_slope[start:end, columns:]
                    _back_through(mine, moved, g, g_slope)
                _add_product(address, g, one[:, columns:after], target)
                _add_product(address, g_slope, two[:, columns:after], target)
                add_rows(g, of_second_bias[number, k])
                below = lower[:rows, columns:after]
                below_slope = lower_slope[:rows, columns:after]
                gemm(address, False, False, rows, width, width, g, weight, below, False)
                gemm(address, False, False, rows, width, width, g_slope, weight, below_slope, False)
            g, g_slope = lower[:rows], lower_slope[:rows]
            _back_through(one, two, g, g_slope)
            add_rows(g, of_first_bias[number])
            basis, slopes, low = _basis(here, form, centres, space)
            target = of_table[number, low : low + basis.shape[1]]
            _add_product(address, basis, g, target)
            _add_product(address, slopes, g_slope, target)


def filter_tables(
    d: Tensor,
    first: Sequence[Tensor],
    first_bias: Sequence[Tensor],
    second: Sequence[Tensor],
    second_bias: Sequence[Tensor],
    settings: TableSettings,
) -> Tensor:
    """Filters of all networks at distances d [R], then their derivatives there: [2 L, R, F].

    Tensors are such as `is_fusable` allows; nothing learns from the distances.

    Args:
        d: Å; fastest in ascending order.
        first: [F, K] of each network, the weights of its first layer, out by in.
        first_bias: [F] of each, or none.
        second: [F, F] of each.
        second_bias: [F] of each, or none.
        settings: of all.
    """
    require(d.ndim == 1 and len(first) > 0 and first[0].ndim == 2, "d [R] and weights needed", d)
    networks, (width, centres) = len(first), first[0].shape
    right = len(second) == networks and len(first_bias) == len(second_bias)
    right = right and len(first_bias) in (0, networks)
    right = right and all(t.shape == (width, centres) for t in first)
    right = right and all(t.shape == (width, width) for t in second)
    right = right and all(t.shape == (width,) for t in (*first_bias, *second_bias))
    weights = (*first, *first_bias, *second, *second_bias)
    require(right, "weights [F, K] and [F, F] and biases [F] of each network needed", *weights)
    form_of(centres, settings.spacing, settings.sharpness)
    sizes = (networks, len(first_bias))
    found: Tensor = _Tables.apply(d, settings, sizes, *weights)  # type: ignore[no-untyped-call]
    return found


class _Tables(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, d: Tensor, settings: TableSettings, sizes: tuple[int, int], *weights: Tensor
    ) -> Tensor:
        networks, biases = sizes
        first, first_bias = weights[:networks], weights[networks : networks + biases]
        second = torch.stack(weights[networks + biases : 2 * networks + biases])
        second_bias = weights[2 * networks + biases :]
        rows, (width, centres) = len(d), first[0].shape
        total = networks * width
        out = torch.empty(2 * networks, rows, width, dtype=d.dtype)
        saved = tuple(torch.empty(rows, total, dtype=d.dtype).numpy() for _ in range(4))
        form = form_of(centres, settings.spacing, settings.sharpness)
        ends = (settings.cutoff, settings.activate)
        given = (array_of(torch.cat(first).t()), array_of(second))
        of_biases = (
            (array_of(torch.cat(first_bias)), array_of(torch.stack(second_bias)))
            if biases
            else (None, None)
        )
        distances = array_of(d)
        arguments = (gemm_address(d.dtype), distances, given, *of_biases, form, ends, saved)
        work = 2 * rows * total * (width + centres)
        _value_blocks.share((*arguments, out.numpy()), -(-rows // _BLOCK_ROWS), work)
        ctx.save_for_backward(*weights)
        ctx.given = distances, given[1], form, ends, saved, sizes, centres
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        # Read although it is not needed: torch refuses weights that were changed meanwhile.
        _ = ctx.saved_tensors
        d, second, form, ends, saved, (networks, biases), centres = ctx.given
        width = second.shape[1]
        chunk = _BLOCK_ROWS * max(1, -(-len(d) // (_BLOCK_ROWS * _CHUNKS)))
        chunks = -(-len(d) // chunk)
        made = [
            torch.zeros(chunks, *shape, dtype=grad.dtype)
            for shape in (
                (centres, networks * width),
                (networks * width,),
                (networks, width, width),
                (networks, width),
            )
        ]
        arguments = (gemm_address(grad.dtype), d, second, form, ends, saved, array_of(grad), chunk)
        work = 4 * len(d) * networks * width * (width + centres)
        _gradient_chunks.share((*arguments, tuple(t.numpy() for t in made)), chunks, work)
        table, first_bias, of_second, second_bias = (t.sum(0) for t in made)
        firsts = table.view(centres, networks, width).permute(1, 2, 0).contiguous().unbind()
        if not biases:
            return None, None, None, *firsts, *of_second.unbind()
        of_first_bias = first_bias.view(networks, width).unbind()
        return None, None, None, *firsts, *of_first_bias, *of_second.unbind(), *second_bias.unbind()
