"""A hidden layer and the product that follows it, for inputs that do not learn.

Blocks of rows go through both in one core's cache: what is between the products is never written,
but for the hidden activations that the backward pass reads, and no gradient of a row is. N rows, F
features, H hidden ones, O outputs, C chunks of rows. Gradients of the weights are summed by chunk
first, and the chunks depend on N alone: how many threads there are then changes no bit.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels.counter_dropout import (
    Part,
    drop_rows,
    drop_threshold,
    part_of,
    pass_positive,
    relu_dropout,
)
from weft.kernels.custom_op import array_of, differentiable_gradients, is_fusable, require
from weft.kernels.vector_math import add_rows, sum_chunks
from weft.runtime import POOL, gemm, gemm_address, kernel, share_rows, threads_for

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]

# Rows of a block: with 128 features its inputs, activations and gradients fill half of an L2 cache.
_BLOCK = 256
# Each chunk has gradients of the weights of its own.
_CHUNKS = 64
WORTH_BLOCKS = 2**20
"""From so many hidden activations on, they do not fit the caches, and blocks pay."""


@kernel
def _forward_chunks(
    address: int,
    x: Any,
    layers: Any,
    dropped: Any,
    ids: Any,
    chunk: int,
    inner: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the activations inner [N, H] and of out [N, O]."""
    weight, bias, second = layers
    seed, limit, scale, column = dropped
    width, hidden = weight.shape
    outputs = second.shape[1]
    space = np.empty((_BLOCK, hidden), dtype=x.dtype)
    for begin in range(first * chunk, min(stop * chunk, x.shape[0]), _BLOCK):
        end = min(begin + _BLOCK, stop * chunk, x.shape[0])
        rows = end - begin
        before, active = space[:rows], inner[begin:end]
        for row in range(rows):
            before[row] = bias
        gemm(address, False, False, rows, hidden, width, x[begin:end], weight, before, True)
        drop_rows(before, seed, limit, scale, True, ids[begin:end], column, active, 0, rows)
        gemm(address, False, False, rows, outputs, hidden, active, second, out[begin:end], False)


@kernel
def _backward_chunks(
    address: int,
    grad: Any,
    x: Any,
    second: Any,
    inner: Any,
    scale: Any,
    chunk: int,
    of_weight: Any,
    of_bias: Any,
    of_second: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the gradients [C, ...] in the weights, of grad [N, O]."""
    width = x.shape[1]
    hidden, outputs = second.shape
    space = np.empty((2, _BLOCK, hidden), dtype=x.dtype)
    for number in range(first, stop):
        of_bias[number] = 0
        for begin in range(number * chunk, min((number + 1) * chunk, x.shape[0]), _BLOCK):
            end = min(begin + _BLOCK, (number + 1) * chunk, x.shape[0])
            rows, more = end - begin, begin > number * chunk
            given, active, own = grad[begin:end], inner[begin:end], of_second[number]
            gemm(address, True, False, hidden, outputs, rows, active, given, own, more)
            after, before = space[0, :rows], space[1, :rows]
            gemm(address, False, True, rows, hidden, outputs, given, second, after, False)
            pass_positive(after, active, scale, before, 0, rows)
            own = of_weight[number]
            gemm(address, True, False, width, hidden, rows, x[begin:end], before, own, more)
            add_rows(before, of_bias[number, 0])


@kernel
def _forward(pool: int, threads: int, chunks: int, arguments: Any) -> None:
    share_rows(pool, threads, _here._forward_chunks, arguments, None, chunks)


@kernel
def _backward(
    pool: int,
    threads: int,
    chunks: int,
    arguments: Any,
    grad_weight: Any,
    grad_bias: Any,
    grad_second: Any,
) -> None:
    of_weight = np.empty((chunks, *grad_weight.shape), dtype=grad_weight.dtype)
    of_bias = np.empty((chunks, 1, grad_bias.shape[0]), dtype=grad_weight.dtype)
    of_second = np.empty((chunks, *grad_second.shape), dtype=grad_weight.dtype)
    given = (*arguments, of_weight, of_bias, of_second)
    share_rows(pool, threads, _here._backward_chunks, given, None, chunks)
    sum_chunks(of_weight, grad_weight)
    sum_chunks(of_bias, grad_bias.reshape(1, grad_bias.shape[0]))
    sum_chunks(of_second, grad_second)


def hidden_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    second: Tensor,
    p: float,
    training: bool = True,
    *,
    part: Part | None = None,
) -> Tensor:
    """relu_dropout(x @ weight + bias, p) @ second, [N, O].

    Args:
        x: [N, F].
        weight: [F, H].
        bias: [H].
        second: [H, O].
        p: probability of dropping a hidden activation.
        training: whether any are dropped.
        part: which rows these are, see `relu_dropout`.
    """
    width, hidden = weight.shape
    right = x.ndim == second.ndim == 2 and x.shape[1] == width and len(second) == hidden
    require(right and bias.shape == (hidden,), "x [N, F], layers [F, H], [H], [H, O]", x, second)
    right = part is None or part.ids.shape == x.shape[:1]
    require(right, "ids must be one per row", None if part is None else part.ids, x)
    blocks = x.shape[0] * hidden >= WORTH_BLOCKS and width > 0 and second.shape[1] > 0
    blocks = blocks and is_fusable(x, weight, bias, second) and not x.requires_grad
    if not (blocks and training and p > 0):
        return relu_dropout(torch.addmm(bias, x, weight), p, training, part=part) @ second
    fixed = (x, p, part_of(x, part))
    out: Tensor = _HiddenProduct.apply(weight, bias, second, fixed)  # type: ignore[no-untyped-call]
    return out


def _plain(weight: Tensor, bias: Tensor, second: Tensor, *, x: Tensor, p: float, part: Part) -> Any:
    return relu_dropout(torch.addmm(bias, x, weight), p, part=part) @ second


def _chunk(rows: int) -> int:
    """Rows of a chunk, whole blocks."""
    return -(-rows // (_CHUNKS * _BLOCK)) * _BLOCK


class _HiddenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        weight, bias, second, (x, p, part) = arguments
        rows, chunk = x.shape[0], _chunk(x.shape[0])
        inner = torch.empty(rows, weight.shape[1], dtype=x.dtype)
        out = torch.empty(rows, second.shape[1], dtype=x.dtype)
        given: Any = (
            gemm_address(x.dtype),
            array_of(x),
            tuple(map(array_of, (weight, bias, second))),
            (*drop_threshold(part.seed, p, x.dtype), part.first_column),
            array_of(part.ids),
            chunk,
            inner.numpy(),
            out.numpy(),
        )
        _forward(POOL, threads_for(x.numel() * weight.shape[1]), -(-rows // chunk), given)
        ctx.save_for_backward(weight, bias, second, inner)
        ctx.fixed = arguments[3]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        *learned, inner = ctx.saved_tensors
        x, p, part = ctx.fixed
        if torch.is_grad_enabled():
            function = functools.partial(_plain, x=x, p=p, part=part)
            return *differentiable_gradients(ctx, function, learned, grads), None
        made = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in learned]
        chunk = _chunk(x.shape[0])
        given: Any = (
            gemm_address(x.dtype),
            *map(array_of, (grads[0], x, learned[2], inner)),
            drop_threshold(part.seed, p, x.dtype)[2],
            chunk,
        )
        threads = threads_for(x.numel() * inner.shape[1])
        chunks = -(-x.shape[0] // chunk)
        _backward(POOL, threads, chunks, given, *(each.numpy() for each in made))
        return *made, None
