"""The torch operators `weft::*`: compiled loops on the CPU, plain torch elsewhere.

Each has a fake implementation for tracing and an autograd formula made of these same operators,
so that second derivatives exist and a backward pass is as fast and deterministic as a forward
one. Values are [E, F] or [N, F]; indices are int32 or int64.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from weft.checked_indices import check_range, check_segments
from weft.kernels.backends import forms
from weft.kernels.custom_op import array_of, has_loop, operator, require
from weft.runtime import SharedLoop, kernel, number_of, numbers_in_line, prefetch, shared_rows

# Rows to be read this many edges ahead: rows come from all over memory and the hardware cannot
# guess them. Eight to sixteen hide most of the latency; the loss is flat around it.
_AHEAD, _AHEAD_OF_PAIRS = 12, 8
# Floats that share a cache line of 64 bytes.
_LINE = 16
# From so many edges on, a product by `order` first puts columns and weights into that order: read
# one by one, two cache lines an edge, they take longer than the rows that they choose. Fewer edges
# stay in a core's cache.
_WORTH_SORTING = 100_000

# In the loops: E edges, N rows, F features, k a position in a CSR row; `order` maps k to an edge,
# or is None where edges are stored in that order.


@shared_rows
@kernel
def spmm_rows(
    x: Any,
    weight: Any,
    of_edge: Any,
    columns: Any,
    offsets: Any,
    order: Any,
    add: bool,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """out[r] = Σ weight[e] · x[columns[e]] over row r's edges e; weight None, [E] or [E, F].

    x may be bfloat16, as the int16 that have its bits; the sums are of out's dtype.
    Where of_edge [E] is given, weight [P, F] has a row for each pair of edges, weight[of_edge[e]].
    With `add` the sums are added to what `out` holds.
    """
    width = x.shape[1]
    last = columns.shape[0] - 1
    for row in range(first, stop):
        if not add:
            for f in range(width):
                out[row, f] = 0
        for k in range(offsets[row], offsets[row + 1]):
            ahead = min(k + (_AHEAD if of_edge is None else _AHEAD_OF_PAIRS), last)
            if order is None:
                edge, ahead_edge = k, ahead
            else:
                edge, ahead_edge = order[k], order[ahead]
            if of_edge is None:
                ahead_column = np.intp(columns[ahead_edge])
                for line in range(0, width, numbers_in_line(x)):
                    prefetch(x, ahead_column, np.intp(line))
            else:
                ahead_pair = np.intp(of_edge[ahead_edge])
                for line in range(0, width, _LINE):
                    prefetch(weight, ahead_pair, np.intp(line))
            column = columns[edge]
            if weight is None:
                for f in range(width):
                    out[row, f] += number_of(x[column, f])
            elif weight.ndim == 1:
                scale = weight[edge]
                for f in range(width):
                    out[row, f] += scale * number_of(x[column, f])
            else:
                own = edge if of_edge is None else of_edge[edge]
                for f in range(width):
                    out[row, f] += weight[own, f] * number_of(x[column, f])


@shared_rows
@kernel
def _sum_rows(
    values: Any, offsets: Any, order: Any, mean: bool, out: Any, first: int, stop: int
) -> None:
    """out[r] = Σ (or mean) of the rows values[e] of segment r; 0 for an empty one."""
    width = values.shape[1]
    last = values.shape[0] - 1
    for row in range(first, stop):
        start, end = offsets[row], offsets[row + 1]
        for f in range(width):
            out[row, f] = 0
        for k in range(start, end):
            if order is None:
                edge = k
            else:
                edge = order[k]
                ahead = order[min(k + _AHEAD, last)]
                for line in range(0, width, _LINE):
                    prefetch(values, np.intp(ahead), np.intp(line))
            for f in range(width):
                out[row, f] += values[edge, f]
        if mean and end > start:
            for f in range(width):
                out[row, f] /= end - start


@shared_rows
@kernel
def _max_rows(
    values: Any, offsets: Any, order: Any, out: Any, winners: Any, first: int, stop: int
) -> None:
    """out[r] = largest value of segment r by feature, winners[r] its edge; 0 and -1 if empty.

    The first of equal values wins; a NaN wins over everything.
    """
    width = values.shape[1]
    for row in range(first, stop):
        start, end = offsets[row], offsets[row + 1]
        for f in range(width):
            out[row, f] = 0
            winners[row, f] = -1
        for k in range(start, end):
            edge = k if order is None else order[k]
            for f in range(width):
                value = values[edge, f]
                best = out[row, f]
                if k == start or value > best or (np.isnan(value) and not np.isnan(best)):
                    out[row, f] = value
                    winners[row, f] = edge


@shared_rows
@kernel
def _gather_rows(x: Any, index: Any, out: Any, first: int, stop: int) -> None:
    """out[e] = x[index[e]]."""
    width = x.shape[1]
    last = index.shape[0] - 1
    for edge in range(first, stop):
        ahead = index[min(edge + _AHEAD, last)]
        for line in range(0, width, _LINE):
            prefetch(x, np.intp(ahead), np.intp(line))
        row = index[edge]
        for f in range(width):
            out[edge, f] = x[row, f]


@shared_rows
@kernel
def _product_rows(a: Any, b: Any, rows: Any, columns: Any, out: Any, first: int, stop: int) -> None:
    """out[e] = a[rows[e]] · b[columns[e]]: the dot product for out [E], by feature for [E, F]."""
    width = a.shape[1]
    last = columns.shape[0] - 1
    for edge in range(first, stop):
        ahead = columns[min(edge + _AHEAD, last)]
        for line in range(0, width, _LINE):
            prefetch(b, np.intp(ahead), np.intp(line))
        row, column = rows[edge], columns[edge]
        if out.ndim == 1:
            # Eight partial sums in a fixed order: vectors without giving up determinism.
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = a.dtype.type(0)
            whole = width - width % 8
            for f in range(0, whole, 8):
                s0 += a[row, f] * b[column, f]
                s1 += a[row, f + 1] * b[column, f + 1]
                s2 += a[row, f + 2] * b[column, f + 2]
                s3 += a[row, f + 3] * b[column, f + 3]
                s4 += a[row, f + 4] * b[column, f + 4]
                s5 += a[row, f + 5] * b[column, f + 5]
                s6 += a[row, f + 6] * b[column, f + 6]
                s7 += a[row, f + 7] * b[column, f + 7]
            total = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
            for f in range(whole, width):
                total += a[row, f] * b[column, f]
            out[edge] = total
        else:
            for f in range(width):
                out[edge, f] = a[row, f] * b[column, f]


def _filled(loop: SharedLoop, out: Tensor, width: int, offsets: Any, *arguments: Any) -> Tensor:
    """`out`, whose rows a loop has filled at `width` operations an entry."""
    rows = out.shape[0]
    entries = rows if offsets is None else rows + int(offsets[-1])
    loop.share(arguments, rows, entries * width, offsets)
    return out


class Matrix(NamedTuple):
    """The E entries, or edges, of a sparse matrix [N, M], by row and by column.

    Attributes:
        rows: int [E], the row of each edge.
        columns: int [E], the column of each edge.
        offsets: int [N + 1], CSR offsets over `rows`.
        order: int [E], edges by row; None where the edges are stored so.
        offsets_t: int [M + 1], CSR offsets over `columns`.
        order_t: int [E], edges by column; None where the edges are stored so.
    """

    rows: Tensor
    columns: Tensor
    offsets: Tensor
    order: Tensor | None
    offsets_t: Tensor
    order_t: Tensor | None

    def transposed(self) -> "Matrix":
        """The matrix [M, N] of the same edges."""
        rows, columns, offsets, order, offsets_t, order_t = self
        return Matrix(columns, rows, offsets_t, order_t, offsets, order)

    def check(self) -> None:
        """Refuse edges whose two views do not agree."""
        edges = self.rows.numel()
        check_segments(edges, self.offsets, self.order, self.rows)
        check_segments(edges, self.offsets_t, self.order_t, self.columns)


# By tensor: a reference to the order, what would tell a change of either, and the sorted values.
_sorted: Any = WeakTensorKeyDictionary()


def _in_order(values: Tensor, order: Tensor) -> Tensor:
    """values[order] [E], made once for tensors that stay as they are."""
    if values.is_inference() or order.is_inference() or values.requires_grad:
        # Nobody counts the changes of the former; the latter are others in every step.
        return values.detach().index_select(0, order)
    marks = (values._version, order._version, values.data_ptr(), order.data_ptr())
    known = _sorted.get(values)
    if known is None or known[0]() is not order or known[1] != marks:
        known = (weakref.ref(order), marks, values.index_select(0, order))
        _sorted[values] = known
    found: Tensor = known[2]
    return found


def _require_rows(x: Tensor, offsets: Tensor) -> None:
    right = x.ndim == 2 and x.shape[0] == offsets.numel() - 1
    require(right, "x must be a matrix with one row per node", x, offsets)


@operator(
    "weft::segment_sum",
    lambda values, offsets, *_: values.new_empty(offsets.shape[0] - 1, values.shape[1]),
)
def segment_sum(
    values: Tensor, offsets: Tensor, order: Tensor | None, index: Tensor | None, mean: bool
) -> Tensor:
    """Sums [N, F] of the rows of each segment, or their means.

    Args:
        values: [E, F].
        offsets: int [N + 1]; positions offsets[r]:offsets[r + 1] belong to segment r.
        order: int [E], the edge at each position; None where that is the identity.
        index: int [E], the segment of each edge, for the backward pass; None: found when needed.
        mean: divide by the number of rows.
    """
    require(values.ndim == 2, "values must be a matrix", values)
    check_segments(values.shape[0], offsets, order, index)
    if not has_loop(values):
        found = forms(values, beside=(offsets, order))
        return found.segment_reduce(values, offsets, order, "mean" if mean else "sum")
    out = segment_sum.empty(values, offsets)
    starts = array_of(offsets)
    arguments = (array_of(values), starts, array_of(order), mean, out.numpy())
    return _filled(_sum_rows, out, values.shape[1], starts, *arguments)


def _segment_index(
    offsets: Tensor, order: Tensor | None, index: Tensor | None, rows: int
) -> Tensor:
    if index is not None:
        return index
    counts = offsets.diff()
    sorted_index = torch.repeat_interleave(counts, output_size=rows)
    if order is None:
        return sorted_index
    return torch.empty_like(sorted_index).scatter_(0, order.long(), sorted_index)


def _segment_sum_saved(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Any, ...]:
    ctx.rows = inputs[0].shape[0]
    return inputs[1:4]


@segment_sum.derivative(_segment_sum_saved)
def _segment_sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    offsets, order, index = ctx.saved_tensors
    (mean,) = ctx.others
    if mean:
        grad = grad / offsets.diff().clamp(min=1)[:, None].to(grad.dtype)
    index = _segment_index(offsets, order, index, ctx.rows)
    return (gather(grad, index, offsets, order),)


@operator("weft::gather", lambda x, index, *_: x.new_empty(index.shape[0], x.shape[1]))
def gather(x: Tensor, index: Tensor, offsets: Tensor, order: Tensor | None) -> Tensor:
    """Rows x[index], [E, F]; the CSR view (offsets, order) of `index` serves the backward pass."""
    _require_rows(x, offsets)
    check_segments(index.numel(), offsets, order, index)
    if not has_loop(x):
        return forms(x, beside=(index,)).gather(x, index)
    out = gather.empty(x, index)
    arguments = (array_of(x), array_of(index), out.numpy())
    return _filled(_gather_rows, out, x.shape[1], None, *arguments)


@gather.derivative(lambda ctx, inputs, output: inputs[1:])
def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    index, offsets, order = ctx.saved_tensors
    return (segment_sum(grad, offsets, order, index, False),)


def _empty_maxima(values: Tensor, offsets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape = (offsets.shape[0] - 1, values.shape[1])
    return values.new_empty(shape), values.new_empty(shape, dtype=torch.int64)


@operator("weft::segment_max", _empty_maxima)
def segment_max(values: Tensor, offsets: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Maxima [N, F] by segment and feature, and int64 [N, F] the edges that hold them.

    An empty segment gives 0 and edge -1. The first of equal values wins.
    """
    require(values.ndim == 2, "values must be a matrix", values)
    check_segments(values.shape[0], offsets, order, None)
    if not has_loop(values):
        return forms(values, beside=(offsets, order)).segment_max(values, offsets, order)
    out, winners = _empty_maxima(values, offsets)
    starts = array_of(offsets)
    arguments = (array_of(values), starts, array_of(order), out.numpy(), winners.numpy())
    return _filled(_max_rows, out, values.shape[1], starts, *arguments), winners


def _segment_max_saved(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> Any:
    ctx.rows = inputs[0].shape[0]
    ctx.mark_non_differentiable(output[1])
    return output[1:]


@segment_max.derivative(_segment_max_saved)
def _segment_max_backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor]:
    (winners,) = ctx.saved_tensors
    # Every edge is in one segment, so each place is written once; empty segments write to a row
    # that is cut off.
    places = winners.where(winners >= 0, ctx.rows)
    spread = grad.new_zeros(ctx.rows + 1, grad.shape[1]).scatter(0, places, grad)
    return (spread[: ctx.rows],)


@operator("weft::spmm", lambda x, _, matrix: x.new_empty(matrix.offsets.shape[0] - 1, x.shape[1]))
def spmm(x: Tensor, weight: Tensor | None, matrix: Matrix) -> Tensor:
    """Sparse times dense: out[r] = Σ weight[e] · x[columns[e]] over the edges e with rows[e] = r.

    Args:
        x: [M, F].
        weight: [E], [E, F] (a weight a feature), or None for ones.
        matrix: the edges; the fields of `Matrix` one by one.
    """
    _require_rows(x, matrix.offsets_t)
    matrix.check()
    if weight is not None:
        edges = matrix.rows.numel()
        right = weight.shape in ((edges,), (edges, x.shape[1]))
        require(right, f"weights must be [{edges}] or [{edges}, {x.shape[1]}]", weight)
    _, columns, offsets, order, _, _ = matrix
    if not has_loop(x, weight):
        found = forms(x, weight, beside=(columns, offsets, order))
        return found.spmm(x, weight, columns, offsets, order)
    by_edge = weight is not None and weight.ndim == 2
    if order is not None and order.numel() >= _WORTH_SORTING and not by_edge:
        weight = None if weight is None else _in_order(weight, order)
        columns, order = _in_order(columns, order), None
    out = spmm.empty(x, weight, matrix)
    starts = array_of(offsets)
    indices = (array_of(columns), starts, array_of(order))
    arguments = (array_of(x), array_of(weight), None, *indices, False, out.numpy())
    return _filled(spmm_rows, out, x.shape[1], starts, *arguments)


def _spmm_saved(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> tuple[Any, ...]:
    x, weight, *topology = inputs
    # x is kept only where the weights learn: a fixed adjacency does not hold activations alive.
    keep = x if weight is not None and weight.requires_grad else None
    return keep, weight, *topology


@spmm.derivative(_spmm_saved)
def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, *topology = ctx.saved_tensors
    matrix = Matrix(*topology)
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        grad_x = spmm(grad, weight, *matrix.transposed())
    if ctx.needs_input_grad[1]:
        grad_weight = edge_products(grad, x, *matrix, weight.ndim == 2).to(weight.dtype)
    return grad_x, grad_weight


def add_product(out: Tensor, weight: Tensor, columns: Tensor, offsets: Tensor, x: Tensor) -> Tensor:
    """out[r] += Σ weight[e] · x[columns[e]] over row r's entries e, in place and not learning.

    Args:
        out: [N, F], contiguous.
        weight: [E].
        columns: int [E], row of `x` that each entry reads.
        offsets: int [N + 1], CSR offsets.
        x: [M, F], of out's dtype, or bfloat16 for float32 sums.
    """
    right = x.ndim == 2 and out.shape == (offsets.numel() - 1, x.shape[1])
    require(right and out.is_contiguous(), "out must be [N, F] and contiguous", out, offsets, x)
    require(weight.shape == columns.shape, "an entry has a weight and a column", weight, columns)
    check_segments(columns.numel(), offsets, None, None)
    check_range(columns, x.shape[0])
    rounded = x.dtype == torch.bfloat16 and x.is_cpu and out.dtype == torch.float32
    if not has_loop(out, weight, None if rounded else x):
        empty = not (out.numel() and weight.numel())
        x = x.to(out.dtype)
        return out if empty else out.add_(forms(x, weight).spmm(x, weight, columns, offsets, None))
    starts = array_of(offsets)
    rows = array_of(x.view(torch.int16) if rounded else x)
    given = (rows, array_of(weight), None, array_of(columns))
    arguments = (*given, starts, None, True, out.numpy())
    return _filled(spmm_rows, out, x.shape[1], starts, *arguments)


def _empty_products(a: Tensor, _: Any, matrix: Matrix, by_feature: bool) -> Tensor:
    edges = matrix.rows.shape[0]
    return a.new_empty((edges, a.shape[1]) if by_feature else (edges,))


@operator("weft::edge_products", _empty_products)
def edge_products(a: Tensor, b: Tensor, matrix: Matrix, by_feature: bool) -> Tensor:
    """Products a[rows[e]] · b[columns[e]]: [E] dot products, or [E, F] by feature.

    The sampled dense-dense product, adjoint to `spmm` in its weights; arguments as there.
    """
    _require_rows(a, matrix.offsets)
    _require_rows(b, matrix.offsets_t)
    require(a.shape[1] == b.shape[1], "a and b must be of one width", a, b)
    matrix.check()
    rows, columns = matrix[:2]
    if not has_loop(a, b):
        return forms(a, b, beside=(rows, columns)).edge_products(a, b, rows, columns, by_feature)
    out = _empty_products(a, b, matrix, by_feature)
    arguments = (array_of(a), array_of(b), array_of(rows), array_of(columns), out.numpy())
    return _filled(_product_rows, out, a.shape[1], None, *arguments)


@edge_products.derivative()
def _edge_products_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b, *topology = ctx.saved_tensors
    matrix = Matrix(*topology)
    grad_a, grad_b = spmm(b, grad, *matrix), spmm(a, grad, *matrix.transposed())
    return grad_a.to(a.dtype), grad_b.to(b.dtype)
