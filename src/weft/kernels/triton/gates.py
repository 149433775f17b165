"""The gates of a gated recurrent unit and their gradients as Triton kernels.

N rows of H features. The dense products before are torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.triton.launch import bytes_of, dense, kernel

# Numbers of a program: 4 for each thread of 4 warps.
_BLOCK = 512


@triton.jit
def _sigmoid(x):
    """By the exponential of a number that is not positive, as tanh: no overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1 + small)


@triton.jit
def _tanh(x):
    small = tl.exp(-2 * tl.abs(x))
    size = (1 - small) / (1 + small)
    # Near 0 the difference has few bits left, and the series has them all.
    near = tl.minimum(tl.abs(x), 1.0)
    square = near * near
    series = near * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315))))
    size = tl.where(square < 0.0016, series, size)
    return tl.where(x < 0, -size, size)


@triton.jit
def _gates(inputs, states, at, inside, width, SUMS: tl.constexpr):
    """r, z, n and the state's part of n, of numbers `at` of [N, 3 H]."""
    r = tl.load(inputs + at, mask=inside, other=0.0).to(SUMS)
    r = _sigmoid(r + tl.load(states + at, mask=inside, other=0.0).to(SUMS))
    z = tl.load(inputs + at + width, mask=inside, other=0.0).to(SUMS)
    z = _sigmoid(z + tl.load(states + at + width, mask=inside, other=0.0).to(SUMS))
    own = tl.load(states + at + 2 * width, mask=inside, other=0.0).to(SUMS)
    n = tl.load(inputs + at + 2 * width, mask=inside, other=0.0).to(SUMS)
    return r, z, _tanh(n + r * own), own


def _least(
    inputs: Tensor, states: Tensor, h: Tensor, grad: Tensor | None = None, **others: Any
) -> int:
    made = (others.get(name) for name in ("out", "grad_inputs", "grad_states", "grad_h"))
    return bytes_of(inputs, states, h, grad, *made)


@kernel(reason="512 numbers of the states: every gate stays in a register.", least=_least)
def _gated_states(
    inputs, states, h, out, count, width, SUMS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    at = place // width * (3 * width) + place % width
    _, z, n, _ = _gates(inputs, states, at, inside, width, SUMS)
    before = tl.load(h + place, mask=inside, other=0.0).to(SUMS)
    tl.store(out + place, n + z * (before - n), mask=inside)


@kernel(
    reason="512 numbers of the states: gates made again move less than gates kept.",
    least=_least,
)
def _gate_gradients(
    inputs,
    states,
    h,
    grad,
    grad_inputs,
    grad_states,
    grad_h,
    count,
    width,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    at = place // width * (3 * width) + place % width
    r, z, n, own = _gates(inputs, states, at, inside, width, SUMS)
    before = tl.load(h + place, mask=inside, other=0.0).to(SUMS)
    given = tl.load(grad + place, mask=inside, other=0.0).to(SUMS)
    new = given * (1 - z) * (1 - n * n)
    reset = new * own * r * (1 - r)
    update = given * (before - n) * z * (1 - z)
    tl.store(grad_inputs + at, reset, mask=inside)
    tl.store(grad_inputs + at + width, update, mask=inside)
    tl.store(grad_inputs + at + 2 * width, new, mask=inside)
    tl.store(grad_states + at, reset, mask=inside)
    tl.store(grad_states + at + width, update, mask=inside)
    tl.store(grad_states + at + 2 * width, new * r, mask=inside)
    tl.store(grad_h + place, given * z, mask=inside)


def _launched(kernel_: Any, tensors: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> None:
    h = tensors[2]
    double = any(t.dtype == torch.float64 for t in tensors)
    kernel_.launch(
        (triton.cdiv(h.numel(), _BLOCK),),
        *map(dense, tensors),
        *made,
        count=h.numel(),
        width=h.shape[1],
        SUMS=tl.float64 if double else tl.float32,
        BLOCK=_BLOCK,
        warps=4,
    )


def gated_states(inputs: Tensor, states: Tensor, h: Tensor, out: Tensor) -> None:
    """Write new states [N, H] into `out`, of the sums [N, 3 H] of inputs and states."""
    _launched(_gated_states, (inputs, states, h), (out,))


def gate_gradients(
    inputs: Tensor, states: Tensor, h: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in inputs, states and h."""
    made = inputs.new_empty(inputs.shape), states.new_empty(states.shape), h.new_empty(h.shape)
    _launched(_gate_gradients, (inputs, states, h, grad), made)
    return made
