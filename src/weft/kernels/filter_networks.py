"""Filter networks of distances, all of a model's at once: Gaussians, a layer, softplus, a layer.

Row blocks go through the whole network while they are in the cache, forward and backward, and the
Gaussians of a block are a band (see `gaussians`). P pairs, K centres, L networks, F features, C
chunks of rows. Gradients of the weights are summed by chunk first: how many threads there are then
changes no bit.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from weft.kernels.chebyshev import TERMS, bin_width, in_bins, nodes_of, series_at, series_gradients
from weft.kernels.custom_op import (
    array_of,
    differentiable_gradients,
    has_loop,
    operator,
    require,
)
from weft.kernels.gaussians import (
    BLOCK_ROWS,
    band_basis,
    chunks_of,
    form_of,
    gaussian_basis,
    reach,
)
from weft.kernels.softplus import shifted_softplus
from weft.kernels.vector_math import (
    add_and_activate,
    add_rows,
    multiply_by_derivative,
    times_derivative,
)
from weft.runtime import gemm, gemm_address, kernel, shared_rows

# From this many pairs a node of the series, they pay.
_PAIRS_A_NODE = 1.5


@shared_rows
@kernel
def _filter_chunks(
    address: int,
    d: Any,
    table: Any,
    first_bias: Any,
    second: Any,
    second_bias: Any,
    form: Any,
    activate: bool,
    chunk: int,
    inner: Any,
    outs: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of `chunk` rows: the filters `outs` and the activations `inner`.

    table [K, L · F] and second [L, F, F] (out by in) are the weights.
    """
    centres, width = table.shape[0], second.shape[1]
    space = np.empty(BLOCK_ROWS * centres, dtype=d.dtype)
    for number_of_chunk in range(first, stop):
        end = min((number_of_chunk + 1) * chunk, d.shape[0])
        for start in range(number_of_chunk * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            basis, low = band_basis(d[start:last], form, centres, space)
            part = inner[start:last]
            band, near = basis.shape[1], table[low:]
            gemm(address, False, False, rows, part.shape[1], band, basis, near, part, False)
            add_and_activate(part, first_bias, True)
            for number in range(len(outs)):
                own = part[:, number * width :]
                out = outs[number][start:last]
                gemm(address, False, True, rows, width, width, own, second[number], out, False)
                bias = None if second_bias is None else second_bias[number]
                add_and_activate(out, bias, activate)


@shared_rows
@kernel
def _gradient_chunks(
    address: int,
    d: Any,
    second: Any,
    inner: Any,
    outs: Any,
    grads: Any,
    form: Any,
    activate: bool,
    bias: bool,
    chunk: int,
    made: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop: the weights' gradients [C, ...] of each, which must be 0 before."""
    first_grad, first_bias, second_grad, second_bias = made
    centres, width = first_grad.shape[1], second.shape[1]
    total = inner.shape[1]
    space = np.empty(BLOCK_ROWS * centres, dtype=d.dtype)
    outer = np.empty((BLOCK_ROWS, width), dtype=d.dtype)
    before = np.empty((BLOCK_ROWS, total), dtype=d.dtype)
    for number_of_chunk in range(first, stop):
        end = min((number_of_chunk + 1) * chunk, d.shape[0])
        for start in range(number_of_chunk * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            part = inner[start:last]
            for number in range(len(grads)):
                columns = number * width
                own_grad = outer[:rows]
                grad = grads[number][start:last]
                if activate:
                    times_derivative(outs[number][start:last], grad, own_grad)
                else:
                    own_grad[:] = grad
                if bias:
                    add_rows(own_grad, second_bias[number_of_chunk, number])
                own, result = part[:, columns:], before[:rows, columns:]
                target, weight = second_grad[number_of_chunk, number], second[number]
                gemm(address, True, False, width, width, rows, own_grad, own, target, True)
                gemm(address, False, False, rows, width, width, own_grad, weight, result, False)
            inputs = before[:rows]
            multiply_by_derivative(part, inputs)
            if bias:
                add_rows(inputs, first_bias[number_of_chunk])
            basis, low = band_basis(d[start:last], form, centres, space)
            target = first_grad[number_of_chunk, low:]
            gemm(address, True, False, basis.shape[1], total, rows, basis, inputs, target, True)


class _Settings(NamedTuple):
    spacing: float
    sharpness: float
    activate: bool


def radial_filters(
    d: Tensor,
    first: Sequence[Tensor] | Tensor,
    first_bias: Sequence[Tensor] | Tensor | None,
    second: Sequence[Tensor] | Tensor,
    second_bias: Sequence[Tensor] | Tensor | None,
    *,
    spacing: float,
    sharpness: float,
    activate: bool,
) -> list[Tensor]:
    """L filters [P, F] of distances d [P]: Gaussians, linear, shifted softplus, linear.

    Args:
        d: Å; the order of its rows decides the speed, not the result.
        first: [F, K] of each network, or [L, F, K]: the weights of the first layer, out by in.
        first_bias: [F] of each, or [L, F].
        second: [F, F] of each, or [L, F, F]: those of the second layer.
        second_bias: [F] of each, or [L, F].
        spacing: between the Gaussians' centres, Å.
        sharpness: of the Gaussians, 1 / Å².
        activate: shifted softplus after the second layer too.
    """
    if (first_bias is None) != (second_bias is None):
        raise ValueError("both layers have a bias, or neither")
    for given in (first, first_bias, second, second_bias):
        if isinstance(given, Tensor) and given.ndim == 0:
            raise ValueError("a layer's weights are one number; a tensor for each network needed")
    layers = _Layers(
        *(() if t is None else tuple(t) for t in (first, first_bias, second, second_bias))
    )
    every = tuple(t for of_layer in layers for t in of_layer)
    networks = len(layers.first)
    needed = "d [P], biases [L, F], first [L, F, K] and second [L, F, F] needed"
    require(networks > 0 and layers.first[0].ndim == 2, needed, d, *every)
    width, centres = layers.first[0].shape
    right = d.ndim == 1 and len(layers.second) == networks
    right = right and all(t.shape == (width, centres) for t in layers.first)
    right = right and all(t.shape == (width, width) for t in layers.second)
    biases = (*layers.first_bias, *layers.second_bias)
    right = right and len(layers.first_bias) == len(layers.second_bias)
    right = right and len(biases) in (0, 2 * networks) and all(t.shape == (width,) for t in biases)
    require(right, needed, d, *every)
    form_of(centres, spacing, sharpness)
    right = all(t.dtype == every[0].dtype for t in (d, *every))
    require(right or not has_loop(d), "all must have one dtype", d, *every)
    settings = _Settings(spacing, sharpness, activate)
    weight = layers.first[0]
    if d.requires_grad or not has_loop(d, weight) or not gemm_address(weight.dtype):
        return _plain(d, *_together(layers), settings=settings)
    # The choice depends on values, so a traced model computes every row.
    series = None if torch.compiler.is_compiling() else _series_of(d, layers, settings)
    if series is not None:
        return list(_BySeries.apply(series, *every))  # type: ignore[no-untyped-call]
    outs: Sequence[Tensor] = _filters(d, *_together(layers), *settings)
    return list(outs[:-1])


def _series_of(d: Tensor, layers: "_Layers", settings: _Settings) -> "_Series | None":
    """The filters by series; None where they do not pay or do not converge."""
    weight = layers.first[0]
    if weight.dtype != torch.float32 or d.shape[0] <= TERMS:
        return None
    # Beyond the reach of the last centre nothing changes.
    end = (weight.shape[1] - 1) * settings.spacing + reach(settings.sharpness)
    bins = max(1, math.ceil(min(end, float(d.max())) / bin_width(settings.sharpness)))
    if d.shape[0] <= _PAIRS_A_NODE * TERMS * bins:
        return None
    series = _Series(d, layers, settings, bins)
    return None if series.values is None else series


class FilterNetworks:
    """`radial_filters` with gradients by hand, for an operator that has the filters inside.

    The arguments are as of `radial_filters`; nothing is recorded for autograd, and all tensors must
    be such as the loops take.

    Attributes:
        filters: [P, F] of each network.
    """

    def __init__(
        self,
        d: Tensor,
        first: Sequence[Tensor],
        first_bias: Sequence[Tensor],
        second: Sequence[Tensor],
        second_bias: Sequence[Tensor],
        *,
        spacing: float,
        sharpness: float,
        activate: bool,
    ) -> None:
        given = (first, first_bias, second, second_bias)
        self._layers = _Layers(*map(tuple, given))
        self._settings = _Settings(spacing, sharpness, activate)
        self._d = d
        self._series = _series_of(d, self._layers, self._settings)
        if self._series is None:
            *self.filters, self._inner = _filters(d, *_together(self._layers), *self._settings)
        else:
            assert self._series.values is not None
            self.filters = self._series.values

    def gradients(self, grads: Sequence[Tensor]) -> "_Layers":
        """Those of all weights, of the gradients [P, F] in the filters."""
        if self._series is not None:
            return self._series.gradients(grads)
        layers, bias = self._layers, bool(self._layers.first_bias)
        count, centres = len(layers.first), layers.first[0].shape[1]
        second = torch.stack(layers.second)
        given = (self._d, second, self._inner, self.filters, list(grads), centres)
        found: Any = _filters_backward(*given, *self._settings, bias)
        first, first_bias, weight, second_bias = found
        biases = (first_bias.view(count, -1).unbind(), second_bias.unbind()) if bias else ((), ())
        firsts = first.view(count, -1, centres).unbind()
        return _Layers(firsts, biases[0], weight.unbind(), biases[1])


class _Layers(NamedTuple):
    """Weights of L networks; biases are () without."""

    first: tuple[Tensor, ...]
    first_bias: tuple[Tensor, ...]
    second: tuple[Tensor, ...]
    second_bias: tuple[Tensor, ...]


def _together(layers: _Layers) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Weights [L · F, K], biases [L · F], weights [L, F, F] and biases [L, F]."""
    first, first_bias, second, second_bias = layers
    return (
        torch.cat(first),
        torch.cat(first_bias) if first_bias else None,
        torch.stack(second),
        torch.stack(second_bias) if second_bias else None,
    )


def _as_loops_take(
    first: Tensor, first_bias: Tensor | None, second: Tensor, second_bias: Tensor | None
) -> tuple[Any, Any, Any, Any]:
    """The arrays; in the table of the first layer a band of centres is then a block of rows."""
    arrays = (array_of(t) for t in (first_bias, second, second_bias))
    return array_of(first.t()), *arrays


def _plain(
    d: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None,
    *,
    settings: _Settings,
) -> list[Tensor]:
    basis = gaussian_basis(d, first.shape[1], settings.spacing, settings.sharpness)
    inner = shifted_softplus(functional.linear(basis, first, first_bias))
    parts = inner.split(second.shape[2], dim=1)
    biases = [None] * len(parts) if second_bias is None else list(second_bias)
    outer = [
        functional.linear(part, weight, bias)
        for part, weight, bias in zip(parts, second, biases, strict=True)
    ]
    return [shifted_softplus(part) for part in outer] if settings.activate else outer


class _Series:
    """The filters by series (see `chebyshev`), and what their gradients need.

    Attributes:
        values: the filters, or None if the series do not converge.
    """

    def __init__(self, d: Tensor, layers: _Layers, settings: _Settings, bins: int) -> None:
        self.settings, self.bias = settings, bool(layers.first_bias)
        self.width = bin_width(settings.sharpness)
        self.nodes = nodes_of(bins, self.width).numpy()
        with torch.no_grad():
            weights = _as_loops_take(*_together(layers))
        self.centres, self.second, rows = len(weights[0]), weights[2], len(self.nodes)
        networks, features, _ = self.second.shape
        self.inner = np.empty((rows, networks * features), dtype=np.float32)
        self.at_nodes = tuple(np.empty((networks, rows, features), dtype=np.float32))
        _run(self.nodes, *weights, settings, self.inner, self.at_nodes)
        self.binned = in_bins(d, self.width, bins)
        self.values = series_at(self.binned, self.at_nodes, self.width)

    def gradients(self, grads: Sequence[Tensor]) -> _Layers:
        at_nodes = series_gradients(self.binned, grads, self.width)
        arguments = (self.nodes, self.second, self.inner, self.at_nodes, at_nodes, self.centres)
        found = _run_back(*arguments, self.settings, self.bias)
        first, first_bias, second, second_bias = (
            torch.from_numpy(part.sum(axis=0)) for part in found
        )
        networks, features, _ = self.second.shape
        firsts = first.view(self.centres, networks, features).permute(1, 2, 0).contiguous()
        if not self.bias:
            return _Layers(firsts.unbind(), (), second.unbind(), ())
        biases = (first_bias.view(networks, features).unbind(), second_bias.unbind())
        return _Layers(firsts.unbind(), biases[0], second.unbind(), biases[1])


class _BySeries(torch.autograd.Function):
    """Takes a _Series and the weights of its layers one after the other, as _Layers has them."""

    @staticmethod
    def forward(ctx: Any, series: _Series, *weights: Tensor) -> tuple[Tensor, ...]:
        # Taken out, or they and their graph would keep each other alive.
        values, series.values = series.values, None
        assert values is not None
        ctx.series = series
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(t for of_layer in ctx.series.gradients(grads) for t in of_layer)


def _empty_filters(
    d: Tensor, first: Tensor, first_bias: Any, second: Tensor, *_: Any
) -> list[Tensor]:
    widths = [*(second.shape[1] for _ in range(second.shape[0])), first.shape[0]]
    return [first.new_empty(d.shape[0], width) for width in widths]


@operator("weft::radial_filters", _empty_filters)
def _filters(
    d: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None,
    settings: _Settings,
) -> list[Tensor]:
    """The filters, and last the activations [P, L · F] between their layers."""
    right = d.ndim == 1 and first.ndim == 2 and second.ndim == 3
    right = right and second.shape[1] == second.shape[2] and bool(second.shape[0])
    right = right and first.shape[0] == second.shape[0] * second.shape[1]
    right = right and (first_bias is None or first_bias.shape == first.shape[:1])
    right = right and (second_bias is None or second_bias.shape == second.shape[:2])
    given = (d, first, first_bias, second, second_bias)
    right = right and all(t is None or t.dtype == d.dtype for t in given)
    require(right, "d [P], first [L · F, K] and second [L, F, F] of one dtype needed", *given)
    *outs, inner = _empty_filters(d, first, first_bias, second)
    weights = _as_loops_take(first, first_bias, second, second_bias)
    made = (inner.numpy(), tuple(out.numpy() for out in outs))
    arguments: Any = (array_of(d), *weights, settings, *made)
    _run(*arguments)
    return [*outs, inner]


def _run(
    d: Any,
    table: Any,
    first_bias: Any,
    second: Any,
    second_bias: Any,
    settings: _Settings,
    inner: Any,
    outs: Any,
) -> None:
    """Fill the activations inner [P, L · F] and the filters; arrays, as `_filter_chunks` takes."""
    chunk, chunks = chunks_of(len(d))
    dtype = torch.float32 if inner.dtype == np.float32 else torch.float64
    form = form_of(table.shape[0], settings.spacing, settings.sharpness)
    weights = (table, first_bias, second, second_bias)
    arguments = (gemm_address(dtype), d, *weights, form, settings.activate, chunk, inner, outs)
    _filter_chunks.share(arguments, chunks, inner.size * second.shape[1])


def _saved(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> tuple[Tensor, ...]:
    first, first_bias = inputs[1:3]
    *outs, inner = output
    ctx.mark_non_differentiable(inner)
    # Or `inner` would be given a gradient of zeros, as large as itself.
    ctx.set_materialize_grads(False)
    ctx.centres, ctx.bias = first.shape[1], first_bias is not None
    # Without an activation the filters themselves are not needed, but the loops want arrays.
    return *inputs[:5], inner, *outs


@_filters.derivative(_saved)
def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    # Read once: what is checkpointed is unpacked at each reading.
    saved = ctx.saved_tensors
    weights, (inner, *outs) = saved[:5], saved[5:]
    d, _, _, second, _ = weights
    like = inner.new_zeros(()).expand(inner.shape[0], second.shape[1])
    given = [like.contiguous() if grad is None else grad for grad in grads[:-1]]
    if torch.is_grad_enabled():
        plain = functools.partial(_plain, settings=_Settings(*ctx.others))
        return tuple(differentiable_gradients(ctx, plain, weights, given))
    settings = (ctx.centres, *ctx.others, ctx.bias)
    first, first_bias, weight, bias = _filters_backward(d, second, inner, outs, given, *settings)
    return None, first, first_bias if ctx.bias else None, weight, bias if ctx.bias else None


def _empty_gradients(
    d: Tensor, second: Tensor, inner: Tensor, outs: Any, grads: Any, centres: int, *_: Any
) -> tuple[Tensor, ...]:
    width = inner.shape[1]
    return (
        inner.new_empty(width, centres),
        inner.new_empty(width),
        torch.empty_like(second),
        inner.new_empty(second.shape[:2]),
    )


@operator("weft::radial_filters_backward", _empty_gradients)
def _filters_backward(
    d: Tensor,
    second: Tensor,
    inner: Tensor,
    outs: list[Tensor],
    grads: list[Tensor],
    centres: int,
    settings: _Settings,
    bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients in the weights and biases of both layers."""
    right = d.ndim == 1 and second.ndim == 3 and second.shape[1] == second.shape[2]
    right = right and len(outs) == len(grads) == second.shape[0] > 0
    shape = (d.shape[0], second.shape[-1])
    right = right and inner.shape == (shape[0], second.shape[0] * shape[1])
    every = (second, inner, *outs, *grads)
    right = right and all(t.shape == shape for t in every[2:])
    right = right and all(t.dtype == d.dtype for t in every)
    require(right, "second [L, F, F] and rows of one dtype for each of d needed", d, *every)
    arrays = (tuple(map(array_of, outs)), tuple(map(array_of, grads)))
    given = (array_of(d), array_of(second), array_of(inner), *arrays, centres)
    made = (torch.from_numpy(array) for array in _run_back(*given, settings, bias))
    first_grad, first_bias, second_grad, second_bias = (part.sum(0) for part in made)
    return first_grad.t().contiguous(), first_bias, second_grad, second_bias


def _run_back(
    d: Any,
    second: Any,
    inner: Any,
    outs: Any,
    grads: Any,
    centres: int,
    settings: _Settings,
    bias: bool,
) -> tuple[Any, Any, Any, Any]:
    """Gradients [C, ...] by chunk; arrays, as `_gradient_chunks` has them."""
    chunk, chunks = chunks_of(len(d))
    dtype = torch.float32 if inner.dtype == np.float32 else torch.float64
    made = (
        np.zeros((chunks, centres, inner.shape[1]), dtype=inner.dtype),
        np.zeros((chunks, inner.shape[1]), dtype=inner.dtype),
        np.zeros((chunks, *second.shape), dtype=inner.dtype),
        np.zeros((chunks, *second.shape[:2]), dtype=inner.dtype),
    )
    form = form_of(centres, settings.spacing, settings.sharpness)
    given = (d, second, inner, outs, grads, form, settings.activate, bias, chunk)
    arguments = (gemm_address(dtype), *given, made)
    _gradient_chunks.share(arguments, chunks, inner.size * second.shape[1])
    return made
