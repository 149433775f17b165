"""Matrix products of tiles on the matrix units, in float32 to its own rounding.

A matrix unit has no float32 with all bits: one with fewer would miss what the compiled loops
compute, and multiply-adds outside of it are a tenth as fast. A float32 number is the sum of three
bfloat16 numbers, so that six of their products, the rest being below the last bit, are a float32
product on any GPU: the speed of triton's tf32x3 with the smaller error, and not for NVIDIA alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weft.kernels.triton.launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)


def tile_side(width: int, most: int) -> int:
    """Numbers of a tile's side: a power of two, 16 for the matrix unit at least."""
    return min(max(int(triton.next_power_of_2(width)), 16), most)


@triton.jit
def _rest(x, part):
    """What a bfloat16 part leaves of a float32 number; nothing of an infinite one."""
    left = x - part.to(tl.float32)
    return tl.where(left == left, left, 0.0)


@triton.jit
def _parts(x):
    """Three bfloat16 numbers whose sum is a float32 number."""
    high = x.to(tl.bfloat16)
    left = _rest(x, high)
    middle = left.to(tl.bfloat16)
    return high, middle, _rest(left, middle).to(tl.bfloat16)


# One way out of a function: triton compiles what comes after a return, too, with types that do not
# fit.


@triton.jit
def _one_dot(a, b, total):
    if _INTERPRETED and a.dtype == tl.bfloat16:
        # The interpreter would multiply the bits of bfloat16 numbers as integers.
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total)
    else:
        total = tl.dot(a, b, total, out_dtype=total.dtype)
    return total


@triton.jit
def dot(a, b, total):
    """total + a @ b, for tiles of one dtype."""
    if a.dtype == tl.float32:
        a_high, a_middle, a_low = _parts(a)
        b_high, b_middle, b_low = _parts(b)
        # The smallest first.
        total = _one_dot(a_low, b_high, total)
        total = _one_dot(a_middle, b_middle, total)
        total = _one_dot(a_high, b_low, total)
        total = _one_dot(a_middle, b_high, total)
        total = _one_dot(a_high, b_middle, total)
        total = _one_dot(a_high, b_high, total)
    else:
        total = _one_dot(a, b, total)
    return total


@triton.jit
def dot_of_bits(bits, x, total):
    """total + bits @ x, where bits are 0 and 1: exact in bfloat16, so that three products do."""
    # By way of float32: the interpreter knows no other from whole numbers to bfloat16.
    wide = bits.to(tl.float32)
    if x.dtype == tl.float32:
        exact = wide.to(tl.bfloat16)
        high, middle, low = _parts(x)
        total = _one_dot(exact, low, total)
        total = _one_dot(exact, middle, total)
        total = _one_dot(exact, high, total)
    else:
        total = _one_dot(wide.to(x.dtype), x, total)
    return total
