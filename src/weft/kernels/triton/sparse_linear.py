"""Linear layers of few weights as Triton kernels: only the active weights are multiplied.

B samples, R rows of a matrix, K weights in CSR order; `order` maps a position to a weight, and is
None where they are stored so. Where every row has as many weights there are no offsets. All is
stored feature by feature: x is [I, B], so that the threads of a program read samples side by side.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.triton.launch import bytes_of, dense, kernel, sums_in, tile_of

# Samples of a tile: with 128 of them it has rows of four weights.
_SAMPLES = 128


def _least_rows(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    columns: Tensor,
    offsets: Tensor | None,
    order: Tensor | None,
    out: Tensor,
    **_: Any,
) -> int:
    rows = columns.shape[0] * x.shape[1] * x.element_size()
    return rows + bytes_of(values, bias, columns, offsets, order, out)


@kernel(
    reason="A program per row and 128 samples, 4 weights at once: sums stay in registers.",
    least=_least_rows,
)
def _weighted_rows(
    x,
    values,
    bias,
    columns,
    offsets,
    order,
    out,
    samples,
    fan_in,
    RELU: tl.constexpr,
    SUMS: tl.constexpr,
    WEIGHTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    sample = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < samples
    if offsets is None:
        start = row * fan_in
        end = start + fan_in
    else:
        start = tl.load(offsets + row).to(tl.int64)
        end = tl.load(offsets + row + 1).to(tl.int64)
    total = tl.zeros([BLOCK], SUMS)
    for first in range(start, end, WEIGHTS):
        place = first + tl.arange(0, WEIGHTS)
        there = place < end
        column = tl.load(columns + place, mask=there, other=0).to(tl.int64)
        weight = place
        if order is not None:
            weight = tl.load(order + place, mask=there, other=0).to(tl.int64)
        value = tl.load(values + weight, mask=there, other=0.0).to(SUMS)
        at = column[:, None] * samples + sample[None, :]
        given = tl.load(x + at, mask=there[:, None] & inside[None, :], other=0.0).to(SUMS)
        total += tl.sum(value[:, None] * given, 0)
    if bias is not None:
        total += tl.load(bias + row).to(SUMS)
    if RELU:
        # What is not a number stays, as in torch.
        total = tl.where(total <= 0, 0.0, total)
    tl.store(out + row * samples + sample, total, mask=inside)


def weighted_rows(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    columns: Tensor,
    offsets: Tensor | None,
    order: Tensor | None,
    rows: int,
    relu: bool,
) -> Tensor:
    """The transpose [B, R], with strides (1, B), of W x + bias for x [I, B].

    Args:
        x: [I, B].
        values: [K], the weights.
        bias: [R], or None.
        columns: int [K], the column of each position.
        offsets: int [R + 1], where the rows begin; None if all have K / R weights.
        order: int [K], the weight of each position; None if they are stored so.
        rows: R.
        relu: give 0 for what is below 0.
    """
    samples = x.shape[1]
    # Not the transpose of another tensor: autograd lets nobody change such a view in place.
    out = x.new_empty_strided((samples, rows), (1, max(1, samples)))
    weights, block, warps = tile_of(samples, features=_SAMPLES)
    _weighted_rows.launch(
        (rows, triton.cdiv(samples, block)),
        *map(dense, (x, values, bias, columns, offsets, order)),
        out.t(),
        samples=samples,
        fan_in=columns.shape[0] // max(1, rows),
        RELU=relu,
        SUMS=sums_in(x),
        WEIGHTS=weights,
        BLOCK=block,
        warps=warps,
    )
    return out


def _least_gradients(
    grad: Tensor, x: Tensor, columns: Tensor, offsets: Tensor | None, out: Tensor, **_: Any
) -> int:
    rows = columns.shape[0] * x.shape[1] * x.element_size()
    return rows + bytes_of(grad, columns, offsets, out)


@kernel(
    reason="A program per row, 16 weights at once: they share the row of gradients.",
    least=_least_gradients,
)
def _weight_gradients(
    grad,
    x,
    columns,
    offsets,
    out,
    samples,
    fan_in,
    SUMS: tl.constexpr,
    WEIGHTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    if offsets is None:
        start = row * fan_in
        end = start + fan_in
    else:
        start = tl.load(offsets + row).to(tl.int64)
        end = tl.load(offsets + row + 1).to(tl.int64)
    for first in range(start, end, WEIGHTS):
        place = first + tl.arange(0, WEIGHTS)
        there = place < end
        column = tl.load(columns + place, mask=there, other=0).to(tl.int64)
        total = tl.zeros([WEIGHTS], SUMS)
        for begin in range(0, samples, BLOCK):
            sample = begin + tl.arange(0, BLOCK)
            inside = sample < samples
            above = tl.load(grad + row * samples + sample, mask=inside, other=0.0).to(SUMS)
            at = column[:, None] * samples + sample[None, :]
            given = tl.load(x + at, mask=there[:, None] & inside[None, :], other=0.0).to(SUMS)
            total += tl.sum(given * above[None, :], 1)
        tl.store(out + place, total, mask=there)


def weight_gradients(
    grad: Tensor, x: Tensor, values: Tensor, columns: Tensor, offsets: Tensor | None
) -> Tensor:
    """The gradients [K] in the weights of `weighted_rows`, where they are stored by rows.

    Args:
        grad: to the output, [R, B].
        x: [I, B].
        values: [K].
        columns: as there.
        offsets: as there.
    """
    rows, samples = grad.shape
    out = values.new_empty(values.shape)
    weights, block, warps = tile_of(min(samples, 32))
    _weight_gradients.launch(
        (rows,),
        *map(dense, (grad, x, columns, offsets)),
        out,
        samples=samples,
        fan_in=columns.shape[0] // max(1, rows),
        SUMS=sums_in(x),
        WEIGHTS=weights,
        BLOCK=block,
        warps=warps,
    )
    return out
