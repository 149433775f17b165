"""A Gaussian basis of distances times a weight matrix, without its zeros.

A distance is near few of the centres: all the other Gaussians are as good as 0. Where neighbouring
rows have similar distances (see `sorted_pairs`), a block of rows needs a band of the weights only,
so the product is a row of small dense ones: a third of the arithmetic for SchNet's 150 centres,
and never a denormal float.

In the loops: P distances, K centres, F features, C chunks of rows. A chunk is done block by block
in one thread, its products in that thread's cache. What is summed over rows is summed by chunk
first: how many threads there are then changes no bit.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels.custom_op import array_of, has_loop, operator, require
from weft.kernels.vector_math import exp_negative
from weft.runtime import gemm, gemm_address, kernel, shared_rows

# Gaussians below this are left out: 1e-12 of what a float32 can tell from 1.
_NOTHING = 1e-20
# Rows of a block: with the activations of three networks of 64 features they fill half of a
# second-level cache of 512 kB.
BLOCK_ROWS = 256


def reach(sharpness: float) -> float:
    """Distance, Å, beyond which a Gaussian counts as 0."""
    return math.sqrt(-math.log(_NOTHING) / sharpness)


def chunks_of(rows: int) -> tuple[int, int]:
    """Rows of a chunk, and the number of chunks; threads share these, and change none."""
    size = max(BLOCK_ROWS, -(-rows // 64), min(2048, -(-rows // 8)))
    return size, -(-rows // size)


def require_basis(centres: int, spacing: float, sharpness: float) -> None:
    """Refuse Gaussians that are not there."""
    if not (spacing > 0 and sharpness > 0 and centres > 0):
        raise ValueError(
            f"spacing {spacing}, sharpness {sharpness} and {centres} centres make no basis; each "
            "must be above 0"
        )


@kernel
def band_of(d: Any, spacing: float, reach: float, centres: int) -> Any:
    """First and last + 1 of the centres within reach of any of these distances; at least one."""
    low, high = d[0], d[0]
    for distance in d:
        low, high = min(low, distance), max(high, distance)
    # In floats first: a distance can be larger than any integer, or not a number.
    last = float(centres - 1)
    # The constant first: of it and nan, max and min then take it.
    first = int(min(last, max(0.0, np.floor((low - reach) / spacing))))
    stop = int(min(last, max(float(first), np.ceil((high + reach) / spacing)))) + 1
    return first, stop


@kernel
def fill_gaussians(d: Any, first: int, spacing: float, sharpness: float, out: Any) -> None:
    """out[i, k] = exp(-sharpness · (d[i] - (first + k) · spacing)²)."""
    number = d.dtype.type
    centres = np.empty(out.shape[1], dtype=d.dtype)
    for k in range(out.shape[1]):
        centres[k] = number(first + k) * number(spacing)
    scale = number(sharpness)
    for i in range(d.shape[0]):
        distance = d[i]
        for k in range(out.shape[1]):
            apart = distance - centres[k]
            out[i, k] = exp_negative(scale * apart * apart)


@shared_rows
@kernel
def _product_chunks(
    address: int,
    d: Any,
    weight: Any,
    spacing: float,
    sharpness: float,
    reach: float,
    chunk: int,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of `chunk` rows of out [P, F] = basis @ weight [K, F]."""
    centres, width = weight.shape
    space = np.empty(BLOCK_ROWS * centres, dtype=d.dtype)
    for number in range(first, stop):
        end = min((number + 1) * chunk, d.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            rows = min(BLOCK_ROWS, end - start)
            part = d[start : start + rows]
            low, high = band_of(part, spacing, reach, centres)
            basis = space[: rows * (high - low)].reshape(rows, high - low)
            fill_gaussians(part, low, spacing, sharpness, basis)
            result = out[start : start + rows]
            gemm(address, False, False, rows, width, high - low, basis, weight[low:], result, False)


@shared_rows
@kernel
def _transposed_chunks(
    address: int,
    d: Any,
    grad: Any,
    spacing: float,
    sharpness: float,
    reach: float,
    chunk: int,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """out[c] [K, F] += basisᵀ @ grad [P, F] over the rows of chunk c, for chunks first:stop."""
    centres, width = out.shape[1:]
    space = np.empty(BLOCK_ROWS * centres, dtype=d.dtype)
    for number in range(first, stop):
        end = min((number + 1) * chunk, d.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            rows = min(BLOCK_ROWS, end - start)
            part = d[start : start + rows]
            low, high = band_of(part, spacing, reach, centres)
            basis = space[: rows * (high - low)].reshape(rows, high - low)
            fill_gaussians(part, low, spacing, sharpness, basis)
            own, target = grad[start : start + rows], out[number, low:]
            gemm(address, True, False, high - low, width, rows, basis, own, target, True)


def gaussian_basis(d: Tensor, centres: int, spacing: float, sharpness: float) -> Tensor:
    """exp(-sharpness · (d - k · spacing)²) for k = 0 .. centres - 1: [P, centres] of d [P]."""
    places = torch.arange(centres, dtype=d.dtype, device=d.device) * spacing
    return torch.exp(-sharpness * (d[:, None] - places) ** 2)


def gaussian_product(d: Tensor, weight: Tensor, *, spacing: float, sharpness: float) -> Tensor:
    """gaussian_basis(d) @ weight, [P, F].

    Args:
        d: [P], in Å; the order of its rows decides the speed, not the result.
        weight: [K, F], a row for each of the centres 0, spacing, 2 spacing, ...
        spacing: between centres, Å.
        sharpness: 1 / Å².
    """
    require(d.ndim == 1 and weight.ndim == 2, "d [P] and weight [K, F] needed", d, weight)
    require_basis(weight.shape[0], spacing, sharpness)
    if d.requires_grad or not has_loop(d, weight) or not gemm_address(weight.dtype):
        return gaussian_basis(d, weight.shape[0], spacing, sharpness) @ weight
    out: Tensor = _product(d, weight, spacing, sharpness)
    return out


@operator("weft::gaussian_product")
def _product(d: Tensor, weight: Tensor, spacing: float, sharpness: float) -> Tensor:
    right = d.ndim == 1 and weight.ndim == 2 and d.dtype == weight.dtype
    require(right, "d [P] and weight [K, F] of one dtype needed", d, weight)
    require_basis(weight.shape[0], spacing, sharpness)
    out = weight.new_empty(d.shape[0], weight.shape[1])
    chunk, chunks = chunks_of(d.shape[0])
    basis = (spacing, sharpness, reach(sharpness))
    arrays = (array_of(d), array_of(weight))
    arguments = (gemm_address(weight.dtype), *arrays, *basis, chunk, out.numpy())
    _product_chunks.share(arguments, chunks, 100 * out.numel())
    return out


@_product.register_fake
def _(d: Tensor, weight: Tensor, spacing: float, sharpness: float) -> Tensor:
    return weight.new_empty(d.shape[0], weight.shape[1])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    d, weight, ctx.spacing, ctx.sharpness = inputs
    ctx.save_for_backward(d)
    ctx.centres = weight.shape[0]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (d,) = ctx.saved_tensors
    return None, _product_transposed(d, grad, ctx.centres, ctx.spacing, ctx.sharpness), None, None


_product.register_autograd(_backward, setup_context=_setup)


@operator("weft::gaussian_product_transposed")
def _product_transposed(
    d: Tensor, grad: Tensor, centres: int, spacing: float, sharpness: float
) -> Tensor:
    """gaussian_basis(d).T @ grad, [K, F]: the gradient of the product in its weights."""
    right = grad.ndim == 2 and d.shape == grad.shape[:1] and d.dtype == grad.dtype
    require(right, "d [P] and a gradient [P, F] of one dtype needed", d, grad)
    require_basis(centres, spacing, sharpness)
    chunk, chunks = chunks_of(d.shape[0])
    parts = grad.new_zeros(chunks, centres, grad.shape[1])
    basis = (spacing, sharpness, reach(sharpness))
    arrays = (array_of(d), array_of(grad))
    arguments = (gemm_address(grad.dtype), *arrays, *basis, chunk, parts.numpy())
    _transposed_chunks.share(arguments, chunks, 100 * grad.numel())
    return parts.sum(0)


@_product_transposed.register_fake
def _(d: Tensor, grad: Tensor, centres: int, spacing: float, sharpness: float) -> Tensor:
    return grad.new_empty(centres, grad.shape[1])


def _transposed_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    d, _, _, ctx.spacing, ctx.sharpness = inputs
    ctx.save_for_backward(d)


def _transposed_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (d,) = ctx.saved_tensors
    return None, _product(d, grad, ctx.spacing, ctx.sharpness), None, None, None


_product_transposed.register_autograd(_transposed_backward, setup_context=_transposed_setup)
