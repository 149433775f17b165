"""One of SchNet's interactions as one operator: messages, their sums and two layers, h added.

On a small batch the calls of a dozen operators take longer than what they compute. N nodes, P pairs
of edges, H features, F filters.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels import interaction_loops as loops
from weft.kernels.blas import gemm_address
from weft.kernels.custom_op import array_of, require, slopes_to_learn_from
from weft.kernels.interaction_loops import chunk_of
from weft.kernels.pairs import EdgePairs, pair_spmm
from weft.kernels.softplus import shifted_softplus
from weft.kernels.threads import openmp, threads_for


def interaction(
    h: Tensor,
    weight: Tensor,
    message: Tensor,
    update: Tensor,
    update_bias: Tensor | None,
    out: Tensor,
    out_bias: Tensor | None,
    pairs: EdgePairs,
    *,
    mean: bool,
) -> Tensor:
    """h + out(softplus(update(Σ weight[pair] · message(h)[sender]))), [N, H].

    The softplus is the shifted one. Tensors are such as `is_fusable` allows.

    Args:
        h: [N, H].
        weight: [P, F], a filter row a pair.
        message: [F, H], out by in, as the weights of torch.nn.Linear.
        update: [H, F].
        update_bias: [H].
        out: [H, H].
        out_bias: [H].
        pairs: the edges.
        mean: of the messages that reach a node, instead of their sum.
    """
    nodes, width, filters = pairs.nodes, h.shape[-1], weight.shape[-1]
    right = h.shape == (nodes, width) and weight.shape == (pairs.count, filters)
    right = right and message.shape == (filters, width) and update.shape == (width, filters)
    right = right and out.shape == (width, width)
    needed = "h [N, H], weight [P, F], layers [F, H], [H, F] and [H, H] needed"
    require(right, needed, h, weight, message, update, out)
    right = all(bias is None or bias.shape == (width,) for bias in (update_bias, out_bias))
    require(right, "biases [H] needed", update_bias, out_bias)
    if (update_bias is None) != (out_bias is None):
        raise ValueError("both layers have a bias, or neither")
    # As one argument: each tensor that autograd looks at takes microseconds.
    fixed = (pairs, mean)
    learned = (h, weight, message, update, update_bias, out, out_bias)
    result: Tensor = _Interaction.apply(*learned, fixed)  # type: ignore[no-untyped-call]
    return result


class _Interaction(torch.autograd.Function):
    # One function with ctx: torch would inspect the signature of a separate forward at each call.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        h, weight, message, update, update_bias, out, out_bias, (pairs, mean) = arguments
        (nodes, width), filters = h.shape, weight.shape[1]
        messages, sums = h.new_empty(nodes, filters), h.new_empty(nodes, filters)
        inner, result = h.new_empty(nodes, width), h.new_empty(nodes, width)
        given: Any = (
            openmp(),
            threads_for(h.numel() * width),
            gemm_address(h.dtype),
            *map(array_of, (h, weight)),
            pairs.arrays,
            mean,
            *map(array_of, (message, update, update_bias, out, out_bias)),
            chunk_of(nodes),
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
        pairs, mean = ctx.fixed
        if torch.is_grad_enabled():
            function = functools.partial(_plain, pairs=pairs, mean=mean)
            return *slopes_to_learn_from(ctx, function, given, grad), None
        h, weight, message, update, bias, out, _ = given
        nodes, width = h.shape
        chunk = chunk_of(nodes)
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
            mean,
            *map(array_of, (message, update, out)),
            (messages.numpy(), sums.numpy(), inner.numpy()),
            chunk,
            *map(array_of, (grad_h, grad_weight, *grad_layers, biases)),
        )
        loops.backward(*arguments)
        grad_message, grad_update, grad_out = grad_layers
        of_update, of_out = (None, None) if biases is None else biases.sum(1)
        return grad_h, grad_weight, grad_message, grad_update, of_update, grad_out, of_out, None


def _plain(
    h: Tensor,
    weight: Tensor,
    message: Tensor,
    update: Tensor,
    update_bias: Tensor | None,
    out: Tensor,
    out_bias: Tensor | None,
    *,
    pairs: EdgePairs,
    mean: bool,
) -> Tensor:
    sums = pair_spmm(functional.linear(h, message), weight, *pairs.tensors)
    if mean:
        offsets = pairs.tensors[2]
        sums = sums / offsets.diff().clamp(min=1).to(h.dtype)[:, None]
    inner = shifted_softplus(functional.linear(sums, update, update_bias))
    return h + functional.linear(inner, out, out_bias)
