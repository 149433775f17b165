"""SchNet's pair messages and Gaussians of distances as Triton kernels.

E edges in P pairs over N rows, F features; `forward` and `backward` [P] are a pair's two edges (the
same one where an edge is alone) and `of_edge` [E] the pair of each edge.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from weft.kernels.custom_op import widest
from weft.kernels.triton.launch import all_bytes, bytes_of, kernel, sums_in
from weft.kernels.triton.segments import sums_of_rows


def pair_spmm(
    x: Tensor,
    weight: Tensor,
    of_edge: Tensor,
    columns: Tensor,
    offsets: Tensor,
    order: Tensor | None,
) -> Tensor:
    """As `spmm`, where edge e has the weights of its pair, row of_edge[e] of weight [P, F]."""
    return sums_of_rows(x, weight, of_edge, columns, order, offsets, False)


def _least_pair_products(
    a: Tensor,
    b: Tensor,
    rows: Tensor,
    columns: Tensor,
    forward: Tensor,
    backward: Tensor,
    out: Tensor,
    **_: Any,
) -> int:
    row = a.element_size() + b.element_size()
    return rows.shape[0] * a.shape[1] * row + bytes_of(rows, columns, forward, backward, out)


@kernel(
    reason="A program per 16 pairs and up to 128 features: both edges' products in one pass.",
    least=_least_pair_products,
    all_registers=True,
)
def _pair_products(
    a,
    b,
    rows,
    columns,
    forward,
    backward,
    out,
    count,
    width,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    pair = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = pair < count
    inside = there[:, None] & (feature < width)[None, :]
    first = tl.load(forward + pair, mask=there, other=0).to(tl.int64)
    second = tl.load(backward + pair, mask=there, other=0).to(tl.int64)
    total = tl.zeros([ROWS, BLOCK], SUMS)
    for way in tl.static_range(2):
        edge, here = first, there
        if way == 1:
            # The one edge of a pair that is alone counts once.
            edge, here = second, there & (first != second)
        row = tl.load(rows + edge, mask=here, other=0).to(tl.int64)
        column = tl.load(columns + edge, mask=here, other=0).to(tl.int64)
        both = here[:, None] & inside
        left = tl.load(a + row[:, None] * width + feature[None, :], mask=both, other=0.0)
        right = tl.load(b + column[:, None] * width + feature[None, :], mask=both, other=0.0)
        total += left.to(SUMS) * right.to(SUMS)
    tl.store(out + pair[:, None] * width + feature[None, :], total, mask=inside)


def pair_products(
    a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, forward: Tensor, backward: Tensor
) -> Tensor:
    """Sums [P, F] of the products a[rows] · b[columns] by feature, over the edges of each pair."""
    out = a.new_empty(forward.shape[0], a.shape[1])
    ends = (rows, columns, forward, backward)
    _pair_products.launch_tiles(*out.shape, a, b, *ends, out, SUMS=sums_in(a))
    return out


def _least_pair_sums(
    values: Tensor, forward: Tensor, backward: Tensor, out: Tensor, **_: Any
) -> int:
    return bytes_of(values, forward, backward, out)


@kernel(
    reason="A program per 16 pairs and up to 128 features: rows hide each other's latency.",
    least=_least_pair_sums,
)
def _pair_sums(
    values,
    forward,
    backward,
    out,
    count,
    width,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    pair = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = pair < count
    inside = there[:, None] & (feature < width)[None, :]
    first = tl.load(forward + pair, mask=there, other=0).to(tl.int64)
    second = tl.load(backward + pair, mask=there, other=0).to(tl.int64)
    both = inside & (first != second)[:, None]
    one = tl.load(values + first[:, None] * width + feature[None, :], mask=inside, other=0.0)
    other = tl.load(values + second[:, None] * width + feature[None, :], mask=both, other=0.0)
    total = one.to(SUMS) + other.to(SUMS)
    tl.store(out + pair[:, None] * width + feature[None, :], total, mask=inside)


def pair_sums(values: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """Sums [P, F] of edge values [E, F] over the one or two edges of each pair."""
    out = values.new_empty(forward.shape[0], values.shape[1])
    _pair_sums.launch_tiles(*out.shape, values, forward, backward, out, SUMS=sums_in(values))
    return out


@kernel(
    reason="A program per 16 distances, all centres in turn: a distance is read once.",
    least=all_bytes,
    all_registers=True,
)
def _gaussians(
    d,
    fade,
    out,
    count,
    width,
    centres,
    SPACING: tl.constexpr,
    SHARPNESS: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    distance = tl.load(d + row, mask=there, other=0.0).to(SUMS)
    if fade is not None:
        factor = tl.load(fade + row, mask=there, other=0.0).to(SUMS)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        away = distance[:, None] - (column.to(SUMS) * SPACING)[None, :]
        value = tl.exp(-SHARPNESS * away * away)
        if fade is not None:
            value = tl.where((column == centres)[None, :], 1.0, value) * factor[:, None]
        inside = there[:, None] & (column < width)[None, :]
        tl.store(out + row[:, None] * width + column[None, :], value, mask=inside)


def gaussian_basis(
    d: Tensor, fade: Tensor | None, centres: int, spacing: float, sharpness: float
) -> Tensor:
    """Gaussians [P, K] of distances d [P]; with fade [P], times it, and it as column K."""
    out = d.new_empty(d.shape[0], centres + (fade is not None), dtype=widest(d, fade))
    _gaussians.launch_tiles(
        *out.shape,
        *(d, fade, out),
        warps=8,
        cut=False,
        centres=centres,
        SPACING=spacing,
        SHARPNESS=sharpness,
        SUMS=sums_in(out),
    )
    return out


@kernel(
    reason="A program per 16 distances, all centres in turn: the sums over them stay in registers.",
    least=all_bytes,
    all_registers=True,
)
def _gaussian_gradients(
    grad,
    d,
    fade,
    to_d,
    to_fade,
    count,
    width,
    centres,
    SPACING: tl.constexpr,
    SHARPNESS: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    distance = tl.load(d + row, mask=there, other=0.0).to(SUMS)
    along = tl.zeros([ROWS], SUMS)
    whole = tl.zeros([ROWS], SUMS)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = there[:, None] & (column < width)[None, :]
        given = tl.load(grad + row[:, None] * width + column[None, :], mask=inside, other=0.0)
        away = distance[:, None] - (column.to(SUMS) * SPACING)[None, :]
        value = tl.exp(-SHARPNESS * away * away)
        if fade is not None:
            last = (column == centres)[None, :]
            value, away = tl.where(last, 1.0, value), tl.where(last, 0.0, away)
        part = given.to(SUMS) * value
        along += tl.sum(part * away, 1)
        whole += tl.sum(part, 1)
    along = along * (-2.0 * SHARPNESS)
    if fade is not None:
        along = along * tl.load(fade + row, mask=there, other=0.0).to(SUMS)
        tl.store(to_fade + row, whole, mask=there)
    tl.store(to_d + row, along, mask=there)


def gaussian_basis_backward(
    grad: Tensor, d: Tensor, fade: Tensor | None, spacing: float, sharpness: float
) -> list[Tensor]:
    """Gradients [P] in d and, where there is one, in fade."""
    found = [torch.empty_like(t) for t in (d, fade) if t is not None]
    _gaussian_gradients.launch_tiles(
        *grad.shape,
        *(grad, d, fade, found[0], None if fade is None else found[1]),
        warps=8,
        cut=False,
        centres=grad.shape[1] - (fade is not None),
        SPACING=spacing,
        SHARPNESS=sharpness,
        SUMS=sums_in(grad, d, fade),
    )
    return found
