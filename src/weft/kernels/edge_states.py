"""The activation of an edge from its two ends and its own state, in one pass over the edges."""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import sys
from typing import Any

import torch
from torch import Tensor

from weft.checked_indices import check_pairs, check_segments
from weft.compiled import compiled
from weft.kernels import segment_ops as operators
from weft.kernels.custom_op import array_of, has_loop, operator, require
from weft.kernels.pairs import pair_sums
from weft.kernels.softplus import shifted_softplus, softplus_slope
from weft.kernels.threads import openmp, share, threads_for
from weft.kernels.vector_math import softplus_of

_here = sys.modules[__name__]
_compiled = compiled(fastmath={"contract"}, error_model="numpy")
_WORK = 16


@_compiled
def state_rows(
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


@_compiled
def share_state_rows(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """state_rows on a team of threads, see `share`."""
    share(openmp, threads, _here.state_rows, arguments, offsets, rows)


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
    require(receivers.shape == senders.shape, "edges must have two ends", senders, receivers)
    check_segments(edges, in_offsets, None, receivers)
    check_segments(edges, out_offsets, out_order, senders)
    require(in_offsets.shape == out_offsets.shape, "offsets must agree", in_offsets, out_offsets)
    fits = of_edge is None if forward is None else of_edge is not None and backward is not None
    require(fits, "pairs are given whole or not at all", forward, backward, of_edge)
    if forward is not None and backward is not None and of_edge is not None:
        fits = forward.shape == backward.shape and of_edge.shape == senders.shape
        require(fits, "pairs must agree with the edges", forward, backward, of_edge)
        check_pairs(edges, forward, backward, of_edge)
    if not has_loop(a, b, c):
        own = c if of_edge is None else c[of_edge.long()]
        activated: Tensor = shifted_softplus(a[senders.long()] + b[receivers.long()] + own)
        return activated
    out = torch.empty(edges, a.shape[1], dtype=a.dtype)
    arguments = (*map(array_of, (a, b, c, senders, receivers, of_edge)), out.numpy())
    share_state_rows(openmp(), threads_for(out.numel() * _WORK), arguments, None, edges)
    return out


@edge_softplus.register_fake
def _(a: Tensor, b: Tensor, c: Tensor, senders: Tensor, *_: Any) -> Tensor:
    return a.new_empty(senders.shape[0], a.shape[1])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs[3:])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    y, senders, receivers, in_offsets, out_offsets, out_order, *pairs = ctx.saved_tensors
    slope = softplus_slope(y, grad)
    own = slope if pairs[0] is None else pair_sums(slope, *pairs)
    return (
        operators.segment_sum(slope, out_offsets, out_order, senders, False),
        operators.segment_sum(slope, in_offsets, None, receivers, False),
        own,
        *(None,) * 8,
    )


edge_softplus.register_autograd(_backward, setup_context=_setup)
