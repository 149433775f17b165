"""A sparse linear layer of an input that is itself mostly zeros, such as bags of words.

Only pairs of an input and a weight that are both there are multiplied. B samples, I inputs, O
outputs, K weights, as in `weft.kernels.sparse_linear`.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.checked_indices import check_range, check_segments
from weft.kernels import sparse_linear_loops as loops
from weft.kernels.backends import forms, require_one_device, runs_triton
from weft.kernels.custom_op import array_of, has_loop, have_one_loop, operator, require
from weft.kernels.sparse_linear import (
    CHUNKS,
    check_pattern,
    check_shapes,
    dense_weight,
    is_one_operator,
    parts_of,
    sum_of_chunks,
)


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
    whole = torch.compiler.is_compiling() or has_loop(values) or runs_triton(given, values)
    if not (whole and is_one_operator(given, values, bias)):
        require_one_device(given, values, bias, pattern)
        weight = dense_weight(values, pattern, outputs, inputs)
        return functional.linear(x.to_dense(), weight, bias)
    out: Tensor = _few_inputs(given, values, bias, places, starts, pattern, outputs)
    return out


def _by_columns(pattern: Tensor, count: int, outputs: int) -> tuple[Tensor, Tensor]:
    """The second half of the pattern, and its `order`."""
    return pattern[count + outputs + 1 :], pattern[pattern.shape[0] - count :]


def _check_sparse_input(
    x_values: Tensor,
    x_columns: Tensor,
    x_offsets: Tensor,
    pattern: Tensor,
    count: int,
    outputs: int,
) -> None:
    """Refuse what the loops cannot follow; torch may not have checked a CSR tensor."""
    inputs = pattern.numel() - 3 * count - outputs - 2
    require(outputs >= 0 and inputs >= 0 and pattern.ndim == 1, "a pattern needed", pattern)
    check_pattern(pattern, outputs, inputs)
    check_segments(x_values.numel(), x_offsets, None, None)
    right = x_values.shape == x_columns.shape
    require(right, "an input has a value and a column", x_values, x_columns)
    check_range(x_columns, inputs)


def _products(x_values: Tensor, by_columns: Tensor, count: int) -> int:
    """Products of an input and a weight, about."""
    inputs = by_columns.shape[0] - 2 * count - 1
    return x_values.shape[0] * count // max(1, inputs)


@operator(
    "weft::sparse_input_linear",
    lambda x_values, *others: x_values.new_empty(others[3].shape[0] - 1, others[5]),
)
def _few_inputs(
    x_values: Tensor,
    values: Tensor,
    bias: Tensor | None,
    x_columns: Tensor,
    x_offsets: Tensor,
    pattern: Tensor,
    outputs: int,
) -> Tensor:
    _check_sparse_input(x_values, x_columns, x_offsets, pattern, values.shape[0], outputs)
    right = bias is None or bias.shape == (outputs,)
    right = right and is_one_operator(x_values, values, bias)
    require(right, "values and bias must fit", values, bias)
    if not have_one_loop(x_values, values, bias):
        # The dense weight is small beside the inputs: only these are sparse then.
        inputs = pattern.numel() - 3 * values.shape[0] - outputs - 2
        weight = dense_weight(values, pattern, outputs, inputs).t().contiguous()
        kernels = forms(x_values, values, bias, beside=(x_columns, x_offsets, pattern))
        sums: Tensor = kernels.spmm(weight, x_values, x_columns, x_offsets, None)
        return sums if bias is None else sums + bias
    samples = x_offsets.shape[0] - 1
    by_columns, order = _by_columns(pattern, values.shape[0], outputs)
    out = x_values.new_empty(samples, outputs)
    given = (x_values, x_columns, x_offsets, values.detach().index_select(0, order), by_columns)
    arguments = (*map(array_of, (*given, bias)), out.numpy())
    operations = _products(x_values, by_columns, values.shape[0])
    loops.few_inputs.share(arguments, samples, operations, array_of(x_offsets))
    return out


def _few_inputs_saved(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Any, ...]:
    x_values, values, _, *topology, _ = inputs
    ctx.count = values.shape[0]
    return x_values, *topology


@_few_inputs.derivative(_few_inputs_saved)
def _few_inputs_grad(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    values, bias = _few_inputs_backward(grad, *ctx.saved_tensors, ctx.count)
    return None, values, bias if ctx.needs_input_grad[2] else None


@operator(
    "weft::sparse_input_linear_backward",
    lambda grad, *others: (grad.new_empty(others[-1]), grad.new_empty(grad.shape[1])),
)
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
    _check_sparse_input(x_values, x_columns, x_offsets, pattern, count, outputs)
    right = x_offsets.shape == (samples + 1,) and grad.dtype == x_values.dtype
    require(right, "the gradient must have the shape and dtype of the output", grad, x_offsets)
    if not have_one_loop(grad, x_values):
        return _few_inputs_there(grad, x_values, x_columns, x_offsets, pattern, count)
    by_columns, _ = _by_columns(pattern, count, outputs)
    chunk = max(1, -(-samples // CHUNKS))
    chunks = -(-samples // chunk)
    parts = grad.new_empty(max(1, chunks), count + outputs)
    given = (x_values, x_columns, x_offsets, grad, by_columns)
    arguments = (*map(array_of, given), chunk, parts.numpy())
    operations = _products(x_values, by_columns, count)
    loops.few_inputs_backward.share(arguments, chunks, operations)
    inputs = by_columns.shape[0] - 2 * count - 1
    return sum_of_chunks(parts, pattern, outputs, inputs, chunks)


def _few_inputs_there(
    grad: Tensor,
    x_values: Tensor,
    x_columns: Tensor,
    x_offsets: Tensor,
    pattern: Tensor,
    count: int,
) -> tuple[Tensor, Tensor]:
    """`_few_inputs_backward` where there is no loop."""
    outputs = grad.shape[1]
    inputs = pattern.numel() - 3 * count - outputs - 2
    ends, order = x_columns.sort(stable=True)
    starts = torch.searchsorted(ends, torch.arange(inputs + 1, device=ends.device).to(ends.dtype))
    samples = torch.repeat_interleave(x_offsets.diff(), output_size=x_columns.shape[0])
    kernels = forms(grad, x_values, beside=(x_columns, x_offsets, pattern))
    dense = kernels.spmm(grad, x_values, samples, starts, order)
    return dense.t().flatten()[parts_of(pattern, outputs, inputs).positions], grad.sum(0)
