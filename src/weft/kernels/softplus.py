"""Shifted softplus, ln(1 + e^x) - ln 2: SchNet's activation, several times as fast as torch's.

Also the activation of an edge from its two ends and its own state, in one pass over the edges.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels import segment_ops
from weft.kernels.custom_op import array_of, has_loop, operator, require, save_inputs
from weft.kernels.edge_pairs import pair_sums, require_edges
from weft.kernels.vector_math import softplus_derivative_of, softplus_of
from weft.runtime import SharedLoop, kernel, shared_rows

_LN2 = math.log(2)
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


@operator("weft::shifted_softplus")
def shifted_softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x) - ln 2 of every element, any shape; 0 at 0."""
    if not has_loop(x):
        return functional.softplus(x) - _LN2
    out = torch.empty(x.shape, dtype=x.dtype)
    _fill(_softplus_rows, _flat(x), out)
    return out


@shifted_softplus.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    (y,) = ctx.saved_tensors
    gradient: Tensor = _softplus_backward(y, grad)
    return gradient


shifted_softplus.register_autograd(_backward, setup_context=_setup)


@operator("weft::softplus_backward")
def _softplus_backward(y: Tensor, grad: Tensor) -> Tensor:
    """The gradient in x of y = shifted_softplus(x), from y: it need not keep x."""
    require(y.shape == grad.shape, "y and its gradient must have one shape", y, grad)
    if not has_loop(y, grad):
        return grad * (1 - 0.5 * torch.exp(-y))
    out = torch.empty(y.shape, dtype=y.dtype)
    _fill(_gradient_rows, _flat(y), _flat(grad), out)
    return out


@_softplus_backward.register_fake
def _(y: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(y, memory_format=torch.contiguous_format)


def _backward_of_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    y, inner = ctx.saved_tensors
    half = 0.5 * torch.exp(-y)
    return grad * inner * half, grad * (1 - half)


_softplus_backward.register_autograd(_backward_of_backward, setup_context=save_inputs)


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


@operator("weft::edge_softplus")
def edge_softplus(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    senders: Tensor,
    receivers: Tensor,
    in_offsets: Tensor,
    out_offsets: Tensor,
    out_order: Tensor,
    forward: Tensor | None,
    backward: Tensor | None,
    of_edge: Tensor | None,
) -> Tensor:
    """Shifted softplus of a[sender] + b[receiver] + c, [E, F].

    Args:
        a: [N, F], what each node sends.
        b: [N, F], what each node receives with.
        c: [E, F] the edge's own, or [P, F] that of a pair of edges where these are given.
        senders: int [E]; this and the next as in GraphBatch.
        receivers: int [E], ascending.
        in_offsets: int [N + 1].
        out_offsets: int [N + 1].
        out_order: int [E].
        forward: int [P], see GraphBatch.pairs.
        backward: int [P].
        of_edge: int [E].
    """
    edges = senders.numel()
    rows = edges if forward is None else forward.numel()
    right = a.ndim == 2 and a.shape == b.shape and a.shape[0] == in_offsets.numel() - 1
    if not right or c.shape != (rows, a.shape[1]):
        raise ValueError(
            f"a and b need one row per node and c one for each of {rows}: they are "
            f"{list(a.shape)}, {list(b.shape)} and {list(c.shape)}"
        )
    pairs = (forward, backward, of_edge)
    require_edges(receivers, senders, in_offsets, out_offsets, out_order, *pairs)
    if not has_loop(a, b, c):
        own = c if of_edge is None else c[of_edge.long()]
        activated: Tensor = shifted_softplus(a[senders.long()] + b[receivers.long()] + own)
        return activated
    out = torch.empty(edges, a.shape[1], dtype=a.dtype)
    arguments = (*map(array_of, (a, b, c, senders, receivers, of_edge)), out.numpy())
    _edge_rows.share(arguments, edges, out.numel() * _WORK)
    return out


@edge_softplus.register_fake
def _(a: Tensor, b: Tensor, c: Tensor, senders: Tensor, *_: Any) -> Tensor:
    return a.new_empty(senders.shape[0], a.shape[1])


def _edge_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs[3:])


def _edge_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    y, senders, receivers, in_offsets, out_offsets, out_order, *pairs = ctx.saved_tensors
    gradient = _softplus_backward(y, grad)
    own = gradient if pairs[0] is None else pair_sums(gradient, *pairs)
    return (
        segment_ops.segment_sum(gradient, out_offsets, out_order, senders, False),
        segment_ops.segment_sum(gradient, in_offsets, None, receivers, False),
        own,
        *(None,) * 8,
    )


edge_softplus.register_autograd(_edge_backward, setup_context=_edge_setup)
