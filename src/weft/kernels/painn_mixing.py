"""What PaiNN computes by feature inside an atom, as two operators on either side of a perceptron.

In plain torch these are some thirty passes over memory a layer, forwards and backwards; here four.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from typing import Any

import numpy as np
from torch import Tensor

from weft.kernels import plain_torch as plain
from weft.kernels.backends import forms
from weft.kernels.custom_op import (
    array_of,
    differentiable_gradients,
    has_loop,
    operator,
    require,
    widest,
)
from weft.runtime import kernel, shared_rows

# Multiply-adds a row and feature, to tell whether threads pay.
_WORK = 12


@shared_rows
@kernel
def _invariants_rows(
    mixed: Any, q: Any, epsilon: Any, context: Any, dot: Any, right: Any, first: int, stop: int
) -> None:
    """context = [q, |left|] and dot = left · right of mixed [N, 3, 2, F]; a copy of `right`."""
    width = q.shape[1]
    for row in range(first, stop):
        for f in range(width):
            context[row, 0, f] = q[row, f]
        for f in range(width):
            a, b, c = mixed[row, 0, 0, f], mixed[row, 1, 0, f], mixed[row, 2, 0, f]
            context[row, 1, f] = np.sqrt(a * a + b * b + c * c + epsilon)
        for f in range(width):
            dot[row, f] = (
                mixed[row, 0, 0, f] * mixed[row, 0, 1, f]
                + mixed[row, 1, 0, f] * mixed[row, 1, 1, f]
                + mixed[row, 2, 0, f] * mixed[row, 2, 1, f]
            )
        for c in range(3):
            for f in range(width):
                right[row, c, f] = mixed[row, c, 1, f]


@shared_rows
@kernel
def _invariants_backward_rows(given: Any, grad_mixed: Any, first: int, stop: int) -> None:
    """Gradient of `mixed`."""
    grad_context, grad_dot, grad_right, mixed, context = given
    width = grad_dot.shape[1]
    for row in range(first, stop):
        for c in range(3):
            for f in range(width):
                grad_mixed[row, c, 0, f] = (
                    grad_context[row, 1, f] / context[row, 1, f] * mixed[row, c, 0, f]
                    + grad_dot[row, f] * mixed[row, c, 1, f]
                )
            for f in range(width):
                grad_mixed[row, c, 1, f] = (
                    grad_dot[row, f] * mixed[row, c, 0, f] + grad_right[row, c, f]
                )


@shared_rows
@kernel
def _update_rows(given: Any, made: Any, first: int, stop: int) -> None:
    """out_q = q + a + c · dot, out_mu = μ + b · right for mixes [N, 3, F] = a, b, c."""
    q, mu, mixes, dot, right = given
    out_q, out_mu = made
    width = q.shape[1]
    for row in range(first, stop):
        for f in range(width):
            out_q[row, f] = q[row, f] + mixes[row, 0, f] + mixes[row, 2, f] * dot[row, f]
        for c in range(3):
            for f in range(width):
                out_mu[row, c, f] = mu[row, c, f] + mixes[row, 1, f] * right[row, c, f]


@shared_rows
@kernel
def _update_backward_rows(given: Any, made: Any, first: int, stop: int) -> None:
    """Gradients of `mixes`, `dot` and `right`."""
    grad_q, grad_mu, mixes, dot, right = given
    grad_mixes, grad_dot, grad_right = made
    width = grad_q.shape[1]
    for row in range(first, stop):
        for f in range(width):
            grad_mixes[row, 0, f] = grad_q[row, f]
        for f in range(width):
            grad_mixes[row, 1, f] = (
                grad_mu[row, 0, f] * right[row, 0, f]
                + grad_mu[row, 1, f] * right[row, 1, f]
                + grad_mu[row, 2, f] * right[row, 2, f]
            )
        for f in range(width):
            grad_mixes[row, 2, f] = grad_q[row, f] * dot[row, f]
        for f in range(width):
            grad_dot[row, f] = grad_q[row, f] * mixes[row, 2, f]
        for c in range(3):
            for f in range(width):
                grad_right[row, c, f] = grad_mu[row, c, f] * mixes[row, 1, f]


def _parts(tensor: Tensor, *shape: int) -> Any:
    return array_of(tensor).reshape(tensor.shape[0], *shape)


def _empty_invariants(mixed: Tensor, q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = q.shape
    context = q.new_empty(rows, 2 * width, dtype=widest(mixed, q))
    return context, mixed.new_empty(rows, width), mixed.new_empty(rows, 3, width)


@operator("weft::painn_invariants", _empty_invariants)
def invariants(mixed: Tensor, q: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """What does not turn with the atoms.

    Args:
        mixed: [N, 3, 2 F], two vectors a feature, left and right.
        q: [N, F].
        epsilon: added to the square of a length.

    Returns:
        [q, |left|] [N, 2 F], left · right [N, F], and a copy of right [N, 3, F].
    """
    rows, width = q.shape
    require(mixed.shape == (rows, 3, 2 * width), "mixed must be [N, 3, 2 F]", mixed, q)
    if not has_loop(mixed, q):
        return forms(mixed, q).painn_invariants(mixed, q, epsilon)
    context, dot, right = _empty_invariants(mixed, q)
    a_mixed = _parts(mixed, 3, 2, width)
    arguments = (
        a_mixed,
        array_of(q),
        a_mixed.dtype.type(epsilon),
        _parts(context, 2, width),
        dot.numpy(),
        right.numpy(),
    )
    _invariants_rows.share(arguments, rows, _WORK * rows * width)
    return context, dot, right


@invariants.derivative(lambda ctx, inputs, output: (inputs[0], output[0]))
def _invariants_grad(
    ctx: Any, grad_context: Tensor, grad_dot: Tensor, grad_right: Tensor
) -> tuple[Tensor, Tensor]:
    grad_mixed = _invariants_backward(grad_context, grad_dot, grad_right, *ctx.saved_tensors)
    return grad_mixed, grad_context[:, : grad_dot.shape[1]]


@operator("weft::painn_invariants_backward", lambda *inputs: inputs[3].new_empty(inputs[3].shape))
def _invariants_backward(
    grad_context: Tensor, grad_dot: Tensor, grad_right: Tensor, mixed: Tensor, context: Tensor
) -> Tensor:
    """Gradient of `mixed`."""
    inputs = grad_context, grad_dot, grad_right, mixed, context
    rows, width = grad_dot.shape
    fits = grad_context.shape == context.shape == (rows, 2 * width)
    fits = fits and grad_right.shape == (rows, 3, width) and mixed.shape == (rows, 3, 2 * width)
    require(fits, "gradients must have the shapes of the outputs", *inputs)
    if not has_loop(*inputs):
        return forms(*inputs).painn_invariants_backward(*inputs)
    grad_mixed = mixed.new_empty(mixed.shape)
    grads = (_parts(grad_context, 2, width), array_of(grad_dot), array_of(grad_right))
    given = (*grads, _parts(mixed, 3, 2, width), _parts(context, 2, width))
    arguments = (given, _parts(grad_mixed, 3, 2, width))
    _invariants_backward_rows.share(arguments, rows, _WORK * rows * width)
    return grad_mixed


@_invariants_backward.derivative()
def _invariants_backward_grad(ctx: Any, *pushes: Tensor) -> list[Tensor | None]:
    backward = plain.painn_invariants_backward
    return differentiable_gradients(ctx, backward, ctx.saved_tensors, pushes)


def _empty_update(
    q: Tensor, mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    out_q = q.new_empty(q.shape, dtype=widest(q, mixes, dot))
    return out_q, mu.new_empty(mu.shape, dtype=widest(mu, mixes, right))


@operator("weft::painn_update", _empty_update)
def update(
    q: Tensor, mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """New scalars q + a + c · dot [N, F] and vectors μ + b · right [N, 3, F].

    Args:
        q: [N, F].
        mu: [N, 3, F].
        mixes: [N, 3 F], the parts a, b and c.
        dot: [N, F].
        right: [N, 3, F].
    """
    rows, width = q.shape
    fits = mu.shape == right.shape == (rows, 3, width) and dot.shape == q.shape
    fits = fits and mixes.shape == (rows, 3 * width)
    require(fits, "every row must be an atom, every part F wide", q, mu, mixes, dot, right)
    if not has_loop(q, mu, mixes, dot, right):
        return forms(q, mu, mixes, dot, right).painn_update(q, mu, mixes, dot, right)
    out_q, out_mu = _empty_update(q, mu, mixes, dot, right)
    given = array_of(q), array_of(mu), _parts(mixes, 3, width), array_of(dot), array_of(right)
    arguments = (given, (out_q.numpy(), out_mu.numpy()))
    _update_rows.share(arguments, rows, _WORK * rows * width)
    return out_q, out_mu


@update.derivative(lambda ctx, inputs, output: inputs[2:])
def _update_grad(ctx: Any, grad_q: Tensor, grad_mu: Tensor) -> tuple[Tensor, ...]:
    return grad_q, grad_mu, *_update_backward(grad_q, grad_mu, *ctx.saved_tensors)


@operator(
    "weft::painn_update_backward",
    lambda *inputs: tuple(given.new_empty(given.shape) for given in inputs[2:]),
)
def _update_backward(
    grad_q: Tensor, grad_mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `mixes`, `dot` and `right`."""
    inputs = grad_q, grad_mu, mixes, dot, right
    rows, width = grad_q.shape
    fits = grad_mu.shape == right.shape == (rows, 3, width)
    fits = fits and mixes.shape == (rows, 3 * width) and dot.shape == (rows, width)
    require(fits, "gradients must have the shapes of the outputs", *inputs)
    if not has_loop(*inputs):
        return forms(*inputs).painn_update_backward(*inputs)
    grad_mixes, grad_dot, grad_right = _update_backward.empty(*inputs)
    parts = (_parts(mixes, 3, width), array_of(dot), array_of(right))
    made = (_parts(grad_mixes, 3, width), grad_dot.numpy(), grad_right.numpy())
    arguments = ((array_of(grad_q), array_of(grad_mu), *parts), made)
    _update_backward_rows.share(arguments, rows, _WORK * rows * width)
    return grad_mixes, grad_dot, grad_right


@_update_backward.derivative()
def _update_backward_grad(ctx: Any, *pushes: Tensor) -> list[Tensor | None]:
    backward = plain.painn_update_backward
    return differentiable_gradients(ctx, backward, ctx.saved_tensors, pushes)
