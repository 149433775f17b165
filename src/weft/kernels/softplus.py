"""Shifted softplus, ln(1 + e^x) - ln 2: SchNet's activation, several times as fast as torch's.

Also the activation of an edge from its two ends and its own state, in one pass over the edges.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from typing import Any

import torch
from torch import Tensor

from weft.kernels import segment_ops
from weft.kernels.backends import forms
from weft.kernels.custom_op import array_of, has_loop, operator, require, widest
from weft.kernels.edge_pairs import BatchEdges, Pairs, pair_sums
from weft.kernels.vector_math import softplus_derivative_of, softplus_of
from weft.runtime import SharedLoop, kernel, shared_rows

# Multiply-adds that an element costs, about.
_WORK = 16


@shared_rows
@kernel
def _softplus_rows(x: Any, out: Any, first: int, stop: int) -> None:
    """out[i] = ln(1 + e^x[i]) - ln 2."""
    # Slices that begin at 0: the compiler then knows that no index is negative, and uses vectors.
    values, results = x[first:stop], out[first:stop]
    for i in range(values.shape[0]):
        results[i] = softplus_of(values[i])


@shared_rows
@kernel
def _gradient_rows(y: Any, grad: Any, out: Any, first: int, stop: int) -> None:
    """out[i] = grad[i] · dy/dx with y = softplus(x) - ln 2: dy/dx = 1 - e^-y / 2."""
    values, grads, results = y[first:stop], grad[first:stop], out[first:stop]
    for i in range(values.shape[0]):
        results[i] = grads[i] * softplus_derivative_of(values[i])


def _flat(x: Tensor) -> Any:
    return x.detach().reshape(-1).numpy()


def _fill(loop: SharedLoop, *arguments: Any) -> None:
    """Run a loop over flat arrays; the last argument is the tensor to fill."""
    *given, out = arguments
    count = out.numel()
    loop.share((*given, out.view(-1).numpy()), count, count * _WORK)


def _empty_like(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@operator("weft::shifted_softplus", _empty_like)
def shifted_softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x) - ln 2 of every element, any shape; 0 at 0."""
    if not has_loop(x):
        return forms(x).shifted_softplus(x)
    out = _empty_like(x)
    _fill(_softplus_rows, _flat(x), out)
    return out


@shifted_softplus.derivative(lambda ctx, inputs, output: [output])
def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    return (_softplus_backward(*ctx.saved_tensors, grad),)


@operator("weft::softplus_backward", _empty_like)
def _softplus_backward(y: Tensor, grad: Tensor) -> Tensor:
    """The gradient in x of y = shifted_softplus(x), from y: it need not keep x."""
    require(y.shape == grad.shape, "y and its gradient must have one shape", y, grad)
    if not has_loop(y, grad):
        return forms(y, grad).softplus_backward(y, grad)
    out = _empty_like(y)
    _fill(_gradient_rows, _flat(y), _flat(grad), out)
    return out


@_softplus_backward.derivative()
def _backward_of_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    y, inner = ctx.saved_tensors
    half = 0.5 * torch.exp(-y)
    return grad * inner * half, grad * (1 - half)


@shared_rows
@kernel
def _edge_rows(
    a: Any,
    b: Any,
    c: Any,
    senders: Any,
    receivers: Any,
    of_edge: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """out[e] = softplus(a[senders[e]] + b[receivers[e]] + c[e or of_edge[e]]) - ln 2."""
    width = out.shape[1]
    for edge in range(first, stop):
        own = edge if of_edge is None else of_edge[edge]
        sender, receiver = senders[edge], receivers[edge]
        for f in range(width):
            out[edge, f] = softplus_of(a[sender, f] + b[receiver, f] + c[own, f])


@operator(
    "weft::edge_softplus",
    lambda a, b, c, edges, _: a.new_empty(
        edges.senders.shape[0], a.shape[1], dtype=widest(a, b, c)
    ),
)
def edge_softplus(
    a: Tensor, b: Tensor, c: Tensor, edges: BatchEdges, pairs: Pairs | None
) -> Tensor:
    """Shifted softplus of a[sender] + b[receiver] + c, [E, F].

    Args:
        a: [N, F], what each node sends.
        b: [N, F], what each node receives with.
        c: [E, F] the edge's own, or [P, F] that of a pair of edges where these are given.
        edges: given by its fields, as are the pairs.
        pairs: of the edges, or None.
    """
    edges.check(pairs)
    rows = (edges.senders if pairs is None else pairs.forward).numel()
    right = a.ndim == 2 and a.shape == b.shape and a.shape[0] == edges.in_offsets.numel() - 1
    if not right or c.shape != (rows, a.shape[1]):
        raise ValueError(
            f"a and b need one row per node and c one for each of {rows}: they are "
            f"{list(a.shape)}, {list(b.shape)} and {list(c.shape)}"
        )
    senders, receivers = edges[:2]
    of_edge = None if pairs is None else pairs.of_edge
    if not has_loop(a, b, c):
        return forms(a, b, c).edge_softplus(a, b, c, senders, receivers, of_edge)
    out: Tensor = edge_softplus.empty(a, b, c, edges, pairs)
    arguments = (*map(array_of, (a, b, c, senders, receivers, of_edge)), out.numpy())
    _edge_rows.share(arguments, out.shape[0], out.numel() * _WORK)
    return out


@edge_softplus.derivative(lambda ctx, inputs, output: (output, *inputs[3:]))
def _edge_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    y, senders, receivers, in_offsets, out_offsets, out_order, *pairs = ctx.saved_tensors
    gradient = _softplus_backward(y, grad)
    return (
        segment_ops.segment_sum(gradient, out_offsets, out_order, senders, False),
        segment_ops.segment_sum(gradient, in_offsets, None, receivers, False),
        gradient if pairs[0] is None else pair_sums(gradient, *pairs),
    )
