"""Vectors of samples as values of compiled loops, which the compiler keeps in registers.

A loop over an array would load and store its sums again at each step. The compiler cuts a vector
into whatever vectors the processor has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

LINE = 64
"""Bytes of a cache line."""
SQUARE = 8
"""Rows and columns that `turn` turns at a time."""
# Contraction to fused multiply-add is the only liberty taken: sums keep their order.
_FUSED = ("contract",)
_INDEX = ir.IntType(32)


class _Vector(types.Type):  # type: ignore[misc]
    """So many numbers of one dtype."""

    def __init__(self, dtype: Any, width: int) -> None:
        self.dtype = dtype
        self.width = width
        super().__init__(name=f"weft.Vector({dtype}, {width})")


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: Any) -> None:
        super().__init__(manager, vector, ir.VectorType(_real(vector.dtype), vector.width))


def _real(dtype: Any) -> Any:
    return ir.FloatType() if dtype == types.float32 else ir.DoubleType()


def _lanes(dtype: Any) -> int:
    """Numbers in a cache line."""
    return LINE * 8 // int(dtype.bitwidth)


def _mask(indices: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_INDEX, len(indices)), indices)


def _part(builder: Any, vector: Any, start: int, count: int) -> Any:
    undefined = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(vector, undefined, _mask(list(range(start, start + count))))


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


def _spread(builder: Any, scalar: Any, kind: Any) -> Any:
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, _INDEX(0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), _mask([0] * kind.count))


@intrinsic(prefer_literal=True)
def zeros(typing_context: Any, array: Any, lines: Any) -> Any:
    """A vector of as many cache lines, a constant, of zeros of an array's dtype."""
    if not isinstance(lines, types.IntegerLiteral):
        raise TypingError("the size of a vector must be a constant")
    vector = _Vector(array.dtype, lines.literal_value * _lanes(array.dtype))

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(vector)
        return ir.Constant(kind, [0.0] * vector.width)

    return vector(array, lines), generate


@intrinsic
def few(typing_context: Any, array: Any, lanes: Any) -> Any:
    """A vector of zeros of an array's dtype, as many as the tuple `lanes` is long."""
    vector = _Vector(array.dtype, len(lanes))

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return ir.Constant(context.get_value_type(vector), [0.0] * vector.width)

    return vector(array, lanes), generate


@intrinsic
def spread(typing_context: Any, scalar: Any, like: Any) -> Any:
    """The vector as long as `like` whose numbers are all `scalar`."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _spread(builder, values[0], context.get_value_type(like))

    return like(like.dtype, like), generate


@intrinsic
def load(typing_context: Any, array: Any, row: Any, column: Any, like: Any) -> Any:
    """The vector as long as `like` at array[row, column:], whose columns have unit stride."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(like)
        (place,) = _places(context, builder, signature.args[0], values, kind)
        return builder.load(place, align=array.dtype.bitwidth // 8)

    return like(array, types.intp, types.intp, like), generate


def _row(context: Any, builder: Any, block: Any, given: Any, row: Any, kind: Any) -> Any:
    """The pointer to a row of a C-contiguous block [N, width]: no stride is multiplied with."""
    data = context.make_array(block)(context, builder, given).data
    number = builder.zext(row, ir.IntType(64)) if row.type.width < 64 else row
    return builder.gep(builder.bitcast(data, kind.as_pointer()), [number])


def _is_block(block: Any) -> bool:
    return bool(block.layout == "C" and block.ndim == 2)


@intrinsic
def line_of(typing_context: Any, block: Any, row: Any, like: Any) -> Any:
    """block[row], of a C-contiguous block [N, width] as wide as the vector `like`."""
    if not _is_block(block):
        raise TypingError("a block must be C-contiguous")

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(like)
        place = _row(context, builder, block, values[0], values[1], kind)
        return builder.load(place, align=block.dtype.bitwidth // 8)

    return like(block, row, like), generate


@intrinsic
def put_line(typing_context: Any, block: Any, row: Any, vector: Any) -> Any:
    """block[row] = vector, see `line_of`."""
    if not _is_block(block):
        raise TypingError("a block must be C-contiguous")

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(vector)
        place = _row(context, builder, block, values[0], values[1], kind)
        builder.store(values[2], place, align=block.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(block, row, vector), generate


@intrinsic
def store(typing_context: Any, array: Any, row: Any, column: Any, vector: Any) -> Any:
    """array[row, column:] = vector."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(vector)
        (place,) = _places(context, builder, signature.args[0], values, kind)
        builder.store(values[3], place, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), generate


@intrinsic
def multiply_add(typing_context: Any, vector: Any, scalar: Any, other: Any) -> Any:
    """vector + scalar · other."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        factor = _spread(builder, values[1], values[0].type)
        product = builder.fmul(factor, values[2], flags=_FUSED)
        return builder.fadd(values[0], product, flags=_FUSED)

    return vector(vector, vector.dtype, vector), generate


def _folded_product(builder: Any, one: Any, other: Any, lanes: int) -> Any:
    """one · other, its cache lines summed to one."""
    sums, lanes = None, min(lanes, one.type.count)
    for start in range(0, one.type.count, lanes):
        parts = (_part(builder, value, start, lanes) for value in (one, other))
        product = builder.fmul(*parts, flags=_FUSED)
        sums = product if sums is None else builder.fadd(sums, product, flags=_FUSED)
    return sums


def _halved(builder: Any, sums: Any, count: int) -> Any:
    """The sums of a vector's numbers that are a multiple of `count` apart, by halves."""
    while sums.type.count > count:
        half = sums.type.count // 2
        parts = (_part(builder, sums, start, half) for start in (0, half))
        sums = builder.fadd(*parts, flags=_FUSED)
    return sums


@intrinsic
def dot(typing_context: Any, a: Any, b: Any) -> Any:
    """Σ a · b."""
    lanes = _lanes(a.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        one, other = values
        sums = _halved(builder, _folded_product(builder, one, other, lanes), 1)
        return builder.extract_element(sums, _INDEX(0))

    return a.dtype(a, b), generate


@intrinsic
def four_dots(typing_context: Any, own: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Σ own · a, Σ own · b, Σ own · c and Σ own · d as a vector: fewer steps than one by one."""
    lanes = _lanes(own.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        lines = [_folded_product(builder, values[0], each, lanes) for each in values[1:]]
        apart = 1
        # Two vectors become one: numbers that are `apart` in either are added.
        while len(lines) > 1:
            halves = []
            for one, other in zip(lines[::2], lines[1::2], strict=True):
                second = [bool(lane & apart) for lane in range(lanes)]
                kept = [lane + lanes * side for lane, side in enumerate(second)]
                swapped = [(lane ^ apart) + lanes * side for lane, side in enumerate(second)]
                parts = (builder.shuffle_vector(one, other, _mask(m)) for m in (kept, swapped))
                halves.append(builder.fadd(*parts, flags=_FUSED))
            lines, apart = halves, 2 * apart
        return _halved(builder, lines[0], 4)

    return _Vector(own.dtype, 4)(own, a, b, c, d), generate


@intrinsic
def add_to(typing_context: Any, array: Any, row: Any, column: Any, vector: Any) -> Any:
    """array[row, column:] += vector."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind, size = context.get_value_type(vector), array.dtype.bitwidth // 8
        (place,) = _places(context, builder, signature.args[0], values, kind)
        sums = builder.fadd(builder.load(place, align=size), values[3], flags=_FUSED)
        builder.store(sums, place, align=size)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), generate


@intrinsic
def drop_negative(typing_context: Any, vector: Any, sign: Any) -> Any:
    """`vector`, but 0 where `sign` is 0 or below; as in torch, what is not a number stays."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        nothing = ir.Constant(values[0].type, [0.0] * values[0].type.count)
        return builder.select(builder.fcmp_ordered("<=", values[1], nothing), nothing, values[0])

    return vector(vector, sign), generate


@intrinsic
def turn(
    typing_context: Any, x: Any, row: Any, column: Any, out: Any, out_row: Any, out_column: Any
) -> Any:
    """out[out_row + j, out_column + i] = x[row + i, column + j], for a square."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.VectorType(_real(x.dtype), SQUARE)
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
                    mixed.append(builder.shuffle_vector(one, other, _mask(pairs)))
            lines = mixed
        written = _places(context, builder, out, values[3:], kind, SQUARE)
        for line, place in zip(lines, written, strict=True):
            builder.store(line, place, align=size)
        return context.get_dummy_value()

    place = types.intp
    return types.void(x, place, place, out, place, place), generate


@intrinsic
def products_at(
    typing_context: Any, sums: Any, values: Any, x: Any, columns: Any, start: Any
) -> Any:
    """sums + values[start + i] · x[columns[start + i]], for as many i as there are sums.

    The numbers of x are read one by one, which is faster than an instruction that gathers them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, begin = context.get_value_type(sums), arguments[4]
        weights, numbers, places = (
            context.make_array(array)(context, builder, given).data
            for array, given in zip((values, x, columns), arguments[1:4], strict=True)
        )
        own = builder.bitcast(builder.gep(weights, [begin]), kind.as_pointer())
        given: Any = ir.Constant(kind, ir.Undefined)
        for lane in range(sums.width):
            place = builder.gep(places, [builder.add(begin, begin.type(lane))])
            column = builder.zext(builder.load(place), begin.type)
            number = builder.load(builder.gep(numbers, [column]))
            given = builder.insert_element(given, number, _INDEX(lane))
        factors = builder.load(own, align=sums.dtype.bitwidth // 8)
        product = builder.fmul(factors, given, flags=_FUSED)
        return builder.fadd(arguments[0], product, flags=_FUSED)

    return sums(sums, values, x, columns, types.uintp), generate


@intrinsic
def add(typing_context: Any, vector: Any, other: Any) -> Any:
    """vector + other."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fadd(*values, flags=_FUSED)

    return vector(vector, vector), generate


@intrinsic
def total(typing_context: Any, vector: Any) -> Any:
    """The sum of a vector's numbers, by halves."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.extract_element(_halved(builder, values[0], 1), _INDEX(0))

    return vector.dtype(vector), generate


@intrinsic
def address_as(typing_context: Any, address: Any, number: Any) -> Any:
    """The address as a pointer to numbers of the type of `number`."""
    pointer = types.CPointer(number)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(pointer))

    return pointer(types.intp, number), generate
