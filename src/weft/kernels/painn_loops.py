"""The compiled loops behind PaiNN's operators.

As in `loops`, each computes the rows first:stop of its outputs and nothing else. N nodes, E edges,
P pairs, F features; x and filters hold three parts of F features: for scalars, for the direction
and for the vectors of the sender. Filters of two parts stand for vectors that are 0: `mu` is empty.

Before the compiler may use vector instructions, it must know that what a loop writes is not what it
reads. Of rows of arrays it has to ask at run time, for every pair of rows, and gives up when they
are many. So sums over edges are kept on the stack, which it knows to be apart, a tile of features
at a time; other loops write one row each.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from weft.compiled import compiled
from weft.kernels.threads import share

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]

# Sums over edges: rows of features, at most so many and so long at a time.
_ROWS, _TILE = 5, 128

_compiled = compiled(fastmath={"contract"}, error_model="numpy")
# Dot products are summed in the order of the vector registers: fixed, whatever the threads.
_compiled_dot = compiled(fastmath={"contract", "reassoc"}, error_model="numpy")


@intrinsic
def _sums(typing_context: Any, like: Any) -> Any:
    """_ROWS rows of _TILE numbers like those of an array, as a pointer to the stack."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = ir.IntType(64)(_ROWS * _TILE)
        return cgutils.alloca_once(builder, context.get_value_type(like.dtype), size=size)

    return types.CPointer(like.dtype)(like), generate


@_compiled
def messages(
    x: Any,
    mu: Any,
    filters: Any,
    direction: Any,
    mask: Any,
    pair: Any,
    senders: Any,
    offsets: Any,
    out_q: Any,
    out_mu: Any,
    first: int,
    stop: int,
) -> None:
    """Scalars out_q [N, F] and vectors out_mu [N, 3, F] that reach each receiver."""
    width = x.shape[2]
    vectors = x.shape[1] == 3
    sums = _sums(x)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(4 * _TILE):
                sums[j] = 0
            for edge in range(offsets[row], offsets[row + 1]):
                if not mask[edge]:
                    continue
                s, p = senders[edge], pair[edge]
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                if vectors:
                    for j in range(count):
                        f = start + j
                        along = filters[p, 1, f] * x[s, 1, f]
                        turned = filters[p, 2, f] * x[s, 2, f]
                        sums[j] += filters[p, 0, f] * x[s, 0, f]
                        sums[_TILE + j] += d0 * along + turned * mu[s, 0, f]
                        sums[2 * _TILE + j] += d1 * along + turned * mu[s, 1, f]
                        sums[3 * _TILE + j] += d2 * along + turned * mu[s, 2, f]
                else:
                    for j in range(count):
                        f = start + j
                        along = filters[p, 1, f] * x[s, 1, f]
                        sums[j] += filters[p, 0, f] * x[s, 0, f]
                        sums[_TILE + j] += d0 * along
                        sums[2 * _TILE + j] += d1 * along
                        sums[3 * _TILE + j] += d2 * along
            for j in range(count):
                out_q[row, start + j] = sums[j]
            for c in range(3):
                for j in range(count):
                    out_mu[row, c, start + j] = sums[(1 + c) * _TILE + j]


@_compiled
def share_messages(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """Messages on a team of threads, see `share`."""
    share(openmp, threads, _here.messages, arguments, offsets, rows)


@_compiled
def to_senders(
    grad_q: Any,
    grad_mu: Any,
    x: Any,
    mu: Any,
    filters: Any,
    direction: Any,
    mask: Any,
    pair: Any,
    receivers: Any,
    offsets: Any,
    order: Any,
    grad_x: Any,
    grad_mu_in: Any,
    first: int,
    stop: int,
) -> None:
    """Gradients grad_x, grad_mu_in of the senders, rows of `offsets` and `order`."""
    width = x.shape[2]
    vectors = x.shape[1] == 3
    sums = _sums(x)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(5 * _TILE):
                sums[j] = 0
            for k in range(offsets[row], offsets[row + 1]):
                edge = order[k]
                if not mask[edge]:
                    continue
                r, p = receivers[edge], pair[edge]
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                if vectors:
                    for j in range(count):
                        f = start + j
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        w = filters[p, 2, f]
                        sums[j] += filters[p, 0, f] * grad_q[r, f]
                        sums[_TILE + j] += filters[p, 1, f] * (d0 * g0 + d1 * g1 + d2 * g2)
                        sums[2 * _TILE + j] += w * g0
                        sums[3 * _TILE + j] += w * g1
                        sums[4 * _TILE + j] += w * g2
                else:
                    for j in range(count):
                        f = start + j
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        sums[j] += filters[p, 0, f] * grad_q[r, f]
                        sums[_TILE + j] += filters[p, 1, f] * (d0 * g0 + d1 * g1 + d2 * g2)
            for part in range(2):
                for j in range(count):
                    grad_x[row, part, start + j] = sums[part * _TILE + j]
            if vectors:
                # The sender's own factors are the same for all its edges, so they come last.
                for j in range(count):
                    f = start + j
                    grad_x[row, 2, f] = (
                        mu[row, 0, f] * sums[2 * _TILE + j]
                        + mu[row, 1, f] * sums[3 * _TILE + j]
                        + mu[row, 2, f] * sums[4 * _TILE + j]
                    )
                for c in range(3):
                    for j in range(count):
                        grad_mu_in[row, c, start + j] = (
                            x[row, 2, start + j] * sums[(2 + c) * _TILE + j]
                        )


@_compiled
def share_to_senders(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """to_senders on a team of threads, see `share`."""
    share(openmp, threads, _here.to_senders, arguments, offsets, rows)


@_compiled
def to_filters(
    grad_q: Any,
    grad_mu: Any,
    x: Any,
    mu: Any,
    direction: Any,
    mask: Any,
    forward: Any,
    backward: Any,
    receivers: Any,
    senders: Any,
    grad_filters: Any,
    first: int,
    stop: int,
) -> None:
    """Gradient of each pair's filters, from its edges forward[p] and backward[p]."""
    width = x.shape[2]
    vectors = x.shape[1] == 3
    sums = _sums(x)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(3 * _TILE):
                sums[j] = 0
            for way in range(2):
                edge = forward[row] if way == 0 else backward[row]
                if (way == 1 and edge == forward[row]) or not mask[edge]:
                    continue
                r, s = receivers[edge], senders[edge]
                d0, d1, d2 = direction[edge, 0], direction[edge, 1], direction[edge, 2]
                if vectors:
                    for j in range(count):
                        f = start + j
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        sums[j] += grad_q[r, f] * x[s, 0, f]
                        sums[_TILE + j] += x[s, 1, f] * (d0 * g0 + d1 * g1 + d2 * g2)
                        sums[2 * _TILE + j] += x[s, 2, f] * (
                            mu[s, 0, f] * g0 + mu[s, 1, f] * g1 + mu[s, 2, f] * g2
                        )
                else:
                    for j in range(count):
                        f = start + j
                        g0, g1, g2 = grad_mu[r, 0, f], grad_mu[r, 1, f], grad_mu[r, 2, f]
                        sums[j] += grad_q[r, f] * x[s, 0, f]
                        sums[_TILE + j] += x[s, 1, f] * (d0 * g0 + d1 * g1 + d2 * g2)
            for part in range(grad_filters.shape[1]):
                for j in range(count):
                    grad_filters[row, part, start + j] = sums[part * _TILE + j]


@_compiled
def share_to_filters(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """to_filters on a team of threads, see `share`."""
    share(openmp, threads, _here.to_filters, arguments, offsets, rows)


@_compiled_dot
def to_directions(
    grad_mu: Any,
    x: Any,
    filters: Any,
    mask: Any,
    pair: Any,
    receivers: Any,
    senders: Any,
    grad_direction: Any,
    first: int,
    stop: int,
) -> None:
    """Gradient [E, 3] of each edge's direction."""
    width = x.shape[2]
    for edge in range(first, stop):
        r, s = receivers[edge], senders[edge]
        p = pair[edge]
        for c in range(3):
            total = x.dtype.type(0)
            if mask[edge]:
                for f in range(width):
                    total += filters[p, 1, f] * x[s, 1, f] * grad_mu[r, c, f]
            grad_direction[edge, c] = total


@_compiled
def share_to_directions(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """to_directions on a team of threads, see `share`."""
    share(openmp, threads, _here.to_directions, arguments, offsets, rows)


@_compiled
def invariants(
    mixed: Any, q: Any, epsilon: Any, context: Any, dot: Any, right: Any, first: int, stop: int
) -> None:
    """context = [q, |left|] and dot = left · right of mixed [N, 3, 2, F]; a copy of `right`."""
    width = q.shape[1]
    for row in range(first, stop):
        for f in range(width):
            context[row, 0, f] = q[row, f]
        for f in range(width):
            a, b, c = mixed[row, 0, 0, f], mixed[row, 1, 0, f], mixed[row, 2, 0, f]
            context[row, 1, f] = np.sqrt(a * a + b * b + c * c + epsilon)
        for f in range(width):
            dot[row, f] = (
                mixed[row, 0, 0, f] * mixed[row, 0, 1, f]
                + mixed[row, 1, 0, f] * mixed[row, 1, 1, f]
                + mixed[row, 2, 0, f] * mixed[row, 2, 1, f]
            )
        for c in range(3):
            for f in range(width):
                right[row, c, f] = mixed[row, c, 1, f]


@_compiled
def share_invariants(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """Invariants on a team of threads, see `share`."""
    share(openmp, threads, _here.invariants, arguments, offsets, rows)


@_compiled
def invariants_backward(
    grad_context: Any,
    grad_dot: Any,
    grad_right: Any,
    mixed: Any,
    context: Any,
    grad_mixed: Any,
    first: int,
    stop: int,
) -> None:
    """Gradient of `mixed`."""
    width = grad_dot.shape[1]
    for row in range(first, stop):
        for c in range(3):
            for f in range(width):
                grad_mixed[row, c, 0, f] = (
                    grad_context[row, 1, f] / context[row, 1, f] * mixed[row, c, 0, f]
                    + grad_dot[row, f] * mixed[row, c, 1, f]
                )
            for f in range(width):
                grad_mixed[row, c, 1, f] = (
                    grad_dot[row, f] * mixed[row, c, 0, f] + grad_right[row, c, f]
                )


@_compiled
def share_invariants_backward(
    openmp: int, threads: int, arguments: Any, offsets: Any, rows: int
) -> None:
    """invariants_backward on a team of threads, see `share`."""
    share(openmp, threads, _here.invariants_backward, arguments, offsets, rows)


@_compiled
def update(
    q: Any,
    mu: Any,
    mixes: Any,
    dot: Any,
    right: Any,
    out_q: Any,
    out_mu: Any,
    first: int,
    stop: int,
) -> None:
    """out_q = q + a + c · dot, out_mu = μ + b · right for mixes [N, 3, F] = a, b, c."""
    width = q.shape[1]
    for row in range(first, stop):
        for f in range(width):
            out_q[row, f] = q[row, f] + mixes[row, 0, f] + mixes[row, 2, f] * dot[row, f]
        for c in range(3):
            for f in range(width):
                out_mu[row, c, f] = mu[row, c, f] + mixes[row, 1, f] * right[row, c, f]


@_compiled
def share_update(openmp: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
    """Update on a team of threads, see `share`."""
    share(openmp, threads, _here.update, arguments, offsets, rows)


@_compiled
def update_backward(
    grad_q: Any,
    grad_mu: Any,
    mixes: Any,
    dot: Any,
    right: Any,
    grad_mixes: Any,
    grad_dot: Any,
    grad_right: Any,
    first: int,
    stop: int,
) -> None:
    """Gradients of `mixes`, `dot` and `right`."""
    width = grad_q.shape[1]
    for row in range(first, stop):
        for f in range(width):
            grad_mixes[row, 0, f] = grad_q[row, f]
        for f in range(width):
            grad_mixes[row, 1, f] = (
                grad_mu[row, 0, f] * right[row, 0, f]
                + grad_mu[row, 1, f] * right[row, 1, f]
                + grad_mu[row, 2, f] * right[row, 2, f]
            )
        for f in range(width):
            grad_mixes[row, 2, f] = grad_q[row, f] * dot[row, f]
        for f in range(width):
            grad_dot[row, f] = grad_q[row, f] * mixes[row, 2, f]
        for c in range(3):
            for f in range(width):
                grad_right[row, c, f] = grad_mu[row, c, f] * mixes[row, 1, f]


@_compiled
def share_update_backward(
    openmp: int, threads: int, arguments: Any, offsets: Any, rows: int
) -> None:
    """update_backward on a team of threads, see `share`."""
    share(openmp, threads, _here.update_backward, arguments, offsets, rows)
