"""Functions of a distance as Chebyshev series, one in each bin of distances.

A filter network is a smooth function of one number. Over a bin that is narrow beside its Gaussians
a series of eight terms gives it to the last bits of a float32, so the network runs on the nodes of
the bins, some hundred rows, however many pairs of atoms there are. What the series cannot give is
seen in its last terms (see `is_smooth`).

P distances, B bins, M terms, F features.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import functools
import math
import sys
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from weft.compiled import compiled
from weft.kernels.blas import gemm, gemm_address
from weft.kernels.operator import array_of, operator, require
from weft.kernels.team import openmp, share, threads_for

__all__ = ["TERMS", "bin_width", "is_smooth", "nodes_of", "series_at", "series_of"]

_here = sys.modules[__name__]
_compiled = compiled(fastmath={"contract"}, error_model="numpy")

TERMS = 8
"""Terms of a series, and nodes of a bin."""

# Of the last two terms beside the largest value. The terms fall geometrically: those left out sum
# to a twentieth of it, less than a float32 network's own rounding.
_TAIL = 1e-5


def bin_width(sharpness: float) -> float:
    """Width of a bin, Å, for functions of Gaussians of this sharpness, 1 / Å²: 0.15 Å for 10."""
    return 0.15 * math.sqrt(10 / sharpness)


# Not inference tensors, whoever asks first: the backward pass of later steps keeps them.
@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)
def nodes_of(bins: int, width: float) -> Tensor:
    """Chebyshev's nodes, float32 [B · M] in Å, of this many bins from 0 on."""
    inside = chebyshev.chebpts1(TERMS)
    starts = np.arange(bins)[:, None]
    return torch.from_numpy((((inside + 1) / 2 + starts) * width).astype(np.float32).ravel())


@functools.cache
@torch.inference_mode(False)
def _transform() -> Tensor:
    """The terms of values at the nodes of a bin, [M, M]."""
    vandermonde = chebyshev.chebvander(chebyshev.chebpts1(TERMS), TERMS - 1)
    return torch.from_numpy(np.linalg.inv(vandermonde).astype(np.float32))


def series_of(values: Tensor) -> Tensor:
    """Terms [B, M, F] of a function with these values [B · M, F] at the nodes."""
    # Autocast would round the terms to bfloat16.
    with torch.autocast("cpu", enabled=False):
        return _transform() @ values.reshape(-1, TERMS, values.shape[1])


def is_smooth(terms: Tensor) -> bool:
    """Whether the series [B, M, F] have converged, as far as a float32 can tell."""
    terms = terms.detach()
    return bool(terms[:, -2:].abs().max() <= _TAIL * terms[:, 0].abs().max())


@_compiled
def _polynomials(d: Any, place: int, width: float, out: Any) -> None:
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


@_compiled
def _bins(d: Any, width: float, count: int) -> Any:
    """The bin of each distance."""
    found = np.empty(d.shape[0], dtype=np.int64)
    for row in range(d.shape[0]):
        found[row] = _bin_of(d[row], width, count - 1.0)
    return found


def _order(d: Tensor, width: float, bins: int) -> Tensor:
    """An order of the rows in which those of a bin are together."""
    return torch.from_numpy(np.argsort(_bins(array_of(d), width, bins), kind="stable"))


@_compiled
def _longest(starts: Any, first: int, stop: int) -> int:
    """Rows of the fullest of the bins first:stop; at least 1."""
    rows = 1
    for place in range(first, stop):
        rows = max(rows, starts[place + 1] - starts[place])
    return rows


@_compiled
def _bin_of(distance: Any, width: float, last: float) -> Any:
    # In floats first, and the constants first: see `sorted_pairs`, which must find the same bins.
    return np.int64(min(last, max(0.0, distance / width)))


@_compiled
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


@_compiled
def value_bins(
    address: int, d: Any, width: float, starts: Any, terms: Any, outs: Any, first: int, stop: int
) -> None:
    """The rows of bins first:stop of the outs [P, F] = T @ terms[b] [M, L · F]."""
    features = outs[0].shape[1]
    t = np.empty((_longest(starts, first, stop), TERMS), dtype=d.dtype)
    for place in range(first, stop):
        start, rows = starts[place], starts[place + 1] - starts[place]
        if rows == 0:
            continue
        _polynomials(d[start : start + rows], place, width, t)
        for function in range(len(outs)):
            own = terms[place, :, function * features :]
            out = outs[function][start : start + rows]
            gemm(address, False, False, rows, features, TERMS, t, own, out, False)


@_compiled
def share_value_bins(openmp: int, threads: int, arguments: Any, offsets: Any, bins: int) -> None:
    """value_bins on a team of threads, see `share`."""
    share(openmp, threads, _here.value_bins, arguments, offsets, bins)


@_compiled
def gradient_bins(
    address: int, d: Any, width: float, starts: Any, grads: Any, out: Any, first: int, stop: int
) -> None:
    """out[b] [M, L · F] = Tᵀ @ grads [P, F] over the rows of bin b, for bins first:stop."""
    features = grads[0].shape[1]
    t = np.empty((_longest(starts, first, stop), TERMS), dtype=d.dtype)
    for place in range(first, stop):
        start, rows = starts[place], starts[place + 1] - starts[place]
        if rows == 0:
            out[place] = 0
            continue
        _polynomials(d[start : start + rows], place, width, t)
        for function in range(len(grads)):
            grad = grads[function][start : start + rows]
            target = out[place, :, function * features :]
            gemm(address, True, False, TERMS, features, rows, t, grad, target, False)


@_compiled
def share_gradient_bins(openmp: int, threads: int, arguments: Any, offsets: Any, bins: int) -> None:
    """gradient_bins on a team of threads, see `share`."""
    share(openmp, threads, _here.gradient_bins, arguments, offsets, bins)


@operator("weft::series_at")
def series_at(d: Tensor, terms: Tensor, functions: int, width: float) -> list[Tensor]:
    """Values at distances d [P], split into those of several functions, [P, F] each.

    Args:
        d: float32, Å; beyond the last bin counts as its end.
        terms: float32 [B, M, functions · F], see `series_of`.
        functions: how many to split the features into.
        width: of a bin, Å.
    """
    right = d.ndim == 1 and terms.ndim == 3 and terms.shape[1] == TERMS and terms.shape[0] > 0
    right = right and functions > 0 and terms.shape[2] % functions == 0
    require(right, f"d [P] and terms [B, {TERMS}, {functions} F] needed", d, terms)
    features = terms.shape[2] // functions
    outs = [terms.new_empty(d.shape[0], features) for _ in range(functions)]
    bins = terms.shape[0]
    starts = np.empty(bins + 1, dtype=np.int64)
    if not _bin_starts(array_of(d), width, starts):
        order = _order(d, width, bins)
        for out, part in zip(outs, series_at(d[order], terms, functions, width), strict=True):
            out[order] = part
        return outs
    address, targets = gemm_address(d.dtype), tuple(out.numpy() for out in outs)
    arguments = (address, array_of(d), width, starts, array_of(terms), targets)
    threads = threads_for(TERMS * d.shape[0] * terms.shape[2])
    share_value_bins(openmp(), threads, arguments, starts, bins)
    return outs


@series_at.register_fake
def _(d: Tensor, terms: Tensor, functions: int, width: float) -> list[Tensor]:
    features = terms.shape[2] // functions
    return [terms.new_empty(d.shape[0], features) for _ in range(functions)]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    d, terms, _, ctx.width = inputs
    ctx.bins = terms.shape[0]
    ctx.save_for_backward(d)


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[Tensor | None, ...]:
    (d,) = ctx.saved_tensors
    return None, _series_backward(d, grads, ctx.bins, ctx.width), None, None


series_at.register_autograd(_backward, setup_context=_setup)


@operator("weft::series_backward")
def _series_backward(d: Tensor, grads: list[Tensor], bins: int, width: float) -> Tensor:
    """The gradient [B, M, L · F] in the terms, of those [P, F] in the values."""
    starts = np.empty(bins + 1, dtype=np.int64)
    if not _bin_starts(array_of(d), width, starts):
        order = _order(d, width, bins)
        sorted_grads = [grad[order] for grad in grads]
        found: Tensor = _series_backward(d[order], sorted_grads, bins, width)
        return found
    features = sum(grad.shape[1] for grad in grads)
    out = d.new_empty(bins, TERMS, features)
    slopes = tuple(map(array_of, grads))
    arguments = (gemm_address(d.dtype), array_of(d), width, starts, slopes, out.numpy())
    threads = threads_for(TERMS * d.shape[0] * features)
    share_gradient_bins(openmp(), threads, arguments, starts, bins)
    return out


@_series_backward.register_fake
def _(d: Tensor, grads: list[Tensor], bins: int, width: float) -> Tensor:
    return d.new_empty(bins, TERMS, sum(grad.shape[1] for grad in grads))
