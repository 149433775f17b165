"""Softmax of scores [E, H] over the edges into each receiver as Triton kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.triton.attention import Walk
from weft.kernels.triton.launch import bytes_of, dense, kernel, sums_in, tile_of


def _least_softmax(scores: Tensor, offsets: Tensor, edge_of: Tensor, out: Tensor, **_: Any) -> int:
    return bytes_of(scores, offsets, edge_of, out)


@kernel(
    reason="A program per receiver: 512 scores stay in registers, so short rows are read once.",
    least=_least_softmax,
)
def _softmax_rows(
    scores,
    offsets,
    edge_of,
    out,
    heads,
    SMALL: tl.constexpr,
    SUMS: tl.constexpr,
    EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(offsets + row).to(tl.int64)
    end = tl.load(offsets + row + 1).to(tl.int64)
    top = tl.full([BLOCK], float("-inf"), SUMS)
    total = tl.zeros([BLOCK], SUMS)
    score = tl.zeros([EDGES, BLOCK], SUMS)
    edge = tl.zeros([EDGES], tl.int64)
    for first in range(start, end, EDGES):
        place = first + tl.arange(0, EDGES)
        edge = tl.load(edge_of + place, mask=place < end, other=0).to(tl.int64)
        mask = (place < end)[:, None] & (head < heads)[None, :]
        at = edge[:, None] * heads + head[None, :]
        score = tl.load(scores + at, mask=mask, other=float("-inf")).to(SUMS)
        most = tl.maximum(top, tl.max(score, 0))
        shift = tl.where(most > float("-inf"), most, 0.0)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(score - shift[None, :]), 0)
        top = most
    shift = tl.where(top > float("-inf"), top, 0.0)
    # Scores that are all -inf give what is not a number, as the loop does.
    below = tl.where(total > 0, total + SMALL, float("nan"))
    for first in range(start, end, EDGES):
        place = first + tl.arange(0, EDGES)
        mask = (place < end)[:, None] & (head < heads)[None, :]
        if end - start > EDGES:
            edge = tl.load(edge_of + place, mask=place < end, other=0).to(tl.int64)
        at = edge[:, None] * heads + head[None, :]
        if end - start > EDGES:
            score = tl.load(scores + at, mask=mask, other=float("-inf")).to(SUMS)
        weight = tl.exp(score - shift[None, :]) / below[None, :]
        tl.store(out + at, weight, mask=mask)


def edge_softmax(scores: Tensor, into: Walk, small: float) -> Tensor:
    """Softmax [E, H] of scores [E, H] over each receiver's edges; `small` is added to the sum."""
    offsets, _, edge_of = into
    out = torch.empty_like(scores, memory_format=torch.contiguous_format)
    edges, block, warps = tile_of(scores.shape[1], features=32, edges=128)
    _softmax_rows.launch(
        (offsets.shape[0] - 1, triton.cdiv(scores.shape[1], block)),
        *map(dense, (scores, offsets, edge_of)),
        out,
        heads=scores.shape[1],
        SMALL=small,
        SUMS=sums_in(scores),
        EDGES=edges,
        BLOCK=block,
        warps=warps,
    )
    return out


def _least_softmax_gradient(
    y: Tensor, grad: Tensor, offsets: Tensor, edge_of: Tensor, out: Tensor, **_: Any
) -> int:
    return bytes_of(y, grad, offsets, edge_of, out)


@kernel(
    reason="A program per receiver: 512 numbers stay in registers, so short rows are read once.",
    least=_least_softmax_gradient,
)
def _softmax_gradients(
    y,
    grad,
    offsets,
    edge_of,
    out,
    heads,
    SUMS: tl.constexpr,
    EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(offsets + row).to(tl.int64)
    end = tl.load(offsets + row + 1).to(tl.int64)
    total = tl.zeros([BLOCK], SUMS)
    weight = tl.zeros([EDGES, BLOCK], SUMS)
    above = tl.zeros([EDGES, BLOCK], SUMS)
    edge = tl.zeros([EDGES], tl.int64)
    for first in range(start, end, EDGES):
        place = first + tl.arange(0, EDGES)
        edge = tl.load(edge_of + place, mask=place < end, other=0).to(tl.int64)
        mask = (place < end)[:, None] & (head < heads)[None, :]
        at = edge[:, None] * heads + head[None, :]
        weight = tl.load(y + at, mask=mask, other=0.0).to(SUMS)
        above = tl.load(grad + at, mask=mask, other=0.0).to(SUMS)
        total += tl.sum(weight * above, 0)
    for first in range(start, end, EDGES):
        place = first + tl.arange(0, EDGES)
        mask = (place < end)[:, None] & (head < heads)[None, :]
        if end - start > EDGES:
            edge = tl.load(edge_of + place, mask=place < end, other=0).to(tl.int64)
        at = edge[:, None] * heads + head[None, :]
        if end - start > EDGES:
            weight = tl.load(y + at, mask=mask, other=0.0).to(SUMS)
            above = tl.load(grad + at, mask=mask, other=0.0).to(SUMS)
        tl.store(out + at, weight * (above - total[None, :]), mask=mask)


def edge_softmax_gradient(y: Tensor, grad: Tensor, into: Walk) -> Tensor:
    """The gradient to the scores [E, H] of a softmax y [E, H]."""
    offsets, _, edge_of = into
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    edges, block, warps = tile_of(y.shape[1], features=32, edges=128)
    _softmax_gradients.launch(
        (offsets.shape[0] - 1, triton.cdiv(y.shape[1], block)),
        *map(dense, (y, grad, offsets, edge_of)),
        out,
        heads=y.shape[1],
        SUMS=sums_in(y),
        EDGES=edges,
        BLOCK=block,
        warps=warps,
    )
    return out
