"""A linear layer whose outputs have k inputs each, for a few samples: online inference, training.

B samples (at most 16), I inputs, O outputs, k weights of each output, K = O k. Weights and their
columns are matrices [O, k] then, and no offsets are read. Samples are the lanes of a vector. Triton
kernels take any number of samples; plain torch multiplies with the dense weight.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.checked_indices import check_range
from weft.kernels.backends import forms, require_one_device, runs_triton
from weft.kernels.custom_op import array_of, have_one_loop, operator, require
from weft.kernels.online_loops import LANES, MOST_SAMPLES, block_of, row_at
from weft.kernels.sample_vectors import (
    add,
    dot,
    drop_negative,
    few,
    line_of,
    multiply_add,
    put_line,
    spread,
)
from weft.kernels.sparse_linear import dense_rows, is_one_operator
from weft.runtime import POOL, kernel, share_rows, shared_rows, threads_for

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]

# Rows are cut into so many parts for the gradient in the inputs, which each sums for itself. Their
# number does not depend on the threads, so that these change no bit.
_PARTS = 4


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
    few = x.shape[0] <= MOST_SAMPLES or not have_one_loop(x, values, bias)
    if not (few and is_one_operator(x, values, bias)):
        require_one_device(x, values, bias, columns)
        out = functional.linear(x, _dense(values, columns, outputs, x.shape[1]), bias)
        return out.relu() if relu else out
    made: Tensor = _fan_in_linear(x, values, bias, columns, outputs, relu)
    return made


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


def _require(x: Tensor, values: Tensor, columns: Tensor, other: Tensor | None) -> bool:
    """Refuse what nothing can follow; whether the loops take the rest."""
    right = columns.dtype == torch.int32 and columns.is_contiguous()
    if not (right and is_one_operator(x, values, other)):
        require(False, "tensors of one dtype and int32 columns needed", x, values, columns, other)
    check_range(columns, x.shape[1])
    return x.shape[0] <= MOST_SAMPLES and have_one_loop(x, values, other)


@operator(
    "weft::fan_in_linear",
    lambda x, values, bias, columns, outputs, relu: x.new_empty(outputs, x.shape[0]).t(),
)
def _fan_in_linear(
    x: Tensor, values: Tensor, bias: Tensor | None, columns: Tensor, outputs: int, relu: bool
) -> Tensor:
    _check_shapes(x, values, bias, columns, outputs)
    if not _require(x, values, columns, bias):
        if not runs_triton(x, values, bias):
            return dense_rows(x, _dense(values, columns, outputs, x.shape[1]), bias, relu)
        kernels = forms(x, values, bias, beside=(columns,))
        out: Tensor = kernels.weighted_rows(x.t(), values, bias, columns, None, None, outputs, relu)
        return out
    samples = x.shape[0]
    # Not the transpose of another tensor: autograd lets nobody change such a view in place.
    out = x.new_empty_strided((samples, outputs), (1, max(1, samples)))
    if samples:
        _forward(
            POOL,
            threads_for(values.numel() * samples),
            *_laid_out(x),
            array_of(values),
            array_of(columns),
            # One kind of loop for all: each kind is compiled for seconds.
            array_of(values.new_zeros(outputs) if bias is None else bias),
            relu,
            LANES[samples],
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
    if not _require(x, values, columns, grad):
        return _gradients_there(grad, x, values, columns)
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
        LANES[x.shape[0]],
        grad_x.numpy(),
        _rows_of(grad_values, grad.shape[1]),
    )
    return grad_x.t(), grad_values


def _gradients_there(
    grad: Tensor, x: Tensor, values: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """`_fan_in_backward` where there is no loop."""
    outputs, inputs = grad.shape[1], x.shape[1]
    above = grad.t().contiguous()
    if not runs_triton(grad, x, values):
        grad_x = _dense(values, columns, outputs, inputs).t() @ above
        places = columns.view(outputs, -1).long()
        return grad_x.t(), (above @ x).gather(1, places).flatten()
    kernels = forms(grad, x, values, beside=(columns,))
    grad_values = kernels.weight_gradients(above, x.t(), values, columns, None)
    # The weights by columns, found at each call: a sort of K numbers beside K B products.
    ends, order = columns.sort(stable=True)
    starts = torch.searchsorted(ends, torch.arange(inputs + 1, device=ends.device).int())
    rows = torch.div(order, max(1, columns.shape[0] // outputs), rounding_mode="floor")
    by_columns = (rows, starts, order, inputs, False)
    return kernels.weighted_rows(above, values, None, *by_columns), grad_values


# -- The loops -------------------------------------------------------------------------------------


@shared_rows
@kernel
def _some_rows(
    block: Any,
    values: Any,
    columns: Any,
    count: int,
    bias: Any,
    relu: bool,
    lanes: Any,
    to: Any,
    first: int,
    stop: int,
) -> None:
    """Rows first:stop of to [O, lanes] for block [I, lanes]; `count` weights in each row."""
    flat = block.reshape(block.size)
    for row in range(first, stop):
        begin, end = np.uintp(row * count), np.uintp((row + 1) * count)
        sums = row_at(values, columns, begin, end, block, flat, lanes)
        sums = add(sums, spread(bias[row], sums))
        if relu:
            sums = drop_negative(sums, sums)
        put_line(to, row, sums)


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
    """out [O, B] = W x + bias for x [I, B] if `by_feature`, else [B, I]; K values and columns."""
    outputs = bias.shape[0]
    block = np.empty((x.shape[0] if by_feature else x.shape[1], len(lanes)), dtype=x.dtype)
    block_of(x, by_feature, block)
    to = np.empty((outputs, len(lanes)), dtype=x.dtype)
    count = values.shape[0] // outputs
    arguments = (block, values, columns, count, bias, relu, lanes, to)
    share_rows(pool, threads, _here._some_rows, arguments, None, outputs)
    for row in range(outputs):
        for s in range(out.shape[1]):
            out[row, s] = to[row, s]


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
    outputs, zero = values.shape[0], few(block, lanes)
    for number in range(first, stop):
        part = parts[number]
        part[:] = 0
        for row in range(outputs * number // _PARTS, outputs * (number + 1) // _PARTS):
            given = line_of(above, row, zero)
            for j in range(values.shape[1]):
                column = columns[row, j]
                grad_values[row, j] = dot(given, line_of(block, column, zero))
                sums = multiply_add(line_of(part, column, zero), values[row, j], given)
                put_line(part, column, sums)


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
    above = np.empty((values.shape[0], len(lanes)), dtype=values.dtype)
    block_of(grad, grad_by_feature, above)
    block = np.empty((grad_x.shape[0], len(lanes)), dtype=values.dtype)
    block_of(x, by_feature, block)
    arguments = (above, block, values, columns, lanes, parts, grad_values)
    share_rows(pool, threads, _here._gradient_parts, arguments, None, _PARTS)
    for column in range(grad_x.shape[0]):
        for s in range(grad_x.shape[1]):
            total = parts[0, column, s]
            for number in range(1, _PARTS):
                total += parts[number, column, s]
            grad_x[column, s] = total
