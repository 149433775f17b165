"""Dropout from a counter: the mask is a function of (seed, row, column), never stored.

torch draws a random number an element in one thread and keeps the mask; here each row's mask is
recomputed wherever it is needed, in parallel, the same for any number of threads and for any way
of splitting the rows.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels.backends import forms, runs_triton
from weft.kernels.custom_op import array_of, has_loop, operator, require
from weft.runtime import compiled, shared_rows

ROW = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
COLUMN = np.uint32(0x9E3779B9)
HASH_1 = np.uint32(0x7FEB352D)
HASH_2 = np.uint32(0x846CA68B)


@shared_rows
@compiled()
def drop_rows(
    x: Any,
    seed: Any,
    limit: Any,
    scale: Any,
    relu: bool,
    ids: Any,
    first_column: int,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """out = x · scale where the hash of (seed, row, column) reaches `limit`, else 0."""
    width = x.shape[1]
    zero = x.dtype.type(0)
    for row in range(first, stop):
        # splitmix64 gives every row two independent 32-bit keys; its columns are hashed in 32
        # bits, which fit the vector units.
        number = row if ids is None else ids[row]
        key = (np.uint64(number) + np.uint64(1)) * ROW + seed
        key = (key ^ (key >> np.uint64(30))) * MIX_1
        key = (key ^ (key >> np.uint64(27))) * MIX_2
        key = key ^ (key >> np.uint64(31))
        low, high = np.uint32(key), np.uint32(key >> np.uint64(32))
        for column in range(width):
            h = np.uint32(np.uint32(first_column + column) * COLUMN) ^ low
            h = np.uint32((h ^ (h >> np.uint32(16))) * HASH_1)
            h = np.uint32((h ^ (h >> np.uint32(15))) * HASH_2)
            h = h ^ (h >> np.uint32(16)) ^ high
            h = np.uint32((h ^ (h >> np.uint32(16))) * HASH_1)
            h = h ^ (h >> np.uint32(15))
            value = x[row, column] * scale
            keep = h >= limit
            if relu:
                # Not `value > zero`: a NaN must come through and be noticed.
                keep = keep and not value <= zero
            out[row, column] = value if keep else zero


@shared_rows
@compiled()
def pass_positive(grad: Any, out: Any, scale: Any, result: Any, first: int, stop: int) -> None:
    """result = grad · scale where `out` is positive, or NaN, else 0."""
    zero = grad.dtype.type(0)
    for row in range(first, stop):
        for column in range(grad.shape[1]):
            passed = grad[row, column] * scale
            result[row, column] = zero if out[row, column] <= zero else passed


def _limit(p: float) -> int:
    return min(round(p * 2**32), 2**32 - 1)


def drop_threshold(seed: int, p: float, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """Seed, limit and scale as `drop_rows` takes them."""
    number = np.uint64(seed % 2**64)
    kind = np.float64 if dtype == torch.float64 else np.float32
    return number, np.uint32(_limit(p)), kind(1 / (1 - p))


def _plain_keep(x: Tensor, seed: Tensor, p: float, ids: Tensor | None, first_column: int) -> Tensor:
    """The same mask bool [N, F] in torch: 64-bit words that wrap, shifted without sign."""
    rows = torch.arange(x.shape[0], device=x.device) if ids is None else ids.to(x.device)
    columns = torch.arange(first_column, first_column + x.shape[1], device=x.device)

    def shift(word: Tensor, bits: int) -> Tensor:
        return (word >> bits).bitwise_and(2 ** (64 - bits) - 1)

    def signed(constant: np.uint64) -> int:
        return int(constant.astype(np.int64))

    word = 2**32 - 1
    # A seed on the CPU is a number there: a copy of it would have to be waited for.
    number = seed if seed.device == x.device else int(seed)
    key = (rows.long() + 1) * signed(ROW) + number
    key = (key ^ shift(key, 30)) * signed(MIX_1)
    key = (key ^ shift(key, 27)) * signed(MIX_2)
    key = key ^ shift(key, 31)
    low, high = (key & word)[:, None], shift(key, 32)[:, None]
    h = ((columns * int(COLUMN)) & word) ^ low
    h = ((h ^ (h >> 16)) * int(HASH_1)) & word
    h = ((h ^ (h >> 15)) * int(HASH_2)) & word
    h = h ^ (h >> 16) ^ high
    h = ((h ^ (h >> 16)) * int(HASH_1)) & word
    return (h ^ (h >> 15)) >= _limit(p)


def _empty_like(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@operator("weft::dropout", _empty_like)
def _dropout(
    x: Tensor, seed: Tensor, p: float, relu: bool, ids: Tensor | None, first_column: int
) -> Tensor:
    """x [N, F] (or its positive part) with elements dropped at probability p.

    The seed is int64 [1]; `ids` int64 [N] and `first_column` say which rows and columns of a larger
    matrix these are.
    """
    require(x.ndim == 2 and seed.shape == (1,), "x [N, F] and a seed [1] needed", x, seed)
    require(ids is None or ids.shape == x.shape[:1], "ids must be one per row", ids, x)
    if not has_loop(x):
        if runs_triton(x):
            of_kernel: Tensor = forms(x).dropped(
                x, seed, _limit(p), 1 / (1 - p), relu, ids, first_column
            )
            return of_kernel
        kept = _plain_keep(x, seed, p, ids, first_column)
        return (x.relu() if relu else x) * (1 / (1 - p)) * kept
    out = _empty_like(x)
    array = x.detach().contiguous().numpy()
    dropped = drop_threshold(int(seed), p, x.dtype)
    arguments = (array, *dropped, relu, array_of(ids), first_column, out.numpy())
    drop_rows.share(arguments, x.shape[0], x.numel())
    return out


@operator("weft::pass_positive", _empty_like)
def _positive_grad(grad: Tensor, out: Tensor, scale: float) -> Tensor:
    """grad · scale [N, F] where `out` is positive (or NaN), else 0."""
    require(grad.ndim == 2 and grad.shape == out.shape, "one shape [N, F] needed", grad, out)
    if not has_loop(grad):
        if runs_triton(grad, out):
            of_kernel: Tensor = forms(grad).positive_gradient(grad, out, scale)
            return of_kernel
        return (grad * scale).masked_fill(out <= 0, 0.0)
    result = _empty_like(grad)
    array = array_of(grad)
    arguments = (array, array_of(out), array.dtype.type(scale), result.numpy())
    pass_positive.share(arguments, grad.shape[0], grad.numel())
    return result


@_positive_grad.derivative(lambda ctx, inputs, output: inputs[1:2])
def _positive_backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    return (_positive_grad(grad, *ctx.saved_tensors, *ctx.others),)


@_dropout.derivative(lambda ctx, inputs, out: (inputs[1], out if inputs[3] else None, inputs[4]))
def _dropout_backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    seed, out, ids = ctx.saved_tensors
    p, relu, first_column = ctx.others
    if relu:
        # A positive output was kept and its input was positive: the output is its own mask.
        return (_positive_grad(grad, out, 1 / (1 - p)),)
    return (_dropout(grad, seed, p, False, ids, first_column),)


def _seed(device: torch.device | None = None) -> Tensor:
    """A fresh seed from torch's generator, so that torch.manual_seed governs dropout too.

    It is drawn on the device where it is used: a captured CUDA graph then draws another each time.
    """
    return torch.randint(-(2**63), 2**63 - 1, (1,), device=device)


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Which part of a larger matrix is dropped from, so that the mask is that of the whole.

    Attributes:
        seed: of the mask.
        ids: int64 [N], the rows' numbers in the whole.
        first_column: the number of the first column in the whole.
    """

    seed: int
    ids: Tensor
    first_column: int = 0


def part_of(x: Tensor, part: Part | None) -> Part:
    """The part that is given, or all rows of x [N, ...] with a fresh seed."""
    return part or Part(seed=int(_seed()), ids=torch.arange(x.shape[0]))


def dropout(x: Tensor, p: float, training: bool = True, *, part: Part | None = None) -> Tensor:
    """x [N, ...] with elements zeroed at probability p and the rest scaled by 1 / (1 - p)."""
    return _apply(x, p, False, part) if _active(p, training) else x


def relu_dropout(x: Tensor, p: float, training: bool = True, *, part: Part | None = None) -> Tensor:
    """dropout(relu(x)) for x [N, ...] in one pass, and one pass backward."""
    return _apply(x, p, True, part) if _active(p, training) else x.relu()


def _active(p: float, training: bool) -> bool:
    if not 0 <= p < 1:
        raise ValueError(f"dropout has probability {p}; it must be in [0, 1)")
    return training and p > 0


def _apply(x: Tensor, p: float, relu: bool, part: Part | None) -> Tensor:
    flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    if part is None:
        seed, ids, first_column = _seed(flat.device), None, 0
    else:
        seed, ids, first_column = torch.tensor([part.seed]), part.ids, part.first_column
    out: Tensor = _dropout(flat, seed, p, relu, ids, first_column)
    return out.reshape(x.shape)
