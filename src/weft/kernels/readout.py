"""SchNet's readout as one operator: two layers of each node, and what a graph makes of its nodes.

On a small batch the calls of the operators that it would be take longer than what they compute. N
nodes, G graphs, H features, M hidden ones.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.checked_indices import check_segments
from weft.kernels import readout_loops as loops
from weft.kernels.blas import gemm_address
from weft.kernels.custom_op import array_of, require, slopes_to_learn_from
from weft.kernels.functions import segment_mean, segment_sum
from weft.kernels.interaction_loops import chunk_of
from weft.kernels.softplus import shifted_softplus
from weft.kernels.threads import openmp, threads_for


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
            openmp(),
            threads_for(h.numel() * first.shape[0]),
            gemm_address(h.dtype),
            *map(array_of, (h, first, first_bias, second, second_bias, offsets)),
            mean,
            chunk_of(h.shape[0]),
            inner.numpy(),
            out.numpy(),
        )
        loops.forward(*given)
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
            return *slopes_to_learn_from(ctx, function, given, grad), None
        h, first, _, second, _ = given
        made = [None if t is None else torch.empty(t.shape, dtype=h.dtype) for t in given]
        arguments: Any = (
            openmp(),
            threads_for(h.numel() * first.shape[0]),
            gemm_address(h.dtype),
            *map(array_of, (grad, h, first, second, offsets)),
            mean,
            inner.numpy(),
            chunk_of(h.shape[0]),
            *map(array_of, made),
        )
        loops.backward(*arguments)
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
