"""The compiled loops of `gaussians`: a band of the basis for each block of rows.

P distances, K centres, F features, C chunks of rows. A chunk is done block by block in one thread,
its products in that thread's cache. What is summed over rows is summed by chunk first: how many
threads there are then changes no bit.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.compiled import compiled
from weft.kernels.blas import gemm
from weft.kernels.threads import share
from weft.kernels.vector_math import exp_negative

_here = sys.modules[__name__]
_compiled = compiled(fastmath={"contract"}, error_model="numpy")

# Rows of a block: with the activations of three networks of 64 features they fill half of a
# second-level cache of 512 kB.
BLOCK_ROWS = 256


@_compiled
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


@_compiled
def gaussians(d: Any, first: int, spacing: float, sharpness: float, out: Any) -> None:
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


@_compiled
def product_chunks(
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
            gaussians(part, low, spacing, sharpness, basis)
            result = out[start : start + rows]
            gemm(address, False, False, rows, width, high - low, basis, weight[low:], result, False)


@_compiled
def share_product_chunks(
    openmp: int, threads: int, arguments: Any, offsets: Any, rows: int
) -> None:
    """product_chunks on a team of threads, see `share`."""
    share(openmp, threads, _here.product_chunks, arguments, offsets, rows)


@_compiled
def transposed_chunks(
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
            gaussians(part, low, spacing, sharpness, basis)
            slopes, target = grad[start : start + rows], out[number, low:]
            gemm(address, True, False, high - low, width, rows, basis, slopes, target, True)


@_compiled
def share_transposed_chunks(
    openmp: int, threads: int, arguments: Any, offsets: Any, rows: int
) -> None:
    """transposed_chunks on a team of threads, see `share`."""
    share(openmp, threads, _here.transposed_chunks, arguments, offsets, rows)
