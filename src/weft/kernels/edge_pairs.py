"""Message passing whose weights belong to pairs of edges, a weight row for both directions.

P pairs, E edges, N nodes, F features. `forward` and `backward` [P] are a pair's two edges (the same
one where an edge is alone) and `of_edge` [E] the pair of each edge, as GraphBatch.pairs has them.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.checked_indices import check_pairs, check_range, check_segments, right_pairs, trust
from weft.kernels.backends import forms
from weft.kernels.custom_op import array_of, has_loop, operator, require
from weft.kernels.message_passing import SortedEdges
from weft.kernels.segment_ops import Matrix, spmm_rows
from weft.runtime import kernel, shared_rows

# The square of the shortest distance: padding edges have no length, and a root no derivative at 0.
_TINY = 1e-12


@shared_rows
@kernel
def product_rows(
    a: Any,
    b: Any,
    rows: Any,
    columns: Any,
    forward: Any,
    backward: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """out[p] = Σ a[rows[e]] · b[columns[e]] over the edges e of pair p, by feature."""
    width = a.shape[1]
    for pair in range(first, stop):
        edge, other = forward[pair], backward[pair]
        row, column = rows[edge], columns[edge]
        other_row, other_column = rows[other], columns[other]
        if edge == other:
            for f in range(width):
                out[pair, f] = a[row, f] * b[column, f]
        else:
            for f in range(width):
                out[pair, f] = a[row, f] * b[column, f] + a[other_row, f] * b[other_column, f]


class Pairs(NamedTuple):
    """The P pairs of E edges, see GraphBatch.pairs.

    Attributes:
        forward: int [P].
        backward: int [P].
        of_edge: int [E].
    """

    forward: Tensor
    backward: Tensor
    of_edge: Tensor

    def check(self, edges: Tensor) -> None:
        """Refuse pairs that are not those of `edges` [E]."""
        whole = all(t is not None for t in self)
        require(whole, "pairs are given whole or not at all", *self)
        forward, backward, of_edge = self
        right = of_edge.shape == edges.shape and forward.shape == backward.shape
        require(right, "every edge has a pair, and every pair two edges", edges, of_edge, forward)
        check_pairs(edges.numel(), forward, backward, of_edge)


class BatchEdges(NamedTuple):
    """The E edges between the N nodes of a batch: fields of GraphBatch.

    Attributes:
        senders: int [E].
        receivers: int [E], ascending.
        in_offsets: int [N + 1].
        out_offsets: int [N + 1].
        out_order: int [E].
    """

    senders: Tensor
    receivers: Tensor
    in_offsets: Tensor
    out_offsets: Tensor
    out_order: Tensor

    @classmethod
    def of(cls, batch: SortedEdges) -> "BatchEdges":
        """Those of a batch."""
        return cls(*(getattr(batch, name) for name in cls._fields))

    def check(self, pairs: Pairs | None) -> None:
        """Refuse edges unless ends, offsets and pairs, if there are any, agree."""
        senders, receivers, in_offsets, out_offsets, out_order = self
        require(receivers.shape == senders.shape, "edges must have two ends", senders, receivers)
        check_segments(senders.numel(), in_offsets, None, receivers)
        check_segments(senders.numel(), out_offsets, out_order, senders)
        same = in_offsets.shape == out_offsets.shape
        require(same, "offsets must agree", in_offsets, out_offsets)
        if pairs is not None:
            pairs.check(senders)


class EdgePairs:
    """The edges of N nodes in P pairs: checked once, for several operators.

    Attributes:
        tensors: what `pair_spmm` takes after its weight.
        nodes: N.
        count: P.
    """

    def __init__(self, matrix: Matrix, pairs: Pairs) -> None:
        pairs.check(matrix.rows)
        matrix.check()
        ends = (matrix.offsets, matrix.offsets_t)
        same = ends[0].shape == ends[1].shape
        require(same, "senders and receivers must be the same nodes", *ends)
        self.tensors = (*matrix, *pairs)
        self.nodes, self.count = ends[0].shape[0] - 1, pairs.forward.shape[0]

    @functools.cached_property
    def arrays(self) -> tuple[Any, ...]:
        """The tensors as compiled loops take them."""
        return tuple(map(array_of, self.tensors))


@operator(
    "weft::pair_spmm",
    lambda x, _, matrix, *__: x.new_empty(matrix.offsets.shape[0] - 1, x.shape[1]),
)
def pair_spmm(x: Tensor, weight: Tensor, matrix: Matrix, pairs: Pairs) -> Tensor:
    """out[r] = Σ weight[of_edge[e]] · x[columns[e]] over the edges e with rows[e] = r, [N, F].

    Args:
        x: [M, F].
        weight: [P, F], one row per pair.
        matrix: the edges; given by its fields, as are the pairs.
        pairs: of the edges.
    """
    _, columns, offsets, order, offsets_t, _ = matrix
    right = x.ndim == weight.ndim == 2 and weight.shape == (pairs.forward.numel(), x.shape[1])
    require(right, "a pair needs a weight for each feature", weight, pairs.forward, x)
    require(x.shape[0] == offsets_t.numel() - 1, "x must have one row per node", x, offsets_t)
    pairs.check(matrix.rows)
    matrix.check()
    if not has_loop(x, weight):
        return forms(x, weight).pair_spmm(x, weight, pairs.of_edge, columns, offsets, order)
    out: Tensor = pair_spmm.empty(x, weight, matrix)
    starts = array_of(offsets)
    given = map(array_of, (x, weight, pairs.of_edge, columns))
    arguments = (*given, starts, array_of(order), False, out.numpy())
    spmm_rows.share(arguments, out.shape[0], columns.shape[0] * x.shape[1], starts)
    return out


@pair_spmm.derivative()
def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, *topology = ctx.saved_tensors
    matrix, pairs = Matrix(*topology[:6]), topology[6:]
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        grad_x = pair_spmm(grad, weight, *matrix.transposed(), *pairs)
    if ctx.needs_input_grad[1]:
        grad_weight = pair_products(grad, x, *matrix, *pairs)
    return grad_x, grad_weight


@operator(
    "weft::pair_products",
    lambda a, b, matrix, pairs: a.new_empty(pairs.forward.shape[0], a.shape[1]),
)
def pair_products(a: Tensor, b: Tensor, matrix: Matrix, pairs: Pairs) -> Tensor:
    """Σ a[rows[e]] · b[columns[e]] over the one or two edges e of each pair, by feature, [P, F]."""
    ends = (matrix.offsets, matrix.offsets_t)
    right = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[1]
    right = right and (len(a), len(b)) == (ends[0].numel() - 1, ends[1].numel() - 1)
    require(right, "a and b must have one row per node, of one width", a, b, *ends)
    pairs.check(matrix.rows)
    matrix.check()
    rows, columns = matrix[:2]
    if not has_loop(a, b):
        return forms(a, b).pair_products(a, b, rows, columns, *pairs[:2])
    out: Tensor = pair_products.empty(a, b, matrix, pairs)
    arguments = (*map(array_of, (a, b, rows, columns, *pairs[:2])), out.numpy())
    product_rows.share(arguments, out.shape[0], 2 * out.numel())
    return out


@pair_products.derivative()
def _products_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b, *topology = ctx.saved_tensors
    matrix, pairs = Matrix(*topology[:6]), topology[6:]
    grad_a = pair_spmm(b, grad, *matrix, *pairs)
    return grad_a, pair_spmm(a, grad, *matrix.transposed(), *pairs)


@operator(
    "weft::pair_sums",
    lambda values, forward, *_: values.new_empty(forward.shape[0], values.shape[1]),
)
def pair_sums(values: Tensor, forward: Tensor, backward: Tensor, of_edge: Tensor) -> Tensor:
    """Sums [P, F] of edge values [E, F] over the one or two edges of each pair."""
    right = values.ndim == 2 and values.shape[0] == of_edge.numel()
    require(right, "values [E, F] needed, one row per edge", values, of_edge)
    check_pairs(values.shape[0], forward, backward, of_edge)
    return forms(values).pair_sums(values, forward, backward)


@operator(
    "weft::pair_rows",
    lambda values, forward, backward, of_edge: values.new_empty(of_edge.shape[0], values.shape[1]),
)
def _pair_rows(values: Tensor, forward: Tensor, backward: Tensor, of_edge: Tensor) -> Tensor:
    """The row of each edge's pair, [E, F] of [P, F]: adjoint to `pair_sums`."""
    right = values.ndim == 2 and values.shape[0] == forward.numel()
    require(right, "values [P, F] needed, one row per pair", values, forward)
    check_pairs(of_edge.numel(), forward, backward, of_edge)
    return forms(values).gather(values, of_edge)


@pair_sums.derivative(lambda ctx, inputs, output: inputs[1:])
def _sums_backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    return (_pair_rows(grad, *ctx.saved_tensors),)


@_pair_rows.derivative(lambda ctx, inputs, output: inputs[1:])
def _rows_backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    return (pair_sums(grad, *ctx.saved_tensors),)


@kernel
def sort_pairs(
    pos: Any, shift: Any, senders: Any, receivers: Any, pairs: Any, width: float, made: Any
) -> None:
    """Distances of the pairs, and their counting sort by ⌊distance / width⌋."""
    forward, backward, of_edge = pairs
    new_distance, new_forward, new_backward, new_of_edge = made
    bins = 256
    starts = np.zeros(bins + 1, dtype=np.int64)
    count = forward.shape[0]
    keys = np.empty(count, dtype=np.int32)
    distances = np.empty(count, dtype=pos.dtype)
    for pair in range(count):
        edge = forward[pair]
        sender, receiver = senders[edge], receivers[edge]
        square = pos.dtype.type(_TINY)
        total = pos.dtype.type(0)
        for axis in range(3):
            step = pos[sender, axis] - pos[receiver, axis]
            if shift is not None:
                step += shift[edge, axis]
            total += step * step
        distances[pair] = np.sqrt(max(total, square))
        # In floats first: a distance can be larger than any integer, or not a number.
        # The constant is first: of it and nan, max and min take it.
        key = np.int32(min(bins - 1.0, max(0.0, distances[pair] / width)))
        keys[pair] = key
        starts[key + 1] += 1
    for key in range(bins):
        starts[key + 1] += starts[key]
    ranks = np.empty(count, dtype=of_edge.dtype)
    for pair in range(count):
        rank = starts[keys[pair]]
        starts[keys[pair]] += 1
        ranks[pair] = rank
        new_distance[rank] = distances[pair]
        new_forward[rank], new_backward[rank] = forward[pair], backward[pair]
    for edge in range(of_edge.shape[0]):
        new_of_edge[edge] = ranks[of_edge[edge]]


def _empty_pairs(
    pos: Tensor, shift: Any, senders: Any, receivers: Any, pairs: Pairs, width: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    forward, backward, of_edge = map(torch.empty_like, pairs)
    return pos.new_empty(forward.shape[0]), forward, backward, of_edge


@operator("weft::sorted_pairs", _empty_pairs)
def sorted_pairs(
    pos: Tensor,
    shift: Tensor | None,
    senders: Tensor,
    receivers: Tensor,
    pairs: Pairs,
    width: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distances [P] of the pairs, nearest first in steps of `width`, and the pairs in that order.

    Neighbouring rows of a filter then have similar distances, see `gaussian_product`. Nothing
    learns from these distances.

    Args:
        pos: [N, 3].
        shift: [E, 3] or None; an edge's vector is pos[sender] + shift - pos[receiver].
        senders: int [E].
        receivers: int [E].
        pairs: of the edges, given by its fields.
        width: of a step, in the unit of `pos`.
    """
    require(pos.ndim == 2 and pos.shape[1] == 3, "positions must be [N, 3]", pos)
    edges = senders.numel()
    right = shift is None or shift.shape == (edges, 3)
    require(right, "shifts must be [E, 3]", shift, senders)
    require(receivers.shape == senders.shape, "edges must have two ends", senders, receivers)
    check_range(senders, pos.shape[0])
    check_range(receivers, pos.shape[0])
    forward, backward, of_edge = pairs
    check_pairs(edges, *pairs)
    if not has_loop(pos, shift):
        vectors = pos[senders.long()] - pos[receivers.long()]
        vectors = vectors if shift is None else vectors + shift
        squares = vectors[forward.long()].square().sum(1)
        distance, order = squares.clamp(min=_TINY).sqrt().sort(stable=True)
        ranks = torch.empty_like(forward)
        ranks[order] = torch.arange(len(order), dtype=forward.dtype, device=pos.device)
        sorted_ones = (forward[order], backward[order], ranks[of_edge.long()])
        trust(right_pairs, sorted_ones, edges)
        return distance, *sorted_ones
    # torch counts no changes of tensors made in inference mode: each layer would check them again.
    with torch.inference_mode(False):
        found = _empty_pairs(pos, shift, senders, receivers, pairs, width)
    given = map(array_of, (pos, shift, senders, receivers))
    made = tuple(t.numpy() for t in found)
    arguments: Any = (*given, tuple(map(array_of, pairs)), width, made)
    sort_pairs(*arguments)
    trust(right_pairs, found[1:], edges)
    return found
