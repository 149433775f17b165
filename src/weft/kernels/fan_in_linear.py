"""A linear layer whose outputs have k inputs each, for a few samples: online inference, training.

B samples (at most 16), I inputs, O outputs, k weights of each output, K = O k. Weights and their
columns are matrices [O, k] then: no offsets are read, and four outputs are summed side by side,
which hides the latency of their sums. Samples are the lanes of a vector.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import sys
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model
from torch import Tensor
from torch.nn import functional

from weft.checked_indices import check_range
from weft.kernels.custom_op import array_of, have_one_loop, is_plain, operator, require
from weft.runtime import POOL, kernel, share_rows, shared_rows, threads_for

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]

MOST_SAMPLES = 16
"""More of them are faster in blocks of the size of the cache, see `sparse_linear`."""
# Contraction to fused multiply-add is the only liberty taken: sums keep their order.
_FUSED = ("contract",)
# Rows are cut into so many parts for the gradient in the inputs, which each sums for itself. Their
# number does not depend on the threads, so that these change no bit.
_PARTS = 4
# Tuples as long as a vector for so many samples: their lengths are constants when compiled.
_LANES = [(0,) * next(w for w in (1, 8, 16) if w >= count) for count in range(MOST_SAMPLES + 1)]


def fan_in_linear(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    columns: Tensor,
    outputs: int,
    relu: bool = False,
) -> Tensor:
    """x Wᵀ + bias [B, O], with strides (1, B) on the CPU.

    Args:
        x: [B, I], B at most 16 for the compiled loops.
        values: [K], the weights by rows.
        bias: [O], or None.
        columns: int32 [K], their inputs, each at most once in a row.
        outputs: O.
        relu: give 0 for what is below 0.
    """
    _check_shapes(x, values, bias, columns, outputs)
    fast = x.shape[0] <= MOST_SAMPLES and have_one_loop(x, values, bias)
    # What is exported runs elsewhere, where these loops are not.
    if not fast or torch.compiler.is_exporting():
        out = functional.linear(x, _dense(values, columns, outputs, x.shape[1]), bias)
        return out.relu() if relu else out
    made: Tensor = _fan_in_linear(x, values, bias, columns, outputs, relu)
    return made


class FanInRows:
    """A layer's weights made ready for passes without gradients, which then cost microseconds less.

    The arrays are of the tensors' own memory, so that a step of an optimizer is seen.

    Args:
        values: [K], contiguous; see `fan_in_linear`, also for the others.
        bias: [O], or None.
        columns: int32 [K]; they are copied.
        outputs: O.
        inputs: I.

    Raises:
        ValueError: they do not fit together.
    """

    def __init__(
        self, values: Tensor, bias: Tensor | None, columns: Tensor, outputs: int, inputs: int
    ) -> None:
        x = values.new_empty(0, inputs)
        _check_shapes(x, values, bias, columns, outputs)
        _require(x, values, columns, bias)
        self._inputs, self._dtype = inputs, values.dtype
        # Half of what is read are columns: the narrower, the better.
        narrow = np.uint16 if inputs <= 2**16 else np.int32
        self._arrays = (
            _rows_of(values, outputs),
            _rows_of(columns, outputs).astype(narrow),
            array_of(values.new_zeros(outputs) if bias is None else bias),
        )

    def __call__(self, x: Tensor, relu: bool) -> Tensor | None:
        """The output [B, O] of x [B, I]; None where the loops do not take it, as more samples."""
        samples = x.shape[0]
        right = x.ndim == 2 and x.shape[1] == self._inputs and x.dtype == self._dtype and x.is_cpu
        if not (right and 0 < samples <= MOST_SAMPLES and is_plain(x)):
            return None
        values, columns, bias = self._arrays
        out = torch.empty(bias.shape[0], samples, dtype=self._dtype)
        _forward(
            POOL,
            threads_for(values.size * samples),
            *_laid_out(x),
            values,
            columns,
            bias,
            relu,
            _LANES[samples],
            out.numpy(),
        )
        return out.t()


def _check_shapes(
    x: Tensor, values: Tensor, bias: Tensor | None, columns: Tensor, outputs: int
) -> None:
    right = x.ndim == 2 and values.ndim == 1 and columns.shape == values.shape
    right = right and outputs > 0 and values.shape[0] % outputs == 0
    if not (right and (bias is None or bias.shape == (outputs,))):
        needed = f"x [B, I], values and columns of {outputs} outputs and a bias of each needed"
        require(False, needed, x, values, columns, bias)


def _dense(values: Tensor, columns: Tensor, outputs: int, inputs: int) -> Tensor:
    """The weight [O, I]."""
    zeros = values.new_zeros(outputs, inputs)
    return zeros.scatter(1, columns.view(outputs, -1).long(), values.view(outputs, -1))


def _laid_out(x: Tensor) -> tuple[Any, bool]:
    """The array of x [B, F], transposed if it is stored feature by feature, and whether it is."""
    turned = x.t()
    by_feature = turned.is_contiguous()
    return array_of(turned if by_feature else x), by_feature


def _rows_of(tensor: Tensor, outputs: int) -> Any:
    """The array [O, k] of a tensor [K]."""
    return array_of(tensor).reshape(outputs, tensor.shape[0] // outputs)


def _require(x: Tensor, values: Tensor, columns: Tensor, *others: Tensor | None) -> None:
    """Refuse what the loops cannot follow."""
    right = have_one_loop(x, values, *others) and x.shape[0] <= MOST_SAMPLES
    right = right and columns.dtype == torch.int32 and columns.is_contiguous()
    if not right:
        needed = f"up to {MOST_SAMPLES} samples of one dtype and int32 columns needed"
        require(False, needed, x, values, columns, *others)
    check_range(columns, x.shape[1])


@operator(
    "weft::fan_in_linear",
    lambda x, values, bias, columns, outputs, relu: x.new_empty(outputs, x.shape[0]).t(),
)
def _fan_in_linear(
    x: Tensor, values: Tensor, bias: Tensor | None, columns: Tensor, outputs: int, relu: bool
) -> Tensor:
    _check_shapes(x, values, bias, columns, outputs)
    _require(x, values, columns, bias)
    samples = x.shape[0]
    # Not the transpose of another tensor: autograd lets nobody change such a view in place.
    out = x.new_empty_strided((samples, outputs), (1, max(1, samples)))
    if samples:
        _forward(
            POOL,
            threads_for(values.numel() * samples),
            *_laid_out(x),
            _rows_of(values, outputs),
            _rows_of(columns, outputs),
            # One kind of loop for all: each kind is compiled for seconds.
            array_of(values.new_zeros(outputs) if bias is None else bias),
            relu,
            _LANES[samples],
            out.t().numpy(),
        )
    return out


@_fan_in_linear.derivative(
    lambda ctx, inputs, out: (*inputs[:2], inputs[3], out if inputs[5] else None)
)
def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, values, columns, made = ctx.saved_tensors
    if made is not None:
        grad = grad.masked_fill(made <= 0, 0)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # The gradient is itself to be differentiated.
        grad_x = grad @ _dense(values, columns, grad.shape[1], x.shape[1])
        places = columns.view(grad.shape[1], -1).long()
        grad_values = (grad.t() @ x).gather(1, places).flatten()
    else:
        grad_x, grad_values = _fan_in_backward(grad, x, values, columns)
    wanted = ctx.needs_input_grad
    return grad_x if wanted[0] else None, grad_values, grad.sum(0) if wanted[2] else None


@operator(
    "weft::fan_in_linear_backward",
    lambda grad, x, values, columns: (
        x.new_empty(x.shape[1], x.shape[0]).t(),
        torch.empty_like(values),
    ),
)
def _fan_in_backward(
    grad: Tensor, x: Tensor, values: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients in x [B, I] and in the values [K]."""
    right = grad.ndim == 2 and grad.shape[0] == x.shape[0]
    require(right, "the gradient must have the shape of the output", grad, x, values)
    _check_shapes(x, values, None, columns, grad.shape[1])
    _require(x, values, columns, grad)
    grad_x, grad_values = x.new_empty(x.shape[1], x.shape[0]), torch.empty_like(values)
    if x.shape[0] == 0:
        return grad_x.t(), grad_values.zero_()
    _gradients(
        POOL,
        threads_for(2 * values.numel() * x.shape[0]),
        *_laid_out(grad),
        *_laid_out(x),
        _rows_of(values, grad.shape[1]),
        _rows_of(columns, grad.shape[1]),
        _LANES[x.shape[0]],
        grad_x.numpy(),
        _rows_of(grad_values, grad.shape[1]),
    )
    return grad_x.t(), grad_values


# -- Vectors of samples ----------------------------------------------------------------------------


class _Samples(types.Type):  # type: ignore[misc]
    """So many numbers of one dtype, kept in registers."""

    def __init__(self, dtype: Any, width: int) -> None:
        self.dtype, self.width = dtype, width
        super().__init__(name=f"weft.Samples({dtype}, {width})")


@register_model(_Samples)
class _SamplesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        real = ir.FloatType() if kind.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, kind, ir.VectorType(real, kind.width))


def _spread(builder: Any, scalar: Any, kind: Any) -> Any:
    number = ir.IntType(32)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, number(0))
    places = ir.Constant(ir.VectorType(number, kind.count), [0] * kind.count)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), places)


def _place(context: Any, builder: Any, array: Any, given: Any, row: Any, kind: Any) -> Any:
    """The pointer to row `row` of a C-contiguous array [n, lanes]."""
    view = context.make_array(array)(context, builder, given)
    first = builder.bitcast(view.data, kind.as_pointer())
    return builder.gep(first, [row])


@intrinsic
def _load(typing_context: Any, block: Any, row: Any, lanes: Any) -> Any:
    """block[row] as a vector, of a contiguous block [n, lanes]."""
    vector = _Samples(block.dtype, len(lanes))

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(vector)
        place = _place(context, builder, block, values[0], values[1], kind)
        return builder.load(place, align=block.dtype.bitwidth // 8)

    return vector(block, types.intp, lanes), generate


@intrinsic
def _store(typing_context: Any, block: Any, row: Any, vector: Any) -> Any:
    """block[row] = vector."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(vector)
        place = _place(context, builder, block, values[0], values[1], kind)
        builder.store(values[2], place, align=block.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(block, types.intp, vector), generate


@intrinsic
def _all(typing_context: Any, scalar: Any, lanes: Any) -> Any:
    """The vector whose numbers are all `scalar`."""
    vector = _Samples(scalar, len(lanes))

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _spread(builder, values[0], context.get_value_type(vector))

    return vector(scalar, lanes), generate


@intrinsic
def _multiply_add(typing_context: Any, vector: Any, scalar: Any, other: Any) -> Any:
    """vector + scalar · other."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        factor = _spread(builder, values[1], values[0].type)
        product = builder.fmul(factor, values[2], flags=_FUSED)
        return builder.fadd(values[0], product, flags=_FUSED)

    return vector(vector, vector.dtype, vector), generate


@intrinsic
def _dot(typing_context: Any, a: Any, b: Any) -> Any:
    """Σ a · b, summed by halves."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        product = builder.fmul(values[0], values[1], flags=_FUSED)
        while product.type.count > 1:
            half = product.type.count // 2
            whole = ir.Constant(product.type, ir.Undefined)
            kind = ir.VectorType(ir.IntType(32), half)
            low, high = (
                builder.shuffle_vector(
                    product, whole, ir.Constant(kind, list(range(start, start + half)))
                )
                for start in (0, half)
            )
            product = builder.fadd(low, high, flags=_FUSED)
        return builder.extract_element(product, ir.IntType(32)(0))

    return a.dtype(a, b), generate


# -- The loops -------------------------------------------------------------------------------------


@kernel
def _block_of(x: Any, by_feature: bool, lanes: Any) -> Any:
    """x as a block [F, lanes], with zeros where there are no more samples.

    x is [F, B] if `by_feature`, else [B, F].
    """
    features, samples = x.shape
    if not by_feature:
        samples, features = x.shape
    block = np.empty((features, len(lanes)), dtype=x.dtype)
    if by_feature:
        for f in range(features):
            for s in range(samples):
                block[f, s] = x[f, s]
    else:
        for f in range(features):
            for s in range(samples):
                block[f, s] = x[s, f]
    for f in range(features):
        for s in range(samples, len(lanes)):
            block[f, s] = 0
    return block


@kernel
def _write(out: Any, row: int, sums: Any, own: Any, relu: bool) -> None:
    """out[row] = the first samples of `sums`; `own` is room for all of them."""
    _store(own, 0, sums)
    for s in range(out.shape[1]):
        number = own[0, s]
        # As in torch, what is not a number stays.
        if relu and number <= 0:
            number = out.dtype.type(0)
        out[row, s] = number


@shared_rows
@kernel
def _some_rows(
    block: Any,
    values: Any,
    columns: Any,
    bias: Any,
    relu: bool,
    lanes: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Rows 4 first : 4 stop of out [O, B], as far as there are any, for block [I, lanes]."""
    last, count = values.shape[0] - 1, values.shape[1]
    own = np.empty((1, len(lanes)), dtype=values.dtype)
    for four in range(first, stop):
        # Where there are not four, some rows are computed more than once, alike.
        row = max(0, min(4 * four, last - 3))
        one, two, three = min(row + 1, last), min(row + 2, last), min(row + 3, last)
        a, b = _all(bias[row], lanes), _all(bias[one], lanes)
        c, d = _all(bias[two], lanes), _all(bias[three], lanes)
        for j in range(count):
            a = _multiply_add(a, values[row, j], _load(block, np.uintp(columns[row, j]), lanes))
            b = _multiply_add(b, values[one, j], _load(block, np.uintp(columns[one, j]), lanes))
            c = _multiply_add(c, values[two, j], _load(block, np.uintp(columns[two, j]), lanes))
            d = _multiply_add(d, values[three, j], _load(block, np.uintp(columns[three, j]), lanes))
        _write(out, row, a, own, relu)
        _write(out, one, b, own, relu)
        _write(out, two, c, own, relu)
        _write(out, three, d, own, relu)


@kernel
def _forward(
    pool: int,
    threads: int,
    x: Any,
    by_feature: bool,
    values: Any,
    columns: Any,
    bias: Any,
    relu: bool,
    lanes: Any,
    out: Any,
) -> None:
    """out [O, B] = W x + bias for x [I, B] if `by_feature`, else [B, I]."""
    arguments = (_block_of(x, by_feature, lanes), values, columns, bias, relu, lanes, out)
    share_rows(pool, threads, _here._some_rows, arguments, None, (values.shape[0] + 3) // 4)


@shared_rows
@kernel
def _gradient_parts(
    above: Any,
    block: Any,
    values: Any,
    columns: Any,
    lanes: Any,
    parts: Any,
    grad_values: Any,
    first: int,
    stop: int,
) -> None:
    """Parts first:stop of the gradients; above [O, lanes], block [I, lanes], parts [P, I, lanes].

    A part is of some outputs: of all gradients in their weights, and their share of that in x.
    """
    outputs = values.shape[0]
    for number in range(first, stop):
        part = parts[number]
        part[:] = 0
        for row in range(outputs * number // _PARTS, outputs * (number + 1) // _PARTS):
            given = _load(above, row, lanes)
            for j in range(values.shape[1]):
                column = np.intp(columns[row, j])
                grad_values[row, j] = _dot(given, _load(block, column, lanes))
                _store(
                    part, column, _multiply_add(_load(part, column, lanes), values[row, j], given)
                )


@kernel
def _gradients(
    pool: int,
    threads: int,
    grad: Any,
    grad_by_feature: bool,
    x: Any,
    by_feature: bool,
    values: Any,
    columns: Any,
    lanes: Any,
    grad_x: Any,
    grad_values: Any,
) -> None:
    """grad_x [I, B] and grad_values [O, k] for grad [O, B] and x [I, B], or their transposes."""
    parts = np.empty((_PARTS, grad_x.shape[0], len(lanes)), dtype=values.dtype)
    above = _block_of(grad, grad_by_feature, lanes)
    block = _block_of(x, by_feature, lanes)
    arguments = (above, block, values, columns, lanes, parts, grad_values)
    share_rows(pool, threads, _here._gradient_parts, arguments, None, _PARTS)
    for column in range(grad_x.shape[0]):
        for s in range(grad_x.shape[1]):
            total = parts[0, column, s]
            for number in range(1, _PARTS):
                total += parts[number, column, s]
            grad_x[column, s] = total
