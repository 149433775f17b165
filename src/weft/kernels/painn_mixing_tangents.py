"""What PaiNN computes by feature inside an atom, with its directional derivative.

See `painn_mixing` for the values and `tangents` for the halves [2 N, ...] of every tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.custom_op import array_of, require
from weft.runtime import kernel, shared_rows

# Multiply-adds a row and feature, to tell whether threads pay.
_WORK = 30


@shared_rows
@kernel
def _invariants_rows(mixed: Any, q: Any, epsilon: Any, made: Any, first: int, stop: int) -> None:
    """context = [q, |left|], dot = left · right, and a copy of right, of mixed [2 N, 3, 2, F]."""
    context, dot, right = made
    width = q.shape[1]
    nodes = q.shape[0] // 2
    for row in range(first, stop):
        other = nodes + row
        for f in range(width):
            context[row, 0, f] = q[row, f]
            context[other, 0, f] = q[other, f]
        for f in range(width):
            a, b, c = mixed[row, 0, 0, f], mixed[row, 1, 0, f], mixed[row, 2, 0, f]
            length = np.sqrt(a * a + b * b + c * c + epsilon)
            u, v, w = mixed[other, 0, 0, f], mixed[other, 1, 0, f], mixed[other, 2, 0, f]
            context[row, 1, f] = length
            context[other, 1, f] = (a * u + b * v + c * w) / length
        for f in range(width):
            a, b, c = mixed[row, 0, 0, f], mixed[row, 1, 0, f], mixed[row, 2, 0, f]
            x, y, z = mixed[row, 0, 1, f], mixed[row, 1, 1, f], mixed[row, 2, 1, f]
            u, v, w = mixed[other, 0, 0, f], mixed[other, 1, 0, f], mixed[other, 2, 0, f]
            dot[row, f] = a * x + b * y + c * z
            dot[other, f] = (
                u * x
                + v * y
                + w * z
                + a * mixed[other, 0, 1, f]
                + b * mixed[other, 1, 1, f]
                + c * mixed[other, 2, 1, f]
            )
        for part in range(3):
            for f in range(width):
                right[row, part, f] = mixed[row, part, 1, f]
                right[other, part, f] = mixed[other, part, 1, f]


@shared_rows
@kernel
def _invariants_backward_rows(given: Any, grad_mixed: Any, first: int, stop: int) -> None:
    grad_context, grad_dot, grad_right, mixed, context = given
    width = grad_dot.shape[1]
    nodes = grad_dot.shape[0] // 2
    for row in range(first, stop):
        other = nodes + row
        for part in range(3):
            for f in range(width):
                length, speed = context[row, 1, f], context[other, 1, f]
                left, moved = mixed[row, part, 0, f], mixed[other, part, 0, f]
                to_speed = grad_context[other, 1, f] / length
                grad_mixed[row, part, 0, f] = (
                    grad_context[row, 1, f] / length * left
                    + to_speed * (moved - speed / length * left)
                    + grad_dot[row, f] * mixed[row, part, 1, f]
                    + grad_dot[other, f] * mixed[other, part, 1, f]
                )
                grad_mixed[other, part, 0, f] = (
                    to_speed * left + grad_dot[other, f] * mixed[row, part, 1, f]
                )
            for f in range(width):
                left, moved = mixed[row, part, 0, f], mixed[other, part, 0, f]
                grad_mixed[row, part, 1, f] = (
                    grad_dot[row, f] * left + grad_dot[other, f] * moved + grad_right[row, part, f]
                )
                grad_mixed[other, part, 1, f] = (
                    grad_dot[other, f] * left + grad_right[other, part, f]
                )


@shared_rows
@kernel
def _update_rows(given: Any, made: Any, first: int, stop: int) -> None:
    """out_q = q + a + c · dot, out_mu = μ + b · right for mixes [2 N, 3, F] = a, b, c."""
    q, mu, mixes, dot, right = given
    out_q, out_mu = made
    width = q.shape[1]
    nodes = q.shape[0] // 2
    for row in range(first, stop):
        other = nodes + row
        for f in range(width):
            c, moved = mixes[row, 2, f], mixes[other, 2, f]
            out_q[row, f] = q[row, f] + mixes[row, 0, f] + c * dot[row, f]
            out_q[other, f] = (
                q[other, f] + mixes[other, 0, f] + moved * dot[row, f] + c * dot[other, f]
            )
        for part in range(3):
            for f in range(width):
                b, own = mixes[row, 1, f], right[row, part, f]
                out_mu[row, part, f] = mu[row, part, f] + b * own
                out_mu[other, part, f] = (
                    mu[other, part, f] + mixes[other, 1, f] * own + b * right[other, part, f]
                )


@shared_rows
@kernel
def _update_backward_rows(given: Any, made: Any, first: int, stop: int) -> None:
    """Gradients of `mixes`, `dot` and `right`."""
    grad_q, grad_mu, mixes, dot, right = given
    grad_mixes, grad_dot, grad_right = made
    width = grad_q.shape[1]
    nodes = grad_q.shape[0] // 2
    for row in range(first, stop):
        other = nodes + row
        for f in range(width):
            one, two = grad_q[row, f], grad_q[other, f]
            grad_mixes[row, 0, f] = one
            grad_mixes[other, 0, f] = two
            grad_mixes[row, 2, f] = one * dot[row, f] + two * dot[other, f]
            grad_mixes[other, 2, f] = two * dot[row, f]
        for f in range(width):
            one, two = grad_q[row, f], grad_q[other, f]
            grad_dot[row, f] = one * mixes[row, 2, f] + two * mixes[other, 2, f]
            grad_dot[other, f] = two * mixes[row, 2, f]
        for f in range(width):
            total, moved = grad_q.dtype.type(0), grad_q.dtype.type(0)
            for part in range(3):
                total += grad_mu[row, part, f] * right[row, part, f]
                total += grad_mu[other, part, f] * right[other, part, f]
                moved += grad_mu[other, part, f] * right[row, part, f]
            grad_mixes[row, 1, f] = total
            grad_mixes[other, 1, f] = moved
        for part in range(3):
            for f in range(width):
                one, two = grad_mu[row, part, f], grad_mu[other, part, f]
                grad_right[row, part, f] = one * mixes[row, 1, f] + two * mixes[other, 1, f]
                grad_right[other, part, f] = two * mixes[row, 1, f]


def _parts(tensor: Tensor, *shape: int) -> Any:
    return array_of(tensor).reshape(len(tensor), *shape)


def tangent_invariants(mixed: Tensor, q: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """[q, |left|] [2 N, 2 F], left · right [2 N, F] and right [2 N, 3, F].

    Args:
        mixed: [2 N, 3, 2 F], two vectors a feature, left and right.
        q: [2 N, F].
        epsilon: added to the square of a length.
    """
    rows, width = q.shape
    require(mixed.shape == (rows, 3, 2 * width), "mixed must be [2 N, 3, 2 F]", mixed, q)
    return _Invariants.apply(mixed, q, epsilon)  # type: ignore[no-untyped-call]


class _Invariants(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mixed: Tensor, q: Tensor, epsilon: float) -> tuple[Tensor, ...]:
        rows, width = q.shape
        context, dot = q.new_empty(rows, 2 * width), q.new_empty(rows, width)
        right = q.new_empty(rows, 3, width)
        given = _parts(mixed, 3, 2, width)
        made = (_parts(context, 2, width), dot.numpy(), right.numpy())
        arguments = (given, array_of(q), given.dtype.type(epsilon), made)
        _invariants_rows.share(arguments, rows // 2, _WORK * rows * width)
        ctx.save_for_backward(mixed, context)
        return context, dot, right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        mixed, context = ctx.saved_tensors
        grad_context, grad_dot, grad_right = grads
        rows, width = grad_dot.shape
        grad_mixed = mixed.new_empty(mixed.shape)
        given = (
            _parts(grad_context, 2, width),
            array_of(grad_dot),
            array_of(grad_right),
            _parts(mixed, 3, 2, width),
            _parts(context, 2, width),
        )
        arguments = (given, _parts(grad_mixed, 3, 2, width))
        _invariants_backward_rows.share(arguments, rows // 2, _WORK * rows * width)
        return grad_mixed, grad_context[:, :width], None


def tangent_update(
    q: Tensor, mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """New scalars [2 N, F] and vectors [2 N, 3, F], see `painn_mixing.update`."""
    rows, width = q.shape
    fits = mu.shape == right.shape == (rows, 3, width) and dot.shape == q.shape
    fits = fits and mixes.shape == (rows, 3 * width)
    require(fits, "every row must be an atom, every part F wide", q, mu, mixes, dot, right)
    return _Update.apply(q, mu, mixes, dot, right)  # type: ignore[no-untyped-call]


class _Update(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        q, mu, mixes, dot, right = inputs
        rows, width = q.shape
        out_q, out_mu = q.new_empty(q.shape), q.new_empty(mu.shape)
        given = (array_of(q), array_of(mu), _parts(mixes, 3, width), array_of(dot), array_of(right))
        arguments = (given, (out_q.numpy(), out_mu.numpy()))
        _update_rows.share(arguments, rows // 2, _WORK * rows * width)
        ctx.save_for_backward(mixes, dot, right)
        return out_q, out_mu

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor, grad_mu: Tensor) -> tuple[Any, ...]:
        mixes, dot, right = ctx.saved_tensors
        rows, width = grad_q.shape
        made = tuple(t.new_empty(t.shape) for t in (mixes, dot, right))
        given = (
            array_of(grad_q),
            array_of(grad_mu),
            _parts(mixes, 3, width),
            array_of(dot),
            array_of(right),
        )
        arguments = (given, (_parts(made[0], 3, width), made[1].numpy(), made[2].numpy()))
        _update_backward_rows.share(arguments, rows // 2, _WORK * rows * width)
        return grad_q, grad_mu, *made
