"""The compiled loops of `interaction`: blocks of nodes through all layers, in one thread's cache.

N nodes, P pairs of edges, H features, F filters, C chunks of nodes. Gradients of the weights are
summed by chunk first, and the chunks depend on N alone: how many threads there are then changes no
bit.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.compiled import compiled
from weft.kernels import pairs
from weft.kernels.blas import add_rows, gemm
from weft.kernels.filter_loops import add_and_activate, turn_by_slope
from weft.kernels.pairs import spmm_rows
from weft.kernels.threads import share

_here = sys.modules[__name__]
_compiled = compiled(fastmath={"contract"}, error_model="numpy")

# Rows of a block: with 64 features, what a block is at any time stays in a first-level cache.
BLOCK_ROWS = 64


# A chunk sums the gradients of the weights for itself: enough of them to share, not to fill memory.
_CHUNKS = 16
_CHUNK_ROWS = 32


def chunk_of(nodes: int) -> int:
    """Rows of a chunk."""
    return max(_CHUNK_ROWS, -(-nodes // _CHUNKS))


@_compiled
def _over_edges(x: Any, offsets: Any, start: int) -> None:
    """x[i] becomes x[i] / (edges of row start + i), where there are any."""
    for i in range(x.shape[0]):
        edges = max(offsets[start + i + 1] - offsets[start + i], 1)
        factor = x.dtype.type(1) / x.dtype.type(edges)
        for j in range(x.shape[1]):
            x[i, j] *= factor


@_compiled
def message_chunks(
    address: int, h: Any, weight: Any, chunk: int, messages: Any, first: int, stop: int
) -> None:
    """Chunks first:stop of messages [N, F] = h [N, H] @ weightᵀ [F, H]."""
    width, filters = h.shape[1], weight.shape[0]
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            given, made = h[start:last], messages[start:last]
            gemm(address, False, True, last - start, filters, width, given, weight, made, False)


@_compiled
def update_chunks(
    address: int,
    h: Any,
    messages: Any,
    weight: Any,
    of_edge: Any,
    columns: Any,
    offsets: Any,
    order: Any,
    mean: bool,
    update: Any,
    update_bias: Any,
    out: Any,
    out_bias: Any,
    chunk: int,
    sums: Any,
    inner: Any,
    result: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the sums or means [N, F], the activations and the result [N, H]."""
    width, filters = h.shape[1], weight.shape[1]
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            spmm_rows(messages, weight, of_edge, columns, offsets, order, sums, start, last)
            own, active, new = sums[start:last], inner[start:last], result[start:last]
            if mean:
                _over_edges(own, offsets, start)
            gemm(address, False, True, rows, width, filters, own, update, active, False)
            add_and_activate(active, update_bias, True)
            new[:] = h[start:last]
            gemm(address, False, True, rows, width, width, active, out, new, True)
            add_and_activate(new, out_bias, False)


@_compiled
def forward(
    openmp: int,
    threads: int,
    address: int,
    h: Any,
    weight: Any,
    topology: Any,
    mean: bool,
    message: Any,
    update: Any,
    update_bias: Any,
    out: Any,
    out_bias: Any,
    chunk: int,
    messages: Any,
    sums: Any,
    inner: Any,
    result: Any,
) -> None:
    """The whole interaction; topology as `EdgePairs.arrays`."""
    _, columns, offsets, order, _, _, _, _, of_edge = topology
    chunks = -(-h.shape[0] // chunk)
    arguments = (address, h, message, chunk, messages)
    share(openmp, threads, _here.message_chunks, arguments, None, chunks)
    edges = (of_edge, columns, offsets, order)
    layers = (mean, update, update_bias, out, out_bias)
    others = (address, h, messages, weight, *edges, *layers, chunk, sums, inner, result)
    share(openmp, threads, _here.update_chunks, others, None, chunks)


@_compiled
def slope_chunks(
    address: int,
    grad: Any,
    inner: Any,
    sums: Any,
    offsets: Any,
    mean: bool,
    update: Any,
    out: Any,
    chunk: int,
    slopes: Any,
    update_grad: Any,
    out_grad: Any,
    biases: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the gradient slopes [N, F] in the sums, and of the weights'.

    The weights' are [C, ...], a row a chunk; so are biases [2, C, H], or None.
    """
    width, filters = grad.shape[1], update.shape[1]
    space = np.empty((BLOCK_ROWS, width), dtype=grad.dtype)
    for number in range(first, stop):
        if biases is not None:
            biases[:, number] = 0
        begin = number * chunk
        end = min(begin + chunk, grad.shape[0])
        for start in range(begin, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            given, active, before = grad[start:last], inner[start:last], space[:rows]
            own, slope = sums[start:last], slopes[start:last]
            gemm(address, False, False, rows, width, width, given, out, before, False)
            turn_by_slope(active, before)
            gemm(address, False, False, rows, filters, width, before, update, slope, False)
            if mean:
                _over_edges(slope, offsets, start)
            more = start > begin
            of_out, of_update = out_grad[number], update_grad[number]
            gemm(address, True, False, width, width, rows, given, active, of_out, more)
            gemm(address, True, False, width, filters, rows, before, own, of_update, more)
            if biases is not None:
                add_rows(before, biases[0, number])
                add_rows(given, biases[1, number])


@_compiled
def sender_chunks(
    address: int,
    grad: Any,
    h: Any,
    slopes: Any,
    weight: Any,
    of_edge: Any,
    rows: Any,
    offsets: Any,
    order: Any,
    message: Any,
    chunk: int,
    messages: Any,
    grad_h: Any,
    message_grad: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the gradients in the messages [N, F], in h and in `message`."""
    width, filters = h.shape[1], weight.shape[1]
    for number in range(first, stop):
        begin = number * chunk
        end = min(begin + chunk, h.shape[0])
        for start in range(begin, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            count = last - start
            spmm_rows(slopes, weight, of_edge, rows, offsets, order, messages, start, last)
            own, state, before = messages[start:last], h[start:last], grad_h[start:last]
            before[:] = grad[start:last]
            gemm(address, False, False, count, width, filters, own, message, before, True)
            of_message, more = message_grad[number], start > begin
            gemm(address, True, False, filters, width, count, own, state, of_message, more)


@_compiled
def sum_chunks(parts: Any, sums: Any) -> None:
    """sums = Σ parts[c], in the order of the chunks."""
    sums[:] = 0
    for number in range(parts.shape[0]):
        part = parts[number]
        for i in range(sums.shape[0]):
            for j in range(sums.shape[1]):
                sums[i, j] += part[i, j]


@_compiled
def backward(
    openmp: int,
    threads: int,
    address: int,
    grad: Any,
    h: Any,
    weight: Any,
    topology: Any,
    mean: bool,
    message: Any,
    update: Any,
    out: Any,
    saved: Any,
    chunk: int,
    grad_h: Any,
    grad_weight: Any,
    grad_message: Any,
    grad_update: Any,
    grad_out: Any,
    biases: Any,
) -> None:
    """All gradients.

    `saved` are messages [N, F], sums or means [N, F] and activations [N, H] of the forward pass.
    grad_weight [P, F] is None if it is not wanted; biases [2, C, H], the gradients by chunk in
    those of `update` and `out`, are None without.
    """
    rows, columns, in_offsets, _, offsets, order, one_way, other_way, of_edge = topology
    messages, sums, inner = saved
    nodes, width = h.shape
    filters = weight.shape[1]
    chunks = -(-nodes // chunk)
    slopes = np.empty((nodes, filters), dtype=h.dtype)
    senders = np.empty((nodes, filters), dtype=h.dtype)
    of_message = np.empty((chunks, filters, width), dtype=h.dtype)
    of_update = np.empty((chunks, width, filters), dtype=h.dtype)
    of_out = np.empty((chunks, width, width), dtype=h.dtype)
    given = (address, grad, inner, sums, in_offsets, mean, update, out, chunk)
    arguments = (*given, slopes, of_update, of_out, biases)
    share(openmp, threads, _here.slope_chunks, arguments, None, chunks)
    edges = (of_edge, rows, offsets, order)
    made = (senders, grad_h, of_message)
    others = (address, grad, h, slopes, weight, *edges, message, chunk, *made)
    share(openmp, threads, _here.sender_chunks, others, None, chunks)
    if grad_weight is not None:
        ends = (slopes, messages, rows, columns, one_way, other_way, grad_weight)
        share(openmp, threads, pairs.product_rows, ends, None, grad_weight.shape[0])
    sum_chunks(of_message, grad_message)
    sum_chunks(of_update, grad_update)
    sum_chunks(of_out, grad_out)
