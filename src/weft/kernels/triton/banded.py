"""Products with blocks of zeros and ones on the diagonal and beside it, as a Triton kernel.

K blocks of S nodes, the last perhaps not full, P edge types, H features. A block has a row for each
target and type and a column for each source; of its transpose it is the other way round. Blocks
stay bytes: nothing is cast, padded or copied before the product.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.triton.dots import dot_of_bits, tile_side
from weft.kernels.triton.launch import bytes_of, dense, kernel, sums_in

# Rows and features of a program, and how many terms of its sums it reads at a time.
_ROWS, _FEATURES, _DEPTH = 128, 64, 32


def _least(
    x: Tensor, own: Tensor, after: Tensor | None, before: Tensor | None, out: Tensor, **others: Any
) -> int:
    # A block of x is read for its own rows and for those of the blocks beside it.
    uses, terms = x.shape[0], others["terms"]
    if after is not None and own.shape[0] > 1:
        last = max(uses - terms * (own.shape[0] - 1), 0)
        uses = 3 * uses - min(terms, uses) - last
    return uses * x.shape[1] * x.element_size() + bytes_of(own, after, before, out)


@triton.jit
def _added(
    total,
    x,
    part,
    place,
    source,
    stop,
    tile,
    sizes,
    TRANSPOSED: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """total + rows of part[place] times x of the block `source`, or nothing if `stop` is 0."""
    row, feature = tile
    rows, terms, given, width = sizes
    # Addresses of a block are of 64 bits, places within it of 32, which take half the registers.
    own_part = part + place * rows * terms
    own_x = x + source * terms * width
    count = tl.minimum(given - source * terms, terms).to(tl.int32)
    for first in range(0, stop, DEPTH):
        term = first + tl.arange(0, DEPTH)
        if TRANSPOSED:
            cells = term[None, :] * rows + row[:, None]
        else:
            cells = row[:, None] * terms + term[None, :]
        there = (row < rows)[:, None] & (term < terms)[None, :]
        bits = tl.load(own_part + cells, mask=there, other=0)
        inside = (term < count)[:, None] & (feature < width)[None, :]
        value = tl.load(own_x + term[:, None] * width + feature[None, :], mask=inside, other=0.0)
        total = dot_of_bits(bits, value, total)
    return total


@kernel(
    reason="128 rows of a block by 64 features: sources are reused in registers, bytes are few.",
    least=_least,
    dots=True,
)
def _block_products(
    x,
    own,
    after,
    before,
    out,
    blocks,
    rows,
    terms,
    given,
    made,
    width,
    TRANSPOSED: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    tiles = tl.cdiv(rows, ROWS)
    block = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    tile, sizes = (row, feature), (rows, terms, given, width)
    total = tl.zeros([ROWS, FEATURES], SUMS)
    total = _added(total, x, own, block, block, terms, tile, sizes, TRANSPOSED, DEPTH)
    if after is not None:
        stop = tl.where(block > 0, terms, 0)
        total = _added(total, x, before, block - 1, block - 1, stop, tile, sizes, TRANSPOSED, DEPTH)
        stop = tl.where(block + 1 < blocks, terms, 0)
        total = _added(total, x, after, block, block + 1, stop, tile, sizes, TRANSPOSED, DEPTH)
    count = tl.minimum(made - block * rows, rows).to(tl.int32)
    inside = (row < count)[:, None] & (feature < width)[None, :]
    own_out = out + block * rows * width
    tl.store(own_out + row[:, None] * width + feature[None, :], total, mask=inside)


def block_products(
    x: Tensor, C: Tensor, U: Tensor | None, L: Tensor | None, transposed: bool
) -> Tensor:
    """A x [N P, H] of the blocks A and x [N, H]; or Aᵀ x [N, H] of x [N P, H]."""
    blocks, size, types, _ = C.shape
    given, width = x.shape
    if size * types * max(size, width) >= 2**31:
        raise ValueError(
            f"a block of {size} nodes and {types} types has 2**31 cells or more, of {width} "
            "features: take smaller blocks, form 'csr', or WEFT_BACKEND=plain"
        )
    made = given // types if transposed else given * types
    # The block before has the transpose of this one's rows above its diagonal.
    beside = (L, U) if transposed else (U, L)
    rows, terms = (size, size * types) if transposed else (size * types, size)
    out = x.new_empty(made, width)
    features = tile_side(width, _FEATURES)
    _block_products.launch(
        (blocks * triton.cdiv(rows, _ROWS), triton.cdiv(width, features)),
        *map(dense, (x, C, *beside)),
        out,
        blocks=blocks,
        rows=rows,
        terms=terms,
        given=given,
        made=made,
        width=width,
        TRANSPOSED=transposed,
        SUMS=sums_in(x),
        ROWS=_ROWS,
        FEATURES=features,
        DEPTH=_DEPTH,
        warps=8,
    )
    return out
