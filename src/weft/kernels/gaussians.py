"""A Gaussian basis of distances times a weight matrix, without its zeros.

A distance is near few of the centres: all the other Gaussians are as good as 0. Where neighbouring
rows have similar distances (see `sorted_pairs`), a block of rows needs a band of the weights only,
so the product is a row of small dense ones: a third of the arithmetic for SchNet's 150 centres,
and never a denormal float.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from weft.compiled import compiled
from weft.kernels.exponential import exp_negative
from weft.kernels.operator import operator
from weft.kernels.team import openmp, share, threads_for

__all__ = ["bands", "gaussian_basis", "gaussian_product"]

_here = sys.modules[__name__]
_compiled = compiled(fastmath={"contract"}, error_model="numpy")

# Gaussians below this are left out: 1e-12 of what a float32 can tell from 1.
_NOTHING = 1e-20
# Rows that share a band: few enough for a narrow one, enough for a fast product.
_MOST_BLOCKS, _BLOCK_ROWS = 16, 1280
# Multiply-adds that a Gaussian costs, about.
_WORK = 12


@_compiled
def basis_rows(
    d: Any, low: int, spacing: float, sharpness: float, out: Any, first: int, stop: int
) -> None:
    """out[i, k] = exp(-sharpness · (d[i] - (low + k) · spacing)²)."""
    number = d.dtype.type
    for i in range(first, stop):
        row = out[i]
        distance = d[i]
        for k in range(row.shape[0]):
            apart = distance - number(low + k) * number(spacing)
            row[k] = exp_negative(number(sharpness) * apart * apart)


@_compiled
def share_basis_rows(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """basis_rows on a team of threads, see `share`."""
    share(openmp, threads, _here.basis_rows, arguments, offsets, rows)


def gaussian_basis(d: Tensor, centres: int, spacing: float, sharpness: float) -> Tensor:
    """exp(-sharpness · (d - k · spacing)²) for k = 0 .. centres - 1: [P, centres] of d [P]."""
    places = torch.arange(centres, dtype=d.dtype, device=d.device) * spacing
    return torch.exp(-sharpness * (d[:, None] - places) ** 2)


def bands(
    d: Tensor, centres: int, spacing: float, sharpness: float
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Blocks of rows, the centres that are near any of them, and those Gaussians."""
    rows = d.shape[0]
    size = max(_BLOCK_ROWS, -(-rows // _MOST_BLOCKS))
    reach = math.sqrt(-math.log(_NOTHING) / sharpness)
    values = d.detach().contiguous().numpy()
    for start in range(0, rows, size):
        part = values[start : start + size]
        low = math.floor((float(part.min()) - reach) / spacing)
        high = math.ceil((float(part.max()) + reach) / spacing) + 1
        # Beyond the last centre one Gaussian is left, which is 0.
        low, high = max(0, min(low, centres - 1)), max(1, min(high, centres))
        basis = torch.empty(len(part), high - low, dtype=d.dtype)
        arguments = (part, low, spacing, sharpness, basis.numpy())
        share_basis_rows(openmp(), threads_for(basis.numel() * _WORK), arguments, None, len(part))
        yield slice(start, start + len(part)), slice(low, high), basis


def gaussian_product(d: Tensor, weight: Tensor, *, spacing: float, sharpness: float) -> Tensor:
    """gaussian_basis(d) @ weight, [P, F].

    Args:
        d: [P], in Å; the order of its rows decides the speed, not the result.
        weight: [K, F], a row for each of the centres 0, spacing, 2 spacing, ...
        spacing: between centres, Å.
        sharpness: 1 / Å².
    """
    if d.requires_grad or d.device.type != "cpu":
        return gaussian_basis(d, weight.shape[0], spacing, sharpness) @ weight
    out: Tensor = _product(d, weight, spacing, sharpness)
    return out


@operator("weft::gaussian_product")
def _product(d: Tensor, weight: Tensor, spacing: float, sharpness: float) -> Tensor:
    out = weight.new_empty(d.shape[0], weight.shape[1])
    for rows, centres, basis in bands(d, weight.shape[0], spacing, sharpness):
        torch.mm(basis, weight.detach()[centres], out=out[rows])
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
    out = torch.zeros(centres, grad.shape[1], dtype=grad.dtype)
    for rows, near, basis in bands(d, centres, spacing, sharpness):
        out[near].addmm_(basis.t(), grad.detach()[rows])
    return out


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
