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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels import plain_torch as plain
from weft.kernels.backends import forms, runs_triton
from weft.kernels.custom_op import (
    array_of,
    differentiable_gradients,
    has_loop,
    is_plain,
    operator,
    require,
    widest,
)
from weft.kernels.vector_math import exp_negative
from weft.runtime import gemm, gemm_address, kernel, shared_rows

# Gaussians below this are left out: 1e-12 of what a float32 can tell from 1.
_NOTHING = 1e-20
# Rows of a block: with the activations of three networks of 64 features they fill half of a
# second-level cache of 512 kB.
BLOCK_ROWS = 256
# Of a chunk: the nodes of a series, some hundred rows, are then shared evenly.
_LEAST_ROWS = 96


def reach(sharpness: float) -> float:
    """Distance, Å, beyond which a Gaussian counts as 0."""
    return math.sqrt(-math.log(_NOTHING) / sharpness)


def chunks_of(rows: int) -> tuple[int, int]:
    """Rows of a chunk, and the number of chunks; threads share these, and change none."""
    size = max(_LEAST_ROWS, -(-rows // 64), min(2048, -(-rows // 8)))
    return size, -(-rows // size)


def form_of(centres: int, spacing: float, sharpness: float) -> tuple[float, float, float]:
    """Spacing, sharpness and reach of Gaussians, as the loops take them.

    Raises:
        ValueError: there are none.
    """
    if not (spacing > 0 and sharpness > 0 and centres > 0):
        raise ValueError(
            f"spacing {spacing}, sharpness {sharpness} and {centres} centres make no basis; each "
            "must be above 0"
        )
    return spacing, sharpness, reach(sharpness)


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


@kernel
def band_basis(d: Any, form: Any, centres: int, space: Any) -> Any:
    """The Gaussians of these distances that count, [rows, band] in `space`, and the first's number.

    `form` is what `form_of` gives; space [BLOCK_ROWS · K] is filled as far as it is needed.
    """
    spacing, sharpness, reach = form
    low, high = band_of(d, spacing, reach, centres)
    basis = space[: d.shape[0] * (high - low)].reshape(d.shape[0], high - low)
    fill_gaussians(d, low, spacing, sharpness, basis)
    return basis, low


@shared_rows
@kernel
def _product_chunks(
    address: int,
    d: Any,
    given: Any,
    form: Any,
    chunk: int,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of `chunk` rows of out [P, F] = basis @ given [K, F].

    Or, for out [C, K, F], out[c] += basisᵀ @ given [P, F] over the rows of chunk c.
    """
    centres, width = given.shape[0], given.shape[1]
    if out.ndim == 3:
        centres = out.shape[1]
    space = np.empty(BLOCK_ROWS * centres, dtype=d.dtype)
    for number in range(first, stop):
        end = min((number + 1) * chunk, d.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            basis, low = band_basis(d[start:last], form, centres, space)
            band = basis.shape[1]
            if out.ndim == 2:
                result = out[start:last]
                gemm(address, False, False, rows, width, band, basis, given[low:], result, False)
            else:
                own, target = given[start:last], out[number, low:]
                gemm(address, True, False, band, width, rows, basis, own, target, True)


def gaussian_basis(
    d: Tensor, centres: int, spacing: float, sharpness: float, fade: Tensor | None = None
) -> Tensor:
    """exp(-sharpness · (d - k · spacing)²) for k = 0 .. centres - 1: [P, centres] of d [P].

    With fade [P], that of a cutoff, they are multiplied by it, and it is one column more.
    """
    # Tracers see plain torch, which compilers make one kernel of.
    if not torch.compiler.is_compiling() and is_plain(d) and runs_triton(d, fade):
        basis: Tensor = _basis(d, fade, centres, spacing, sharpness)
        return basis
    return plain.gaussian_basis(d, fade, centres, spacing, sharpness)


@operator(
    "weft::gaussian_basis",
    lambda d, fade, centres, *_: d.new_empty(
        d.shape[0], centres + (fade is not None), dtype=widest(d, fade)
    ),
)
def _basis(
    d: Tensor, fade: Tensor | None, centres: int, spacing: float, sharpness: float
) -> Tensor:
    right = d.ndim == 1 and (fade is None or fade.shape == d.shape)
    require(right, "d [P] and fade [P] needed", d, fade)
    form_of(centres, spacing, sharpness)
    return forms(d, fade).gaussian_basis(d, fade, centres, spacing, sharpness)


@_basis.derivative()
def _basis_grad(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    _, *form = ctx.others
    to_d, *to_fade = _basis_backward(grad, *ctx.saved_tensors, *form)
    return to_d, to_fade[0] if to_fade else None


@operator(
    "weft::gaussian_basis_backward",
    lambda grad, d, fade, *_: [torch.empty_like(t) for t in (d, fade) if t is not None],
)
def _basis_backward(
    grad: Tensor, d: Tensor, fade: Tensor | None, spacing: float, sharpness: float
) -> list[Tensor]:
    """Gradients in d and, where there is one, in fade."""
    right = d.ndim == 1 and grad.ndim == 2 and grad.shape[0] == d.shape[0]
    right = right and (fade is None or fade.shape == d.shape)
    require(right, "a gradient [P, K] of d [P] and fade [P] needed", grad, d, fade)
    return forms(grad, d, fade).gaussian_basis_backward(grad, d, fade, spacing, sharpness)


@_basis_backward.derivative()
def _basis_backward_grad(ctx: Any, pushes: list[Tensor]) -> list[Tensor | None]:
    spacing, sharpness = ctx.others
    backward = partial(plain.gaussian_basis_backward, spacing=spacing, sharpness=sharpness)
    return differentiable_gradients(ctx, backward, ctx.saved_tensors, pushes)


def gaussian_product(d: Tensor, weight: Tensor, *, spacing: float, sharpness: float) -> Tensor:
    """gaussian_basis(d) @ weight, [P, F].

    Args:
        d: [P], in Å; the order of its rows decides the speed, not the result.
        weight: [K, F], a row for each of the centres 0, spacing, 2 spacing, ...
        spacing: between centres, Å.
        sharpness: 1 / Å².
    """
    require(d.ndim == 1 and weight.ndim == 2, "d [P] and weight [K, F] needed", d, weight)
    form_of(weight.shape[0], spacing, sharpness)
    if d.requires_grad or not has_loop(d, weight) or not gemm_address(weight.dtype):
        return gaussian_basis(d, weight.shape[0], spacing, sharpness) @ weight
    out: Tensor = _product(d, weight, spacing, sharpness)
    return out


def _fill(d: Tensor, given: Tensor, form: tuple[float, float, float], out: Tensor) -> None:
    """Have `_product_chunks` fill `out`."""
    chunk, chunks = chunks_of(d.shape[0])
    arrays = (array_of(d), array_of(given))
    arguments = (gemm_address(given.dtype), *arrays, form, chunk, out.numpy())
    _product_chunks.share(arguments, chunks, 100 * d.shape[0] * given.shape[1])


@operator(
    "weft::gaussian_product", lambda d, weight, *_: weight.new_empty(d.shape[0], weight.shape[1])
)
def _product(d: Tensor, weight: Tensor, spacing: float, sharpness: float) -> Tensor:
    right = d.ndim == 1 and weight.ndim == 2 and d.dtype == weight.dtype
    require(right, "d [P] and weight [K, F] of one dtype needed", d, weight)
    form = form_of(weight.shape[0], spacing, sharpness)
    out: Tensor = _product.empty(d, weight)
    _fill(d, weight, form, out)
    return out


def _product_saved(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor]:
    d, weight, _, _ = inputs
    ctx.centres = weight.shape[0]
    return (d,)


@_product.derivative(_product_saved)
def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return None, _product_transposed(*ctx.saved_tensors, grad, ctx.centres, *ctx.others)


@operator(
    "weft::gaussian_product_transposed",
    lambda d, grad, centres, *_: grad.new_empty(centres, grad.shape[1]),
)
def _product_transposed(
    d: Tensor, grad: Tensor, centres: int, spacing: float, sharpness: float
) -> Tensor:
    """gaussian_basis(d).T @ grad, [K, F]: the gradient of the product in its weights."""
    right = grad.ndim == 2 and d.shape == grad.shape[:1] and d.dtype == grad.dtype
    require(right, "d [P] and a gradient [P, F] of one dtype needed", d, grad)
    form = form_of(centres, spacing, sharpness)
    parts = grad.new_zeros(chunks_of(d.shape[0])[1], centres, grad.shape[1])
    _fill(d, grad, form, parts)
    return parts.sum(0)


@_product_transposed.derivative(lambda ctx, inputs, output: inputs[:1])
def _transposed_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    _, spacing, sharpness = ctx.others
    return None, _product(*ctx.saved_tensors, grad, spacing, sharpness)
