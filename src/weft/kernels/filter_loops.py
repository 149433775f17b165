"""The compiled loops of `filters`: blocks of rows through a whole network, in one thread's cache.

P pairs, K centres, L networks, F features, C chunks of rows. A chunk is done block by block in one
thread. Gradients of the weights are summed by chunk first: how many threads there are then changes
no bit.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.compiled import compiled
from weft.kernels.blas import add_rows, gemm
from weft.kernels.gaussian_loops import BLOCK_ROWS, band_of, gaussians
from weft.kernels.threads import share
from weft.kernels.vector_math import slope_of, softplus_of

_here = sys.modules[__name__]
_compiled = compiled(fastmath={"contract"}, error_model="numpy")


@_compiled
def add_and_activate(x: Any, bias: Any, activate: bool) -> None:
    """x[i, j] becomes softplus(x[i, j] + bias[j]) - ln 2, the softplus if `activate`."""
    for i in range(x.shape[0]):
        if bias is not None:
            for j in range(x.shape[1]):
                x[i, j] += bias[j]
        if activate:
            for j in range(x.shape[1]):
                x[i, j] = softplus_of(x[i, j])


@_compiled
def _times_slope(y: Any, grad: Any, out: Any) -> None:
    """out = grad · dy/dx of y = softplus(x) - ln 2."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = grad[i, j] * slope_of(y[i, j])


@_compiled
def turn_by_slope(y: Any, x: Any) -> None:
    """x · dy/dx in place, y = softplus - ln 2: two arrays, as the compiler fears no third."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] *= slope_of(y[i, j])


@_compiled
def filter_chunks(
    address: int,
    d: Any,
    table: Any,
    first_bias: Any,
    second: Any,
    second_bias: Any,
    spacing: float,
    sharpness: float,
    reach: float,
    activate: bool,
    chunk: int,
    inner: Any,
    outs: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of `chunk` rows: the filters `outs` and the activations `inner`.

    table [K, L · F] and second [L, F, F] (out by in) are the weights.
    """
    centres, width = table.shape[0], second.shape[1]
    space = np.empty(BLOCK_ROWS * centres, dtype=d.dtype)
    for number_of_chunk in range(first, stop):
        end = min((number_of_chunk + 1) * chunk, d.shape[0])
        for start in range(number_of_chunk * chunk, end, BLOCK_ROWS):
            rows = min(BLOCK_ROWS, end - start)
            low, high = band_of(d[start : start + rows], spacing, reach, centres)
            basis = space[: rows * (high - low)].reshape(rows, high - low)
            gaussians(d[start : start + rows], low, spacing, sharpness, basis)
            part = inner[start : start + rows]
            band, near = high - low, table[low:]
            gemm(address, False, False, rows, part.shape[1], band, basis, near, part, False)
            add_and_activate(part, first_bias, True)
            for number in range(len(outs)):
                own = part[:, number * width :]
                out = outs[number][start : start + rows]
                gemm(address, False, True, rows, width, width, own, second[number], out, False)
                bias = None if second_bias is None else second_bias[number]
                add_and_activate(out, bias, activate)


@_compiled
def share_filter_chunks(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """filter_chunks on a team of threads, see `share`."""
    share(openmp, threads, _here.filter_chunks, arguments, offsets, rows)


@_compiled
def gradient_chunks(
    address: int,
    d: Any,
    second: Any,
    inner: Any,
    outs: Any,
    grads: Any,
    spacing: float,
    sharpness: float,
    reach: float,
    activate: bool,
    bias: bool,
    chunk: int,
    first_grad: Any,
    first_bias: Any,
    second_grad: Any,
    second_bias: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop: the weights' gradients [C, ...] of each, which must be 0 before."""
    centres, width = first_grad.shape[1], second.shape[1]
    total = inner.shape[1]
    space = np.empty(BLOCK_ROWS * centres, dtype=d.dtype)
    slopes = np.empty((BLOCK_ROWS, width), dtype=d.dtype)
    before = np.empty((BLOCK_ROWS, total), dtype=d.dtype)
    for number_of_chunk in range(first, stop):
        end = min((number_of_chunk + 1) * chunk, d.shape[0])
        for start in range(number_of_chunk * chunk, end, BLOCK_ROWS):
            rows = min(BLOCK_ROWS, end - start)
            part = inner[start : start + rows]
            for number in range(len(grads)):
                columns = number * width
                slope = slopes[:rows]
                grad = grads[number][start : start + rows]
                if activate:
                    _times_slope(outs[number][start : start + rows], grad, slope)
                else:
                    slope[:] = grad
                if bias:
                    add_rows(slope, second_bias[number_of_chunk, number])
                own, result = part[:, columns:], before[:rows, columns:]
                target, weight = second_grad[number_of_chunk, number], second[number]
                gemm(address, True, False, width, width, rows, slope, own, target, True)
                gemm(address, False, False, rows, width, width, slope, weight, result, False)
            inputs = before[:rows]
            turn_by_slope(part, inputs)
            if bias:
                add_rows(inputs, first_bias[number_of_chunk])
            low, high = band_of(d[start : start + rows], spacing, reach, centres)
            basis = space[: rows * (high - low)].reshape(rows, high - low)
            gaussians(d[start : start + rows], low, spacing, sharpness, basis)
            target = first_grad[number_of_chunk, low:]
            gemm(address, True, False, high - low, total, rows, basis, inputs, target, True)


@_compiled
def share_gradient_chunks(
    openmp: int, threads: int, arguments: Any, offsets: Any, rows: int
) -> None:
    """gradient_chunks on a team of threads, see `share`."""
    share(openmp, threads, _here.gradient_chunks, arguments, offsets, rows)
