"""A linear layer whose weight is mostly zeros: only the weights that are there are multiplied.

B samples, I inputs, O outputs, K weights. Outputs and gradients are stored feature by feature
(strides (1, B)), as the next such layer reads them; elementwise functions keep that order. Where
the input is itself mostly zeros, only pairs of an input and a weight that are both there are
multiplied.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from weft.checked_indices import check_range, check_segments, once
from weft.kernels import sparse_linear_loops as loops
from weft.kernels.custom_op import array_of, has_loop, have_one_loop, operator, require
from weft.runtime import POOL, compiled, threads_for

# A chunk of samples sums the gradient of the weights for itself: enough of them to share, not to
# fill memory. Their number depends on the shapes alone, so that of threads changes no bit.
_CHUNKS = 8


class Pattern(NamedTuple):
    """Where the weights of a matrix [O, I] are, by rows and by columns.

    Attributes:
        columns: int32 [K], by rows, ascending within each.
        offsets: int32 [O + 1], where the rows begin.
        rows: int32 [K], by columns.
        column_offsets: int32 [I + 1], where the columns begin.
        order: int32 [K], position by rows of each weight by columns.
    """

    columns: Tensor
    offsets: Tensor
    rows: Tensor
    column_offsets: Tensor
    order: Tensor

    @property
    def positions(self) -> Tensor:
        """int64 [K], the position of each weight in the flattened matrix, ascending."""
        counts = self.offsets.diff().long()
        rows = torch.repeat_interleave(counts, output_size=self.columns.shape[0])
        return rows * (self.column_offsets.shape[0] - 1) + self.columns


def pattern_of(index: Tensor, outputs: int, inputs: int) -> Tensor:
    """The parts of `Pattern` one after the other, int32: one tensor costs a call less than five.

    Args:
        index: int64 [K], positions in the flattened matrix [outputs, inputs], ascending.
        outputs: O.
        inputs: I.
    """
    right = index.ndim == 1 and bool((index.diff() > 0).all())
    if index.numel():
        right = right and int(index[0]) >= 0 and int(index[-1]) < outputs * inputs
    require(
        right and max(outputs, inputs, index.numel()) < 2**31,
        f"positions must ascend from 0 to below {outputs} x {inputs}",
        index,
    )
    rows = torch.div(index, max(1, inputs), rounding_mode="floor")
    columns = index - rows * inputs
    order = torch.argsort(columns, stable=True)

    def starts(ascending: Tensor, count: int) -> Tensor:
        edges = torch.arange(count + 1, device=index.device)
        return torch.searchsorted(ascending, edges)

    by_rows = (columns, starts(rows, outputs))
    by_columns = (rows[order], starts(columns[order], inputs), order)
    return torch.cat([*by_rows, *by_columns]).int()


def parts_of(pattern: Tensor, outputs: int, inputs: int) -> Pattern:
    """Views of the parts of what `pattern_of` made."""
    count = (pattern.shape[0] - outputs - inputs - 2) // 3
    sizes = [count, outputs + 1, count, inputs + 1, count]
    return Pattern(*torch.split_with_sizes(pattern, sizes))


def dense_weight(values: Tensor, pattern: Tensor, outputs: int, inputs: int) -> Tensor:
    """The matrix [O, I] with zeros where there is no weight."""
    flat = values.new_zeros(outputs * inputs)
    index = parts_of(pattern, outputs, inputs).positions
    return flat.index_put((index,), values).view(outputs, inputs)


def sparse_linear(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    pattern: Tensor,
    outputs: int,
    relu: bool = False,
) -> Tensor:
    """x Wᵀ + bias [B, O], with strides (1, B) on the CPU.

    Args:
        x: [B, I]; read fastest with strides (1, B).
        values: [K], the weights by rows.
        bias: [O], or None.
        pattern: where they are, as `pattern_of` made it.
        outputs: O.
        relu: give 0 for what is below 0.
    """
    _check_shapes(x, values, bias, pattern, outputs)
    if not _has_fast_loop(x, values, bias):
        sums = functional.linear(x, dense_weight(values, pattern, outputs, x.shape[1]), bias)
        return sums.relu() if relu else sums
    out: Tensor = _sparse_linear(x, values, bias, pattern, outputs, relu)
    return out


def _check_shapes(
    x: Tensor, values: Tensor, bias: Tensor | None, pattern: Tensor, outputs: int
) -> None:
    """Refuse what does not fit together."""
    right = x.ndim == 2 and values.ndim == 1
    right = right and pattern.shape == (3 * values.shape[0] + outputs + x.shape[1] + 2,)
    right = right and (bias is None or bias.shape == (outputs,))
    if not right:
        needed = f"x [B, I], values [K], bias [{outputs}] and a pattern of them needed"
        require(right, needed, x, values, bias, pattern)


def _check_pattern(pattern: Tensor, outputs: int, inputs: int) -> None:
    """Refuse a pattern that `pattern_of` did not make; the shapes are right."""
    once(_pattern, (pattern,), outputs, inputs)


def _pattern(pattern: Tensor, outputs: int, inputs: int) -> None:
    right = pattern.dtype == torch.int32 and pattern.is_contiguous()
    if right:
        parts = (array_of(part) for part in parts_of(pattern, outputs, inputs))
        right = bool(_is_pattern(*parts))
    require(right, f"the pattern of weights [{outputs}, {inputs}] must be pattern_of's", pattern)


@compiled()
def _is_pattern(columns: Any, offsets: Any, rows: Any, column_offsets: Any, order: Any) -> bool:
    """Whether both halves say the same of the same weights, each once."""
    count, outputs, inputs = len(columns), len(offsets) - 1, len(column_offsets) - 1
    for starts in (offsets, column_offsets):
        if starts[0] != 0 or starts[-1] != count:
            return False
        for k in range(1, len(starts)):
            if starts[k] < starts[k - 1]:
                return False
    place = column_offsets[:-1].copy()
    for row in range(outputs):
        before = -1
        for k in range(offsets[row], offsets[row + 1]):
            column = columns[k]
            if column <= before or column >= inputs:
                return False
            before, at = column, place[column]
            if at >= column_offsets[column + 1] or rows[at] != row or order[at] != k:
                return False
            place[column] = at + 1
    return True


def _has_fast_loop(x: Tensor, values: Tensor, bias: Tensor | None) -> bool:
    """Whether the compiled loops take these tensors, here and now."""
    same = x.dtype == values.dtype and x.device == values.device
    same = same and (bias is None or (bias.dtype == x.dtype and bias.device == x.device))
    # What is exported runs elsewhere, where these loops are not.
    return same and has_loop(values) and not torch.compiler.is_exporting()


def _laid_out(x: Tensor) -> tuple[Any, bool]:
    """The array of x [B, F], transposed if it is stored feature by feature, and whether it is."""
    turned = x.t()
    by_feature = turned.is_contiguous()
    return array_of(turned if by_feature else x), by_feature


def _blocks_of(samples: int, values: Tensor) -> tuple[int, int, int]:
    """Blocks of samples, blocks in a chunk, chunks."""
    size = loops.BYTES // values.element_size()
    blocks = -(-samples // size)
    chunk = max(1, -(-blocks // _CHUNKS))
    return blocks, chunk, -(-blocks // chunk)


@operator(
    "weft::sparse_linear",
    lambda x, values, bias, pattern, outputs, relu: x.new_empty(outputs, x.shape[0]).t(),
)
def _sparse_linear(
    x: Tensor, values: Tensor, bias: Tensor | None, pattern: Tensor, outputs: int, relu: bool
) -> Tensor:
    _check_shapes(x, values, bias, pattern, outputs)
    _check_pattern(pattern, outputs, x.shape[1])
    require(have_one_loop(x, values, bias), "x, values and bias must have one dtype", x, values)
    samples = x.shape[0]
    # Not the transpose of another tensor: autograd lets nobody change such a view in place.
    out = x.new_empty_strided((samples, outputs), (1, max(1, samples)))
    given = (array_of(values), pattern.numpy(), array_of(bias))
    arguments = (*_laid_out(x), *given, relu, out.t().numpy())
    blocks, _, _ = _blocks_of(samples, values)
    loops.forward_blocks.share(arguments, blocks, values.shape[0] * samples)
    return out


@_sparse_linear.derivative(
    lambda ctx, inputs, out: (*inputs[:2], inputs[3], out if inputs[5] else None)
)
def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, values, pattern, made = ctx.saved_tensors
    wanted = ctx.needs_input_grad[0]
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # The gradient is itself to be differentiated.
        if made is not None:
            grad = grad.masked_fill(made <= 0, 0)
        size = (grad.shape[1], x.shape[1])
        grad_x = grad @ dense_weight(values, pattern, *size)
        grad_values = (grad.t() @ x).flatten()[parts_of(pattern, *size).positions]
        grad_bias = grad.sum(0)
    else:
        grad_x, grad_values, grad_bias = _sparse_linear_backward(
            grad, x, values, pattern, made, wanted
        )
    return grad_x if wanted else None, grad_values, grad_bias if ctx.needs_input_grad[2] else None


def _empty_gradients(
    grad: Tensor, x: Tensor, values: Tensor, pattern: Any, made: Any, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = x.new_empty(x.shape[1] if wanted else 0, x.shape[0]).t()
    return grad_x, torch.empty_like(values), x.new_empty(grad.shape[1])


@operator("weft::sparse_linear_backward", _empty_gradients)
def _sparse_linear_backward(
    grad: Tensor, x: Tensor, values: Tensor, pattern: Tensor, made: Tensor | None, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in x (empty unless `wanted`: the first layer of many has none), values and bias."""
    right = grad.ndim == 2 and x.ndim == 2 and grad.shape[0] == x.shape[0]
    right = right and (made is None or made.shape == grad.shape)
    right = right and have_one_loop(x, values, grad, made)
    require(right, "gradients must have the shape and dtype of the output", grad, x, made)
    _check_shapes(x, values, None, pattern, grad.shape[1])
    _check_pattern(pattern, grad.shape[1], x.shape[1])
    samples, count, outputs = x.shape[0], values.shape[0], grad.shape[1]
    _, chunk, chunks = _blocks_of(samples, values)
    grads = _empty_gradients(grad, x, values, pattern, made, wanted)
    loops.backward(
        POOL,
        threads_for(2 * count * samples),
        threads_for(chunks * (count + outputs)),
        (*_laid_out(x), *_laid_out(grad), None if made is None else array_of(made.t())),
        array_of(values),
        pattern.numpy()[count + outputs + 1 :],
        wanted,
        chunk,
        chunks,
        *(t.t().numpy() for t in grads),
    )
    return grads


def _sum_of_chunks(parts: Tensor, order: Tensor, chunks: int) -> tuple[Tensor, Tensor]:
    """The gradients in the weights [K] by rows and in the bias [O].

    Args:
        parts: [C, K + O], of each chunk: in the weights by columns, then in the bias.
        order: int32 [K], as in `Pattern`.
        chunks: how many there are; if none, the gradients are 0.
    """
    count = order.shape[0]
    values, bias = parts.new_empty(count), parts.new_empty(parts.shape[1] - count)
    if chunks:
        arguments = (parts.numpy(), order.numpy(), values.numpy(), bias.numpy())
        loops.sum_chunks.share(arguments, parts.shape[1], parts.numel())
        return values, bias
    return values.zero_(), bias.zero_()


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
    _check_shapes(x, values, bias, pattern, outputs)
    if x.requires_grad:
        raise ValueError(
            "the gradient in a sparse input is not computed; give x.to_dense() if it is wanted"
        )
    given, places, starts = x.values(), x.col_indices(), x.crow_indices()
    inputs = x.shape[1]
    require(starts.shape == (x.shape[0] + 1,), "x [B, I] has B + 1 row offsets", x, starts)
    if not _has_fast_loop(given, values, bias):
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
    """Refuse what the loops cannot follow; torch may have been told not to check a CSR tensor."""
    inputs = pattern.numel() - 3 * count - outputs - 2
    require(outputs >= 0 and inputs >= 0 and pattern.ndim == 1, "a pattern needed", pattern)
    _check_pattern(pattern, outputs, inputs)
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
    require(
        right and _has_fast_loop(x_values, values, bias), "values and bias must fit", values, bias
    )
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
    by_columns, order = _by_columns(pattern, count, outputs)
    chunk = max(1, -(-samples // _CHUNKS))
    chunks = -(-samples // chunk)
    parts = grad.new_empty(max(1, chunks), count + outputs)
    given = (x_values, x_columns, x_offsets, grad, by_columns)
    arguments = (*map(array_of, given), chunk, parts.numpy())
    operations = _products(x_values, by_columns, count)
    loops.few_inputs_backward.share(arguments, chunks, operations)
    return _sum_of_chunks(parts, order, chunks)
