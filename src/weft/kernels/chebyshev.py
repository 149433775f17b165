"""Functions of a distance as Chebyshev series, one in each bin of distances.

A filter network is a smooth function of one number. Over a bin that is narrow beside its Gaussians
a series of eight terms gives it to the last bits of a float32, so the network runs on the nodes of
the bins, some hundred rows, however many pairs of atoms there are. What the series cannot give is
seen in its last terms.

P distances, B bins, M terms, F features of each function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from weft.kernels.custom_op import array_of, require
from weft.runtime import gemm, gemm_address, kernel, shared_rows

TERMS = 8
"""Terms of a series, and nodes of a bin."""

# Of the last two terms beside the largest first one. The terms fall geometrically: those left out
# sum to a twentieth of it, less than a float32 network's own rounding.
_TAIL = 1e-5


def bin_width(sharpness: float) -> float:
    """Width of a bin, Å, for functions of Gaussians of this sharpness, 1 / Å²: 0.15 Å for 10."""
    return 0.15 * math.sqrt(10 / sharpness)


# Not inference tensors, even if the first call is in inference mode: later steps save them for
# their backward pass.
@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)
def nodes_of(bins: int, width: float) -> Tensor:
    """Chebyshev's nodes, float32 [B · M] in Å, of this many bins from 0 on."""
    inside = chebyshev.chebpts1(TERMS)
    starts = np.arange(bins)[:, None]
    return torch.from_numpy((((inside + 1) / 2 + starts) * width).astype(np.float32).ravel())


@functools.cache
def transform() -> Any:
    """The terms of values at the nodes of a bin, [M, M]."""
    vandermonde = chebyshev.chebvander(chebyshev.chebpts1(TERMS), TERMS - 1)
    return np.linalg.inv(vandermonde).astype(np.float32)


@kernel
def polynomials(d: Any, place: int, width: float, out: Any) -> None:
    """out[i, k] = T_k of distance i's place in the bin."""
    number = d.dtype.type
    start, scale = number(place * width), number(2 / width)
    for i in range(d.shape[0]):
        t = (d[i] - start) * scale - number(1)
        # Beyond the last bin all functions are constant. What is not a number stays that.
        if t > 1:
            t = number(1)
        before, now = number(1), t
        out[i, 0] = before
        for k in range(1, TERMS):
            out[i, k] = now
            before, now = now, number(2) * t * now - before


@kernel
def _bins(d: Any, width: float, count: int) -> Any:
    """The bin of each distance."""
    found = np.empty(d.shape[0], dtype=np.int64)
    for row in range(d.shape[0]):
        found[row] = _bin_of(d[row], width, count - 1.0)
    return found


@kernel
def longest(starts: Any, first: int, stop: int) -> int:
    """Rows of the fullest of the bins first:stop; at least 1."""
    rows = 1
    for place in range(first, stop):
        rows = max(rows, starts[place + 1] - starts[place])
    return rows


@kernel
def _bin_of(distance: Any, width: float, last: float) -> Any:
    # In floats first, and the constants first: see `sorted_pairs`, which must find the same bins.
    return np.int64(min(last, max(0.0, distance / width)))


@kernel
def _bin_starts(d: Any, width: float, starts: Any) -> bool:
    """Fill starts [B + 1], the first row of each bin; False if the rows are not in their order."""
    last = float(starts.shape[0] - 2)
    now = np.int64(0)
    starts[0] = 0
    for row in range(d.shape[0]):
        number = _bin_of(d[row], width, last)
        if number < now:
            return False
        while now < number:
            now += 1
            starts[now] = row
    while now < starts.shape[0] - 1:
        now += 1
        starts[now] = d.shape[0]
    return True


# A product with so few terms is faster written out than by BLAS.
@kernel
def _sum_terms(t: Any, terms: Any, out: Any) -> None:
    """out [rows, F] = t [rows, M] @ terms [M, F]."""
    c0, c1, c2, c3 = terms[0], terms[1], terms[2], terms[3]
    c4, c5, c6, c7 = terms[4], terms[5], terms[6], terms[7]
    for i in range(out.shape[0]):
        own = t[i]
        t0, t1, t2, t3, t4, t5, t6, t7 = (
            own[0],
            own[1],
            own[2],
            own[3],
            own[4],
            own[5],
            own[6],
            own[7],
        )
        row = out[i]
        for f in range(row.shape[0]):
            low = t0 * c0[f] + t1 * c1[f] + t2 * c2[f] + t3 * c3[f]
            row[f] = low + (t4 * c4[f] + t5 * c5[f] + t6 * c6[f] + t7 * c7[f])


@kernel
def add_terms(t: Any, grad: Any, terms: Any) -> None:
    """terms [M, F] += t [rows, M]ᵀ @ grad [rows, F]."""
    rows = grad.shape[0]
    for start in range(0, rows - rows % 4, 4):
        g0, g1, g2, g3 = grad[start], grad[start + 1], grad[start + 2], grad[start + 3]
        for k in range(TERMS):
            t0, t1, t2, t3 = t[start, k], t[start + 1, k], t[start + 2, k], t[start + 3, k]
            own = terms[k]
            for f in range(own.shape[0]):
                own[f] += (t0 * g0[f] + t1 * g1[f]) + (t2 * g2[f] + t3 * g3[f])
    for i in range(rows - rows % 4, rows):
        given = grad[i]
        for k in range(TERMS):
            weight, own = t[i, k], terms[k]
            for f in range(own.shape[0]):
                own[f] += weight * given[f]


@kernel
def _largest(x: Any) -> Any:
    """Of |x|; infinite if any is not finite."""
    largest = x.dtype.type(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            size = abs(x[i, j])
            largest = max(largest, size if size < np.inf else x.dtype.type(np.inf))
    return largest


@shared_rows
@kernel
def _value_bins(
    address: int, bins: Any, at_nodes: Any, sizes: Any, outs: Any, first: int, stop: int
) -> None:
    """The rows of bins first:stop of the outs [P, F] = T @ terms [M, F] of each bin.

    sizes[b] becomes the largest of a bin's first terms and of its last two. `bins` are the
    distances, the width of a bin, the first row of each, and `transform`.
    """
    d, width, starts, transform = bins
    features = outs[0].shape[1]
    t = np.empty((longest(starts, first, stop), TERMS), dtype=d.dtype)
    terms = np.empty((TERMS, features), dtype=d.dtype)
    for place in range(first, stop):
        start, rows = starts[place], starts[place + 1] - starts[place]
        polynomials(d[start : start + rows], place, width, t)
        sizes[place] = 0
        for function in range(len(outs)):
            own = at_nodes[function][place * TERMS : (place + 1) * TERMS]
            gemm(address, False, False, TERMS, features, TERMS, transform, own, terms, False)
            sizes[place, 0] = max(sizes[place, 0], _largest(terms[:1]))
            sizes[place, 1] = max(sizes[place, 1], _largest(terms[TERMS - 2 :]))
            if rows > 0:
                out = outs[function][start : start + rows]
                _sum_terms(t, terms, out)


@shared_rows
@kernel
def _gradient_bins(address: int, bins: Any, grads: Any, outs: Any, first: int, stop: int) -> None:
    """The transpose of `_value_bins`: outs [B · M, F], for bins first:stop, of grads [P, F]."""
    d, width, starts, transform = bins
    features = grads[0].shape[1]
    t = np.empty((longest(starts, first, stop), TERMS), dtype=d.dtype)
    terms = np.empty((TERMS, features), dtype=d.dtype)
    for place in range(first, stop):
        start, rows = starts[place], starts[place + 1] - starts[place]
        polynomials(d[start : start + rows], place, width, t)
        for function in range(len(grads)):
            out = outs[function][place * TERMS : (place + 1) * TERMS]
            if rows == 0:
                out[:] = 0
                continue
            grad = grads[function][start : start + rows]
            terms[:] = 0
            add_terms(t, grad, terms)
            gemm(address, True, False, TERMS, features, TERMS, transform, terms, out, False)


class Binned(NamedTuple):
    """Distances by bin.

    Attributes:
        starts: int64 [B + 1], the first row of each bin.
        order: int64 [P], the rows' order, or None if they were by bin already.
        distances: float32 [P], in that order.
    """

    starts: Any
    order: Tensor | None
    distances: Any


def in_bins(d: Tensor, width: float, bins: int) -> Binned:
    """Distances d [P], float32 in Å, in bins of `width` Å; beyond all is in the last."""
    require(d.ndim == 1 and bins > 0, "d [P] and at least a bin needed", d)
    given = array_of(d)
    starts = np.empty(bins + 1, dtype=np.int64)
    if _bin_starts(given, width, starts):
        return Binned(starts, None, given)
    order = np.argsort(_bins(given, width, bins), kind="stable")
    given = given[order]
    assert _bin_starts(given, width, starts)
    return Binned(starts, torch.from_numpy(order), given)


def series_at(binned: Binned, at_nodes: Sequence[Any], width: float) -> list[Tensor] | None:
    """Values [P, F] of several functions at distances; None if the series do not converge.

    Nothing is recorded for autograd.

    Args:
        binned: the distances.
        at_nodes: float32 arrays [B · M, F], each function's values at `nodes_of` the bins.
        width: of a bin, Å.
    """
    values, (largest, last) = _values_at(binned, at_nodes, width)
    return values if last <= _TAIL * largest < math.inf else None


def _values_at(
    binned: Binned, at_nodes: Sequence[Any], width: float
) -> tuple[list[Tensor], tuple[float, float]]:
    """Values as `series_at` has them, and the largest of the first and of the last two terms."""
    starts, order, d = binned
    bins, features = len(starts) - 1, at_nodes[0].shape[1]
    right = all(values.shape == (bins * TERMS, features) for values in at_nodes)
    require(right, f"values [{TERMS} B, F] of {bins} bins needed", *at_nodes)
    outs = [torch.empty(len(d), features, dtype=torch.float32) for _ in at_nodes]
    sizes = np.empty((bins, 2), dtype=np.float32)
    given = (gemm_address(torch.float32), (d, width, starts, transform()))
    arguments = (*given, tuple(at_nodes), sizes, tuple(out.numpy() for out in outs))
    _value_bins.share(arguments, bins, TERMS * len(d) * features * len(outs), starts)
    if order is not None:
        outs = [torch.empty_like(out).index_copy_(0, order, out) for out in outs]
    return outs, tuple(sizes.max(axis=0))


def values_of_series(binned: Binned, at_nodes: Tensor, width: float) -> Tensor:
    """As `series_at` of one function, [P, F], to be differentiated; converged or not."""
    (values,), _ = _values_at(binned, [array_of(at_nodes)], width)
    found: Tensor = _Series.apply(binned, width, values, at_nodes)  # type: ignore[no-untyped-call]
    return found


class _Series(torch.autograd.Function):
    """Values, from those at the nodes."""

    @staticmethod
    def forward(ctx: Any, binned: Binned, width: float, values: Tensor, at_nodes: Tensor) -> Tensor:
        ctx.given = binned, width
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        found = _SeriesGradient.apply(*ctx.given, *grads)  # type: ignore[no-untyped-call]
        return None, None, None, found


class _SeriesGradient(torch.autograd.Function):
    """The transpose of `_Series`, which is linear: each is the other's gradient."""

    @staticmethod
    def forward(ctx: Any, binned: Binned, width: float, grad: Tensor) -> Tensor:
        ctx.given = binned, width
        return torch.from_numpy(series_gradients(binned, [grad], width)[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        binned, width = ctx.given
        return None, None, values_of_series(binned, grads[0], width)


def series_gradients(binned: Binned, grads: Sequence[Tensor], width: float) -> tuple[Any, ...]:
    """Gradients, arrays [B · M, F], in the values at the nodes, of those [P, F] in the results."""
    starts, order, d = binned
    bins = len(starts) - 1
    sorted_grads = grads if order is None else [grad[order] for grad in grads]
    outs = tuple(np.empty((bins * TERMS, grad.shape[1]), dtype=np.float32) for grad in grads)
    given = (gemm_address(torch.float32), (d, width, starts, transform()))
    arguments = (*given, tuple(map(array_of, sorted_grads)), outs)
    _gradient_bins.share(arguments, bins, TERMS * sum(grad.numel() for grad in grads), starts)
    return outs
