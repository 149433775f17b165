"""Messages whose matrix depends on the type of the edge, as Triton kernels.

N nodes, R rows sorted by type, P types, H and O features, C chunks of rows of one type, as in
`weft.kernels.edge_types`. What a row gathers is summed in registers and goes to the matrix unit
from there.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.triton.dots import dot, tile_side
from weft.kernels.triton.launch import bytes_of, dense, kernel, sums_in
from weft.kernels.triton.segments import segment_reduce, spmm

# Rows and features of a program, and how many terms of its sums it reads at a time: features of a
# row, or rows for the gradients of weights, whose 128 x 128 sums leave few registers.
_ROWS, _FEATURES, _DEPTH, _ROWS_DEPTH = 64, 128, 32, 16
# Programs that share the rows of a chunk: as many as the chunks of `TypedEdges` have tiles.
_SLOTS = 32


@triton.jit
def _row_sums(x, columns, low, high, feature, width, SUMS: tl.constexpr):
    """Σ x[columns[k]] over k in low:high of each row, in the order of k; 0 past the width."""
    longest = tl.max(high - low, 0)
    total = tl.zeros([low.shape[0], feature.shape[0]], SUMS)
    for k in range(longest):
        there = low + k < high
        column = tl.load(columns + low + k, mask=there, other=0).to(tl.int64)
        inside = there[:, None] & (feature < width)[None, :]
        own = x + column * width
        value = tl.load(own[:, None] + feature[None, :], mask=inside, other=0.0)
        total += value.to(SUMS)
    return total


def _least_messages(
    x: Tensor, weight: Tensor, columns: Tensor, offsets: Tensor, out: Tensor, **others: Any
) -> int:
    rows = columns.shape[0] * x.shape[1] * x.element_size()
    indices = bytes_of(columns, offsets, others["chunk_types"], others["chunk_starts"])
    return rows + indices + bytes_of(weight, others["bias"], others["counts"], out)


@kernel(
    reason="64 rows of a type by 128 features: what a row gathers is read once and never written.",
    least=_least_messages,
    dots=True,
)
def _typed_rows(
    x,
    weight,
    bias,
    counts,
    columns,
    offsets,
    chunk_types,
    chunk_starts,
    out,
    width,
    outputs,
    slots,
    TRANSPOSED: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    chunk = tl.program_id(0)
    feature = tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    kind = tl.load(chunk_types + chunk).to(tl.int64)
    start = tl.load(chunk_starts + chunk).to(tl.int64)
    end = tl.load(chunk_starts + chunk + 1).to(tl.int64)
    own = weight + kind * width * outputs
    for first in range(start + tl.program_id(1) * ROWS, end, slots * ROWS):
        row = first + tl.arange(0, ROWS)
        there = row < end
        low = tl.load(offsets + row, mask=there, other=0)
        high = tl.load(offsets + row + 1, mask=there, other=0)
        total = tl.zeros([ROWS, FEATURES], SUMS)
        for depth in range(0, width, DEPTH):
            term = depth + tl.arange(0, DEPTH)
            sums = _row_sums(x, columns, low, high, term, width, SUMS)
            if TRANSPOSED:
                cells = feature[None, :] * width + term[:, None]
            else:
                cells = term[:, None] * outputs + feature[None, :]
            inside = (term < width)[:, None] & (feature < outputs)[None, :]
            matrix = tl.load(own + cells, mask=inside, other=0.0)
            total = dot(sums.to(matrix.dtype), matrix, total)
        if bias is not None:
            often = tl.load(counts + row, mask=there, other=0.0).to(SUMS)
            added = tl.load(bias + kind * outputs + feature, mask=feature < outputs, other=0.0)
            total += often[:, None] * added.to(SUMS)[None, :]
        inside = there[:, None] & (feature < outputs)[None, :]
        own_out = out + row * outputs
        tl.store(own_out[:, None] + feature[None, :], total, mask=inside)


def _least_gradients(
    x: Tensor, grad: Tensor, columns: Tensor, to_columns: Tensor, weight_grad: Tensor, **others: Any
) -> int:
    rows = columns.shape[0] * x.shape[1] * x.element_size()
    rows += to_columns.shape[0] * grad.shape[1] * grad.element_size()
    indices = bytes_of(columns, others["offsets"], to_columns, others["to_offsets"])
    return (
        rows
        + indices
        + bytes_of(weight_grad, others["bias_grad"], others["counts"], others["chunk_starts"])
    )


@kernel(
    reason="A chunk of rows by 128 x 128 weights: sums over the rows stay in registers.",
    least=_least_gradients,
    dots=True,
    all_registers=True,
)
def _typed_weights(
    x,
    grad,
    counts,
    columns,
    offsets,
    to_columns,
    to_offsets,
    chunk_starts,
    weight_grad,
    bias_grad,
    width,
    outputs,
    SUMS: tl.constexpr,
    INPUTS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    chunk = tl.program_id(0).to(tl.int64)
    given = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    feature = tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    start = tl.load(chunk_starts + chunk).to(tl.int64)
    end = tl.load(chunk_starts + chunk + 1).to(tl.int64)
    total = tl.zeros([INPUTS, FEATURES], SUMS)
    bias_total = tl.zeros([FEATURES], SUMS)
    for first in range(start, end, DEPTH):
        row = first + tl.arange(0, DEPTH)
        there = row < end
        low = tl.load(offsets + row, mask=there, other=0)
        high = tl.load(offsets + row + 1, mask=there, other=0)
        sums = _row_sums(x, columns, low, high, given, width, SUMS)
        low = tl.load(to_offsets + row, mask=there, other=0)
        high = tl.load(to_offsets + row + 1, mask=there, other=0)
        grads = _row_sums(grad, to_columns, low, high, feature, outputs, SUMS)
        if bias_grad is not None:
            often = tl.load(counts + row, mask=there, other=0.0).to(SUMS)
            bias_total += tl.sum(often[:, None] * grads, 0)
        rounded = sums.to(x.dtype.element_ty)
        total = dot(tl.trans(rounded), grads.to(x.dtype.element_ty), total)
    inside = (given < width)[:, None] & (feature < outputs)[None, :]
    own = weight_grad + chunk * width * outputs
    tl.store(own + given[:, None] * outputs + feature[None, :], total, mask=inside)
    if bias_grad is not None:  # noqa: SIM102  known when it is compiled, unlike the next
        # The same for all blocks of inputs: one of them writes it.
        if tl.program_id(1) == 0:
            tl.store(bias_grad + chunk * outputs + feature, bias_total, mask=feature < outputs)


def _features(x: Tensor) -> int:
    """Features of a program, for narrow rows, too: narrower tiles spill on some GPUs."""
    # Sums of float64 take twice the registers.
    return _FEATURES // 2 if x.dtype == torch.float64 else _FEATURES


def _side(width: int, x: Tensor) -> int:
    """Inputs or outputs of a program for weights."""
    return max(tile_side(width, _features(x)), 64)


def _times_weights(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    columns: Tensor,
    offsets: Tensor,
    rows: Any,
    transposed: bool,
) -> Tensor:
    """(Σ x over a row's columns) times the matrix of its type, or the transpose, plus biases."""
    outputs = weight.shape[1 if transposed else 2]
    count, features = offsets.shape[0] - 1, _features(x)
    out = x.new_empty(count, outputs)
    slots = min(triton.cdiv(count, _ROWS), _SLOTS)
    counts = None if bias is None else rows.counts
    chunks = (rows.chunk_types, rows.chunk_starts)
    _typed_rows.launch(
        (rows.chunk_types.shape[0], slots, triton.cdiv(outputs, features)),
        *map(dense, (x, weight, bias, counts, columns, offsets, *chunks)),
        out,
        width=x.shape[1],
        outputs=outputs,
        slots=slots,
        TRANSPOSED=transposed,
        SUMS=sums_in(x),
        ROWS=_ROWS,
        FEATURES=features,
        DEPTH=_DEPTH,
        warps=8,
    )
    return out


def typed_messages(h: Tensor, weight: Tensor, bias: Tensor | None, rows: Any) -> Tensor:
    """Messages [N, O], summed; see `weft.kernels.edge_types`."""
    made = _times_weights(h, weight, bias, rows.into_columns, rows.into_offsets, rows, False)
    return spmm(made, None, rows.out_columns, rows.out_offsets, None)


def typed_gradients(
    grad: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, rows: Any, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in h (empty unless `wanted`), weight and bias."""
    grad_h = h.new_empty(0, h.shape[1])
    back = (rows.out_t_columns, rows.out_t_offsets)
    if wanted:
        grad_rows = _times_weights(grad, weight, None, *back, rows, True)
        grad_h = spmm(grad_rows, None, rows.into_t_columns, rows.into_t_offsets, None)
    chunks, (types, width, outputs) = rows.chunk_types.shape[0], weight.shape
    # As sums are held: the chunks of a type are summed before the result is rounded.
    held = torch.promote_types(h.dtype, torch.float32)
    weight_grad = h.new_empty(chunks, width, outputs, dtype=held)
    bias_grad = None if bias is None else h.new_empty(chunks, outputs, dtype=held)
    inputs, features = _side(width, h), _side(outputs, h)
    edges = (rows.into_columns, rows.into_offsets, *back)
    _typed_weights.launch(
        (chunks, triton.cdiv(width, inputs), triton.cdiv(outputs, features)),
        *map(dense, (h, grad, rows.counts, *edges, rows.chunk_starts)),
        weight_grad,
        bias_grad,
        width=width,
        outputs=outputs,
        SUMS=sums_in(h),
        INPUTS=inputs,
        FEATURES=features,
        DEPTH=_ROWS_DEPTH,
        warps=8,
    )
    order = rows.chunk_types.argsort(stable=True)
    kinds = torch.arange(types + 1, device=h.device, dtype=rows.chunk_types.dtype)
    offsets = torch.searchsorted(rows.chunk_types[order], kinds)
    summed = segment_reduce(weight_grad.flatten(1), offsets, order, "sum")
    grad_bias = h.new_zeros(types, outputs)
    if bias_grad is not None:
        grad_bias = segment_reduce(bias_grad, offsets, order, "sum").to(h.dtype)
    return grad_h, summed.reshape(weight.shape).to(h.dtype), grad_bias
