"""A linear layer of few weights for an input that is itself mostly zeros.

Only pairs of an input and a weight that are both there are multiplied. B samples, I inputs,
O outputs, K weights, M inputs that are not zero.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from typing import Any

from torch import Tensor
from torch.nn import functional

from weft.checked_indices import check_range, check_segments
from weft.kernels import sparse_linear_loops as loops
from weft.kernels.custom_op import array_of, operator, require
from weft.kernels.sparse_linear import (
    check_pattern,
    check_shapes,
    dense_weight,
    has_fast_loop,
    sum_of_chunks,
)
from weft.kernels.threads import openmp, threads_for

# As in `sparse_linear`.
_CHUNKS = 8


def sparse_input_linear(
    x: Tensor, values: Tensor, bias: Tensor | None, pattern: Tensor, outputs: int
) -> Tensor:
    """x Wᵀ + bias [B, O]; there is no gradient in x.

    Args:
        x: [B, I], of torch's sparse CSR layout.
        values: [K], the weights by rows.
        bias: [O], or None.
        pattern: where they are, see `sparse_linear`.
        outputs: O.
    """
    check_shapes(x, values, bias, pattern, outputs)
    if x.requires_grad:
        raise ValueError(
            "the gradient in a sparse input is not computed; give x.to_dense() if it is wanted"
        )
    given, places, starts = x.values(), x.col_indices(), x.crow_indices()
    inputs = x.shape[1]
    require(starts.shape == (x.shape[0] + 1,), "x [B, I] has B + 1 row offsets", x, starts)
    if not has_fast_loop(given, values, bias):
        weight = dense_weight(values, pattern, outputs, inputs)
        return functional.linear(x.to_dense(), weight, bias)
    out: Tensor = _few_inputs(given, values, bias, places, starts, pattern, outputs)
    return out


def _by_columns(pattern: Tensor, count: int, outputs: int) -> tuple[Tensor, Tensor]:
    """The second half of the pattern, and its `order`."""
    return pattern[count + outputs + 1 :], pattern[pattern.shape[0] - count :]


def _check(
    x_values: Tensor,
    x_columns: Tensor,
    x_offsets: Tensor,
    pattern: Tensor,
    count: int,
    outputs: int,
) -> None:
    """Refuse what the loops cannot follow; torch may have been told not to check a CSR tensor."""
    inputs = pattern.numel() - 3 * count - outputs - 2
    require(outputs >= 0 and inputs >= 0 and pattern.ndim == 1, "a pattern needed", pattern)
    check_pattern(pattern, outputs, inputs)
    check_segments(x_values.numel(), x_offsets, None, None)
    right = x_values.shape == x_columns.shape
    require(right, "an input has a value and a column", x_values, x_columns)
    check_range(x_columns, inputs)


def _threads(x_values: Tensor, by_columns: Tensor, count: int) -> int:
    inputs = by_columns.shape[0] - 2 * count - 1
    return threads_for(x_values.shape[0] * count // max(1, inputs))


@operator("weft::sparse_input_linear")
def _few_inputs(
    x_values: Tensor,
    values: Tensor,
    bias: Tensor | None,
    x_columns: Tensor,
    x_offsets: Tensor,
    pattern: Tensor,
    outputs: int,
) -> Tensor:
    _check(x_values, x_columns, x_offsets, pattern, values.shape[0], outputs)
    right = bias is None or bias.shape == (outputs,)
    require(
        right and has_fast_loop(x_values, values, bias), "values and bias must fit", values, bias
    )
    samples = x_offsets.shape[0] - 1
    by_columns, order = _by_columns(pattern, values.shape[0], outputs)
    out = x_values.new_empty(samples, outputs)
    given = (x_values, x_columns, x_offsets, values.detach().index_select(0, order), by_columns)
    arguments = (*map(array_of, (*given, bias)), out.numpy())
    threads = _threads(x_values, by_columns, values.shape[0])
    loops.share_few_inputs(openmp(), threads, arguments, array_of(x_offsets), samples)
    return out


@_few_inputs.register_fake
def _(
    x_values: Tensor,
    values: Tensor,
    bias: Tensor | None,
    x_columns: Tensor,
    x_offsets: Tensor,
    pattern: Tensor,
    outputs: int,
) -> Tensor:
    return x_values.new_empty(x_offsets.shape[0] - 1, outputs)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x_values, values, bias, x_columns, x_offsets, pattern, _ = inputs
    ctx.save_for_backward(x_values, x_columns, x_offsets, pattern)
    ctx.count, ctx.has_bias = values.shape[0], bias is not None


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    values, bias = _few_inputs_backward(grad, *ctx.saved_tensors, ctx.count)
    return None, values, bias if ctx.has_bias else None, None, None, None, None


_few_inputs.register_autograd(_backward, setup_context=_setup)


@operator("weft::sparse_input_linear_backward")
def _few_inputs_backward(
    grad: Tensor,
    x_values: Tensor,
    x_columns: Tensor,
    x_offsets: Tensor,
    pattern: Tensor,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Gradients in the weights by rows [K], and in the bias."""
    samples, outputs = grad.shape
    _check(x_values, x_columns, x_offsets, pattern, count, outputs)
    right = x_offsets.shape == (samples + 1,) and grad.dtype == x_values.dtype
    require(right, "the gradient must have the shape and dtype of the output", grad, x_offsets)
    by_columns, order = _by_columns(pattern, count, outputs)
    chunk = max(1, -(-samples // _CHUNKS))
    chunks = -(-samples // chunk)
    parts = grad.new_empty(max(1, chunks), count + outputs)
    given = (x_values, x_columns, x_offsets, grad, by_columns)
    arguments = (*map(array_of, given), chunk, parts.numpy())
    threads = _threads(x_values, by_columns, count)
    loops.share_few_inputs_backward(openmp(), threads, arguments, None, chunks)
    return sum_of_chunks(parts, order, chunks)


@_few_inputs_backward.register_fake
def _(
    grad: Tensor,
    x_values: Tensor,
    x_columns: Tensor,
    x_offsets: Tensor,
    pattern: Tensor,
    count: int,
) -> tuple[Tensor, Tensor]:
    return grad.new_empty(count), grad.new_empty(grad.shape[1])
