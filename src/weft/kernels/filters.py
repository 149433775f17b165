"""Filter networks of distances, all of a model's at once: Gaussians, a layer, softplus, a layer.

Row blocks go through the whole network while they are in the cache, forward and backward, and the
Gaussians of a block are a band (see `gaussians`). P pairs, K centres, L networks, F features.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels import filter_loops as loops
from weft.kernels.blas import gemm_address
from weft.kernels.gaussians import chunks_of, gaussian_basis, reach
from weft.kernels.operator import array_of, has_loop, operator, require
from weft.kernels.series import TERMS, bin_width, is_smooth, nodes_of, series_at, series_of
from weft.kernels.softplus import shifted_softplus
from weft.kernels.team import openmp, threads_for

__all__ = ["radial_filters"]

# From this many pairs a node of the series, they pay.
_PAIRS_A_NODE = 1.5


def radial_filters(
    d: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None,
    *,
    spacing: float,
    sharpness: float,
    activate: bool,
) -> list[Tensor]:
    """L filters [P, F] of distances d [P]: Gaussians, linear, shifted softplus, linear.

    Args:
        d: Å; the order of its rows decides the speed, not the result.
        first: [L · F, K], the weights of the first layers of all networks.
        first_bias: [L · F].
        second: [L, F, F], those of the second layers, out by in.
        second_bias: [L, F].
        spacing: between the Gaussians' centres, Å.
        sharpness: of the Gaussians, 1 / Å².
        activate: shifted softplus after the second layer too.
    """
    networks, width = second.shape[0], second.shape[-1]
    right = d.ndim == 1 and first.ndim == 2 and second.shape == (networks, width, width)
    right = right and first.shape[0] == networks * width
    right = right and (first_bias is None or first_bias.shape == first.shape[:1])
    right = right and (second_bias is None or second_bias.shape == second.shape[:2])
    require(right, "d [P], first [L F, K], second [L, F, F] needed", d, first, second)
    if (first_bias is None) != (second_bias is None):
        raise ValueError("both layers have a bias, or neither")
    if d.requires_grad or not has_loop(d, first) or not gemm_address(first.dtype):
        basis = gaussian_basis(d, first.shape[1], spacing, sharpness)
        inner = shifted_softplus(functional.linear(basis, first, first_bias))
        parts = inner.split(second.shape[2], dim=1)
        biases = [None] * len(parts) if second_bias is None else list(second_bias)
        outer = [
            functional.linear(part, weight, bias)
            for part, weight, bias in zip(parts, second, biases, strict=True)
        ]
        return [shifted_softplus(part) for part in outer] if activate else outer
    settings = (first, first_bias, second, second_bias, spacing, sharpness, activate)
    # The choice depends on values, so a traced model computes every row.
    small = d.shape[0] <= TERMS
    if first.dtype == torch.float32 and not torch.compiler.is_compiling() and not small:
        wide = bin_width(sharpness)
        # Beyond the reach of the last centre nothing changes.
        end = min((first.shape[1] - 1) * spacing + reach(sharpness), float(d.max()))
        bins = max(1, math.ceil(end / wide))
        if d.shape[0] > _PAIRS_A_NODE * TERMS * bins:
            at_nodes = _filters(nodes_of(bins, wide), *settings)[:-1]
            terms = series_of(torch.cat(at_nodes, dim=1))
            if is_smooth(terms):
                return list(series_at(d, terms, networks, wide))
    outs: Sequence[Tensor] = _filters(d, *settings)
    return list(outs[:-1])


@operator("weft::radial_filters")
def _filters(
    d: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None,
    spacing: float,
    sharpness: float,
    activate: bool,
) -> list[Tensor]:
    """The filters, and last the activations [P, L · F] between their layers."""
    pairs, width = d.shape[0], second.shape[1]
    inner = first.new_empty(pairs, first.shape[0])
    outs = [first.new_empty(pairs, width) for _ in second]
    chunk, chunks = chunks_of(pairs)
    arguments = (
        gemm_address(first.dtype),
        array_of(d),
        # The weights of a band of centres are then rows.
        array_of(first.t()),
        array_of(first_bias),
        array_of(second),
        array_of(second_bias),
        spacing,
        sharpness,
        reach(sharpness),
        activate,
        chunk,
        inner.numpy(),
        tuple(out.numpy() for out in outs),
    )
    threads = threads_for(inner.numel() * width)
    loops.share_filter_chunks(openmp(), threads, arguments, None, chunks)
    return [*outs, inner]


@_filters.register_fake
def _(d: Tensor, first: Tensor, first_bias: Tensor | None, second: Tensor, *_: Any) -> list[Tensor]:
    widths = [*(second.shape[1] for _ in range(second.shape[0])), first.shape[0]]
    return [first.new_empty(d.shape[0], width) for width in widths]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    d, _, first_bias, second, _, ctx.spacing, ctx.sharpness, ctx.activate = inputs
    *outs, inner = output
    ctx.mark_non_differentiable(inner)
    # Or `inner` would be given a gradient of zeros, as large as itself.
    ctx.set_materialize_grads(False)
    ctx.bias = first_bias is not None
    ctx.centres = inputs[1].shape[1]
    # Without an activation the filters themselves are not needed, but the loops want arrays.
    ctx.save_for_backward(d, second, inner, *outs)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    d, second, inner, *outs = ctx.saved_tensors
    like = inner.new_zeros(()).expand(inner.shape[0], second.shape[1])
    slopes = [like.contiguous() if grad is None else grad for grad in grads[:-1]]
    settings = (ctx.centres, ctx.spacing, ctx.sharpness, ctx.activate, ctx.bias)
    first, first_bias, weight, bias = _filters_backward(d, second, inner, outs, slopes, *settings)
    if not ctx.bias:
        first_bias = bias = None
    return None, first, first_bias, weight, bias, None, None, None


_filters.register_autograd(_backward, setup_context=_setup)


@operator("weft::radial_filters_backward")
def _filters_backward(
    d: Tensor,
    second: Tensor,
    inner: Tensor,
    outs: list[Tensor],
    grads: list[Tensor],
    centres: int,
    spacing: float,
    sharpness: float,
    activate: bool,
    bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients in the weights and biases of both layers."""
    chunk, chunks = chunks_of(d.shape[0])
    first_grad = inner.new_zeros(chunks, centres, inner.shape[1])
    second_grad = inner.new_zeros(chunks, *second.shape)
    first_bias = inner.new_zeros(chunks, inner.shape[1])
    second_bias = inner.new_zeros(chunks, *second.shape[:2])
    arguments = (
        gemm_address(inner.dtype),
        array_of(d),
        array_of(second),
        array_of(inner),
        tuple(array_of(out) for out in outs),
        tuple(array_of(grad) for grad in grads),
        spacing,
        sharpness,
        reach(sharpness),
        activate,
        bias,
        chunk,
        first_grad.numpy(),
        first_bias.numpy(),
        second_grad.numpy(),
        second_bias.numpy(),
    )
    threads = threads_for(inner.numel() * second.shape[1])
    loops.share_gradient_chunks(openmp(), threads, arguments, None, chunks)
    return (
        first_grad.sum(0).t().contiguous(),
        first_bias.sum(0),
        second_grad.sum(0),
        second_bias.sum(0),
    )


@_filters_backward.register_fake
def _(
    d: Tensor,
    second: Tensor,
    inner: Tensor,
    outs: list[Tensor],
    grads: list[Tensor],
    centres: int,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    width = inner.shape[1]
    return (
        inner.new_empty(width, centres),
        inner.new_empty(width),
        torch.empty_like(second),
        inner.new_empty(second.shape[:2]),
    )
