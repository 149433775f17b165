"""Dropout from a counter as Triton kernels, with the masks of `weft.kernels.counter_dropout`.

N rows of F features.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from weft.kernels import counter_dropout
from weft.kernels.triton.launch import all_bytes, kernel, sums_in

_ROW = tl.constexpr(int(counter_dropout.ROW))
_MIX_1 = tl.constexpr(int(counter_dropout.MIX_1))
_MIX_2 = tl.constexpr(int(counter_dropout.MIX_2))
_COLUMN = tl.constexpr(int(counter_dropout.COLUMN))
_HASH_1 = tl.constexpr(int(counter_dropout.HASH_1))
_HASH_2 = tl.constexpr(int(counter_dropout.HASH_2))


@triton.jit
def _hash(number, column, seed):
    """uint32 [R, F] of the numbers of rows and columns, as `counter_dropout.drop_rows`."""
    key = (number.to(tl.uint64) + 1) * _ROW + seed
    key = (key ^ (key >> 30)) * _MIX_1
    key = (key ^ (key >> 27)) * _MIX_2
    key = key ^ (key >> 31)
    low, high = key.to(tl.uint32)[:, None], (key >> 32).to(tl.uint32)[:, None]
    h = (column.to(tl.uint32) * _COLUMN)[None, :] ^ low
    h = (h ^ (h >> 16)) * _HASH_1
    h = (h ^ (h >> 15)) * _HASH_2
    h = h ^ (h >> 16) ^ high
    h = (h ^ (h >> 16)) * _HASH_1
    return h ^ (h >> 15)


@kernel(
    reason="A program per 16 rows and up to 128 features: the mask is made in registers.",
    least=all_bytes,
)
def _dropped(
    x,
    seed,
    ids,
    out,
    count,
    width,
    first_column,
    LIMIT: tl.constexpr,
    SCALE: tl.constexpr,
    RELU: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = row < count
    inside = there[:, None] & (feature < width)[None, :]
    number = row
    if ids is not None:
        number = tl.load(ids + row, mask=there, other=0).to(tl.int64)
    hashed = _hash(number, first_column + feature, tl.load(seed).to(tl.uint64))
    place = row[:, None] * width + feature[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(SUMS) * SCALE
    keep = hashed >= LIMIT
    if RELU:
        # As in torch, what is not a number stays.
        keep = keep & ((value > 0) | (value != value))
    tl.store(out + place, tl.where(keep, value, 0.0), mask=inside)


@kernel(
    reason="A program per 16 rows and up to 128 features: the output is its own mask.",
    least=all_bytes,
)
def _passed(
    grad,
    given,
    out,
    count,
    width,
    SCALE: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (feature < width)[None, :]
    place = row[:, None] * width + feature[None, :]
    value = tl.load(grad + place, mask=inside, other=0.0).to(SUMS) * SCALE
    made = tl.load(given + place, mask=inside, other=0.0)
    passes = (made > 0) | (made != made)
    tl.store(out + place, tl.where(passes, value, 0.0), mask=inside)


def dropped(
    x: Tensor,
    seed: Tensor,
    limit: int,
    scale: float,
    relu: bool,
    ids: Tensor | None,
    first_column: int,
) -> Tensor:
    """x [N, F] · scale where the hash reaches `limit`, else 0; see `counter_dropout`."""
    out = x.new_empty(x.shape)
    _dropped.launch_tiles(
        *x.shape,
        *(x, seed.to(x.device), ids, out),
        first_column=first_column,
        LIMIT=limit,
        SCALE=scale,
        RELU=relu,
        SUMS=sums_in(x),
    )
    return out


def positive_gradient(grad: Tensor, out: Tensor, scale: float) -> Tensor:
    """grad · scale [N, F] where `out` is positive (or NaN), else 0."""
    made = grad.new_empty(grad.shape)
    _passed.launch_tiles(*grad.shape, grad, out, made, SCALE=scale, SUMS=sums_in(grad))
    return made
