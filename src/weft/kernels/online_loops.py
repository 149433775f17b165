"""The compiled loops of `online`: a chain of sparse layers for at most 16 samples.

The samples are the lanes of a vector, for which a weight is read once; for a single sample the
lanes are weights. B samples, I inputs, O outputs, K weights of a layer in CSR order.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba import carray

from weft.kernels.sample_vectors import (
    add,
    address_as,
    drop_negative,
    few,
    line_of,
    multiply_add,
    products_at,
    put_line,
    spread,
    total,
)
from weft.runtime import WORTH_SHARING, compiled, kernel, share_rows, shared_rows

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]

MOST_SAMPLES = 16
"""More of them are faster in blocks of the size of the cache, see `sparse_linear`."""
LANES = [(0,) * next(w for w in (1, 4, 8, 16) if w >= count) for count in range(MOST_SAMPLES + 1)]
"""By the number of samples: a tuple as long as their vector, a length known when compiled."""

# Columns of the table int64 [layers, 8] that describes a chain. Addresses are of contiguous arrays:
# that of no bias is 0; columns are uint16 [K], offsets int32 [O + 1].
OUTPUTS, INPUTS, COUNT, RELU, VALUES, BIAS, COLUMNS, OFFSETS = range(8)

_inlined = compiled(fastmath={"contract"}, error_model="numpy", forceinline=True)


@_inlined
def sum_at(values: Any, columns: Any, begin: Any, end: Any, block: Any, zero: Any) -> Any:
    """Σ values[k] block[columns[k]] for k in begin:end, as the vector `zero`.

    block is [I, width]; begin and end are unsigned. Four sums side by side hide the latency of a
    multiply-add.
    """
    a, b, c, d = zero, zero, zero, zero
    # Unsigned: a negative index would be counted from the end, at a cost.
    one, two, three, four = np.uintp(1), np.uintp(2), np.uintp(3), np.uintp(4)
    high = end - (end - begin) % four
    for k in range(begin, high, four):
        a = multiply_add(a, values[k], line_of(block, columns[k], zero))
        b = multiply_add(b, values[k + one], line_of(block, columns[k + one], zero))
        c = multiply_add(c, values[k + two], line_of(block, columns[k + two], zero))
        d = multiply_add(d, values[k + three], line_of(block, columns[k + three], zero))
    for k in range(high, end):
        a = multiply_add(a, values[k], line_of(block, columns[k], zero))
    return add(add(a, b), add(c, d))


@_inlined
def sum_of_one(values: Any, columns: Any, begin: Any, end: Any, x: Any) -> Any:
    """Σ values[k] x[columns[k]] for k in begin:end; x [I]."""
    a = few(values, (0, 0, 0, 0))
    b = a
    four, eight = np.uintp(4), np.uintp(8)
    high = end - (end - begin) % eight
    for k in range(begin, high, eight):
        a = products_at(a, values, x, columns, k)
        b = products_at(b, values, x, columns, k + four)
    if end - high >= four:
        a = products_at(a, values, x, columns, high)
        high += four
    sums = total(add(a, b))
    for k in range(high, end):
        sums += values[k] * x[np.uintp(columns[k])]
    return sums


@_inlined
def row_at(
    values: Any, columns: Any, begin: Any, end: Any, block: Any, flat: Any, lanes: Any
) -> Any:
    """`sum_at` as the vector of as many samples as the tuple `lanes` is long; flat is block [I]."""
    zero = few(block, lanes)
    if len(lanes) == 1:
        return spread(sum_of_one(values, columns, begin, end, flat), zero)
    return sum_at(values, columns, begin, end, block, zero)


@kernel
def block_of(x: Any, by_feature: bool, block: Any) -> None:
    """block [F, width] = the samples of x, [F, B] if `by_feature`, else [B, F]; 0 after them."""
    features, width = block.shape
    if by_feature:
        samples = x.shape[1]
        for f in range(features):
            for s in range(samples):
                block[f, s] = x[f, s]
    else:
        samples = x.shape[0]
        for f in range(features):
            for s in range(samples):
                block[f, s] = x[s, f]
    if samples < width:
        for f in range(features):
            for s in range(samples, width):
                block[f, s] = 0


@shared_rows
@kernel
def _some_shares(
    layer: Any, block: Any, to: Any, lanes: Any, shares: int, first: int, stop: int
) -> None:
    """Of equal shares of the rows of to [O, width], a layer's output for block [I, width], some.

    As many shares as threads: the first thread to come is nearly always the same, and its weights
    are then those that its cache has from the call before.
    """
    count = layer[COUNT]
    number = block.dtype.type(0)
    values = carray(address_as(layer[VALUES], number), (count,))
    bias = carray(address_as(layer[BIAS], number), (layer[OUTPUTS],))
    columns = carray(address_as(layer[COLUMNS], np.uint16(0)), (count,))
    offsets = carray(address_as(layer[OFFSETS], np.int32(0)), (layer[OUTPUTS] + 1,))
    has_bias, relu = layer[BIAS] != 0, layer[RELU] != 0
    flat = block.reshape(block.size)
    outputs = layer[OUTPUTS]
    for row in range(outputs * first // shares, outputs * stop // shares):
        begin, end = np.uintp(offsets[row]), np.uintp(offsets[row + 1])
        sums = row_at(values, columns, begin, end, block, flat, lanes)
        if has_bias:
            sums = add(sums, spread(bias[row], sums))
        if relu:
            sums = drop_negative(sums, sums)
        put_line(to, row, sums)


@kernel
def forward(
    pool: int,
    threads: int,
    layers: Any,
    like: Any,
    x_address: int,
    x_by_feature: bool,
    samples: int,
    lanes: Any,
    out_address: int,
    out_by_feature: bool,
) -> None:
    """The chain's output for x, at these addresses: [F, B] by feature, else [B, F]."""
    number, width = like.dtype.type(0), len(lanes)
    inputs, outputs = layers[0, INPUTS], layers[layers.shape[0] - 1, OUTPUTS]
    rows = inputs
    for step in range(layers.shape[0]):
        rows += layers[step, OUTPUTS]
    space = np.empty((rows, width), dtype=like.dtype)
    block = space[:inputs]
    size = (inputs, samples) if x_by_feature else (samples, inputs)
    block_of(carray(address_as(x_address, number), size), x_by_feature, block)
    top = inputs
    for step in range(layers.shape[0]):
        layer = layers[step]
        to = space[top : top + layer[OUTPUTS]]
        top += layer[OUTPUTS]
        # To wake a thread costs more than a small layer.
        own = threads if samples * layer[COUNT] >= WORTH_SHARING else 1
        share_rows(pool, own, _here._some_shares, (layer, block, to, lanes, own), None, own)
        block = to
    out = carray(address_as(out_address, number), (samples * outputs,))
    for row in range(outputs):
        for s in range(samples):
            out[row * samples + s if out_by_feature else s * outputs + row] = block[row, s]
