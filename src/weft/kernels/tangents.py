"""Activations together with their directional derivatives, the tangents.

Training on forces needs the gradient of dE/dr · v in the weights, for one direction v of all
positions. Differentiating forwards along v makes that an ordinary function of the weights: each
value x comes with its tangent ẋ, and each operator here maps both. Values and tangents are the two
halves [2 N, F] of one tensor, so that a linear layer is one product for both.

N nodes, F features. Tensors are such as `is_fusable` allows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.custom_op import array_of
from weft.kernels.vector_math import sigmoid_of, softplus_derivative_of, softplus_of
from weft.runtime import kernel, shared_rows

# Multiply-adds of an activation, about.
_WORK = 24


@shared_rows
@kernel
def _softplus_rows(x: Any, out: Any, first: int, stop: int) -> None:
    """out[0] = softplus(x[0]) - ln 2 and out[1] = its derivative · x[1]; both [2, M]."""
    values, tangents = x[0, first:stop], x[1, first:stop]
    results, moved = out[0, first:stop], out[1, first:stop]
    for i in range(values.shape[0]):
        results[i] = softplus_of(values[i])
    for i in range(values.shape[0]):
        moved[i] = tangents[i] * softplus_derivative_of(results[i])


@shared_rows
@kernel
def _softplus_gradient(x: Any, y: Any, grad: Any, out: Any, first: int, stop: int) -> None:
    tangents, results = x[1, first:stop], y[0, first:stop]
    one, two = grad[0, first:stop], grad[1, first:stop]
    to_values, to_tangents = out[0, first:stop], out[1, first:stop]
    for i in range(results.shape[0]):
        to_tangents[i] = softplus_derivative_of(results[i])
    for i in range(results.shape[0]):
        slope = to_tangents[i]
        bend = slope * (1 - slope)
        to_values[i] = slope * one[i] + bend * tangents[i] * two[i]
        to_tangents[i] = slope * two[i]


@shared_rows
@kernel
def _silu_rows(x: Any, out: Any, first: int, stop: int) -> None:
    """out[0] = x[0] · sigmoid(x[0]) and out[1] = its derivative · x[1]; both [2, M]."""
    values, tangents = x[0, first:stop], x[1, first:stop]
    results, moved = out[0, first:stop], out[1, first:stop]
    for i in range(values.shape[0]):
        results[i] = sigmoid_of(values[i])
    for i in range(values.shape[0]):
        gate, value = results[i], values[i]
        moved[i] = tangents[i] * gate * (1 + value * (1 - gate))
        results[i] = gate * value


@shared_rows
@kernel
def _silu_gradient(x: Any, y: Any, grad: Any, out: Any, first: int, stop: int) -> None:
    values, tangents = x[0, first:stop], x[1, first:stop]
    one, two = grad[0, first:stop], grad[1, first:stop]
    to_values, to_tangents = out[0, first:stop], out[1, first:stop]
    for i in range(values.shape[0]):
        to_tangents[i] = sigmoid_of(values[i])
    for i in range(values.shape[0]):
        gate, value = to_tangents[i], values[i]
        rest = 1 - gate
        slope = gate * (1 + value * rest)
        bend = gate * rest * (2 + value * (1 - 2 * gate))
        to_values[i] = slope * one[i] + bend * tangents[i] * two[i]
        to_tangents[i] = slope * two[i]


def tangent_softplus(x: Tensor) -> Tensor:
    """Shifted softplus of values and its tangents; x [2 N, F], the two halves."""
    out: Tensor = _Activation.apply(x, _softplus_rows, _softplus_gradient)  # type: ignore[no-untyped-call]
    return out


def tangent_silu(x: Tensor) -> Tensor:
    """SiLU of values and its tangents; x [2 N, F], the two halves."""
    out: Tensor = _Activation.apply(x, _silu_rows, _silu_gradient)  # type: ignore[no-untyped-call]
    return out


def _halves(x: Tensor) -> Any:
    return array_of(x).reshape(2, x.numel() // 2)


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loop: Any, gradient: Any) -> Tensor:
        out = x.new_empty(x.shape)
        loop.share((_halves(x), _halves(out)), x.numel() // 2, _WORK * x.numel())
        ctx.save_for_backward(x, out)
        ctx.gradient = gradient
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, y = ctx.saved_tensors
        out = x.new_empty(x.shape)
        arguments = tuple(map(_halves, (x, y, grad, out)))
        ctx.gradient.share(arguments, x.numel() // 2, _WORK * x.numel())
        return out, None, None
