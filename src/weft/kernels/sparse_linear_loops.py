"""The compiled loops of `sparse_linear`: a matrix of few weights times a block of samples.

A block of samples is copied into the cache feature by feature, so that the weight of one input
meets a whole vector of samples. B samples, I inputs, O outputs, K weights in CSR order; `order`
maps a position in CSC order to one in CSR order.

A block of samples is one value, a vector of a fixed width: the compiler keeps it in registers for a
whole inner loop, where a loop over an array would load and store the sums again at each step. It
cuts it into whatever vectors the processor has.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from weft.runtime import kernel, share_rows, shared_rows

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]

# Eight registers of 32 bytes: enough sums in flight to hide a multiply-add's latency, and half of
# the registers stay free.
BYTES = 256
# Rows and columns that `turn` turns at a time; one register holds so many floats.
SQUARE = 8
# Contraction to fused multiply-add is the only liberty taken: sums keep their order.
_FUSED = ("contract",)
# Gradients summed at a time.
_RUN = 1024


class _Vector(types.Type):  # type: ignore[misc]
    """BYTES bytes of numbers of one dtype."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.width = BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"weft.Vector({dtype})")


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: Any) -> None:
        real = ir.FloatType() if vector.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, vector, ir.VectorType(real, vector.width))


def _places(
    context: Any, builder: Any, kind: Any, values: Any, vector: Any, rows: int = 1
) -> list[Any]:
    """Pointers to the vectors at array[row, column] and in the rows after it.

    `values` are the array, row and column.
    """
    view = context.make_array(kind)(context, builder, values[0])
    stride = cgutils.unpack_tuple(builder, view.strides)[0]
    address = builder.ptrtoint(view.data, stride.type)
    address = builder.add(address, builder.mul(values[1], stride))
    size = stride.type(kind.dtype.bitwidth // 8)
    address = builder.add(address, builder.mul(values[2], size))
    found = []
    for _ in range(rows):
        found.append(builder.inttoptr(address, vector.as_pointer()))
        address = builder.add(address, stride)
    return found


@intrinsic
def load(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """The vector at array[row, column:], whose columns have unit stride."""
    vector = _Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(vector)
        (place,) = _places(context, builder, signature.args[0], values, kind)
        return builder.load(place, align=array.dtype.bitwidth // 8)

    return vector(array, types.intp, types.intp), generate


@intrinsic
def store(typing_context: Any, array: Any, row: Any, column: Any, vector: Any) -> Any:
    """array[row, column:] = vector."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(vector)
        (place,) = _places(context, builder, signature.args[0], values, kind)
        builder.store(values[3], place, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), generate


def _spread(builder: Any, scalar: Any, kind: Any) -> Any:
    number = ir.IntType(32)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, number(0))
    zeros = ir.Constant(ir.VectorType(number, kind.count), [0] * kind.count)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)


@intrinsic
def spread(typing_context: Any, scalar: Any) -> Any:
    """The vector whose numbers are all `scalar`."""
    vector = _Vector(scalar)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _spread(builder, values[0], context.get_value_type(vector))

    return vector(scalar), generate


@intrinsic
def multiply_add(typing_context: Any, vector: Any, scalar: Any, other: Any) -> Any:
    """vector + scalar · other."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        factor = _spread(builder, values[1], values[0].type)
        product = builder.fmul(factor, values[2], flags=_FUSED)
        return builder.fadd(values[0], product, flags=_FUSED)

    return vector(vector, vector.dtype, vector), generate


@intrinsic
def dot(typing_context: Any, a: Any, b: Any) -> Any:
    """Σ a · b, summed by halves."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        product = builder.fmul(values[0], values[1], flags=_FUSED)
        while product.type.count > 1:
            half = product.type.count // 2
            kind = ir.VectorType(ir.IntType(32), half)
            parts = [
                builder.shuffle_vector(
                    product,
                    ir.Constant(product.type, ir.Undefined),
                    ir.Constant(kind, list(range(start, start + half))),
                )
                for start in (0, half)
            ]
            product = builder.fadd(*parts, flags=_FUSED)
        return builder.extract_element(product, ir.IntType(32)(0))

    return a.dtype(a, b), generate


@intrinsic
def drop_negative(typing_context: Any, vector: Any, sign: Any) -> Any:
    """`vector`, but 0 where `sign` is 0 or below; as in torch, what is not a number stays."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        zeros = ir.Constant(values[0].type, [0.0] * values[0].type.count)
        return builder.select(builder.fcmp_ordered("<=", values[1], zeros), zeros, values[0])

    return vector(vector, sign), generate


@intrinsic
def turn(
    typing_context: Any, x: Any, row: Any, column: Any, out: Any, out_row: Any, out_column: Any
) -> Any:
    """out[out_row + j, out_column + i] = x[row + i, column + j], for a square."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.VectorType(
            ir.FloatType() if x.dtype == types.float32 else ir.DoubleType(), SQUARE
        )
        size = x.dtype.bitwidth // 8

        read = _places(context, builder, x, values[:3], kind, SQUARE)
        lines = [builder.load(place, align=size) for place in read]
        half = SQUARE // 2
        # To interleave the first half of the lines with the second, three times, turns a square
        # of eight.
        for _ in range(half.bit_length()):
            mixed = []
            for one, other in zip(lines[:half], lines[half:], strict=True):
                for start in (0, half):
                    pairs = [i + part for i in range(start, start + half) for part in (0, SQUARE)]
                    mask = ir.Constant(ir.VectorType(ir.IntType(32), SQUARE), pairs)
                    mixed.append(builder.shuffle_vector(one, other, mask))
            lines = mixed
        written = _places(context, builder, out, values[3:], kind, SQUARE)
        for line, place in zip(lines, written, strict=True):
            builder.store(line, place, align=size)
        return context.get_dummy_value()

    place = types.intp
    return types.void(x, place, place, out, place, place), generate


@kernel
def _fill(x: Any, by_feature: bool, start: int, block: Any) -> None:
    """block [F, S] = the S samples of x from `start`; zeros where there are no more.

    x is [F, B] if `by_feature`, else [B, F].
    """
    features, size = block.shape
    if by_feature:
        count = min(size, x.shape[1] - start)
        if count == size:
            for f in range(features):
                store(block, f, 0, load(x, f, start))
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
    if count < size:
        for f in range(features):
            for s in range(count, size):
                block[f, s] = 0


@shared_rows
@kernel
def forward_blocks(
    x: Any,
    by_feature: bool,
    values: Any,
    pattern: Any,
    bias: Any,
    relu: bool,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Blocks first:stop of samples of out [O, B] = W x + bias; `pattern` as in `pattern_of`.

    With `relu` what is below 0 becomes 0.
    """
    size = BYTES // values.itemsize
    inputs = x.shape[1]
    if by_feature:
        inputs = x.shape[0]
    columns = pattern[: values.shape[0]]
    offsets = pattern[values.shape[0] :]
    block = np.empty((inputs, size), dtype=values.dtype)
    line = np.empty((1, size), dtype=values.dtype)
    for number in range(first, stop):
        start = number * size
        count = min(size, out.shape[1] - start)
        # To copy pays if an input is read more than a few times.
        copied = not by_feature or count < size or values.shape[0] > 3 * inputs
        if copied:
            _fill(x, by_feature, start, block)
        for row in range(out.shape[0]):
            own = values.dtype.type(0)
            if bias is not None:
                own = bias[row]
            sums = spread(own)
            begin, end = np.uintp(offsets[row]), np.uintp(offsets[row + 1])
            if copied:
                for k in range(begin, end):
                    sums = multiply_add(sums, values[k], load(block, np.intp(columns[k]), 0))
            else:
                for k in range(begin, end):
                    sums = multiply_add(sums, values[k], load(x, np.intp(columns[k]), start))
            if relu:
                sums = drop_negative(sums, sums)
            if count == size:
                store(out, row, start, sums)
            else:
                store(line, 0, 0, sums)
                for s in range(count):
                    out[row, start + s] = line[0, s]


@kernel
def _keep_active(made: Any, start: int, count: int, block: Any) -> None:
    """block [O, S] becomes 0 where made [O, B] is 0 or below."""
    size = block.shape[1]
    if count == size:
        for row in range(block.shape[0]):
            store(block, row, 0, drop_negative(load(block, row, 0), load(made, row, start)))
    else:
        for row in range(block.shape[0]):
            for s in range(count):
                if made[row, start + s] <= 0:
                    block[row, s] = 0


@kernel
def backward_chunks(
    x: Any,
    x_by_feature: bool,
    grad: Any,
    grad_by_feature: bool,
    made: Any,
    values: Any,
    by_columns: Any,
    wanted: bool,
    chunk: int,
    grad_x: Any,
    parts: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop, of `chunk` blocks each, of the three gradients.

    made [O, B] is the output if what was below 0 was made 0 there, else None.
    `values` are in CSC order; by_columns is the second half of the pattern; grad_x [I, B] is
    written if `wanted`; parts [C, K + O] are the gradients in the weights, in CSC order, and in
    the bias.
    """
    size = BYTES // values.itemsize
    kept = values.shape[0]
    inputs, outputs = by_columns.shape[0] - 2 * kept - 1, parts.shape[1] - kept
    rows, column_offsets = by_columns[:kept], by_columns[kept:]
    inside = np.empty((inputs, size), dtype=values.dtype)
    above = np.empty((outputs, size), dtype=values.dtype)
    line = np.empty((1, size), dtype=values.dtype)
    ones = spread(values.dtype.type(1))
    samples = grad_x.shape[1]
    for number in range(first, stop):
        for k in range(parts.shape[1]):
            parts[number, k] = 0
        last = min((number + 1) * chunk * size, samples)
        for start in range(number * chunk * size, last, size):
            count = min(size, samples - start)
            # The inputs are read one after the other: to copy them saves nothing.
            copied = not x_by_feature or count < size
            if copied:
                _fill(x, x_by_feature, start, inside)
            _fill(grad, grad_by_feature, start, above)
            if made is not None:
                _keep_active(made, start, count, above)
            for row in range(outputs):
                parts[number, kept + row] += dot(load(above, row, 0), ones)
            for column in range(inputs):
                # Unsigned: a negative index would be counted from the end, at a cost.
                begin = np.uintp(column_offsets[column])
                end = np.uintp(column_offsets[column + 1])
                own = load(inside, column, 0)
                if not copied:
                    own = load(x, column, start)
                if wanted:
                    sums = spread(values.dtype.type(0))
                    for k in range(begin, end):
                        given = load(above, np.intp(rows[k]), 0)
                        sums = multiply_add(sums, values[k], given)
                        parts[number, k] += dot(own, given)
                    if count == size:
                        store(grad_x, column, start, sums)
                    else:
                        store(line, 0, 0, sums)
                        for s in range(count):
                            grad_x[column, start + s] = line[0, s]
                else:
                    for k in range(begin, end):
                        given = load(above, np.intp(rows[k]), 0)
                        parts[number, k] += dot(own, given)


@shared_rows
@kernel
def sum_chunks(parts: Any, order: Any, values: Any, bias: Any, first: int, stop: int) -> None:
    """Σ parts[:, k] for k in first:stop, into values[order[k]] or after these into `bias`."""
    kept = order.shape[0]
    sums = np.zeros(_RUN, dtype=parts.dtype)
    for start in range(first, stop, _RUN):
        count = min(_RUN, stop - start)
        # By chunks and not by weights: the sums are then vectors.
        for s in range(count):
            sums[s] = parts[0, start + s]
        for number in range(1, parts.shape[0]):
            for s in range(count):
                sums[s] += parts[number, start + s]
        for s in range(count):
            k = start + s
            if k < kept:
                values[order[k]] = sums[s]
            else:
                bias[k - kept] = sums[s]


@kernel
def backward(
    pool: int,
    threads: int,
    sum_threads: int,
    given: Any,
    values: Any,
    by_columns: Any,
    wanted: bool,
    chunk: int,
    chunks: int,
    grad_x: Any,
    grad_values: Any,
    grad_bias: Any,
) -> None:
    """All three gradients in one call, which costs as much as a small layer's loop.

    `given` are the first arguments of `backward_chunks`, up to `made`; values [K] and grad_values
    are in CSR order.
    """
    kept = values.shape[0]
    order = by_columns[by_columns.shape[0] - kept :]
    turned = np.empty_like(values)
    for k in range(kept):
        turned[k] = values[order[k]]
    # At least one chunk, so that there is a sum.
    parts = np.empty((max(1, chunks), kept + grad_bias.shape[0]), dtype=values.dtype)
    if chunks == 0:
        parts[0] = 0
    arguments = (*given, turned, by_columns, wanted, chunk, grad_x, parts)
    share_rows(pool, threads, _here.backward_chunks, arguments, None, chunks)
    sums = (parts, order, grad_values, grad_bias)
    share_rows(pool, sum_threads, _here.sum_chunks, sums, None, parts.shape[1])


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
