"""Vectors of a fixed width inside compiled loops: one block of samples as one value.

The compiler keeps such a value in registers for a whole inner loop, where a loop over an array
would load and store the sums again at each step. It cuts it into whatever vectors the processor
has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

# Eight registers of 32 bytes: enough sums in flight to hide a multiply-add's latency, and half of
# the registers stay free.
BYTES = 256
# Rows and columns that `turn` turns at a time; one register holds so many floats.
SQUARE = 8
# Contraction to fused multiply-add is the only liberty taken: sums keep their order.
_FUSED = ("contract",)


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


def _place(context: Any, builder: Any, kind: Any, values: Any, vector: Any) -> Any:
    """Pointer to the vector at array[row, column]."""
    view = context.make_array(kind)(context, builder, values[0])
    strides = cgutils.unpack_tuple(builder, view.strides)
    address = builder.ptrtoint(view.data, strides[0].type)
    address = builder.add(address, builder.mul(values[1], strides[0]))
    size = strides[0].type(kind.dtype.bitwidth // 8)
    address = builder.add(address, builder.mul(values[2], size))
    return builder.inttoptr(address, context.get_value_type(vector).as_pointer())


@intrinsic
def load(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """The vector at array[row, column:], whose columns have unit stride."""
    vector = _Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _place(context, builder, signature.args[0], values, vector)
        return builder.load(place, align=array.dtype.bitwidth // 8)

    return vector(array, types.intp, types.intp), generate


@intrinsic
def store(typing_context: Any, array: Any, row: Any, column: Any, vector: Any) -> Any:
    """array[row, column:] = vector."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _place(context, builder, signature.args[0], values, vector)
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

        def places(array: Any, position: int) -> list[Any]:
            view = context.make_array(array)(context, builder, values[position])
            stride = cgutils.unpack_tuple(builder, view.strides)[0]
            address = builder.ptrtoint(view.data, stride.type)
            address = builder.add(address, builder.mul(values[position + 1], stride))
            width = builder.mul(values[position + 2], stride.type(size))
            address = builder.add(address, width)
            found = []
            for _ in range(SQUARE):
                found.append(builder.inttoptr(address, kind.as_pointer()))
                address = builder.add(address, stride)
            return found

        lines = [builder.load(place, align=size) for place in places(x, 0)]
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
        for line, place in zip(lines, places(out, 3), strict=True):
            builder.store(line, place, align=size)
        return context.get_dummy_value()

    place = types.intp
    return types.void(x, place, place, out, place, place), generate
