"""Softmax over the edges that enter each receiver, as torch_geometric defines it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels.backends import forms, require_one_device, runs_triton
from weft.kernels.custom_op import array_of, has_loop, require
from weft.kernels.fused_messages import EdgeWalks
from weft.kernels.segment_ops import gather, segment_max, segment_sum
from weft.kernels.vector_math import exp_of
from weft.runtime import kernel, shared_rows

_SMALL = 1e-16


@shared_rows
@kernel
def _softmax_rows(scores: Any, offsets: Any, edge_of: Any, out: Any, first: int, stop: int) -> None:
    """out[e, h] = exp(scores[e, h] - max) / (Σ + 1e-16) over each row's edges e."""
    for row in range(first, stop):
        for h in range(scores.shape[1]):
            most = out.dtype.type(-np.inf)
            for k in range(offsets[row], offsets[row + 1]):
                edge = k if edge_of is None else edge_of[k]
                most = max(most, scores[edge, h])
            # As torch_geometric does.
            total = out.dtype.type(_SMALL)
            for k in range(offsets[row], offsets[row + 1]):
                edge = k if edge_of is None else edge_of[k]
                value = exp_of(scores[edge, h] - most)
                out[edge, h] = value
                total += value
            for k in range(offsets[row], offsets[row + 1]):
                edge = k if edge_of is None else edge_of[k]
                out[edge, h] /= total


@shared_rows
@kernel
def _gradient_rows(
    y: Any, grad: Any, offsets: Any, edge_of: Any, out: Any, first: int, stop: int
) -> None:
    """out[e, h] = y (grad - Σ y · grad) over each row's edges."""
    for row in range(first, stop):
        for h in range(y.shape[1]):
            total = y.dtype.type(0)
            for k in range(offsets[row], offsets[row + 1]):
                edge = k if edge_of is None else edge_of[k]
                total += y[edge, h] * grad[edge, h]
            for k in range(offsets[row], offsets[row + 1]):
                edge = k if edge_of is None else edge_of[k]
                out[edge, h] = y[edge, h] * (grad[edge, h] - total)


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, edges: EdgeWalks) -> Tensor:
        ctx.edges = edges
        out: Tensor
        if has_loop(scores):
            offsets, _, edge_of = edges.into
            out = torch.empty_like(scores, memory_format=torch.contiguous_format)
            arguments = (array_of(scores), offsets, edge_of, out.numpy())
            _softmax_rows.share(arguments, len(offsets) - 1, 10 * scores.numel(), offsets)
        else:
            out = forms(scores).edge_softmax(scores, edges.into_tensors, _SMALL)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        edges: EdgeWalks = ctx.edges
        fused = has_loop(y, grad) or runs_triton(y, grad)
        if torch.is_grad_enabled() or not fused:
            offsets, _, order = edges.into_tensors
            sums = segment_sum(y * grad, offsets, order, edges.receivers, False)
            return y * (grad - gather(sums, edges.receivers, offsets, order)), None
        if not has_loop(y, grad):
            return forms(y, grad).edge_softmax_gradient(y, grad, edges.into_tensors), None
        offsets, _, edge_of = edges.into
        out = torch.empty_like(y)
        arguments = (y.numpy(), array_of(grad), offsets, edge_of, out.numpy())
        _gradient_rows.share(arguments, len(offsets) - 1, 4 * y.numel(), offsets)
        return out, None


def edge_softmax(scores: Tensor, edges: EdgeWalks) -> Tensor:
    """Softmax [E, H] of scores [E, H] over the edges into each receiver, edges in any order."""
    require(scores.ndim == 2 and scores.shape[0] == edges.num_edges, "scores [E, H] needed", scores)
    # A tracer follows the plain form, whose sums are operators that it keeps whole.
    if torch.compiler.is_compiling():
        return _plain(scores, edges)
    if not has_loop(scores):
        require_one_device(scores, edges.senders, edges.receivers)
        if not runs_triton(scores):
            return _plain(scores, edges)
    out: Tensor = _EdgeSoftmax.apply(scores, edges)  # type: ignore[no-untyped-call]
    return out


def _plain(scores: Tensor, edges: EdgeWalks) -> Tensor:
    (offsets, _, order), _ = edges.both_walks()
    rows = edges.receivers, offsets, order
    most = segment_max(scores.detach(), offsets, order)[0]
    weights = (scores - gather(most, *rows)).exp()
    sums = segment_sum(weights, offsets, order, edges.receivers, False)
    return weights / (gather(sums, *rows) + _SMALL)
