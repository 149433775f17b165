"""The compiled loops of `readout`: blocks of nodes through both layers, in one thread's cache.

N nodes, G graphs, H features, M hidden ones, C chunks of nodes. What graphs sum of their nodes is
so little that one thread does it. Gradients of the weights are summed by chunk first, and the
chunks depend on N alone: how many threads there are then changes no bit.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.compiled import compiled
from weft.kernels.blas import add_rows, gemm
from weft.kernels.filter_loops import add_and_activate, turn_by_slope
from weft.kernels.interaction_loops import BLOCK_ROWS, sum_chunks
from weft.kernels.threads import share

_here = sys.modules[__name__]
_compiled = compiled(fastmath={"contract"}, error_model="numpy")


@_compiled
def value_chunks(
    address: int,
    h: Any,
    weight: Any,
    bias: Any,
    second: Any,
    second_bias: Any,
    chunk: int,
    inner: Any,
    values: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the activations inner [N, M] and the nodes' values [N, 1]."""
    hidden, width = weight.shape
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            given, active = h[start:last], inner[start:last]
            gemm(address, False, True, last - start, hidden, width, given, weight, active, False)
            add_and_activate(active, bias, True)
            own = values[start:last]
            gemm(address, False, True, last - start, 1, hidden, active, second, own, False)
            add_and_activate(own, second_bias, False)


@_compiled
def forward(
    openmp: int,
    threads: int,
    address: int,
    h: Any,
    weight: Any,
    bias: Any,
    second: Any,
    second_bias: Any,
    offsets: Any,
    mean: bool,
    chunk: int,
    inner: Any,
    out: Any,
) -> None:
    """The activations inner [N, M] and the graphs' values out [G]."""
    nodes = h.shape[0]
    values = np.empty((nodes, 1), dtype=h.dtype)
    arguments = (address, h, weight, bias, second, second_bias, chunk, inner, values)
    share(openmp, threads, _here.value_chunks, arguments, None, -(-nodes // chunk))
    for graph in range(out.shape[0]):
        first, stop = offsets[graph], offsets[graph + 1]
        total = h.dtype.type(0)
        for node in range(first, stop):
            total += values[node, 0]
        out[graph] = total / h.dtype.type(max(stop - first, 1)) if mean else total


@_compiled
def slope_chunks(
    address: int,
    slopes: Any,
    h: Any,
    weight: Any,
    second: Any,
    inner: Any,
    chunk: int,
    grad_h: Any,
    weight_grad: Any,
    second_grad: Any,
    bias_grad: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the gradients in h and of the weights', of slopes [N, 1] in the values.

    The weights' are [C, ...], a row a chunk; so is bias_grad [C, 1, M], or None.
    """
    hidden, width = weight.shape
    space = np.empty((BLOCK_ROWS, hidden), dtype=h.dtype)
    for number in range(first, stop):
        if bias_grad is not None:
            bias_grad[number] = 0
        begin = number * chunk
        end = min(begin + chunk, h.shape[0])
        for start in range(begin, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            before, active, more = space[:rows], inner[start:last], start > begin
            slope, own = slopes[start:last], second_grad[number]
            gemm(address, True, False, 1, hidden, rows, slope, active, own, more)
            gemm(address, False, False, rows, hidden, 1, slope, second, before, False)
            turn_by_slope(active, before)
            given, result, target = h[start:last], grad_h[start:last], weight_grad[number]
            gemm(address, False, False, rows, width, hidden, before, weight, result, False)
            gemm(address, True, False, hidden, width, rows, before, given, target, more)
            if bias_grad is not None:
                add_rows(before, bias_grad[number, 0])


@_compiled
def backward(
    openmp: int,
    threads: int,
    address: int,
    grad: Any,
    h: Any,
    weight: Any,
    second: Any,
    offsets: Any,
    mean: bool,
    inner: Any,
    chunk: int,
    grad_h: Any,
    grad_weight: Any,
    grad_bias: Any,
    grad_second: Any,
    grad_second_bias: Any,
) -> None:
    """All gradients, of grad [G]; `inner` [N, M] is of the forward pass.

    Those in the biases, grad_bias [M] and grad_second_bias [1], are None without.
    """
    nodes = h.shape[0]
    hidden, width = weight.shape
    chunks = -(-nodes // chunk)
    # A node that is in no graph has no slope.
    slopes = np.zeros((nodes, 1), dtype=h.dtype)
    total = h.dtype.type(0)
    for graph in range(grad.shape[0]):
        first, stop = offsets[graph], offsets[graph + 1]
        slope = grad[graph] / h.dtype.type(max(stop - first, 1)) if mean else grad[graph]
        for node in range(first, stop):
            slopes[node, 0] = slope
            total += slope
    of_weight = np.empty((chunks, hidden, width), dtype=h.dtype)
    of_second = np.empty((chunks, 1, hidden), dtype=h.dtype)
    of_bias = None if grad_bias is None else np.empty((chunks, 1, hidden), dtype=h.dtype)
    given = (address, slopes, h, weight, second, inner, chunk)
    arguments = (*given, grad_h, of_weight, of_second, of_bias)
    share(openmp, threads, _here.slope_chunks, arguments, None, chunks)
    sum_chunks(of_weight, grad_weight)
    sum_chunks(of_second, grad_second)
    if grad_bias is not None:
        sum_chunks(of_bias, grad_bias.reshape(1, hidden))
    if grad_second_bias is not None:
        grad_second_bias[0] = total
