"""What PaiNN computes by feature inside an atom, as two operators on either side of a perceptron.

In plain torch these are some thirty passes over memory a layer, forwards and backwards; here four.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.kernels import painn_loops as loops
from weft.kernels.custom_op import array_of, has_loop, operator, require
from weft.kernels.threads import openmp, threads_for

# Multiply-adds a row and feature, to tell whether threads pay.
_WORK = 12


def _share(loop: Callable[..., None], rows: int, width: int, *arguments: Any) -> None:
    loop(openmp(), threads_for(_WORK * rows * width), arguments, None, rows)


def _parts(tensor: Tensor, *shape: int) -> Any:
    return array_of(tensor).reshape(tensor.shape[0], *shape)


def _differentiate(function: Callable[..., Any], inputs: Any, cotangents: Any) -> list[Any]:
    """Gradients of `function`, in plain torch, at inputs that may have a history of their own."""
    higher = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views: a gradient stops at them, even where one input was computed from another.
        here = [t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in inputs]
        outputs = function(*here)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return list(
            torch.autograd.grad(outputs, here, cotangents, create_graph=higher, allow_unused=True)
        )


@operator("weft::painn_invariants")
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
        left, right = mixed.chunk(2, dim=2)
        length = (left.square().sum(1) + epsilon).sqrt()
        return torch.cat([q, length], dim=1), (left * right).sum(1), right.contiguous()
    context, dot = q.new_empty(rows, 2 * width), q.new_empty(rows, width)
    right = q.new_empty(rows, 3, width)
    a_mixed = _parts(mixed, 3, 2, width)
    arguments = (
        a_mixed,
        array_of(q),
        a_mixed.dtype.type(epsilon),
        _parts(context, 2, width),
        dot.numpy(),
        right.numpy(),
    )
    _share(loops.share_invariants, rows, width, *arguments)
    return context, dot, right


@invariants.register_fake
def _(mixed: Tensor, q: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = q.shape
    return q.new_empty(rows, 2 * width), q.new_empty(rows, width), q.new_empty(rows, 3, width)


def _invariants_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], output[0])


def _invariants_grad(
    ctx: Any, grad_context: Tensor, grad_dot: Tensor, grad_right: Tensor
) -> tuple[Tensor | None, ...]:
    mixed, context = ctx.saved_tensors
    grad_mixed = _invariants_backward(grad_context, grad_dot, grad_right, mixed, context)
    return grad_mixed, grad_context[:, : grad_dot.shape[1]], None


invariants.register_autograd(_invariants_grad, setup_context=_invariants_setup)


def _plain_invariants_backward(
    grad_context: Tensor, grad_dot: Tensor, grad_right: Tensor, mixed: Tensor, context: Tensor
) -> Tensor:
    width = grad_dot.shape[1]
    left, right = mixed.chunk(2, dim=2)
    by_length = (grad_context[:, width:] / context[:, width:])[:, None]
    return torch.cat(
        [by_length * left + grad_dot[:, None] * right, grad_dot[:, None] * left + grad_right], dim=2
    )


@operator("weft::painn_invariants_backward")
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
        return _plain_invariants_backward(*inputs)
    grad_mixed = mixed.new_empty(mixed.shape)
    arguments = (
        _parts(grad_context, 2, width),
        array_of(grad_dot),
        array_of(grad_right),
        _parts(mixed, 3, 2, width),
        _parts(context, 2, width),
        _parts(grad_mixed, 3, 2, width),
    )
    _share(loops.share_invariants_backward, rows, width, *arguments)
    return grad_mixed


@_invariants_backward.register_fake
def _(
    grad_context: Tensor, grad_dot: Tensor, grad_right: Tensor, mixed: Tensor, context: Tensor
) -> Tensor:
    return mixed.new_empty(mixed.shape)


def _keep_all(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _invariants_backward_grad(ctx: Any, push: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(_differentiate(_plain_invariants_backward, ctx.saved_tensors, (push,)))


_invariants_backward.register_autograd(_invariants_backward_grad, setup_context=_keep_all)


@operator("weft::painn_update")
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
        a, b, c = mixes.chunk(3, dim=1)
        return q + a + c * dot, mu + b[:, None] * right
    out_q, out_mu = q.new_empty(q.shape), q.new_empty(rows, 3, width)
    arguments = array_of(q), array_of(mu), _parts(mixes, 3, width), array_of(dot), array_of(right)
    _share(loops.share_update, rows, width, *arguments, out_q.numpy(), out_mu.numpy())
    return out_q, out_mu


@update.register_fake
def _(q: Tensor, mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), mu.new_empty(mu.shape)


def _update_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[2:])


def _update_grad(ctx: Any, grad_q: Tensor, grad_mu: Tensor) -> tuple[Tensor | None, ...]:
    return grad_q, grad_mu, *_update_backward(grad_q, grad_mu, *ctx.saved_tensors)


update.register_autograd(_update_grad, setup_context=_update_setup)


def _plain_update_backward(
    grad_q: Tensor, grad_mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    _, b, c = mixes.chunk(3, dim=1)
    grad_mixes = torch.cat([grad_q, (grad_mu * right).sum(1), grad_q * dot], dim=1)
    return grad_mixes, grad_q * c, grad_mu * b[:, None]


@operator("weft::painn_update_backward")
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
        return _plain_update_backward(*inputs)
    grad_mixes, grad_dot = mixes.new_empty(mixes.shape), dot.new_empty(dot.shape)
    grad_right = grad_q.new_empty(rows, 3, width)
    arguments = (
        array_of(grad_q),
        array_of(grad_mu),
        _parts(mixes, 3, width),
        array_of(dot),
        array_of(right),
        _parts(grad_mixes, 3, width),
        grad_dot.numpy(),
        grad_right.numpy(),
    )
    _share(loops.share_update_backward, rows, width, *arguments)
    return grad_mixes, grad_dot, grad_right


@_update_backward.register_fake
def _(
    grad_q: Tensor, grad_mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return mixes.new_empty(mixes.shape), dot.new_empty(dot.shape), right.new_empty(right.shape)


def _update_backward_grad(
    ctx: Any, to_mixes: Tensor, to_dot: Tensor, to_right: Tensor
) -> tuple[Tensor | None, ...]:
    pushes = to_mixes, to_dot, to_right
    return tuple(_differentiate(_plain_update_backward, ctx.saved_tensors, pushes))


_update_backward.register_autograd(_update_backward_grad, setup_context=_keep_all)
