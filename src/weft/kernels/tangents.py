"""Messages and activations together with their directional derivatives, the tangents.

Training on forces needs the gradient of dE/dr · v in the weights, for one direction v of all
positions. Differentiating forwards along v makes that an ordinary function of the weights: each
value x comes with its tangent ẋ, and each operator here maps both. Values and tangents are the two
halves [2 N, F] of one tensor, so that a linear layer is one product for both.

N nodes, P pairs of edges, F features. Tensors are such as `is_fusable` allows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.custom_op import array_of, require
from weft.kernels.edge_pairs import EdgePairs
from weft.kernels.vector_math import sigmoid_of, softplus_derivative_of, softplus_of
from weft.runtime import compiled, kernel, prefetch, shared_rows, stack_numbers

# Rows of filters to be read this many edges ahead.
_AHEAD = 8
# Floats that share a cache line of 64 bytes.
_LINE = 16
# Features whose sums are on the stack at a time: the compiler then knows that nothing overlaps.
_TILE = 128
_SPACE = 2 * _TILE
# Multiply-adds of an activation, about.
_WORK = 24


@shared_rows
@kernel
def _sum_rows(
    x: Any,
    filters: Any,
    edges: Any,
    order: Any,
    value: int,
    tangent: int,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """out[value + r] = Σ w · x[value + s], and its derivative in out[tangent + r].

    The filter w of a pair moves by push · slope. With `value` and `tangent` changed, this loop over
    a sender's edges is the adjoint of the one over a receiver's.
    """
    weight, slope, push = filters
    of_edge, columns, offsets = edges
    width = x.shape[1]
    last = columns.shape[0] - 1
    sums = stack_numbers(x, _SPACE)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(_SPACE):
                sums[j] = 0
            for k in range(offsets[row], offsets[row + 1]):
                ahead = min(k + _AHEAD, last)
                if order is None:
                    edge, ahead_pair = k, np.intp(of_edge[ahead])
                else:
                    edge, ahead_pair = order[k], np.intp(of_edge[order[ahead]])
                for line in range(tile, tile + count, _LINE):
                    prefetch(weight, ahead_pair, np.intp(line))
                    prefetch(slope, ahead_pair, np.intp(line))
                pair, by = of_edge[edge], push[of_edge[edge]]
                one, two = value + columns[edge], tangent + columns[edge]
                for j in range(count):
                    f = start + j
                    w, own = weight[pair, f], x[one, f]
                    sums[j] += w * own
                    sums[_TILE + j] += w * x[two, f] + by * slope[pair, f] * own
            for j in range(count):
                out[value + row, start + j] = sums[j]
                out[tangent + row, start + j] = sums[_TILE + j]


@shared_rows
@kernel
def _filter_rows(
    grad: Any, x: Any, push: Any, edges: Any, made: Any, first: int, stop: int
) -> None:
    """Gradients of each pair's weight and slope, from its edges forward[p] and backward[p]."""
    forward, backward, rows, columns = edges
    grad_weight, grad_slope = made
    width = x.shape[1]
    nodes = x.shape[0] // 2
    sums = stack_numbers(x, _SPACE)
    for pair in range(first, stop):
        by = push[pair]
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(_SPACE):
                sums[j] = 0
            for way in range(2):
                edge = forward[pair] if way == 0 else backward[pair]
                if way == 1 and edge == forward[pair]:
                    continue
                r, s = rows[edge], columns[edge]
                for j in range(count):
                    f = start + j
                    moved = grad[nodes + r, f]
                    sums[j] += grad[r, f] * x[s, f] + moved * x[nodes + s, f]
                    sums[_TILE + j] += moved * x[s, f]
            for j in range(count):
                grad_weight[pair, start + j] = sums[j]
                grad_slope[pair, start + j] = by * sums[_TILE + j]


def tangent_spmm(
    x: Tensor, weight: Tensor, slope: Tensor, push: Tensor, pairs: EdgePairs
) -> Tensor:
    """Σ weight[pair] · x[sender] over a node's incoming edges, and its tangents, [2 N, F].

    Args:
        x: [2 N, F], values and tangents.
        weight: [P, F], a filter row for each pair.
        slope: [P, F], its derivative in the pair's distance.
        push: [P], the tangent of that distance; nothing learns from it.
        pairs: the edges.
    """
    right = x.ndim == 2 and weight.shape == slope.shape == (pairs.count, x.shape[-1])
    right = right and x.shape[0] == 2 * pairs.nodes and push.shape == (pairs.count,)
    require(right, "x [2 N, F], weight and slope [P, F], push [P] needed", x, weight, slope, push)
    out: Tensor = _TangentSpmm.apply(x, weight, slope, push, pairs)  # type: ignore[no-untyped-call]
    return out


def _sums(x: Any, filters: Any, pairs: EdgePairs, *, adjoint: bool) -> Tensor:
    rows, columns, offsets, order, offsets_t, order_t, _, _, of_edge = pairs.arrays
    out = torch.empty(x.shape, dtype=torch.from_numpy(x[:0]).dtype)
    nodes = pairs.nodes
    if adjoint:
        edges, rest, starts = (of_edge, rows, offsets_t), (order_t, nodes, 0), offsets_t
    else:
        edges, rest, starts = (of_edge, columns, offsets), (order, 0, nodes), offsets
    arguments = (x, filters, edges, *rest, out.numpy())
    _sum_rows.share(arguments, nodes, 3 * len(columns) * x.shape[1], starts)
    return out


class _TangentSpmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x, weight, slope, push, pairs = arguments
        ctx.save_for_backward(x, weight, slope, push)
        ctx.pairs = pairs
        return _sums(array_of(x), tuple(map(array_of, (weight, slope, push))), pairs, adjoint=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        pairs = ctx.pairs
        x, *filters = map(array_of, ctx.saved_tensors)
        given = array_of(grad)
        rows, columns, *_, forward, backward, _ = pairs.arrays
        made = tuple(torch.empty(filters[0].shape, dtype=grad.dtype) for _ in range(2))
        edges = (forward, backward, rows, columns)
        arguments = (given, x, filters[2], edges, tuple(t.numpy() for t in made))
        _filter_rows.share(arguments, pairs.count, 6 * filters[0].size)
        return _sums(given, tuple(filters), pairs, adjoint=True), *made, None, None


@shared_rows
@kernel
def _softplus_rows(x: Any, out: Any, first: int, stop: int) -> None:
    """out[0] = softplus(x[0]) - ln 2 and out[1] = its derivative · x[1]; both [2, M]."""
    values, tangents = x[0, first:stop], x[1, first:stop]
    results, moved = out[0, first:stop], out[1, first:stop]
    for i in range(values.shape[0]):
        results[i] = softplus_of(values[i])
    for i in range(values.shape[0]):
        moved[i] = tangents[i] * softplus_derivative_of(results[i])


@shared_rows
@kernel
def _softplus_gradient(x: Any, y: Any, grad: Any, out: Any, first: int, stop: int) -> None:
    tangents, results = x[1, first:stop], y[0, first:stop]
    one, two = grad[0, first:stop], grad[1, first:stop]
    to_values, to_tangents = out[0, first:stop], out[1, first:stop]
    for i in range(results.shape[0]):
        to_tangents[i] = softplus_derivative_of(results[i])
    for i in range(results.shape[0]):
        slope = to_tangents[i]
        bend = slope * (1 - slope)
        to_values[i] = slope * one[i] + bend * tangents[i] * two[i]
        to_tangents[i] = slope * two[i]


@shared_rows
@kernel
def _silu_rows(x: Any, out: Any, first: int, stop: int) -> None:
    """out[0] = x[0] · sigmoid(x[0]) and out[1] = its derivative · x[1]; both [2, M]."""
    values, tangents = x[0, first:stop], x[1, first:stop]
    results, moved = out[0, first:stop], out[1, first:stop]
    for i in range(values.shape[0]):
        results[i] = sigmoid_of(values[i])
    for i in range(values.shape[0]):
        gate, value = results[i], values[i]
        moved[i] = tangents[i] * gate * (1 + value * (1 - gate))
        results[i] = gate * value


@shared_rows
@kernel
def _silu_gradient(x: Any, y: Any, grad: Any, out: Any, first: int, stop: int) -> None:
    values, tangents = x[0, first:stop], x[1, first:stop]
    one, two = grad[0, first:stop], grad[1, first:stop]
    to_values, to_tangents = out[0, first:stop], out[1, first:stop]
    for i in range(values.shape[0]):
        to_tangents[i] = sigmoid_of(values[i])
    for i in range(values.shape[0]):
        gate, value = to_tangents[i], values[i]
        rest = 1 - gate
        slope = gate * (1 + value * rest)
        bend = gate * rest * (2 + value * (1 - 2 * gate))
        to_values[i] = slope * one[i] + bend * tangents[i] * two[i]
        to_tangents[i] = slope * two[i]


def tangent_softplus(x: Tensor) -> Tensor:
    """Shifted softplus of values and its tangents; x [2 N, F], the two halves."""
    out: Tensor = _Activation.apply(x, _softplus_rows, _softplus_gradient)  # type: ignore[no-untyped-call]
    return out


def tangent_silu(x: Tensor) -> Tensor:
    """SiLU of values and its tangents; x [2 N, F], the two halves."""
    out: Tensor = _Activation.apply(x, _silu_rows, _silu_gradient)  # type: ignore[no-untyped-call]
    return out


def _halves(x: Tensor) -> Any:
    return array_of(x).reshape(2, x.numel() // 2)


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loop: Any, gradient: Any) -> Tensor:
        out = x.new_empty(x.shape)
        loop.share((_halves(x), _halves(out)), x.numel() // 2, _WORK * x.numel())
        ctx.save_for_backward(x, out)
        ctx.gradient = gradient
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, y = ctx.saved_tensors
        out = x.new_empty(x.shape)
        arguments = tuple(map(_halves, (x, y, grad, out)))
        ctx.gradient.share(arguments, x.numel() // 2, _WORK * x.numel())
        return out, None, None


# Dot products are summed in the order of the vector registers: fixed, whatever the threads.
@shared_rows
@compiled(fastmath={"contract", "reassoc"}, error_model="numpy")
def _dot_rows(a: Any, b: Any, out: Any, first: int, stop: int) -> None:
    for row in range(first, stop):
        total = out.dtype.type(0)
        for part in range(len(a)):
            one, other = a[part][row], b[part][row]
            for f in range(one.shape[0]):
                total += one[f] * other[f]
        out[row] = total


def row_dots(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Σ over the parts of a[part][row] · b[part][row], [P] of lists of [P, F]."""
    right = len(a) == len(b) > 0 and all(
        one.shape == other.shape for one, other in zip(a, b, strict=True)
    )
    right = right and all(len(part) == len(a[0]) for part in a)
    require(right and a[0].ndim == 2, "parts [P, F] in pairs needed", *a, *b)
    out = a[0].new_empty(len(a[0]))
    arguments = (tuple(map(array_of, a)), tuple(map(array_of, b)), out.numpy())
    _dot_rows.share(arguments, len(out), sum(part.numel() for part in a))
    return out
