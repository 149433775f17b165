"""The compiled loops of `sparse_linear`: chains of matrices of few weights times blocks of samples.

A block of samples is copied into the cache feature by feature, so that the weight of one input
meets a whole vector of samples, and goes through all layers of a chain there. B samples, S of them
in a block; I inputs, O outputs, K weights of a layer in CSR order; `order` maps a position in CSC
order to one in CSR order.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba import carray

from weft.kernels.online_loops import sum_at
from weft.kernels.sample_vectors import (
    LINE,
    SQUARE,
    add,
    add_to,
    address_as,
    dot,
    drop_negative,
    four_dots,
    load,
    multiply_add,
    put_line,
    spread,
    store,
    turn,
    zeros,
)
from weft.runtime import WORTH_SHARING, kernel, share_rows, shared_rows

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]

# Cache lines of a feature in a block. Four: enough sums in flight to hide a multiply-add's latency,
# few enough that two blocks of 1,024 features fit into a second-level cache. One: for few samples.
WIDE, NARROW = 4, 1
# Gradients summed at a time.
_RUN = 1024

# Columns of the table int64 [layers, 9] that describes a chain. Addresses are of contiguous arrays;
# that of no bias is 0. Gradients are written by the backward pass alone.
OUTPUTS, INPUTS, COUNT, RELU, VALUES, BIAS, PATTERN, VALUES_GRAD, BIAS_GRAD = range(9)


@kernel
def _numbers(address: int, count: int, like: Any) -> Any:
    """The array at an address, of the dtype of another."""
    return carray(address_as(address, like.dtype.type(0)), (count,))


@kernel
def _pattern(layer: Any) -> Any:
    """All of a layer's `Pattern`."""
    size = 3 * layer[COUNT] + layer[OUTPUTS] + layer[INPUTS] + 2
    return carray(address_as(layer[PATTERN], np.int32(0)), (size,))


@kernel
def _by_columns(layer: Any) -> Any:
    """Rows and offsets of a layer's columns, and the order of its weights by columns."""
    pattern = _pattern(layer)[layer[COUNT] + layer[OUTPUTS] + 1 :]
    starts = layer[COUNT] + layer[INPUTS] + 1
    return pattern[: layer[COUNT]], pattern[layer[COUNT] : starts], pattern[starts:]


@kernel
def _lined_up(rows: int, width: int, like: Any) -> Any:
    """An array [rows, width] of the dtype of another, from the start of a cache line on."""
    slack = LINE // like.itemsize
    space = np.empty(rows * width + slack, dtype=like.dtype)
    first = (-space.ctypes.data % LINE) // like.itemsize
    return space[first : first + rows * width].reshape((rows, width))


@kernel
def _fill(x: Any, by_feature: bool, start: int, block: Any) -> None:
    """block [F, S] = the S samples of x from `start`; zeros where there are no more.

    x is [F, B] if `by_feature`, else [B, F].
    """
    features, size = block.shape
    if by_feature:
        count = min(size, x.shape[1] - start)
        if count * x.itemsize == WIDE * LINE:
            for f in range(features):
                store(block, f, 0, load(x, f, start, zeros(x, WIDE)))
        else:
            for f in range(features):
                for s in range(count):
                    block[f, s] = x[f, start + s]
    else:
        count = min(size, x.shape[0] - start)
        whole, high = count - count % SQUARE, features - features % SQUARE
        for f in range(0, high, SQUARE):
            for s in range(0, whole, SQUARE):
                turn(x, start + s, f, block, f, s)
        for s in range(count):
            done = 0
            if s < whole:
                done = high
            for f in range(done, features):
                block[f, s] = x[start + s, f]
    _clear(block, count)


@kernel
def _clear(block: Any, count: int) -> None:
    """Zeros for the samples from `count` on, or what was made of nothing might be no number."""
    if count < block.shape[1]:
        for f in range(block.shape[0]):
            for s in range(count, block.shape[1]):
                block[f, s] = 0


@kernel
def _spill(block: Any, by_feature: bool, start: int, out: Any) -> None:
    """The samples of `out` from `start` = those of block [F, S], as many as there are."""
    features, size = block.shape
    if by_feature:
        count = min(size, out.shape[1] - start)
        if count * out.itemsize == WIDE * LINE:
            for f in range(features):
                store(out, f, start, load(block, f, 0, zeros(out, WIDE)))
        else:
            for f in range(features):
                for s in range(count):
                    out[f, start + s] = block[f, s]
    else:
        count = min(size, out.shape[0] - start)
        whole, high = count - count % SQUARE, features - features % SQUARE
        for s in range(0, whole, SQUARE):
            for f in range(0, high, SQUARE):
                turn(block, f, s, out, start + s, f)
        for s in range(count):
            done = 0
            if s < whole:
                done = high
            for f in range(done, features):
                out[start + s, f] = block[f, s]


# -- Forward ---------------------------------------------------------------------------------------


@kernel
def _rows(layer: Any, block: Any, to: Any, first: int, stop: int, zero: Any) -> None:
    """Rows first:stop of to [O, S] = W block + bias, for blocks as wide as the vector `zero`."""
    values, pattern = _numbers(layer[VALUES], layer[COUNT], block), _pattern(layer)
    columns, offsets = pattern[: layer[COUNT]], pattern[layer[COUNT] :]
    bias = _numbers(layer[BIAS], layer[OUTPUTS], block)
    has_bias, relu = layer[BIAS] != 0, layer[RELU] != 0
    for row in range(first, stop):
        sums = zero
        if has_bias:
            sums = spread(bias[row], zero)
        # Unsigned: a negative index would be counted from the end, at a cost.
        for k in range(np.uintp(offsets[row]), np.uintp(offsets[row + 1])):
            sums = multiply_add(sums, values[k], load(block, np.intp(columns[k]), 0, zero))
        if relu:
            sums = drop_negative(sums, sums)
        store(to, row, 0, sums)


@kernel
def _narrow_rows(layer: Any, block: Any, to: Any, first: int, stop: int, zero: Any) -> None:
    """`_rows` for blocks so narrow that a sum has to be cut to hide a multiply-add's latency."""
    values, pattern = _numbers(layer[VALUES], layer[COUNT], block), _pattern(layer)
    columns, offsets = pattern[: layer[COUNT]], pattern[layer[COUNT] :]
    bias = _numbers(layer[BIAS], layer[OUTPUTS], block)
    has_bias, relu = layer[BIAS] != 0, layer[RELU] != 0
    for row in range(first, stop):
        begin, end = np.uintp(offsets[row]), np.uintp(offsets[row + 1])
        sums = sum_at(values, columns, begin, end, block, zero)
        if has_bias:
            sums = add(sums, spread(bias[row], sums))
        if relu:
            sums = drop_negative(sums, sums)
        put_line(to, row, sums)


@kernel
def _some_rows(layer: Any, block: Any, to: Any, first: int, stop: int) -> None:
    """Rows first:stop of to [O, S] = the layer's output for block [I, S]."""
    if block.shape[1] * block.itemsize == WIDE * LINE:
        _rows(layer, block, to, first, stop, zeros(block, WIDE))
    else:
        _narrow_rows(layer, block, to, first, stop, zeros(block, NARROW))


@shared_rows
@kernel
def _forward_blocks(
    layers: Any,
    x: Any,
    by_feature: bool,
    hidden: Any,
    out: Any,
    out_by_feature: bool,
    first: int,
    stop: int,
) -> None:
    """Blocks first:stop of samples through all layers."""
    size, last = hidden.shape[2], layers.shape[0] - 1
    given = _lined_up(layers[0, INPUTS], size, x)
    made = _lined_up(layers[last, OUTPUTS], size, x)
    # What need not be kept stays in the cache.
    passing = _lined_up(hidden.shape[1], size, x)
    samples = x.shape[1] if by_feature else x.shape[0]
    for number in range(first, stop):
        start = number * size
        _fill(x, by_feature, start, given)
        own = passing
        if number < hidden.shape[0]:
            own = hidden[number]
        block, top = given, 0
        for step in range(layers.shape[0]):
            layer, to = layers[step], made
            if step < last:
                to = own[top : top + layer[OUTPUTS]]
                top += layer[OUTPUTS]
            _some_rows(layer, block, to, 0, layer[OUTPUTS])
            _clear(to, samples - start)
            block = to
        _spill(made, out_by_feature, start, out)


@shared_rows
@kernel
def _layer_rows(layer: Any, blocks: Any, to: Any, first: int, stop: int) -> None:
    """Rows first:stop of a layer's output for some blocks [N, I, S] of samples."""
    for number in range(blocks.shape[0]):
        _some_rows(layer, blocks[number], to[number], first, stop)


@kernel
def forward(
    pool: int,
    threads: int,
    layers: Any,
    x: Any,
    by_feature: bool,
    hidden: Any,
    out: Any,
    out_by_feature: bool,
    by_rows: bool,
) -> None:
    """out = the chain's output for x; both [F, B] by feature, else [B, F].

    Hidden layers' outputs are kept in hidden [N, H, S], block by block, where it has a block. With
    `by_rows` threads share a layer's rows, for blocks too few to share.
    """
    samples = x.shape[1] if by_feature else x.shape[0]
    size = hidden.shape[2]
    count = (samples + size - 1) // size
    if not by_rows:
        arguments = (layers, x, by_feature, hidden, out, out_by_feature)
        share_rows(pool, threads, _here._forward_blocks, arguments, None, count)
        return
    inputs = layers[0, INPUTS]
    blocks = _lined_up(count * inputs, size, x).reshape((count, inputs, size))
    for number in range(count):
        _fill(x, by_feature, number * size, blocks[number])
    for step in range(layers.shape[0]):
        layer = layers[step]
        to = _lined_up(count * layer[OUTPUTS], size, x).reshape((count, layer[OUTPUTS], size))
        # To wake a thread costs more than a small layer.
        own = threads if count * size * layer[COUNT] >= WORTH_SHARING else 1
        share_rows(pool, own, _here._layer_rows, (layer, blocks, to), None, layer[OUTPUTS])
        _clear(to[count - 1], samples - (count - 1) * size)
        blocks = to
    for number in range(count):
        _spill(blocks[number], out_by_feature, number * size, out)


# -- Backward --------------------------------------------------------------------------------------


@kernel
def _bias_gradient(above: Any, part: Any, start: int, zero: Any) -> None:
    """part[0, start:] += the sums of the rows of above [O, S]."""
    ones = spread(above.dtype.type(1), zero)
    rows = above.shape[0]
    high = rows - rows % 4
    for row in range(0, high, 4):
        a, b = load(above, row, 0, zero), load(above, row + 1, 0, zero)
        c, d = load(above, row + 2, 0, zero), load(above, row + 3, 0, zero)
        add_to(part, 0, start + row, four_dots(ones, a, b, c, d))
    for row in range(high, rows):
        part[0, start + row] += dot(ones, load(above, row, 0, zero))


@kernel
def _layer_back(
    layer: Any,
    values: Any,
    inside: Any,
    above: Any,
    below: Any,
    wanted: bool,
    active: bool,
    part: Any,
    start: int,
    zero: Any,
) -> None:
    """Gradients of a block: below [I, S] in inputs inside [I, S], of above [O, S] in the outputs.

    below is made if `wanted`, and is 0 where inside is not above 0 if `active`. Those in the
    weights, in CSC order as `values`, are added to part[0, start:].
    """
    rows, offsets, _ = _by_columns(layer)
    for column in range(layer[INPUTS]):
        own = load(inside, column, 0, zero)
        # Unsigned: a negative index would be counted from the end, at a cost.
        begin, end = np.uintp(offsets[column]), np.uintp(offsets[column + 1])
        high = end - (end - begin) % np.uintp(4)
        sums = zero
        if wanted:
            for k in range(begin, high, np.uintp(4)):
                a = load(above, np.intp(rows[k]), 0, zero)
                b = load(above, np.intp(rows[k + np.uintp(1)]), 0, zero)
                c = load(above, np.intp(rows[k + np.uintp(2)]), 0, zero)
                d = load(above, np.intp(rows[k + np.uintp(3)]), 0, zero)
                sums = multiply_add(sums, values[k], a)
                sums = multiply_add(sums, values[k + np.uintp(1)], b)
                sums = multiply_add(sums, values[k + np.uintp(2)], c)
                sums = multiply_add(sums, values[k + np.uintp(3)], d)
                add_to(part, 0, start + np.intp(k), four_dots(own, a, b, c, d))
        else:
            for k in range(begin, high, np.uintp(4)):
                a = load(above, np.intp(rows[k]), 0, zero)
                b = load(above, np.intp(rows[k + np.uintp(1)]), 0, zero)
                c = load(above, np.intp(rows[k + np.uintp(2)]), 0, zero)
                d = load(above, np.intp(rows[k + np.uintp(3)]), 0, zero)
                add_to(part, 0, start + np.intp(k), four_dots(own, a, b, c, d))
        for k in range(high, end):
            given = load(above, np.intp(rows[k]), 0, zero)
            sums = multiply_add(sums, values[k], given)
            part[0, start + np.intp(k)] += dot(own, given)
        if wanted:
            if active:
                sums = drop_negative(sums, own)
            store(below, column, 0, sums)


@kernel
def _chain_back(
    layers: Any,
    turned: Any,
    grads: Any,
    given: Any,
    hidden: Any,
    wanted: bool,
    part: Any,
    zero: Any,
) -> int:
    """Gradients of a block, from grads[0] in the last layer's outputs to that in x.

    Returns:
        Which of `grads` has the gradient in x, if it is `wanted`.
    """
    bias, weights, top = part.shape[1], turned.shape[0], hidden.shape[0]
    turn_of = 0
    for step in range(layers.shape[0] - 1, -1, -1):
        layer = layers[step]
        above, below = grads[turn_of], grads[1 - turn_of]
        bias -= layer[OUTPUTS]
        _bias_gradient(above[: layer[OUTPUTS]], part, bias, zero)
        inside, active = given, False
        if step:
            inside = hidden[top - layer[INPUTS] : top]
            active = layers[step - 1, RELU] != 0
            top -= layer[INPUTS]
        weights -= layer[COUNT]
        values = turned[weights : weights + layer[COUNT]]
        below_wanted = wanted or step > 0
        _layer_back(layer, values, inside, above, below, below_wanted, active, part, weights, zero)
        turn_of = 1 - turn_of
    return turn_of


@kernel
def _backward_chunks(
    layers: Any,
    turned: Any,
    x: Any,
    x_by_feature: bool,
    grad: Any,
    grad_by_feature: bool,
    made: Any,
    made_by_feature: bool,
    hidden: Any,
    chunk: int,
    wanted: bool,
    grad_x: Any,
    grad_x_by_feature: bool,
    parts: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop, of `chunk` blocks each, of all gradients."""
    size, last = hidden.shape[2], layers.shape[0] - 1
    widest = layers[0, INPUTS]
    for step in range(layers.shape[0]):
        widest = max(widest, layers[step, OUTPUTS])
    given = _lined_up(layers[0, INPUTS], size, x)
    space = _lined_up(2 * widest, size, x).reshape((2, widest, size))
    samples = x.shape[1] if x_by_feature else x.shape[0]
    for number in range(first, stop):
        part = parts[number : number + 1]
        for k in range(parts.shape[1]):
            part[0, k] = 0
        final = min((number + 1) * chunk * size, samples)
        for start in range(number * chunk * size, final, size):
            _fill(x, x_by_feature, start, given)
            top = space[0, : layers[last, OUTPUTS]]
            _fill(grad, grad_by_feature, start, top)
            if made is not None:
                output = space[1, : layers[last, OUTPUTS]]
                _fill(made, made_by_feature, start, output)
                for row in range(top.shape[0]):
                    for s in range(size):
                        if output[row, s] <= 0:
                            top[row, s] = 0
            own = hidden[0]
            if last:
                own = hidden[start // size]
            if size * x.itemsize == WIDE * LINE:
                zero = zeros(x, WIDE)
                found = _chain_back(layers, turned, space, given, own, wanted, part, zero)
            else:
                line = zeros(x, NARROW)
                found = _chain_back(layers, turned, space, given, own, wanted, part, line)
            if wanted:
                _spill(space[found, : layers[0, INPUTS]], grad_x_by_feature, start, grad_x)


@shared_rows
@kernel
def _turn_values(layers: Any, turned: Any, first: int, stop: int) -> None:
    """Numbers first:stop of the weights of all layers in CSC order."""
    start = 0
    for step in range(layers.shape[0]):
        layer = layers[step]
        values = _numbers(layer[VALUES], layer[COUNT], turned)
        _, _, order = _by_columns(layer)
        begin, end = max(first - start, 0), min(stop - start, layer[COUNT])
        for k in range(begin, end):
            turned[start + k] = values[np.uintp(order[k])]
        start += layer[COUNT]


@shared_rows
@kernel
def sum_chunks(layers: Any, parts: Any, first: int, stop: int) -> None:
    """Σ parts[:, k] for k in first:stop, into the gradients of the weights and biases."""
    sums = np.zeros(_RUN, dtype=parts.dtype)
    for half in range(2):
        begin = 0
        if half:
            begin = np.intp(layers[:, COUNT].sum())
        for step in range(layers.shape[0]):
            layer = layers[step]
            count, address = layer[COUNT], layer[VALUES_GRAD]
            if half:
                count, address = layer[OUTPUTS], layer[BIAS_GRAD]
            out = _numbers(address, count, parts)
            _, _, order = _by_columns(layer)
            low, high = max(first, begin), min(stop, begin + count)
            for start in range(low, high, _RUN):
                few = min(_RUN, high - start)
                # By chunks and not by weights: the sums are then vectors.
                for s in range(few):
                    sums[s] = parts[0, start + s]
                for number in range(1, parts.shape[0]):
                    for s in range(few):
                        sums[s] += parts[number, start + s]
                for s in range(few):
                    k = start - begin + s
                    if half:
                        out[k] = sums[s]
                    else:
                        out[np.uintp(order[k])] = sums[s]
            begin += count


@kernel
def backward(
    pool: int,
    threads: int,
    sum_threads: int,
    layers: Any,
    given: Any,
    hidden: Any,
    chunk: int,
    chunks: int,
    wanted: bool,
    grad_x: Any,
    grad_x_by_feature: bool,
) -> None:
    """All gradients of a chain in one call, which costs as much as a small layer's loop.

    `given` are x, the gradient in the output and, if the last layer has a relu, the output, each
    with whether it is stored by feature. hidden [N, H, S] is as the forward pass kept it; grad_x is
    written if `wanted`.
    """
    weights, biases = np.intp(layers[:, COUNT].sum()), np.intp(layers[:, OUTPUTS].sum())
    turned = np.empty(weights, dtype=hidden.dtype)
    share_rows(pool, sum_threads, _here._turn_values, (layers, turned), None, weights)
    # At least one chunk, so that there is a sum.
    parts = np.empty((max(1, chunks), weights + biases), dtype=hidden.dtype)
    if chunks == 0:
        parts[0] = 0
    out = (wanted, grad_x, grad_x_by_feature)
    arguments = (layers, turned, *given, hidden, chunk, *out, parts)
    share_rows(pool, threads, _here._backward_chunks, arguments, None, chunks)
    share_rows(pool, sum_threads, _here.sum_chunks, (layers, parts), None, weights + biases)


# -- Sparse inputs ---------------------------------------------------------------------------------


@shared_rows
@kernel
def few_inputs(
    x_values: Any,
    x_columns: Any,
    x_offsets: Any,
    values: Any,
    by_columns: Any,
    bias: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Samples first:stop of out [B, O] = W x + bias, x as CSR [B, I]; `values` in CSC order."""
    rows, column_offsets = by_columns[: values.shape[0]], by_columns[values.shape[0] :]
    for sample in range(first, stop):
        for row in range(out.shape[1]):
            if bias is None:
                out[sample, row] = 0
            else:
                out[sample, row] = bias[row]
        for place in range(x_offsets[sample], x_offsets[sample + 1]):
            given, column = x_values[place], np.uintp(x_columns[place])
            for k in range(np.uintp(column_offsets[column]), np.uintp(column_offsets[column + 1])):
                out[sample, np.uintp(rows[k])] += given * values[k]


@shared_rows
@kernel
def few_inputs_backward(
    x_values: Any,
    x_columns: Any,
    x_offsets: Any,
    grad: Any,
    by_columns: Any,
    chunk: int,
    parts: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop, of `chunk` samples each, of `parts` as in `backward_chunks`."""
    kept = parts.shape[1] - grad.shape[1]
    rows, column_offsets = by_columns[:kept], by_columns[kept:]
    for number in range(first, stop):
        for k in range(parts.shape[1]):
            parts[number, k] = 0
        for sample in range(number * chunk, min((number + 1) * chunk, grad.shape[0])):
            for row in range(grad.shape[1]):
                parts[number, kept + row] += grad[sample, row]
            for place in range(x_offsets[sample], x_offsets[sample + 1]):
                given, column = x_values[place], np.uintp(x_columns[place])
                begin, end = column_offsets[column], column_offsets[column + 1]
                for k in range(np.uintp(begin), np.uintp(end)):
                    parts[number, k] += given * grad[sample, np.uintp(rows[k])]
