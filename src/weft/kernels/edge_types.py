"""Messages whose matrix depends on the type of the edge: Σ_p A_p h W_p.

One matrix product a type, over the rows that are not empty. A row is a type and a node: either the
receiver, whose messages are summed before the product, or the sender, whose message is made once
for all its receivers. N nodes, R rows sorted by type, P types, H and O features, C chunks of rows
of one type. Gradients of the weights are summed by chunk first: how many threads there are then
changes no bit.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import weakref
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from weft.checked_indices import check_range, check_segments, check_transposes
from weft.kernels import plain_torch as plain
from weft.kernels.backends import forms, runs_triton
from weft.kernels.custom_op import (
    array_of,
    differentiable_gradients,
    has_loop,
    operator,
    require,
)
from weft.runtime import gemm, gemm_address, kernel, shared_rows

# Rows of a block: what is gathered and what it becomes fit into a second-level cache.
_BLOCK_ROWS = 256


@kernel
def _sum_rows(x: Any, columns: Any, offsets: Any, out: Any, first: int, stop: int) -> None:
    """out[r - first] = Σ x[columns[k]] over k in offsets[r]:offsets[r + 1], rows first:stop."""
    width = x.shape[1]
    for row in range(first, stop):
        low, high = offsets[row], offsets[row + 1]
        to = row - first
        if high - low == 1:
            column = columns[low]
            for f in range(width):
                out[to, f] = x[column, f]
            continue
        for f in range(width):
            out[to, f] = 0
        for k in range(low, high):
            column = columns[k]
            for f in range(width):
                out[to, f] += x[column, f]


@shared_rows
@kernel
def _sum_part(x: Any, columns: Any, offsets: Any, out: Any, first: int, stop: int) -> None:
    """_sum_rows into rows first:stop of the whole out."""
    _sum_rows(x, columns, offsets, out[first:stop], first, stop)


@shared_rows
@kernel
def _forward_chunks(
    address: int,
    h: Any,
    weight: Any,
    bias: Any,
    columns: Any,
    offsets: Any,
    chunks: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of out [R, O] = (Σ h over the row's columns) @ weight[type] + count b."""
    counts, chunk_types, chunk_starts = chunks
    width, outputs = weight.shape[1:]
    space = np.empty((_BLOCK_ROWS, width), dtype=h.dtype)
    for chunk in range(first, stop):
        kind, end = chunk_types[chunk], chunk_starts[chunk + 1]
        own = weight[kind]
        for start in range(chunk_starts[chunk], end, _BLOCK_ROWS):
            last = min(start + _BLOCK_ROWS, end)
            rows = last - start
            _sum_rows(h, columns, offsets, space, start, last)
            result = out[start:last]
            gemm(address, False, False, rows, outputs, width, space, own, result, False)
            if bias is not None:
                for row in range(rows):
                    count = counts[start + row]
                    for f in range(outputs):
                        result[row, f] += count * bias[kind, f]


@shared_rows
@kernel
def _backward_chunks(
    address: int,
    h: Any,
    weight: Any,
    grad: Any,
    edges: Any,
    chunks: Any,
    wanted: bool,
    grad_rows: Any,
    weight_grad: Any,
    bias_grad: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop: the gradient in the gathered rows [R, H], and [C, ...] in the weights.

    `to_columns`, `to_offsets` say which nodes' gradients [N, O] come back to a row. There is no
    gradient in the rows unless it is `wanted`.
    """
    columns, offsets, to_columns, to_offsets = edges
    counts, chunk_types, chunk_starts = chunks
    width, outputs = weight.shape[1:]
    gathered = np.empty((_BLOCK_ROWS, width), dtype=h.dtype)
    row_grads = np.empty((_BLOCK_ROWS, outputs), dtype=h.dtype)
    for chunk in range(first, stop):
        kind, end = chunk_types[chunk], chunk_starts[chunk + 1]
        own, target = weight[kind], weight_grad[chunk]
        begin = chunk_starts[chunk]
        if begin == end:
            target[:] = 0
        for start in range(begin, end, _BLOCK_ROWS):
            last = min(start + _BLOCK_ROWS, end)
            rows = last - start
            _sum_rows(h, columns, offsets, gathered, start, last)
            _sum_rows(grad, to_columns, to_offsets, row_grads, start, last)
            if wanted:
                result = grad_rows[start:last]
                gemm(address, False, True, rows, width, outputs, row_grads, own, result, False)
            more = start > begin
            gemm(address, True, False, width, outputs, rows, gathered, row_grads, target, more)
            if bias_grad is not None:
                for row in range(rows):
                    count = counts[start + row]
                    for f in range(outputs):
                        bias_grad[chunk, f] += count * row_grads[row, f]


def typed_messages(
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    into: tuple[Tensor, Tensor],
    into_t: tuple[Tensor, Tensor],
    out_of: tuple[Tensor, Tensor],
    out_of_t: tuple[Tensor, Tensor],
    counts: Tensor,
    chunk_types: Tensor,
    chunk_starts: Tensor,
) -> Tensor:
    """B · blockdiag(W) · A · h [N, O], for 0/1 matrices A [R, N] and B [N, R], as CSR.

    Args:
        h: [N, H].
        weight: [P, H, O].
        bias: [P, O], added to a row once for each of its edges; or None.
        into: offsets int [R + 1] and columns int of A: the nodes that a row sums.
        into_t: those of Aᵀ, [N + 1].
        out_of: those of B, [N + 1]: the rows that a node sums.
        out_of_t: those of Bᵀ, [R + 1].
        counts: [R], how often a row's bias counts.
        chunk_types: int [C], the type of each chunk of rows.
        chunk_starts: int [C + 1], where chunks begin; each has rows of one type.
    """
    rows = _Rows(*into, *into_t, *out_of, *out_of_t, counts, chunk_types, chunk_starts)
    rows.check_shapes(h, weight, bias)
    same = weight.dtype == h.dtype and (bias is None or bias.dtype == h.dtype)
    fast = has_loop(h, weight) and gemm_address(h.dtype)
    if not (same and (fast or runs_triton(h, weight, bias))):
        if not torch.compiler.is_compiling():
            rows.check_chunks(weight)
        return _plain(h, weight, bias, rows)
    out: Tensor = _typed(h, weight, bias, *rows)
    return out


class _Rows(NamedTuple):
    """What `typed_messages` takes after its bias, offsets and columns one by one."""

    into_offsets: Tensor
    into_columns: Tensor
    into_t_offsets: Tensor
    into_t_columns: Tensor
    out_offsets: Tensor
    out_columns: Tensor
    out_t_offsets: Tensor
    out_t_columns: Tensor
    counts: Tensor
    chunk_types: Tensor
    chunk_starts: Tensor

    def check_shapes(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Refuse what does not fit together."""
        right = h.ndim == 2 and weight.ndim == 3 and h.shape[1] == weight.shape[1]
        require(right, "h [N, H] and weight [P, H, O] needed", h, weight)
        shape = (weight.shape[0], weight.shape[2])
        require(bias is None or bias.shape == shape, "bias must be [P, O]", bias, weight)
        counts, chunk_types, chunk_starts = self[8:]
        right = self.into_t_offsets.shape == self.out_offsets.shape == (h.shape[0] + 1,)
        ends = (counts.numel() + 1,)
        right = right and self.into_offsets.shape == self.out_t_offsets.shape == ends
        needed = "h must have one row per node, counts one number per row"
        require(right and counts.ndim == 1, needed, h, counts)
        starts = (chunk_types.numel() + 1,)
        require(chunk_starts.shape == starts, "C types, C + 1 starts", chunk_types, chunk_starts)

    def check_chunks(self, weight: Tensor) -> None:
        """Refuse chunks that are not of all rows, or of a type without a matrix."""
        check_segments(self.counts.shape[0], self.chunk_starts, None, None)
        try:
            check_range(self.chunk_types, weight.shape[0])
        except ValueError:
            last = int(self.chunk_types.max()) if self.chunk_types.numel() else -1
            needed = f"there is an edge of type {last}, so weight [P, H, O] needs P > {last}"
            require(last < weight.shape[0], needed, weight)
            raise

    def check(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Refuse what a loop could not follow; loops and kernels multiply matrices of one dtype."""
        self.check_shapes(h, weight, bias)
        learned = (h, weight, bias)
        same = weight.dtype == h.dtype and (bias is None or bias.dtype == h.dtype)
        right = same and (has_loop(*learned) or runs_triton(*learned))
        require(right, "h, weight and bias must have one dtype", *learned)
        check_transposes(*self[:4])
        check_transposes(*self[6:8], *self[4:6])
        self.check_chunks(weight)


def _plain(h: Tensor, weight: Tensor, bias: Tensor | None, rows: _Rows) -> Tensor:
    """The same with torch's own operators, for any device and dtype."""
    gathered, often = _row_sums(h, *rows[:4]), rows.counts.to(h.dtype)[:, None]
    parts = []
    types, starts = known_chunks(rows.chunk_types, rows.chunk_starts)
    for kind, start, stop in zip(types, starts[:-1], starts[1:], strict=True):
        part = gathered[start:stop] @ weight[kind]
        parts.append(part if bias is None else part + often[start:stop] * bias[kind])
    made = torch.cat(parts) if parts else gathered.new_zeros(0, weight.shape[2])
    out: Tensor = _row_sums(made, *rows[4:8])
    return out


Chunks = tuple[list[int], list[int]]
# By the types on a device: a reference to the starts, the versions of both, and what they hold.
_chunks: Any = WeakTensorKeyDictionary()


def known_chunks(types: Tensor, starts: Tensor) -> Chunks:
    """The types [C] and starts [C + 1] of chunks as numbers; read from a device once, or never."""
    if types.is_cpu or torch.compiler.is_compiling() or types.is_inference():
        return types.tolist(), starts.tolist()
    marks = (types._version, starts._version)
    known = _chunks.get(types)
    if known is None or known[0]() is not starts or known[1] != marks:
        known = (weakref.ref(starts), marks, (types.tolist(), starts.tolist()))
        _chunks[types] = known
    found: Chunks = known[2]
    return found


def know_chunks(types: Tensor, starts: Tensor, numbers: Chunks) -> None:
    """Remember what tensors on a device hold, which was copied there from the CPU."""
    if not (types.is_cpu or types.is_inference()):
        _chunks[types] = (weakref.ref(starts), (types._version, starts._version), numbers)


@operator("weft::row_sums", lambda x, offsets, *_: x.new_empty(offsets.shape[0] - 1, x.shape[1]))
def _row_sums(
    x: Tensor, offsets: Tensor, columns: Tensor, offsets_t: Tensor, columns_t: Tensor
) -> Tensor:
    """A x [R, F] of a 0/1 matrix A [R, M] as CSR, and Aᵀ for the gradient."""
    check_transposes(offsets, columns, offsets_t, columns_t)
    right = x.ndim == 2 and x.shape[0] == offsets_t.shape[0] - 1
    require(right, "x must have one row per column", x, offsets_t)
    return plain.spmm(x, None, columns, offsets, None)


@_row_sums.derivative(lambda ctx, inputs, output: inputs[1:])
def _row_sums_backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    offsets, columns, offsets_t, columns_t = ctx.saved_tensors
    return (_row_sums(grad, offsets_t, columns_t, offsets, columns),)


@operator("weft::typed_messages", lambda h, weight, *_: h.new_empty(h.shape[0], weight.shape[2]))
def _typed(h: Tensor, weight: Tensor, bias: Tensor | None, rows: _Rows) -> Tensor:
    rows.check(h, weight, bias)
    if not has_loop(h):
        return forms(h, weight, bias).typed_messages(h, weight, bias, rows)
    count, outputs = rows.counts.shape[0], weight.shape[2]
    made = h.new_empty(count, outputs)
    given = map(array_of, (h, weight, bias, rows.into_columns, rows.into_offsets))
    chunks = tuple(map(array_of, rows[8:]))
    arguments = (gemm_address(h.dtype), *given, chunks, made.numpy())
    operations, starts = count * weight.shape[1] * outputs, array_of(rows.chunk_starts)
    _forward_chunks.share(arguments, rows.chunk_types.shape[0], operations, starts)
    return _sums(made, rows.out_offsets, rows.out_columns)


def _sums(x: Tensor, offsets: Tensor, columns: Tensor) -> Tensor:
    out = x.new_empty(offsets.shape[0] - 1, x.shape[1])
    starts = array_of(offsets)
    arguments = (array_of(x), array_of(columns), starts, out.numpy())
    _sum_part.share(arguments, out.shape[0], columns.shape[0] * x.shape[1], starts)
    return out


@_typed.derivative()
def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    # Read once: a step that is computed again for its gradient gives them once.
    saved = ctx.saved_tensors
    if not (has_loop(*saved[:3]) or runs_triton(*saved[:3])):
        # The form is another one by now.
        rows = _Rows(*saved[3:])
        found = differentiable_gradients(ctx, partial(_plain, rows=rows), saved[:3], (grad,))
        return tuple(found)
    wanted = ctx.needs_input_grad[0]
    grad_h, grad_weight, grad_bias = _typed_backward(grad, *saved, wanted)
    return grad_h if wanted else None, grad_weight, None if saved[2] is None else grad_bias


def _empty_gradients(
    grad: Tensor, h: Tensor, weight: Tensor, bias: Any, rows: Any, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    biases = weight.new_empty(weight.shape[0], weight.shape[2])
    return h.new_empty(h.shape[0] if wanted else 0, h.shape[1]), torch.empty_like(weight), biases


@operator("weft::typed_messages_backward", _empty_gradients)
def _typed_backward(
    grad: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, rows: _Rows, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in h (empty unless `wanted`: the first step of many has none), weight and bias."""
    rows.check(h, weight, bias)
    right = grad.shape == (h.shape[0], weight.shape[2]) and grad.dtype == h.dtype
    require(right, "the gradient must have the shape and dtype of the output", grad, h, weight)
    if not has_loop(h):
        return forms(h, weight, bias).typed_gradients(grad, h, weight, bias, rows, wanted)
    count, chunks = rows.counts.shape[0], rows.chunk_types.shape[0]
    grad_rows = h.new_empty(count if wanted else 0, weight.shape[1])
    weight_grad = h.new_empty(chunks, *weight.shape[1:])
    bias_grad = h.new_zeros(chunks, weight.shape[2])
    edges = (rows.into_columns, rows.into_offsets, rows.out_t_columns, rows.out_t_offsets)
    arguments = (
        gemm_address(h.dtype),
        *map(array_of, (h, weight, grad)),
        tuple(map(array_of, edges)),
        tuple(map(array_of, rows[8:])),
        wanted,
        grad_rows.numpy(),
        weight_grad.numpy(),
        None if bias is None else bias_grad.numpy(),
    )
    operations = 2 * count * weight.shape[1] * weight.shape[2]
    _backward_chunks.share(arguments, chunks, operations, array_of(rows.chunk_starts))
    kinds = rows.chunk_types.long()
    grad_weight = torch.zeros_like(weight).index_add_(0, kinds, weight_grad)
    grad_bias = h.new_zeros(weight.shape[0], weight.shape[2]).index_add_(0, kinds, bias_grad)
    grad_h = _sums(grad_rows, rows.into_t_offsets, rows.into_t_columns) if wanted else grad_rows
    return grad_h, grad_weight, grad_bias
