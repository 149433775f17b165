"""Shifted softplus as Triton kernels: of numbers, and of an edge's two ends and its own state."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.custom_op import widest
from weft.kernels.triton.launch import Kernel, all_bytes, bytes_of, dense, kernel, sums_in

# Numbers of one program where every number is alone.
_NUMBERS = 1024
_LN2 = tl.constexpr(math.log(2))


@triton.jit
def _softplus(x):
    # The larger term is outside the logarithm: no exponential overflows. A NaN stays one.
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x))) - _LN2


def _of_numbers(launched: Kernel, *tensors: Tensor) -> Tensor:
    """What the kernel makes of each number of tensors of one shape."""
    out = torch.empty_like(tensors[0], memory_format=torch.contiguous_format)
    launched.launch(
        (triton.cdiv(out.numel(), _NUMBERS),),
        *map(dense, tensors),
        out,
        count=out.numel(),
        SUMS=sums_in(out),
        BLOCK=_NUMBERS,
        warps=4,
    )
    return out


@kernel(reason="A program per 1,024 numbers: each is alone.", least=all_bytes)
def _softplus_values(x, out, count, SUMS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    value = tl.load(x + place, mask=inside, other=0.0).to(SUMS)
    tl.store(out + place, _softplus(value), mask=inside)


def shifted_softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x) - ln 2 of every element."""
    return _of_numbers(_softplus_values, x)


@kernel(reason="A program per 1,024 numbers: each is alone.", least=all_bytes)
def _softplus_gradients(y, grad, out, count, SUMS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    value = tl.load(y + place, mask=inside, other=0.0).to(SUMS)
    given = tl.load(grad + place, mask=inside, other=0.0).to(SUMS)
    tl.store(out + place, given * (1.0 - 0.5 * tl.exp(-value)), mask=inside)


def softplus_backward(y: Tensor, grad: Tensor) -> Tensor:
    """The gradient in x of y = shifted_softplus(x)."""
    return _of_numbers(_softplus_gradients, y, grad)


def _least_edge_softplus(
    a: Tensor, b: Tensor, c: Tensor, senders: Tensor, receivers: Tensor, **others: Any
) -> int:
    size = a.element_size() + b.element_size() + c.element_size()
    rows = senders.shape[0] * a.shape[1] * size
    return rows + bytes_of(senders, receivers, others["of_edge"], others["out"])


@kernel(
    reason="A program per 16 edges and up to 128 features: no row of a sum leaves registers.",
    least=_least_edge_softplus,
)
def _edge_softplus(
    a,
    b,
    c,
    senders,
    receivers,
    of_edge,
    out,
    count,
    width,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    edge = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = edge < count
    inside = there[:, None] & (feature < width)[None, :]
    sender = tl.load(senders + edge, mask=there, other=0).to(tl.int64)
    receiver = tl.load(receivers + edge, mask=there, other=0).to(tl.int64)
    own = edge
    if of_edge is not None:
        own = tl.load(of_edge + edge, mask=there, other=0).to(tl.int64)
    sent = tl.load(a + sender[:, None] * width + feature[None, :], mask=inside, other=0.0)
    met = tl.load(b + receiver[:, None] * width + feature[None, :], mask=inside, other=0.0)
    state = tl.load(c + own[:, None] * width + feature[None, :], mask=inside, other=0.0)
    total = sent.to(SUMS) + met.to(SUMS) + state.to(SUMS)
    place = edge[:, None] * width + feature[None, :]
    tl.store(out + place, _softplus(total), mask=inside)


def edge_softplus(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    senders: Tensor,
    receivers: Tensor,
    of_edge: Tensor | None,
) -> Tensor:
    """Shifted softplus [E, F] of a[sender] + b[receiver] + c[edge, or its pair]."""
    count, width = senders.shape[0], a.shape[1]
    out = a.new_empty(count, width, dtype=widest(a, b, c))
    ends = (senders, receivers, of_edge)
    _edge_softplus.launch_tiles(count, width, a, b, c, *ends, out, SUMS=sums_in(out))
    return out
