"""What PaiNN computes by feature inside an atom as Triton kernels: `painn_mixing` has the words.

N atoms, F features.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from weft.kernels.custom_op import widest
from weft.kernels.triton.launch import all_bytes, bytes_of, kernel, sums_in

_REASON = "A program per atom and up to 512 features: each number is read once, and none is shared."


@kernel(reason=_REASON, least=all_bytes)
def _painn_invariants(
    mixed,
    q,
    context,
    dot,
    right,
    width,
    EPSILON: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < width
    square = tl.full([BLOCK], EPSILON, SUMS)
    product = tl.zeros([BLOCK], SUMS)
    for axis in tl.static_range(3):
        vectors = mixed + row * (6 * width) + axis * (2 * width) + feature
        one = tl.load(vectors, mask=inside, other=0.0).to(SUMS)
        other = tl.load(vectors + width, mask=inside, other=0.0).to(SUMS)
        square += one * one
        product += one * other
        tl.store(right + row * (3 * width) + axis * width + feature, other, mask=inside)
    made = context + row * (2 * width) + feature
    tl.store(made, tl.load(q + row * width + feature, mask=inside, other=0.0), mask=inside)
    tl.store(made + width, tl.sqrt(square), mask=inside)
    tl.store(dot + row * width + feature, product, mask=inside)


def painn_invariants(mixed: Tensor, q: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """[q, |left|] [N, 2 F], left · right [N, F] and a copy of right of mixed [N, 3, 2 F]."""
    rows, width = q.shape
    context = q.new_empty(rows, 2 * width, dtype=widest(mixed, q))
    made = context, mixed.new_empty(rows, width), mixed.new_empty(rows, 3, width)
    _painn_invariants.launch_rows(*q.shape, mixed, q, *made, EPSILON=epsilon, SUMS=sums_in(context))
    return made


def _least_invariants_backward(grad_context: Tensor, context: Tensor, **others: Any) -> int:
    # Of what is [q, |left|] the lengths alone are read.
    return bytes_of(grad_context, context) // 2 + all_bytes(**others)


@kernel(reason=_REASON, least=_least_invariants_backward)
def _painn_invariants_backward(
    grad_context,
    grad_dot,
    grad_right,
    mixed,
    context,
    out,
    width,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < width
    lengths = row * (2 * width) + width + feature
    to_length = tl.load(grad_context + lengths, mask=inside, other=0.0).to(SUMS)
    by_length = to_length / tl.load(context + lengths, mask=inside, other=1.0).to(SUMS)
    to_dot = tl.load(grad_dot + row * width + feature, mask=inside, other=0.0).to(SUMS)
    for axis in tl.static_range(3):
        place = row * (6 * width) + axis * (2 * width) + feature
        one = tl.load(mixed + place, mask=inside, other=0.0).to(SUMS)
        other = tl.load(mixed + place + width, mask=inside, other=0.0).to(SUMS)
        given = grad_right + row * (3 * width) + axis * width + feature
        to_right = tl.load(given, mask=inside, other=0.0).to(SUMS)
        tl.store(out + place, by_length * one + to_dot * other, mask=inside)
        tl.store(out + place + width, to_dot * one + to_right, mask=inside)


def painn_invariants_backward(
    grad_context: Tensor, grad_dot: Tensor, grad_right: Tensor, mixed: Tensor, context: Tensor
) -> Tensor:
    """Gradient of `mixed`."""
    out = torch.empty_like(mixed, memory_format=torch.contiguous_format)
    given = (grad_context, grad_dot, grad_right, mixed, context)
    _painn_invariants_backward.launch_rows(*grad_dot.shape, *given, out, SUMS=sums_in(*given))
    return out


@kernel(reason=_REASON, least=all_bytes)
def _painn_update(
    q, mu, mixes, dot, right, out_q, out_mu, width, SUMS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < width
    mix = mixes + row * (3 * width) + feature
    place = row * width + feature
    scalar = tl.load(q + place, mask=inside, other=0.0).to(SUMS)
    scalar += tl.load(mix, mask=inside, other=0.0).to(SUMS)
    factor = tl.load(mix + 2 * width, mask=inside, other=0.0).to(SUMS)
    scalar += factor * tl.load(dot + place, mask=inside, other=0.0).to(SUMS)
    tl.store(out_q + place, scalar, mask=inside)
    turn = tl.load(mix + width, mask=inside, other=0.0).to(SUMS)
    for axis in tl.static_range(3):
        place = row * (3 * width) + axis * width + feature
        vector = tl.load(mu + place, mask=inside, other=0.0).to(SUMS)
        vector += turn * tl.load(right + place, mask=inside, other=0.0).to(SUMS)
        tl.store(out_mu + place, vector, mask=inside)


def painn_update(
    q: Tensor, mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """q + a + c · dot [N, F] and μ + b · right [N, 3, F] of mixes [N, 3 F] = a, b, c."""
    out_q = q.new_empty(q.shape, dtype=widest(q, mixes, dot))
    out_mu = mu.new_empty(mu.shape, dtype=widest(mu, mixes, right))
    given = (q, mu, mixes, dot, right, out_q, out_mu)
    _painn_update.launch_rows(*q.shape, *given, SUMS=sums_in(*given))
    return out_q, out_mu


def _least_update_backward(mixes: Tensor, **others: Any) -> int:
    # a is added as it is: only b and c are read.
    return bytes_of(mixes) * 2 // 3 + all_bytes(**others)


@kernel(reason=_REASON, least=_least_update_backward)
def _painn_update_backward(
    grad_q,
    grad_mu,
    mixes,
    dot,
    right,
    grad_mixes,
    grad_dot,
    grad_right,
    width,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < width
    mix = row * (3 * width) + feature
    place = row * width + feature
    to_q = tl.load(grad_q + place, mask=inside, other=0.0).to(SUMS)
    factor = tl.load(mixes + mix + 2 * width, mask=inside, other=0.0).to(SUMS)
    product = tl.load(dot + place, mask=inside, other=0.0).to(SUMS)
    tl.store(grad_dot + place, to_q * factor, mask=inside)
    tl.store(grad_mixes + mix, to_q, mask=inside)
    tl.store(grad_mixes + mix + 2 * width, to_q * product, mask=inside)
    turn = tl.load(mixes + mix + width, mask=inside, other=0.0).to(SUMS)
    to_turn = tl.zeros([BLOCK], SUMS)
    for axis in tl.static_range(3):
        place = mix + axis * width
        given = tl.load(grad_mu + place, mask=inside, other=0.0).to(SUMS)
        to_turn += given * tl.load(right + place, mask=inside, other=0.0).to(SUMS)
        tl.store(grad_right + place, given * turn, mask=inside)
    tl.store(grad_mixes + mix + width, to_turn, mask=inside)


def painn_update_backward(
    grad_q: Tensor, grad_mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `mixes`, `dot` and `right`."""
    made = mixes.new_empty(mixes.shape), dot.new_empty(dot.shape), right.new_empty(right.shape)
    given = (grad_q, grad_mu, mixes, dot, right)
    _painn_update_backward.launch_rows(*grad_q.shape, *given, *made, SUMS=sums_in(*given))
    return made
