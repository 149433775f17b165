"""Attention over the edges into each receiver, without a tensor that has a row for every edge.

Scores, their softmax and the weighted sum of the senders' values are computed in one pass over the
edges by receiver, which keeps the maximum and the sum of each softmax. The backward pass computes
the scores again, twice: by receiver, and by sender. Every row is computed by one thread in a fixed
order, so results are the same at every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels.attention_loops import CHUNK, backward_receivers, backward_senders, forward_rows
from weft.kernels.backends import forms, require_one_device, runs_triton
from weft.kernels.custom_op import array_of, differentiable_gradients, have_one_loop, require
from weft.kernels.fused_messages import EdgeWalks
from weft.kernels.message_code import MOST_FEATURES
from weft.kernels.segment_ops import gather, segment_max, segment_sum


@dataclass(frozen=True, eq=False, kw_only=True)
class Dropout:
    """Attention weights that are dropped.

    Attributes:
        kept: bool [E, H], the weights that stay.
        p: the probability that one is dropped; the others are divided by 1 - p.
    """

    kept: Tensor
    p: float


def attention(
    edges: EdgeWalks,
    values: Tensor,
    *,
    sender_scores: Tensor | None = None,
    receiver_scores: Tensor | None = None,
    keys: Tensor | None = None,
    queries: Tensor | None = None,
    vector: Tensor | None = None,
    slope: float = 1.0,
    scale: float = 1.0,
    dropout: Dropout | None = None,
) -> Tensor:
    """Sums of the senders' values, weighted by the softmax of scores over a receiver's edges.

    The score of an edge from j to i is one of these, for each head:

    - leaky_relu(a_j + b_i) of sender_scores a and receiver_scores b, as in GAT; b may be None;
    - leaky_relu(scale k_j · q_i) of keys k and queries q, as in a transformer;
    - vector · leaky_relu(v_j + q_i) of values v and queries q, as in GATv2.

    Args:
        edges: from M senders to N receivers, in any order.
        values: [M, H, C]; floats, all tensors alike.
        sender_scores: [M, H].
        receiver_scores: [N, H].
        keys: [M, H, C].
        queries: [N, H, C].
        vector: [H, C].
        slope: of leaky_relu below 0.
        scale: of products of keys and queries.
        dropout: of the weights.

    Returns:
        [N, H, C]; 0 for a receiver without edges.
    """
    given = (values, sender_scores, receiver_scores, keys, queries, vector)
    job = _Job(edges, slope, scale, dropout)
    job.check(given)
    if not job.is_fused(given):
        return job.plain(*given)[0]
    out: Tensor = _Attention.apply(*given, job)[0]  # type: ignore[no-untyped-call]
    return out


def attention_part(
    edges: EdgeWalks,
    values: Tensor,
    *,
    sender_scores: Tensor | None = None,
    receiver_scores: Tensor | None = None,
    keys: Tensor | None = None,
    queries: Tensor | None = None,
    vector: Tensor | None = None,
    slope: float = 1.0,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`attention` over a part of the receivers' edges, and what joins it to the other parts.

    Returns:
        The sums [N, H, C], and log Σ exp of the scores [N, H], -inf for a receiver without edges.
    """
    given = (values, sender_scores, receiver_scores, keys, queries, vector)
    job = _Job(edges, slope, scale, None)
    job.check(given)
    if not job.is_fused(given):
        return job.plain(*given)
    out: tuple[Tensor, Tensor] = _Attention.apply(*given, job)  # type: ignore[no-untyped-call]
    return out


def self_attention(
    edges: EdgeWalks,
    values: Tensor,
    sender_vector: Tensor,
    receiver_vector: Tensor,
    *,
    slope: float = 1.0,
    dropout: Dropout | None = None,
) -> Tensor:
    """`attention` among one set of nodes, with scores made of the values as in GAT.

    These are leaky_relu(sender_vector · v_j + receiver_vector · v_i). The gradient to the values is
    one tensor, where autograd would sum three.

    Args:
        edges: from N nodes to the same N nodes, in any order.
        values: v, [N, H, C]; floats, all tensors alike.
        sender_vector: [H, C].
        receiver_vector: [H, C].
        slope: of leaky_relu below 0.
        dropout: of the weights.

    Returns:
        [N, H, C]; 0 for a node without edges.
    """
    job = _Job(edges, slope, 1.0, dropout)
    vectors = (sender_vector, receiver_vector)
    right = values.ndim == 3 and all(each.shape == values.shape[1:] for each in vectors)
    require(right, "values [N, H, C] and vectors [H, C] needed", values, *vectors)
    require(_one_dtype(values, *vectors), "tensors need one dtype", values, *vectors)
    if not job.is_fused((values, *vectors)):
        whole = _with_scores(values, *vectors)
        job.check(whole)
        return job.plain(*whole)[0]
    out: Tensor = _SelfAttention.apply(values, *vectors, job)  # type: ignore[no-untyped-call]
    return out


# Which tensors beside the values a kind of scores has.
_KINDS = {(0,), (0, 1), (2, 3), (3, 4)}


@dataclass(frozen=True, eq=False)
class _Job:
    """One call, without its tensors.

    These are values, sender_scores, receiver_scores, keys, queries and vector, in this order.
    """

    edges: EdgeWalks
    slope: float
    scale: float
    dropout: Dropout | None

    def check(self, given: Sequence[Any]) -> None:
        """Raise ValueError for anything that the loops do not take."""
        values = given[0]
        used = tuple(k for k, tensor in enumerate(given[1:]) if tensor is not None)
        require(used in _KINDS, "one kind of scores needed", *given)
        require(values.ndim == 3, "values [M, H, C] needed", values)
        senders, receivers = self.edges.num_senders, self.edges.num_receivers
        heads, channels = values.shape[1:]
        rows = (senders, senders, receivers, senders, receivers)
        wide = (heads, channels)
        shapes = [(n, *wide) if k in (0, 3, 4) else (n, heads) for k, n in enumerate(rows)]
        for tensor, shape in zip(given, [*shapes, wide], strict=True):
            right = tensor is None or tensor.shape == shape
            require(right, f"attention needs the shape {list(shape)}", tensor)
        require(_one_dtype(*given), "tensors need one dtype", *given)
        if not have_one_loop(*given):
            require_one_device(*given, self.edges.senders, self.edges.receivers)
        require(0 < heads * channels <= MOST_FEATURES, f"1 to {MOST_FEATURES} features", values)
        if self.dropout is not None:
            kept = self.dropout.kept
            right = kept.shape == (self.edges.num_edges, heads) and kept.dtype == torch.bool
            require(right, "dropout needs bool [E, H]", kept, values)
            require_one_device(values, kept)
            if not 0 <= self.dropout.p < 1:
                raise ValueError(f"dropout has p = {self.dropout.p}; it must be in [0, 1)")

    def is_fused(self, given: Sequence[Any]) -> bool:
        """Whether a compiled loop or a kernel takes these tensors; `plain` takes all others."""
        # A tracer follows the plain form, whose sums are operators that it keeps whole.
        fused = not torch.compiler.is_compiling()
        return fused and (have_one_loop(*given) or runs_triton(*given))

    @property
    def numbers(self) -> tuple[float, float, float]:
        """The slope of leaky_relu, the scale of the scores, and what dropout multiplies with."""
        return self.slope, self.scale, 1.0 if self.dropout is None else 1 / (1 - self.dropout.p)

    def arguments(self, given: Any, walk: Any, *far: Any) -> tuple[Any, ...]:
        """What every loop takes; `far` are the wide rows that it reads of edges' other ends."""
        offsets, far_of, edge_of = walk
        kept = None
        if self.dropout is None:
            edge_of = None
        else:
            kept = array_of(self.dropout.kept)
            # Always an array then, so that the loops are compiled once.
            edge_of = np.arange(len(far_of), dtype=np.int32) if edge_of is None else edge_of
        numbers = np.array([0, 1, *self.numbers], dtype=given[0].dtype)
        # numpy cannot infer -1 when there are no rows.
        rows = (None if t is None else t.reshape(len(t), math.prod(t.shape[1:])) for t in far)
        return *given, kept, numbers, offsets, far_of, edge_of, *rows

    def operations(self, values: Tensor) -> int:
        """Multiply-adds of a loop, about."""
        return 6 * self.edges.num_edges * values.shape[1:].numel()

    def forward(self, given: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """The output [N, H, C], and maximum and 1 / sum of each softmax, [N, 2, H]."""
        values = given[0]
        if not have_one_loop(*given):
            walk, kept = self.edges.into_tensors, self.dropout and self.dropout.kept
            made: tuple[Tensor, Tensor]
            made = forms(*given).attention(given, kept, self.numbers, walk)
            return made
        rows = self.edges.num_receivers
        out: Tensor = values.new_empty(rows, *values.shape[1:])
        tops = values.new_empty(rows, 2, values.shape[1])
        arrays = [array_of(t) for t in given]
        shared = self.arguments(arrays, self.edges.into, arrays[0], arrays[3])
        written = (out.numpy(), tops.numpy())
        forward_rows.share((*shared, *written), rows, self.operations(values), self.edges.into[0])
        return out, tops

    def backward(
        self, given: Sequence[Any], tops: Tensor, grad: Tensor, grad_log_sums: Tensor | None
    ) -> list[Any]:
        """The gradient to each of the tensors."""
        values, vector = given[0], given[-1]
        if not have_one_loop(*given):
            walks, kept = (self.edges.into_tensors, self.edges.out_tensors), None
            if self.dropout is not None:
                kept = self.dropout.kept
            made: list[Any] = forms(*given).attention_gradients(
                given, kept, self.numbers, *walks, tops, grad, grad_log_sums
            )
            return made
        arrays, g = [array_of(t) for t in given], array_of(grad)
        rows, senders = self.edges.num_receivers, self.edges.num_senders
        dense = torch.contiguous_format
        found = [None if t is None else torch.empty_like(t, memory_format=dense) for t in given]
        # What the pass by sender needs of a receiver: 3 numbers for each head.
        ends = values.new_empty(rows, 3, values.shape[1])
        chunks = -(-rows // CHUNK)
        parts = None if vector is None else values.new_empty(chunks, *vector.shape)
        d_values, d_a, d_b, d_keys, d_queries = (array_of(t) for t in found[:-1])
        written: tuple[Any, ...] = (
            array_of(tops),
            g,
            array_of(grad_log_sums),
            ends.numpy(),
            d_b,
            d_queries,
            array_of(parts),
        )
        cuts = self.edges.into[0][np.minimum(np.arange(chunks + 1) * CHUNK, rows)]
        shared = self.arguments(arrays, self.edges.into, arrays[0], arrays[3])
        backward_receivers.share((*shared, *written), chunks, self.operations(values), cuts)
        written = (g, ends.numpy(), d_values, d_a, d_keys)
        shared = self.arguments(arrays, self.edges.out, g, arrays[4])
        offsets = self.edges.out[0]
        backward_senders.share((*shared, *written), senders, self.operations(values), offsets)
        found[-1] = None if parts is None else parts.sum(0)
        return found

    def plain(self, *given: Any) -> tuple[Tensor, Tensor]:
        """The same, and log Σ exp, of rows of edges: what the others have no derivatives for."""
        edges = self.edges
        (starts, _, order), (starts_out, _, order_out) = edges.both_walks()
        leaving = edges.senders, starts_out, order_out
        entering = edges.receivers, starts, order
        ends = (leaving, leaving, entering, leaving, entering)
        rows: list[Any] = [
            t if t is None else gather(t.flatten(1), *end).view(edges.num_edges, *t.shape[1:])
            for t, end in zip(given, ends, strict=False)
        ]
        v, a, b, k, q = rows
        vector = given[-1]
        if vector is not None:
            scores = (functional.leaky_relu(v + q, self.slope) * vector).sum(-1)
        else:
            sums = a if b is None else a + b
            scores = functional.leaky_relu(
                sums if k is None else self.scale * (k * q).sum(-1), self.slope
            )
        # The result does not depend on what is subtracted, nor does its gradient.
        most = segment_max(scores.detach(), starts, order)[0]
        weights = (scores - gather(most, *entering)).exp()
        sums = segment_sum(weights, starts, order, edges.receivers, False)
        weights = weights / gather(sums, *entering)
        if self.dropout is not None:
            weights = weights * self.dropout.kept / (1 - self.dropout.p)
        messages = (weights[..., None] * v).flatten(1)
        out = segment_sum(messages, starts, order, edges.receivers, False)
        log_sums = sums.where(sums > 0, 1).log().add(most).where(sums > 0, -torch.inf)
        return out.view(edges.num_receivers, *v.shape[1:]), log_sums


def _one_dtype(*tensors: Tensor | None) -> bool:
    """Whether all tensors have the same floats."""
    dtypes = {t.dtype for t in tensors if t is not None}
    return len(dtypes) == 1 and dtypes.pop().is_floating_point


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *given, ctx.job = arguments
        ctx.set_materialize_grads(False)
        out, tops = ctx.job.forward(given)
        ctx.save_for_backward(*given, tops)
        most, inverse = tops.unbind(1)
        return out, (most - inverse.where(inverse > 0, 1).log()).to(out.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # Read once: what is checkpointed is unpacked at each reading.
        *given, tops = ctx.saved_tensors
        if torch.is_grad_enabled() or not ctx.job.is_fused(given):
            asked = [k for k, grad in enumerate(grads) if grad is not None]

            def plain(*given: Tensor) -> Any:
                outputs = ctx.job.plain(*given)
                return [outputs[k] for k in asked]

            found = differentiable_gradients(ctx, plain, given, [grads[k] for k in asked])
            return *found, None
        grad = grads[0]
        if grad is None:
            grad = given[0].new_zeros(len(tops), *given[0].shape[1:])
        return *ctx.job.backward(given, tops, grad, grads[1]), None


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *given, ctx.job = arguments
        whole = _with_scores(*given)
        ctx.job.check(whole)
        out, tops = ctx.job.forward(whole)
        ctx.save_for_backward(*given, *whole[1:3], tops)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        values, *vectors, a, b, tops = ctx.saved_tensors
        if torch.is_grad_enabled() or not ctx.job.is_fused((values, a, b)):

            def plain(*given: Tensor) -> Any:
                return ctx.job.plain(*_with_scores(*given))[0]

            return *differentiable_gradients(ctx, plain, (values, *vectors), grads), None
        given = (values, a, b, None, None, None)
        d_values, *d_scores, _, _, _ = ctx.job.backward(given, tops, grads[0], None)
        found = []
        for vector, d in zip(vectors, d_scores, strict=True):
            d_values.addcmul_(d[..., None], vector)
            products = (d.t() @ values.flatten(1)).view(len(vector), *vector.shape)
            found.append(products.diagonal().t())
        return d_values, *found, None


def _with_scores(values: Tensor, *vectors: Tensor) -> tuple[Any, ...]:
    """Values and their products with each head's vectors, as `_Job` takes them."""
    # One product for both: a column for each head of each vector.
    columns = [torch.block_diag(*each[..., None]) for each in vectors]  # type: ignore[no-untyped-call]
    scores = (values.flatten(1) @ torch.cat(columns, dim=1)).chunk(2, dim=1)
    return values, *(part.contiguous() for part in scores), None, None, None
