"""One of SchNet's interactions as one operator: messages, their sums and two layers, h added.

On a small batch the calls of a dozen operators take longer than what they compute. N nodes, P pairs
of edges, H features, F filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels import interaction_loops as loops
from weft.kernels.blas import gemm_address
from weft.kernels.operator import array_of, has_loop, is_plain, require
from weft.kernels.pairs import EdgePairs, pair_spmm
from weft.kernels.softplus import shifted_softplus
from weft.kernels.team import openmp, threads_for

__all__ = ["has_interaction", "interaction"]

# A chunk sums the gradients of the weights for itself: enough of them to share, not to fill memory.
_CHUNKS = 16
_CHUNK_ROWS = 32


def has_interaction(*tensors: Tensor | None) -> bool:
    """Whether `interaction` takes these tensors here and now.

    They are of one dtype that has a loop, and nothing records what is computed but autograd.
    """
    first = tensors[0]
    assert first is not None
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if not (has_loop(first) and gemm_address(first.dtype)):
        return False
    return all(
        t is None or (is_plain(t) and t.dtype == first.dtype and t.device == first.device)
        for t in tensors
    )


def interaction(
    h: Tensor,
    weight: Tensor,
    scale: Tensor,
    message: Tensor,
    update: Tensor,
    update_bias: Tensor | None,
    out: Tensor,
    out_bias: Tensor | None,
    pairs: EdgePairs,
) -> Tensor:
    """h + out(softplus(update(scale · Σ weight[pair] · message(h)[sender]))), [N, H].

    The softplus is the shifted one. Tensors are such as `has_interaction` allows.

    Args:
        h: [N, H].
        weight: [P, F], a filter row a pair.
        scale: [N, 1] or [1, 1], of the sums; nothing learns from it.
        message: [F, H], out by in, as the weights of torch.nn.Linear.
        update: [H, F].
        update_bias: [H].
        out: [H, H].
        out_bias: [H].
        pairs: the edges.
    """
    nodes, width, filters = pairs.nodes, h.shape[-1], weight.shape[-1]
    right = h.shape == (nodes, width) and weight.shape == (pairs.count, filters)
    right = right and message.shape == (filters, width) and update.shape == (width, filters)
    right = right and out.shape == (width, width) and scale.shape in ((nodes, 1), (1, 1))
    needed = "h [N, H], weight [P, F], scale [N, 1], layers [F, H], [H, F] and [H, H] needed"
    require(right, needed, h, weight, scale, message, update, out)
    right = all(bias is None or bias.shape == (width,) for bias in (update_bias, out_bias))
    require(right, "biases [H] needed", update_bias, out_bias)
    if (update_bias is None) != (out_bias is None):
        raise ValueError("both layers have a bias, or neither")
    if scale.requires_grad:
        raise ValueError("the scale asks for a gradient, but has none; detach it")
    # As one argument: each tensor that autograd looks at takes microseconds.
    fixed = (array_of(scale), scale, pairs)
    learned = (h, weight, message, update, update_bias, out, out_bias)
    result: Tensor = _Interaction.apply(*learned, fixed)  # type: ignore[no-untyped-call]
    return result


class _Interaction(torch.autograd.Function):
    # One function with ctx: torch would inspect the signature of a separate forward at each call.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        h, weight, message, update, update_bias, out, out_bias, (scale, _, pairs) = arguments
        (nodes, width), filters = h.shape, weight.shape[1]
        messages, sums = h.new_empty(nodes, filters), h.new_empty(nodes, filters)
        inner, result = h.new_empty(nodes, width), h.new_empty(nodes, width)
        given: Any = (
            openmp(),
            threads_for(h.numel() * width),
            gemm_address(h.dtype),
            *map(array_of, (h, weight)),
            pairs.arrays,
            scale,
            *map(array_of, (message, update, update_bias, out, out_bias)),
            _chunk_of(nodes),
            *(t.numpy() for t in (messages, sums, inner, result)),
        )
        loops.forward(*given)
        ctx.save_for_backward(*arguments[:7], messages, sums, inner)
        ctx.fixed = arguments[7]
        assert isinstance(result, Tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        *given, messages, sums, inner = ctx.saved_tensors
        scale, scale_tensor, pairs = ctx.fixed
        if torch.is_grad_enabled():
            return *_plain_gradients(ctx, given, scale_tensor, pairs, grad), None
        h, weight, message, update, bias, out, _ = given
        nodes, width = h.shape
        chunk = _chunk_of(nodes)
        grad_h, *grad_layers = (
            torch.empty(t.shape, dtype=h.dtype) for t in (h, message, update, out)
        )
        grad_weight = torch.empty(weight.shape, dtype=h.dtype) if ctx.needs_input_grad[1] else None
        biases = None if bias is None else h.new_empty(2, -(-nodes // chunk), width)
        arguments: Any = (
            openmp(),
            threads_for(h.numel() * width),
            gemm_address(h.dtype),
            *map(array_of, (grad, h, weight)),
            pairs.arrays,
            scale,
            *map(array_of, (message, update, out)),
            (messages.numpy(), sums.numpy(), inner.numpy()),
            chunk,
            *map(array_of, (grad_h, grad_weight, *grad_layers, biases)),
        )
        loops.backward(*arguments)
        grad_message, grad_update, grad_out = grad_layers
        of_update, of_out = (None, None) if biases is None else biases.sum(1)
        return grad_h, grad_weight, grad_message, grad_update, of_update, grad_out, of_out, None


def _chunk_of(nodes: int) -> int:
    return max(_CHUNK_ROWS, -(-nodes // _CHUNKS))


def _plain(given: Sequence[Any], scale: Tensor, pairs: EdgePairs) -> Tensor:
    h, weight, message, update, update_bias, out, out_bias = given
    sums = pair_spmm(functional.linear(h, message), weight, *pairs.tensors) * scale
    inner = shifted_softplus(functional.linear(sums, update, update_bias))
    changed: Tensor = h + functional.linear(inner, out, out_bias)
    return changed


def _plain_gradients(
    ctx: Any, given: Sequence[Any], scale: Tensor, pairs: EdgePairs, grad: Tensor
) -> list[Tensor | None]:
    """The gradients as functions of all that they depend on, for derivatives of them."""
    # Views, so that a tensor made from another one is no way to that one.
    views: list[Any] = [None if t is None else t.view_as(t) for t in given]
    wanted = [k for k in range(len(views)) if ctx.needs_input_grad[k]]
    found: list[Tensor | None] = [None] * len(views)
    slopes = torch.autograd.grad(
        _plain(views, scale, pairs), [views[k] for k in wanted], grad, create_graph=True
    )
    for k, slope in zip(wanted, slopes, strict=True):
        found[k] = slope
    return found
