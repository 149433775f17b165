"""What models call: message passing over anything that carries sorted edges, such as GraphBatch."""

from __future__ import annotations

import math
from typing import Any, Protocol

from torch import Tensor

from weft.kernels import segment_ops
from weft.kernels.custom_op import Operator


class SortedEdges(Protocol):
    """E edges over N nodes, sorted by receiver, with CSR views both ways (see GraphBatch)."""

    @property
    def senders(self) -> Tensor: ...  # noqa: D102
    @property
    def receivers(self) -> Tensor: ...  # noqa: D102
    @property
    def in_offsets(self) -> Tensor: ...  # noqa: D102
    @property
    def out_offsets(self) -> Tensor: ...  # noqa: D102
    @property
    def out_order(self) -> Tensor: ...  # noqa: D102


def spmm(edges: SortedEdges, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sum over incoming edges of weight · x[sender], [N, ...], without making edge tensors.

    Args:
        edges: a GraphBatch, or anything with its edge fields.
        x: [N, ...].
        weight: [E] or [E, 1], one an edge; [E, ...], as many as a row of x has; None for ones.
    """
    if weight is not None and weight.ndim > 1:
        # One column is one weight an edge, the shape that other libraries give edge attributes.
        if weight.shape[1:] == (1,):
            weight = weight[:, 0]
        elif weight.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"weights of shape {list(weight.shape)} do not fit rows of x, {list(x.shape)}: "
                "one number an edge, or the shape of a row of x"
            )
        else:
            weight = _flat(weight)
    return _by_rows(segment_ops.spmm, x, weight, *matrix_of(edges))


def matrix_of(edges: SortedEdges) -> segment_ops.Matrix:
    """The matrix that has an entry at (receiver, sender) for each edge."""
    leaving = (edges.out_offsets, edges.out_order)
    return segment_ops.Matrix(edges.receivers, edges.senders, edges.in_offsets, None, *leaving)


def gather_senders(edges: SortedEdges, x: Tensor) -> Tensor:
    """x [N, ...] of each edge's sender, [E, ...]."""
    return _by_rows(segment_ops.gather, x, edges.senders, edges.out_offsets, edges.out_order)


def gather_receivers(edges: SortedEdges, x: Tensor) -> Tensor:
    """x [N, ...] of each edge's receiver, [E, ...]."""
    return _by_rows(segment_ops.gather, x, edges.receivers, edges.in_offsets, None)


def sum_to_receivers(edges: SortedEdges, values: Tensor) -> Tensor:
    """Sum of edge values [E, ...] over the edges that enter each node, [N, ...]."""
    entering = (edges.in_offsets, None, edges.receivers)
    return _by_rows(segment_ops.segment_sum, values, *entering, False)


def sum_to_senders(edges: SortedEdges, values: Tensor) -> Tensor:
    """Sum of edge values [E, ...] over the edges that leave each node, [N, ...]."""
    leaving = (edges.out_offsets, edges.out_order, edges.senders)
    return _by_rows(segment_ops.segment_sum, values, *leaving, False)


def segment_sum(values: Tensor, offsets: Tensor, index: Tensor | None = None) -> Tensor:
    """Sums of consecutive rows of `values` [E, ...]: rows offsets[r]:offsets[r + 1] make row r.

    `index` [E], the segment of each row, saves the backward pass from finding it again.
    """
    return _by_rows(segment_ops.segment_sum, values, offsets, None, index, False)


def segment_mean(values: Tensor, offsets: Tensor, index: Tensor | None = None) -> Tensor:
    """Means of consecutive rows, as `segment_sum`; 0 for an empty segment."""
    return _by_rows(segment_ops.segment_sum, values, offsets, None, index, True)


def segment_max(values: Tensor, offsets: Tensor) -> Tensor:
    """Largest of consecutive rows by feature, as `segment_sum`; 0 for an empty segment."""
    out, _ = segment_ops.segment_max(_flat(values), offsets, None)
    return _shaped(out, values)


def _by_rows(operator: Operator, x: Tensor, *arguments: Any) -> Tensor:
    """The operator for x [rows, ...], whose other dimensions it takes as one."""
    return _shaped(operator(_flat(x), *arguments), x)


def _flat(x: Tensor) -> Tensor:
    """[rows, features] of x [rows, ...]; torch cannot infer -1 when there are no rows."""
    if x.ndim == 0:
        raise ValueError("a single number has no rows; give a tensor [rows, ...]")
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def _shaped(out: Tensor, like: Tensor) -> Tensor:
    return out.reshape(out.shape[0], *like.shape[1:])
