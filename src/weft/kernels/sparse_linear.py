"""A linear layer whose weight is mostly zeros: only the active weights are multiplied.

B samples, I inputs, O outputs, K weights. The outputs and gradients of one layer are stored feature
by feature (strides (1, B)), as the next such layer reads them; elementwise functions keep that
order. A chain of layers is one operator, whose hidden layers never leave the cache for another
order. Where there is no loop, Triton kernels do so, too; plain torch multiplies with the dense
weight.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.checked_indices import once
from weft.kernels import sparse_linear_loops as loops
from weft.kernels.backends import forms, require_one_device, runs_triton
from weft.kernels.custom_op import (
    array_of,
    differentiable_gradients,
    has_loop,
    have_one_loop,
    is_plain,
    operator,
    require,
)
from weft.kernels.sample_vectors import LINE
from weft.runtime import POOL, compiled, threads_for

# A chunk of samples sums the gradient of the weights for itself: enough of them to share, not to
# fill memory. Their number depends on the shapes alone, so that of threads changes no bit.
CHUNKS = 4


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
    check_shapes(x, values, bias, pattern, outputs)
    if not is_one_operator(x, values, bias):
        require_one_device(x, values, bias, pattern)
        sums = functional.linear(x, dense_weight(values, pattern, outputs, x.shape[1]), bias)
        return sums.relu() if relu else sums
    out: Tensor = _sparse_linear(x, values, bias, pattern, outputs, relu)
    return out


def check_shapes(
    x: Tensor, values: Tensor, bias: Tensor | None, pattern: Tensor, outputs: int
) -> None:
    """Refuse what does not fit together."""
    right = x.ndim == 2 and values.ndim == 1
    right = right and pattern.shape == (3 * values.shape[0] + outputs + x.shape[1] + 2,)
    right = right and (bias is None or bias.shape == (outputs,))
    if not right:
        needed = f"x [B, I], values [K], bias [{outputs}] and a pattern of them needed"
        require(right, needed, x, values, bias, pattern)


def check_pattern(pattern: Tensor, outputs: int, inputs: int) -> None:
    """Refuse a pattern that `pattern_of` did not make; the shapes are right."""
    once(_pattern, (pattern,), outputs, inputs)


def _pattern(pattern: Tensor, outputs: int, inputs: int) -> None:
    right = pattern.dtype == torch.int32 and pattern.is_contiguous()
    if right and not pattern.is_cpu:
        right = _is_pattern_there(pattern, outputs, inputs)
    elif right:
        parts = (array_of(part) for part in parts_of(pattern, outputs, inputs))
        right = bool(_is_pattern(*parts))
    require(right, f"the pattern of weights [{outputs}, {inputs}] must be pattern_of's", pattern)


def _is_pattern_there(pattern: Tensor, outputs: int, inputs: int) -> bool:
    """`_is_pattern` on a device other than the CPU."""
    parts = parts_of(pattern, outputs, inputs)
    ends, columns = parts.offsets, parts.columns
    wrong = (ends.diff() < 0).any() | (ends[0] != 0) | (ends[-1] != columns.shape[0])
    wrong |= ((columns < 0) | (columns >= inputs)).any()
    return not bool(wrong) and torch.equal(pattern, pattern_of(parts.positions, outputs, inputs))


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


def is_one_operator(x: Tensor, values: Tensor, bias: Tensor | None) -> bool:
    """Whether these tensors go through an operator of weft: they are alike, and stay here."""
    same = x.dtype == values.dtype and x.device == values.device
    same = same and (bias is None or (bias.dtype == x.dtype and bias.device == x.device))
    # What is exported runs elsewhere, where the operators are not.
    return same and not torch.compiler.is_exporting()


def _has_fast_loop(x: Tensor, values: Tensor, bias: Tensor | None) -> bool:
    """Whether the compiled loops take these tensors, here and now."""
    return is_one_operator(x, values, bias) and has_loop(values)


class Link(NamedTuple):
    """A layer of a chain: relu(x Wᵀ + bias), or without the relu.

    Attributes:
        values: [K], the weights by rows.
        bias: [O], or None.
        pattern: where they are, as `pattern_of` made it.
        outputs: O.
        relu: give 0 for what is below 0.
    """

    values: Tensor
    bias: Tensor | None
    pattern: Tensor
    outputs: int
    relu: bool


def sparse_chain(x: Tensor, links: Sequence[Link]) -> Tensor:
    """The output [B, O] of one layer after another, row by row, for x [B, I]."""
    learned = [each for link in links for each in link[:2]]
    for link, inputs in zip(links, _widths(x, links), strict=False):
        check_link(link, inputs)
    plain = all(t is None or is_plain(t) for t in (x, *learned))
    fast = plain and all(_has_fast_loop(x, link.values, link.bias) for link in links)
    if torch.compiler.is_compiling() or not fast:
        return _one_by_one(x, links)
    if torch.is_grad_enabled():
        out: Tensor = _Chain.apply(x, links, *learned)  # type: ignore[no-untyped-call]
        return out
    return _run(x, links, by_feature=False)[0]


def _one_by_one(x: Tensor, links: Sequence[Link]) -> Tensor:
    for link in links:
        x = sparse_linear(x, *link)
    return x.contiguous()


def _widths(x: Tensor, links: Sequence[Link]) -> list[int]:
    """Inputs of each layer, and outputs of the last."""
    require(x.ndim == 2, "x [B, I] needed", x)
    return [x.shape[1], *(link.outputs for link in links)]


def check_link(link: Link, inputs: int) -> None:
    """Refuse what does not fit together, whatever x is."""
    values, bias, pattern, outputs, _ = link
    right = values.ndim == 1 and pattern.shape == (3 * values.shape[0] + outputs + inputs + 2,)
    if not (right and (bias is None or bias.shape == (outputs,))):
        needed = f"values [K], bias [{outputs}] and a pattern of them of {inputs} inputs needed"
        require(False, needed, values, bias, pattern)


def _laid_out(x: Tensor) -> tuple[Any, bool]:
    """The array of x [B, F], transposed if it is stored feature by feature, and whether it is."""
    turned = x.t()
    by_feature = turned.is_contiguous()
    return array_of(turned if by_feature else x), by_feature


def _block_size(samples: int, dtype: torch.dtype) -> int:
    """Samples in a block."""
    line = LINE // dtype.itemsize
    # Few samples would leave most of a wide block empty.
    return line * (loops.WIDE if samples > 3 * line else loops.NARROW)


def _blocks_of(samples: int, size: int) -> tuple[int, int, int]:
    """Blocks of samples, blocks in a chunk, chunks."""
    blocks = -(-samples // size)
    chunk = max(1, -(-blocks // CHUNKS))
    return blocks, chunk, -(-blocks // chunk)


def _table(links: Sequence[Link], inputs: int, grads: Sequence[Tensor] = ()) -> tuple[Any, Any]:
    """The table that the loops read, and what must live as long; see loops.OUTPUTS.

    `grads` are the gradients in the values and the bias of each layer in turn.
    """
    rows, alive = [], []
    for number, (values, bias, pattern, outputs, relu) in enumerate(links):
        check_pattern(pattern, outputs, inputs)
        values = values.contiguous()
        bias = None if bias is None else bias.contiguous()
        places = [t.data_ptr() for t in grads[2 * number : 2 * number + 2]] or [0, 0]
        given = (values.data_ptr(), 0 if bias is None else bias.data_ptr(), pattern.data_ptr())
        rows.append((outputs, inputs, values.shape[0], relu, *given, *places))
        alive += [values, bias]
        inputs = outputs
    return np.array(rows, dtype=np.int64), alive


def _run(
    x: Tensor, links: Sequence[Link], *, by_feature: bool, learning: bool = False
) -> tuple[Tensor, Tensor]:
    """Output [B, O], and what a backward pass needs of the hidden layers if it is `learning`."""
    samples, outputs = x.shape[0], links[-1].outputs
    size = _block_size(samples, x.dtype)
    blocks, _, _ = _blocks_of(samples, size)
    table, alive = _table(links, x.shape[1])
    hidden = x.new_empty(blocks if learning else 0, sum(link.outputs for link in links[:-1]), size)
    if by_feature:
        # Not the transpose of another tensor: autograd lets nobody change such a view in place.
        out = x.new_empty_strided((samples, outputs), (1, max(1, samples)))
        place = out.t().numpy()
    else:
        out = x.new_empty(samples, outputs)
        place = out.numpy()
    threads = threads_for(int(table[:, loops.COUNT].sum()) * blocks * size)
    # Enough blocks for all threads, or all of them for one.
    by_rows = blocks < 2 * threads and not learning
    loops.forward(POOL, threads, table, *_laid_out(x), hidden.numpy(), place, by_feature, by_rows)
    del alive
    return out, hidden


def _run_back(
    x: Tensor,
    grad: Tensor,
    made: Tensor | None,
    links: Sequence[Link],
    hidden: Tensor,
    wanted: bool,
    by_feature: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Gradients in x (empty unless `wanted`), and in the values and bias of each layer in turn.

    `made` is the output if the last layer has a relu.
    """
    samples = x.shape[0]
    _, chunk, chunks = _blocks_of(samples, hidden.shape[2])
    grads = [
        each
        for link in links
        for each in (torch.empty_like(link.values), x.new_empty(link.outputs))
    ]
    table, alive = _table(links, x.shape[1], grads)
    grad_x = x.new_empty((x.shape[1] if wanted else 0, samples) if by_feature else x.shape)
    output = (None, False) if made is None else _laid_out(made)
    count = int(table[:, loops.COUNT].sum())
    loops.backward(
        POOL,
        threads_for(2 * count * samples),
        threads_for(chunks * count),
        table,
        (*_laid_out(x), *_laid_out(grad), *output),
        hidden.numpy(),
        chunk,
        chunks,
        wanted,
        grad_x.numpy(),
        by_feature,
    )
    del alive
    return grad_x.t() if by_feature else grad_x, grads


class _Chain(torch.autograd.Function):
    # One function with ctx: torch would inspect the signature of a separate forward at each call.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x, links, *learned = arguments
        out, hidden = _run(x, links, by_feature=False, learning=True)
        made = out if links[-1].relu else None
        patterns = [link.pattern for link in links]
        ctx.save_for_backward(x, *learned, *patterns, hidden, made)
        ctx.kinds = [link[3:] for link in links]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, *saved, hidden, made = ctx.saved_tensors
        count = len(ctx.kinds)
        learned, patterns = saved[: 2 * count], saved[2 * count :]

        def links_of(*learned: Any) -> list[Link]:
            pairs = zip(learned[::2], learned[1::2], patterns, ctx.kinds, strict=True)
            return [Link(values, bias, where, *kind) for values, bias, where, kind in pairs]

        if torch.is_grad_enabled():

            def chain(x: Tensor, _: None, *learned: Any) -> Tensor:
                return _one_by_one(x, links_of(*learned))

            return tuple(differentiable_gradients(ctx, chain, (x, None, *learned), grads))
        wanted = ctx.needs_input_grad[0]
        grad_x, found = _run_back(x, grads[0], made, links_of(*learned), hidden, wanted, False)
        of_learned = [
            grad if needed else None
            for grad, needed in zip(found, ctx.needs_input_grad[2:], strict=True)
        ]
        return grad_x if wanted else None, None, *of_learned


@operator(
    "weft::sparse_linear",
    lambda x, values, bias, pattern, outputs, relu: x.new_empty(outputs, x.shape[0]).t(),
)
def _sparse_linear(
    x: Tensor, values: Tensor, bias: Tensor | None, pattern: Tensor, outputs: int, relu: bool
) -> Tensor:
    check_shapes(x, values, bias, pattern, outputs)
    right = is_one_operator(x, values, bias)
    require(right, "x, values and bias must have one dtype and device", x, values)
    if have_one_loop(x, values, bias):
        return _run(x, [Link(values, bias, pattern, outputs, relu)], by_feature=True)[0]
    kernels = forms(x, values, bias, beside=(pattern,))
    check_pattern(pattern, outputs, x.shape[1])
    if runs_triton(x, values, bias):
        columns, offsets, *_ = parts_of(pattern, outputs, x.shape[1])
        given = (values, bias, columns, offsets, None, outputs, relu)
        out: Tensor = kernels.weighted_rows(x.t(), *given)
        return out
    return dense_rows(x, dense_weight(values, pattern, outputs, x.shape[1]), bias, relu)


def dense_rows(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """x Wᵀ + bias [B, O], stored feature by feature."""
    sums = functional.linear(x, weight, bias)
    # Not the transpose of another tensor: autograd lets nobody change such a view in place.
    out = x.new_empty_strided(sums.shape, (1, max(1, sums.shape[0])))
    return out.copy_(sums.relu() if relu else sums)


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
    right = right and (made is None or (made.shape == grad.shape and made.dtype == x.dtype))
    right = right and is_one_operator(x, values, grad)
    require(right, "gradients must have the shape and dtype of the output", grad, x, made)
    check_shapes(x, values, None, pattern, grad.shape[1])
    if not have_one_loop(x, values, grad, made):
        return _gradients_there(grad, x, values, pattern, made, wanted)
    links = [Link(values, None, pattern, grad.shape[1], made is not None)]
    hidden = x.new_empty(1, 0, _block_size(x.shape[0], x.dtype))
    grad_x, (grad_values, grad_bias) = _run_back(x, grad, made, links, hidden, wanted, True)
    return grad_x, grad_values, grad_bias


def _gradients_there(
    grad: Tensor, x: Tensor, values: Tensor, pattern: Tensor, made: Tensor | None, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`_sparse_linear_backward` where there is no loop."""
    kernels = forms(x, values, grad, made, beside=(pattern,))
    size = (grad.shape[1], x.shape[1])
    check_pattern(pattern, *size)
    if made is not None:
        grad = grad.masked_fill(made <= 0, 0)
    above, parts = grad.t().contiguous(), parts_of(pattern, *size)
    grad_x = x.new_empty(x.shape[1] if wanted else 0, x.shape[0]).t()
    if runs_triton(x, values, grad):
        columns, offsets, rows, column_offsets, order = parts
        grad_values = kernels.weight_gradients(above, x.t(), values, columns, offsets)
        if wanted:
            by_columns = (rows, column_offsets, order)
            grad_x = kernels.weighted_rows(above, values, None, *by_columns, x.shape[1], False)
    else:
        grad_values = (above @ x).flatten()[parts.positions]
        if wanted:
            grad_x = (dense_weight(values, pattern, *size).t() @ above).t()
    return grad_x, grad_values, above.sum(1)


def sum_of_chunks(
    parts: Tensor, pattern: Tensor, outputs: int, inputs: int, chunks: int
) -> tuple[Tensor, Tensor]:
    """The gradients in the weights [K] by rows and in the bias [O].

    Args:
        parts: [C, K + O], of each chunk: in the weights by columns, then in the bias.
        pattern: of the weights.
        outputs: O.
        inputs: I.
        chunks: how many there are; if none, the gradients are 0.
    """
    values, bias = parts.new_zeros(parts.shape[1] - outputs), parts.new_zeros(outputs)
    if chunks:
        link = Link(values, None, pattern, outputs, False)
        table, _ = _table([link], inputs, [values, bias])
        loops.sum_chunks.share((table, parts.numpy()), parts.shape[1], parts.numel())
    return values, bias
