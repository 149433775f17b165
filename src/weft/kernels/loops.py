"""The compiled loops behind the operators: plain Python, turned into machine code by numba.

Each computes the rows first:stop of its output and nothing else, so parts can run side by side
and the result does not depend on how they were cut; its `share_*` runs it on all threads. E edges,
N rows, F features, k a position in a CSR row; `order` maps k to an edge, or is None where edges are
stored in that order.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from weft.compiled import compiled
from weft.kernels.threads import share

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]

# Rows to be read this many edges ahead: rows come from all over memory and the hardware cannot
# guess them. Eight to sixteen hide most of the latency; the loss is flat around it.
_AHEAD = 12
# Floats that share a cache line of 64 bytes.
_LINE = 16

# Contraction to fused multiply-add is the only liberty taken: sums keep their order.
_compiled = compiled(fastmath={"contract"}, error_model="numpy")


@intrinsic
def prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask for the cache line of array[row, column]."""
    signature = types.void(array, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        strides = cgutils.unpack_tuple(builder, view.strides)
        byte_pointer, number = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        address = builder.ptrtoint(view.data, strides[0].type)
        for place, stride in zip(arguments[1:], strides, strict=True):
            address = builder.add(address, builder.mul(place, stride))
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number]),
            "llvm.prefetch.p0",
        )
        read, keep, data = number(0), number(3), number(1)
        builder.call(function, [builder.inttoptr(address, byte_pointer), read, keep, data])
        return context.get_dummy_value()

    return signature, generate


@_compiled
def spmm(
    x: Any,
    weight: Any,
    columns: Any,
    offsets: Any,
    order: Any,
    add: bool,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """out[r] = Σ weight[e] · x[columns[e]] over row r's edges e; weight None, [E] or [E, F].

    With `add` the sums are added to what `out` holds.
    """
    width = x.shape[1]
    last = columns.shape[0] - 1
    for row in range(first, stop):
        if not add:
            for f in range(width):
                out[row, f] = 0
        for k in range(offsets[row], offsets[row + 1]):
            ahead = min(k + _AHEAD, last)
            if order is None:
                edge = k
                ahead_column = columns[ahead]
            else:
                edge = order[k]
                ahead_column = columns[order[ahead]]
            for line in range(0, width, _LINE):
                prefetch(x, np.intp(ahead_column), np.intp(line))
            column = columns[edge]
            if weight is None:
                for f in range(width):
                    out[row, f] += x[column, f]
            elif weight.ndim == 1:
                scale = weight[edge]
                for f in range(width):
                    out[row, f] += scale * x[column, f]
            else:
                for f in range(width):
                    out[row, f] += weight[edge, f] * x[column, f]


@_compiled
def share_spmm(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """Spmm on a team of threads, see `share`."""
    share(openmp, threads, _here.spmm, arguments, offsets, rows)


@_compiled
def segment_sum(
    values: Any, offsets: Any, order: Any, mean: bool, out: Any, first: int, stop: int
) -> None:
    """out[r] = Σ (or mean) of the rows values[e] of segment r; 0 for an empty one."""
    width = values.shape[1]
    last = values.shape[0] - 1
    for row in range(first, stop):
        start, end = offsets[row], offsets[row + 1]
        for f in range(width):
            out[row, f] = 0
        for k in range(start, end):
            if order is None:
                edge = k
            else:
                edge = order[k]
                ahead = order[min(k + _AHEAD, last)]
                for line in range(0, width, _LINE):
                    prefetch(values, np.intp(ahead), np.intp(line))
            for f in range(width):
                out[row, f] += values[edge, f]
        if mean and end > start:
            for f in range(width):
                out[row, f] /= end - start


@_compiled
def share_segment_sum(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """segment_sum on a team of threads, see `share`."""
    share(openmp, threads, _here.segment_sum, arguments, offsets, rows)


@_compiled
def segment_max(
    values: Any, offsets: Any, order: Any, out: Any, winners: Any, first: int, stop: int
) -> None:
    """out[r] = largest value of segment r by feature, winners[r] its edge; 0 and -1 if empty.

    The first of equal values wins; a NaN wins over everything.
    """
    width = values.shape[1]
    for row in range(first, stop):
        start, end = offsets[row], offsets[row + 1]
        for f in range(width):
            out[row, f] = 0
            winners[row, f] = -1
        for k in range(start, end):
            edge = k if order is None else order[k]
            for f in range(width):
                value = values[edge, f]
                best = out[row, f]
                if k == start or value > best or (np.isnan(value) and not np.isnan(best)):
                    out[row, f] = value
                    winners[row, f] = edge


@_compiled
def share_segment_max(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """segment_max on a team of threads, see `share`."""
    share(openmp, threads, _here.segment_max, arguments, offsets, rows)


@_compiled
def gather_rows(x: Any, index: Any, out: Any, first: int, stop: int) -> None:
    """out[e] = x[index[e]]."""
    width = x.shape[1]
    last = index.shape[0] - 1
    for edge in range(first, stop):
        ahead = index[min(edge + _AHEAD, last)]
        for line in range(0, width, _LINE):
            prefetch(x, np.intp(ahead), np.intp(line))
        row = index[edge]
        for f in range(width):
            out[edge, f] = x[row, f]


@_compiled
def share_gather_rows(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """gather_rows on a team of threads, see `share`."""
    share(openmp, threads, _here.gather_rows, arguments, offsets, rows)


@_compiled
def edge_products(a: Any, b: Any, rows: Any, columns: Any, out: Any, first: int, stop: int) -> None:
    """out[e] = a[rows[e]] · b[columns[e]]: the dot product for out [E], by feature for [E, F]."""
    width = a.shape[1]
    last = columns.shape[0] - 1
    for edge in range(first, stop):
        ahead = columns[min(edge + _AHEAD, last)]
        for line in range(0, width, _LINE):
            prefetch(b, np.intp(ahead), np.intp(line))
        row, column = rows[edge], columns[edge]
        if out.ndim == 1:
            # Eight partial sums in a fixed order: vectors without giving up determinism.
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = a.dtype.type(0)
            whole = width - width % 8
            for f in range(0, whole, 8):
                s0 += a[row, f] * b[column, f]
                s1 += a[row, f + 1] * b[column, f + 1]
                s2 += a[row, f + 2] * b[column, f + 2]
                s3 += a[row, f + 3] * b[column, f + 3]
                s4 += a[row, f + 4] * b[column, f + 4]
                s5 += a[row, f + 5] * b[column, f + 5]
                s6 += a[row, f + 6] * b[column, f + 6]
                s7 += a[row, f + 7] * b[column, f + 7]
            total = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
            for f in range(whole, width):
                total += a[row, f] * b[column, f]
            out[edge] = total
        else:
            for f in range(width):
                out[edge, f] = a[row, f] * b[column, f]


@_compiled
def share_edge_products(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """edge_products on a team of threads, see `share`."""
    share(openmp, threads, _here.edge_products, arguments, offsets, rows)
