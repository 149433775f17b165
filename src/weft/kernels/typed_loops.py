"""The compiled loops of `typed_messages`: gather a block of rows, multiply by its type's matrix.

N nodes, R rows (a type and a node each, by type), P types, H features, C chunks of rows of one
type. Gradients of the weights are summed by chunk first: how many threads there are then changes no
bit.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.compiled import compiled
from weft.kernels.blas import gemm
from weft.kernels.threads import share

_here = sys.modules[__name__]
_compiled = compiled(fastmath={"contract"}, error_model="numpy")

# Rows of a block: what is gathered and what it becomes fit into a second-level cache.
_BLOCK_ROWS = 256


@_compiled
def sum_rows(x: Any, columns: Any, offsets: Any, out: Any, first: int, stop: int) -> None:
    """out[r - first] = Σ x[columns[k]] over k in offsets[r]:offsets[r + 1], rows first:stop."""
    width = x.shape[1]
    for row in range(first, stop):
        low, high = offsets[row], offsets[row + 1]
        to = row - first
        if high - low == 1:
            column = columns[low]
            for f in range(width):
                out[to, f] = x[column, f]
            continue
        for f in range(width):
            out[to, f] = 0
        for k in range(low, high):
            column = columns[k]
            for f in range(width):
                out[to, f] += x[column, f]


@_compiled
def sum_part(x: Any, columns: Any, offsets: Any, out: Any, first: int, stop: int) -> None:
    """sum_rows into rows first:stop of the whole out."""
    sum_rows(x, columns, offsets, out[first:stop], first, stop)


@_compiled
def share_sum_rows(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """sum_part on a team of threads, see `share`."""
    share(openmp, threads, _here.sum_part, arguments, offsets, rows)


@_compiled
def forward_chunks(
    address: int,
    h: Any,
    weight: Any,
    bias: Any,
    columns: Any,
    offsets: Any,
    counts: Any,
    chunk_types: Any,
    chunk_starts: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of out [R, O] = (Σ h over the row's columns) @ weight[type] + count b."""
    width, outputs = weight.shape[1:]
    space = np.empty((_BLOCK_ROWS, width), dtype=h.dtype)
    for chunk in range(first, stop):
        kind, end = chunk_types[chunk], chunk_starts[chunk + 1]
        own = weight[kind]
        for start in range(chunk_starts[chunk], end, _BLOCK_ROWS):
            last = min(start + _BLOCK_ROWS, end)
            rows = last - start
            sum_rows(h, columns, offsets, space, start, last)
            result = out[start:last]
            gemm(address, False, False, rows, outputs, width, space, own, result, False)
            if bias is not None:
                for row in range(rows):
                    count = counts[start + row]
                    for f in range(outputs):
                        result[row, f] += count * bias[kind, f]


@_compiled
def share_forward_chunks(
    openmp: int, threads: int, arguments: Any, offsets: Any, rows: int
) -> None:
    """forward_chunks on a team of threads, see `share`."""
    share(openmp, threads, _here.forward_chunks, arguments, offsets, rows)


@_compiled
def backward_chunks(
    address: int,
    h: Any,
    weight: Any,
    grad: Any,
    columns: Any,
    offsets: Any,
    to_columns: Any,
    to_offsets: Any,
    counts: Any,
    chunk_types: Any,
    chunk_starts: Any,
    wanted: bool,
    grad_rows: Any,
    weight_grad: Any,
    bias_grad: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop: the gradient in the gathered rows [R, H], and [C, ...] in the weights.

    `to_columns`, `to_offsets` say which nodes' gradients [N, O] come back to a row. There is no
    gradient in the rows unless it is `wanted`.
    """
    width, outputs = weight.shape[1:]
    gathered = np.empty((_BLOCK_ROWS, width), dtype=h.dtype)
    slopes = np.empty((_BLOCK_ROWS, outputs), dtype=h.dtype)
    for chunk in range(first, stop):
        kind, end = chunk_types[chunk], chunk_starts[chunk + 1]
        own, target = weight[kind], weight_grad[chunk]
        begin = chunk_starts[chunk]
        for start in range(begin, end, _BLOCK_ROWS):
            last = min(start + _BLOCK_ROWS, end)
            rows = last - start
            sum_rows(h, columns, offsets, gathered, start, last)
            sum_rows(grad, to_columns, to_offsets, slopes, start, last)
            if wanted:
                result = grad_rows[start:last]
                gemm(address, False, True, rows, width, outputs, slopes, own, result, False)
            more = start > begin
            gemm(address, True, False, width, outputs, rows, gathered, slopes, target, more)
            if bias_grad is not None:
                for row in range(rows):
                    count = counts[start + row]
                    for f in range(outputs):
                        bias_grad[chunk, f] += count * slopes[row, f]


@_compiled
def share_backward_chunks(
    openmp: int, threads: int, arguments: Any, offsets: Any, rows: int
) -> None:
    """backward_chunks on a team of threads, see `share`."""
    share(openmp, threads, _here.backward_chunks, arguments, offsets, rows)
