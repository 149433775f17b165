"""Sums, means and maxima of segments, gathers, sparse and edge products as Triton kernels.

E edges, N rows, F features; `order` maps a position of a CSR view to an edge, and is None where
edges are stored in that order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from weft.kernels.triton.launch import bytes_of, kernel, sums_in


def _least_row_sums(
    values: Tensor,
    weight: Tensor | None,
    of_edge: Tensor | None,
    columns: Tensor | None,
    order: Tensor | None,
    offsets: Tensor,
    out: Tensor,
    **_: Any,
) -> int:
    edges = (values if columns is None else columns).shape[0]
    rows = edges * values.shape[1] * values.element_size()
    weights = bytes_of(weight)
    if weight is not None and of_edge is not None:
        weights = edges * weight.shape[1] * weight.element_size()
    # A program reads both ends of its row: the start is the end of the row before.
    return rows + weights + bytes_of(of_edge, columns, order, offsets, out)


@kernel(
    reason="A program per row and up to 512 features: sums stay in registers, edges in order.",
    least=_least_row_sums,
    tuned_by=("width",),
)
def _row_sums(
    values,
    weight,
    of_edge,
    columns,
    order,
    offsets,
    out,
    width,
    WEIGHTS: tl.constexpr,
    MEAN: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < width
    start = tl.load(offsets + row).to(tl.int64)
    end = tl.load(offsets + row + 1).to(tl.int64)
    total = tl.zeros([BLOCK], SUMS)
    for k in range(start, end):
        edge = k
        if order is not None:
            edge = tl.load(order + k).to(tl.int64)
        source = edge
        if columns is not None:
            source = tl.load(columns + edge).to(tl.int64)
        value = tl.load(values + source * width + feature, mask=inside, other=0.0).to(SUMS)
        if WEIGHTS == 1:
            value = value * tl.load(weight + edge).to(SUMS)
        if WEIGHTS == 2:
            own = edge
            if of_edge is not None:
                own = tl.load(of_edge + edge).to(tl.int64)
            scale = tl.load(weight + own * width + feature, mask=inside, other=0.0)
            value = value * scale.to(SUMS)
        total += value
    if MEAN:
        total = total / tl.maximum(end - start, 1).to(SUMS)
    tl.store(out + row * width + feature, total, mask=inside)


def sums_of_rows(
    values: Tensor,
    weight: Tensor | None,
    of_edge: Tensor | None,
    columns: Tensor | None,
    order: Tensor | None,
    offsets: Tensor,
    mean: bool,
) -> Tensor:
    """Weighted sums or means [N, F] of the rows of each CSR row.

    Edge e has row columns[e] of `values`, or its own, and row of_edge[e] of `weight`, or its own.
    """
    rows, width = offsets.shape[0] - 1, values.shape[1]
    out = values.new_empty(rows, width)
    _row_sums.launch_rows(
        rows,
        width,
        *(values, weight, of_edge, columns, order, offsets, out),
        WEIGHTS=0 if weight is None else weight.ndim,
        MEAN=mean,
        SUMS=sums_in(values),
    )
    return out


def segment_reduce(values: Tensor, offsets: Tensor, order: Tensor | None, reduce: str) -> Tensor:
    """Sum or mean [N, F] of segments of `values` [E, F]; 0 for an empty one."""
    return sums_of_rows(values, None, None, None, order, offsets, reduce == "mean")


def spmm(
    x: Tensor, weight: Tensor | None, columns: Tensor, offsets: Tensor, order: Tensor | None
) -> Tensor:
    """Weighted sums [N, F] of rows of `x` by CSR row; the weights are [E], [E, F] or None."""
    return sums_of_rows(x, weight, None, columns, order, offsets, False)


def _least_max(
    values: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    out: Tensor,
    winners: Tensor,
    **_: Any,
) -> int:
    return bytes_of(values, order, offsets, out, winners)


@kernel(
    reason="A program per row and up to 512 features: the first of equal values wins.",
    least=_least_max,
    tuned_by=("width",),
)
def _row_maxima(
    values, order, offsets, out, winners, width, SUMS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < width
    start = tl.load(offsets + row).to(tl.int64)
    end = tl.load(offsets + row + 1).to(tl.int64)
    best = tl.zeros([BLOCK], SUMS)
    winner = tl.full([BLOCK], -1, tl.int64)
    for k in range(start, end):
        edge = k
        if order is not None:
            edge = tl.load(order + k).to(tl.int64)
        value = tl.load(values + edge * width + feature, mask=inside, other=0.0).to(SUMS)
        # A NaN is the one number that is not itself. The first one wins over everything.
        wins = (winner < 0) | (value > best) | ((value != value) & (best == best))
        best = tl.where(wins, value, best)
        winner = tl.where(wins, edge, winner)
    tl.store(out + row * width + feature, best, mask=inside)
    tl.store(winners + row * width + feature, winner, mask=inside)


def segment_max(values: Tensor, offsets: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Maximum [N, F] by segment and the edge it came from (-1 for an empty segment)."""
    rows, width = offsets.shape[0] - 1, values.shape[1]
    out = values.new_empty(rows, width)
    winners = values.new_empty(rows, width, dtype=torch.int64)
    _row_maxima.launch_rows(rows, width, values, order, offsets, out, winners, SUMS=sums_in(values))
    return out, winners


def _least_gather(x: Tensor, index: Tensor, out: Tensor, **_: Any) -> int:
    return 2 * bytes_of(out) + bytes_of(index)


@kernel(
    reason="A program per 16 edges and up to 128 features: rows hide each other's latency.",
    least=_least_gather,
)
def _gathered(x, index, out, count, width, ROWS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    edge = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = edge < count
    inside = there[:, None] & (feature < width)[None, :]
    row = tl.load(index + edge, mask=there, other=0).to(tl.int64)
    value = tl.load(x + row[:, None] * width + feature[None, :], mask=inside, other=0.0)
    tl.store(out + edge[:, None] * width + feature[None, :], value, mask=inside)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Rows x[index], [E, F]."""
    out = x.new_empty(index.shape[0], x.shape[1])
    _gathered.launch_tiles(*out.shape, x, index, out)
    return out


def _least_products(
    a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, out: Tensor, **_: Any
) -> int:
    row = a.element_size() + b.element_size()
    return rows.shape[0] * a.shape[1] * row + bytes_of(rows, columns, out)


@kernel(
    reason="A program per 16 edges, all features in turn: a dot product needs no second pass.",
    least=_least_products,
)
def _products(
    a,
    b,
    rows,
    columns,
    out,
    count,
    width,
    BY_FEATURE: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    edge = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = edge < count
    row = tl.load(rows + edge, mask=there, other=0).to(tl.int64)
    column = tl.load(columns + edge, mask=there, other=0).to(tl.int64)
    total = tl.zeros([ROWS], SUMS)
    for first in range(0, width, BLOCK):
        feature = first + tl.arange(0, BLOCK)
        inside = there[:, None] & (feature < width)[None, :]
        left = tl.load(a + row[:, None] * width + feature[None, :], mask=inside, other=0.0)
        right = tl.load(b + column[:, None] * width + feature[None, :], mask=inside, other=0.0)
        product = left.to(SUMS) * right.to(SUMS)
        if BY_FEATURE:
            tl.store(out + edge[:, None] * width + feature[None, :], product, mask=inside)
        else:
            total += tl.sum(product, 1)
    if not BY_FEATURE:
        tl.store(out + edge, total, mask=there)


def edge_products(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, by_feature: bool) -> Tensor:
    """Products a[rows] · b[columns] by edge: dot products [E], or [E, F] by feature."""
    count, width = rows.shape[0], a.shape[1]
    out = a.new_empty((count, width) if by_feature else (count,))
    _products.launch_tiles(
        count,
        width,
        *(a, b, rows, columns, out),
        warps=8,
        cut=False,
        BY_FEATURE=by_feature,
        SUMS=sums_in(a),
    )
    return out
