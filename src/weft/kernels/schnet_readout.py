"""SchNet's readout as one operator: two layers of each node, and what a graph makes of its nodes.

On a small batch the calls of the operators that it would be take longer than what they compute.
Blocks of nodes go through both layers in one thread's cache; what graphs sum of their nodes is so
little that one thread does it. N nodes, G graphs, H features, M hidden ones, C chunks of nodes.
Gradients of the weights are summed by chunk first, and the chunks depend on N alone: how many
threads there are then changes no bit.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.checked_indices import check_segments
from weft.kernels.custom_op import array_of, differentiable_gradients, require
from weft.kernels.message_passing import segment_mean, segment_sum
from weft.kernels.schnet_interaction import BLOCK_ROWS, chunk_of
from weft.kernels.softplus import shifted_softplus
from weft.kernels.vector_math import add_and_activate, add_rows, multiply_by_derivative, sum_chunks
from weft.runtime import POOL, gemm, gemm_address, kernel, share_rows, threads_for

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]


@kernel
def _value_chunks(
    address: int,
    h: Any,
    layers: Any,
    chunk: int,
    inner: Any,
    values: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the activations inner [N, M] and the nodes' values [N, 1]."""
    weight, bias, second, second_bias = layers
    hidden, width = weight.shape
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            given, active = h[start:last], inner[start:last]
            gemm(address, False, True, last - start, hidden, width, given, weight, active, False)
            add_and_activate(active, bias, True)
            own = values[start:last]
            gemm(address, False, True, last - start, 1, hidden, active, second, own, False)
            add_and_activate(own, second_bias, False)


@kernel
def _forward_loop(
    pool: int,
    threads: int,
    address: int,
    h: Any,
    layers: Any,
    offsets: Any,
    mean: bool,
    chunk: int,
    inner: Any,
    out: Any,
) -> None:
    """The activations inner [N, M] and the graphs' values out [G]."""
    nodes = h.shape[0]
    values = np.empty((nodes, 1), dtype=h.dtype)
    arguments = (address, h, layers, chunk, inner, values)
    share_rows(pool, threads, _here._value_chunks, arguments, None, -(-nodes // chunk))
    for graph in range(out.shape[0]):
        first, stop = offsets[graph], offsets[graph + 1]
        total = h.dtype.type(0)
        for node in range(first, stop):
            total += values[node, 0]
        out[graph] = total / h.dtype.type(max(stop - first, 1)) if mean else total


@kernel
def _gradient_chunks(
    address: int,
    value_grads: Any,
    h: Any,
    weight: Any,
    second: Any,
    inner: Any,
    chunk: int,
    grad_h: Any,
    weight_grad: Any,
    second_grad: Any,
    bias_grad: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the gradients in h and of the weights', of value_grads [N, 1].

    The weights' are [C, ...], a row a chunk; so is bias_grad [C, 1, M], or None.
    """
    hidden, width = weight.shape
    space = np.empty((BLOCK_ROWS, hidden), dtype=h.dtype)
    for number in range(first, stop):
        if bias_grad is not None:
            bias_grad[number] = 0
        begin = number * chunk
        end = min(begin + chunk, h.shape[0])
        for start in range(begin, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            before, active, more = space[:rows], inner[start:last], start > begin
            own_grad, own = value_grads[start:last], second_grad[number]
            gemm(address, True, False, 1, hidden, rows, own_grad, active, own, more)
            gemm(address, False, False, rows, hidden, 1, own_grad, second, before, False)
            multiply_by_derivative(active, before)
            given, result, target = h[start:last], grad_h[start:last], weight_grad[number]
            gemm(address, False, False, rows, width, hidden, before, weight, result, False)
            gemm(address, True, False, hidden, width, rows, before, given, target, more)
            if bias_grad is not None:
                add_rows(before, bias_grad[number, 0])


@kernel
def _backward_loop(
    pool: int,
    threads: int,
    address: int,
    grad: Any,
    h: Any,
    weight: Any,
    second: Any,
    offsets: Any,
    mean: bool,
    inner: Any,
    chunk: int,
    grad_h: Any,
    grad_weight: Any,
    grad_bias: Any,
    grad_second: Any,
    grad_second_bias: Any,
) -> None:
    """All gradients, of grad [G]; `inner` [N, M] is of the forward pass.

    Those in the biases, grad_bias [M] and grad_second_bias [1], are None without.
    """
    nodes = h.shape[0]
    hidden, width = weight.shape
    chunks = -(-nodes // chunk)
    # A node that is in no graph has no gradient.
    value_grads = np.zeros((nodes, 1), dtype=h.dtype)
    total = h.dtype.type(0)
    for graph in range(grad.shape[0]):
        first, stop = offsets[graph], offsets[graph + 1]
        own_grad = grad[graph] / h.dtype.type(max(stop - first, 1)) if mean else grad[graph]
        for node in range(first, stop):
            value_grads[node, 0] = own_grad
            total += own_grad
    of_weight = np.empty((chunks, hidden, width), dtype=h.dtype)
    of_second = np.empty((chunks, 1, hidden), dtype=h.dtype)
    of_bias = None if grad_bias is None else np.empty((chunks, 1, hidden), dtype=h.dtype)
    given = (address, value_grads, h, weight, second, inner, chunk)
    arguments = (*given, grad_h, of_weight, of_second, of_bias)
    share_rows(pool, threads, _here._gradient_chunks, arguments, None, chunks)
    sum_chunks(of_weight, grad_weight)
    sum_chunks(of_second, grad_second)
    if grad_bias is not None:
        sum_chunks(of_bias, grad_bias.reshape(1, hidden))
    if grad_second_bias is not None:
        grad_second_bias[0] = total


def readout(
    h: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None,
    offsets: Tensor,
    *,
    mean: bool,
) -> Tensor:
    """Σ or mean over a graph's nodes of second(softplus(first(h))), [G]; 0 without nodes.

    The softplus is the shifted one. Tensors are such as `is_fusable` allows.

    Args:
        h: [N, H].
        first: [M, H], out by in, as the weights of torch.nn.Linear.
        first_bias: [M].
        second: [1, M].
        second_bias: [1].
        offsets: int [G + 1]; nodes offsets[g]:offsets[g + 1] are graph g's.
        mean: divide by the number of nodes.
    """
    hidden = first.shape[0]
    right = h.ndim == 2 and first.shape == (hidden, h.shape[1]) and second.shape == (1, hidden)
    require(right, "h [N, H] and layers [M, H] and [1, M] needed", h, first, second)
    right = (first_bias is None or first_bias.shape == (hidden,)) and (
        second_bias is None or second_bias.shape == (1,)
    )
    require(right, "biases [M] and [1] needed", first_bias, second_bias)
    check_segments(h.shape[0], offsets, None, None)
    # As one argument: each tensor that autograd looks at takes microseconds.
    fixed = (offsets, mean)
    learned = (h, first, first_bias, second, second_bias)
    result: Tensor = _Readout.apply(*learned, fixed)  # type: ignore[no-untyped-call]
    return result


class _Readout(torch.autograd.Function):
    # One function with ctx: torch would inspect the signature of a separate forward at each call.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        h, first, first_bias, second, second_bias, (offsets, mean) = arguments
        inner = torch.empty(h.shape[0], first.shape[0], dtype=h.dtype)
        out = torch.empty(offsets.shape[0] - 1, dtype=h.dtype)
        given: Any = (
            POOL,
            threads_for(h.numel() * first.shape[0]),
            gemm_address(h.dtype),
            array_of(h),
            tuple(map(array_of, (first, first_bias, second, second_bias))),
            array_of(offsets),
            mean,
            chunk_of(h.shape[0]),
            inner.numpy(),
            out.numpy(),
        )
        _forward_loop(*given)
        ctx.save_for_backward(*arguments[:5], inner)
        ctx.fixed = arguments[5]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        *given, inner = ctx.saved_tensors
        offsets, mean = ctx.fixed
        if torch.is_grad_enabled():
            function = functools.partial(_plain, offsets=offsets, mean=mean)
            return *differentiable_gradients(ctx, function, given, grads), None
        h, first, _, second, _ = given
        made = [None if t is None else torch.empty(t.shape, dtype=h.dtype) for t in given]
        arguments: Any = (
            POOL,
            threads_for(h.numel() * first.shape[0]),
            gemm_address(h.dtype),
            *map(array_of, (grad, h, first, second, offsets)),
            mean,
            inner.numpy(),
            chunk_of(h.shape[0]),
            *map(array_of, made),
        )
        _backward_loop(*arguments)
        return *made, None


def _plain(
    h: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None,
    *,
    offsets: Tensor,
    mean: bool,
) -> Tensor:
    inner = shifted_softplus(functional.linear(h, first, first_bias))
    values = functional.linear(inner, second, second_bias)
    return (segment_mean if mean else segment_sum)(values, offsets)[:, 0]
