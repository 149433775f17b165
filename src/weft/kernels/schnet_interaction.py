"""One of SchNet's interactions as one operator: messages, their sums and two layers, h added.

On a small batch the calls of a dozen operators take longer than what they compute. Blocks of nodes
go through all layers in one thread's cache. N nodes, P pairs of edges, H features, F filters, C
chunks of nodes. Gradients of the weights are summed by chunk first, and the chunks depend on N
alone: how many threads there are then changes no bit.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels import chebyshev, edge_pairs
from weft.kernels.custom_op import array_of, differentiable_gradients, require
from weft.kernels.edge_pairs import EdgePairs, pair_spmm
from weft.kernels.segment_ops import spmm_rows
from weft.kernels.softplus import shifted_softplus
from weft.kernels.vector_math import add_and_activate, add_rows, multiply_by_derivative, sum_chunks
from weft.runtime import POOL, gemm, gemm_address, kernel, share_rows, shared_rows, threads_for

# numba caches code that names a function by its module, not code that holds the function itself.
_here = sys.modules[__name__]

# Rows of a block: with 64 features, what a block is at any time stays in a first-level cache.
BLOCK_ROWS = 64


# A chunk sums the gradients of the weights for itself: enough of them to share, not to fill memory.
_CHUNKS = 16
_CHUNK_ROWS = 32
# Pairs whose gradients are in a first-level cache at a time.
_PAIR_ROWS = 32


def chunk_of(nodes: int) -> int:
    """Rows of a chunk."""
    return max(_CHUNK_ROWS, -(-nodes // _CHUNKS))


@kernel
def over_edges(x: Any, offsets: Any, start: int) -> None:
    """x[i] becomes x[i] / (edges of row start + i), where there are any."""
    for i in range(x.shape[0]):
        edges = max(offsets[start + i + 1] - offsets[start + i], 1)
        factor = x.dtype.type(1) / x.dtype.type(edges)
        for j in range(x.shape[1]):
            x[i, j] *= factor


@shared_rows
@kernel
def message_chunks(
    address: int, h: Any, weight: Any, chunk: int, messages: Any, first: int, stop: int
) -> None:
    """Chunks first:stop of messages [N, F] = h [N, H] @ weightᵀ [F, H]."""
    width, filters = h.shape[1], weight.shape[0]
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            given, made = h[start:last], messages[start:last]
            gemm(address, False, True, last - start, filters, width, given, weight, made, False)


@kernel
def _update_chunks(
    address: int,
    h: Any,
    messages: Any,
    weight: Any,
    edges: Any,
    mean: bool,
    layers: Any,
    chunk: int,
    made: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the sums or means [N, F], the activations and the result [N, H]."""
    update, update_bias, out, out_bias = layers
    sums, inner, result = made
    width, filters = h.shape[1], weight.shape[1]
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            spmm_rows(messages, weight, *edges, False, sums, start, last)
            own, active, new = sums[start:last], inner[start:last], result[start:last]
            if mean:
                over_edges(own, edges[2], start)
            gemm(address, False, True, rows, width, filters, own, update, active, False)
            add_and_activate(active, update_bias, True)
            new[:] = h[start:last]
            gemm(address, False, True, rows, width, width, active, out, new, True)
            add_and_activate(new, out_bias, False)


@kernel
def _forward_loop(
    pool: int,
    threads: int,
    address: int,
    h: Any,
    weight: Any,
    topology: Any,
    mean: bool,
    message: Any,
    layers: Any,
    chunk: int,
    messages: Any,
    made: Any,
) -> None:
    """The whole interaction; topology as `EdgePairs.arrays`, the rest as in `_update_chunks`."""
    _, columns, offsets, order, _, _, _, _, of_edge = topology
    chunks = -(-h.shape[0] // chunk)
    arguments = (address, h, message, chunk, messages)
    share_rows(pool, threads, _here.message_chunks, arguments, None, chunks)
    edges = (of_edge, columns, offsets, order)
    others = (address, h, messages, weight, edges, mean, layers, chunk, made)
    share_rows(pool, threads, _here._update_chunks, others, None, chunks)


@kernel
def _receiver_chunks(
    address: int,
    grad: Any,
    inner: Any,
    sums: Any,
    offsets: Any,
    mean: bool,
    update: Any,
    out: Any,
    chunk: int,
    sum_grads: Any,
    update_grad: Any,
    out_grad: Any,
    biases: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the gradient sum_grads [N, F] in the sums, and of the weights'.

    The weights' are [C, ...], a row a chunk; so are biases [2, C, H], or None.
    """
    width, filters = grad.shape[1], update.shape[1]
    space = np.empty((BLOCK_ROWS, width), dtype=grad.dtype)
    for number in range(first, stop):
        if biases is not None:
            biases[:, number] = 0
        begin = number * chunk
        end = min(begin + chunk, grad.shape[0])
        for start in range(begin, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            given, active, before = grad[start:last], inner[start:last], space[:rows]
            own, own_grad = sums[start:last], sum_grads[start:last]
            gemm(address, False, False, rows, width, width, given, out, before, False)
            multiply_by_derivative(active, before)
            gemm(address, False, False, rows, filters, width, before, update, own_grad, False)
            if mean:
                over_edges(own_grad, offsets, start)
            more = start > begin
            of_out, of_update = out_grad[number], update_grad[number]
            gemm(address, True, False, width, width, rows, given, active, of_out, more)
            gemm(address, True, False, width, filters, rows, before, own, of_update, more)
            if biases is not None:
                add_rows(before, biases[0, number])
                add_rows(given, biases[1, number])


@kernel
def _sender_chunks(
    address: int,
    grad: Any,
    h: Any,
    sum_grads: Any,
    weight: Any,
    edges: Any,
    message: Any,
    chunk: int,
    messages: Any,
    grad_h: Any,
    message_grad: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the gradients in the messages [N, F], in h and in `message`."""
    width, filters = h.shape[1], weight.shape[1]
    for number in range(first, stop):
        begin = number * chunk
        end = min(begin + chunk, h.shape[0])
        for start in range(begin, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            count = last - start
            spmm_rows(sum_grads, weight, *edges, False, messages, start, last)
            own, state, before = messages[start:last], h[start:last], grad_h[start:last]
            before[:] = grad[start:last]
            gemm(address, False, False, count, width, filters, own, message, before, True)
            of_message, more = message_grad[number], start > begin
            gemm(address, True, False, filters, width, count, own, state, of_message, more)


@kernel
def _term_bins(
    address: int,
    bins: Any,
    ends: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Bins first:stop of the gradients out [B · M, F] in a filter's values at its nodes.

    The gradient of a pair's filter row is never written to memory. `bins` are as in `chebyshev`,
    `ends` what `product_rows` takes.
    """
    d, width, starts, transform = bins
    a, b, rows, columns, one_way, other_way = ends
    features = a.shape[1]
    t = np.empty((chebyshev.longest(starts, first, stop), chebyshev.TERMS), dtype=d.dtype)
    terms = np.empty((chebyshev.TERMS, features), dtype=d.dtype)
    products = np.empty((_PAIR_ROWS, features), dtype=d.dtype)
    for place in range(first, stop):
        begin, end = starts[place], starts[place + 1]
        chebyshev.polynomials(d[begin:end], place, width, t)
        terms[:] = 0
        for start in range(begin, end, _PAIR_ROWS):
            last = min(start + _PAIR_ROWS, end)
            ways = (one_way[start:last], other_way[start:last])
            edge_pairs.product_rows(a, b, rows, columns, *ways, products, 0, last - start)
            chebyshev.add_terms(t[start - begin : last - begin], products[: last - start], terms)
        own = out[place * chebyshev.TERMS : (place + 1) * chebyshev.TERMS]
        terms_count = chebyshev.TERMS
        gemm(address, True, False, terms_count, features, terms_count, transform, terms, own, False)


@kernel
def _backward_loop(
    pool: int,
    threads: int,
    address: int,
    grad: Any,
    h: Any,
    weight: Any,
    topology: Any,
    mean: bool,
    message: Any,
    update: Any,
    out: Any,
    saved: Any,
    chunk: int,
    series: Any,
    grad_h: Any,
    grad_weight: Any,
    grad_message: Any,
    grad_update: Any,
    grad_out: Any,
    biases: Any,
) -> None:
    """All gradients.

    `saved` are messages [N, F], sums or means [N, F] and activations [N, H] of the forward pass.
    grad_weight [P, F] is None if it is not wanted. Where the filter is a series, `series` are its
    bins and grad_weight [B · M, F] is in the values at the nodes. biases [2, C, H], the gradients
    by chunk in those of `update` and `out`, are None without.
    """
    rows, columns, in_offsets, _, offsets, order, one_way, other_way, of_edge = topology
    messages, sums, inner = saved
    nodes, width = h.shape
    filters = weight.shape[1]
    chunks = -(-nodes // chunk)
    sum_grads = np.empty((nodes, filters), dtype=h.dtype)
    senders = np.empty((nodes, filters), dtype=h.dtype)
    of_message = np.empty((chunks, filters, width), dtype=h.dtype)
    of_update = np.empty((chunks, width, filters), dtype=h.dtype)
    of_out = np.empty((chunks, width, width), dtype=h.dtype)
    given = (address, grad, inner, sums, in_offsets, mean, update, out, chunk)
    arguments = (*given, sum_grads, of_update, of_out, biases)
    share_rows(pool, threads, _here._receiver_chunks, arguments, None, chunks)
    edges = (of_edge, rows, offsets, order)
    made = (senders, grad_h, of_message)
    others = (address, grad, h, sum_grads, weight, edges, message, chunk, *made)
    share_rows(pool, threads, _here._sender_chunks, others, None, chunks)
    if grad_weight is not None:
        ends = (sum_grads, messages, rows, columns, one_way, other_way)
        if series is None:
            made_of = (*ends, grad_weight)
            share_rows(pool, threads, edge_pairs.product_rows, made_of, None, weight.shape[0])
        else:
            starts = series[2]
            by_bin = (address, series, ends, grad_weight)
            share_rows(pool, threads, _here._term_bins, by_bin, starts, starts.shape[0] - 1)
    sum_chunks(of_message, grad_message)
    sum_chunks(of_update, grad_update)
    sum_chunks(of_out, grad_out)


class SeriesFilter(NamedTuple):
    """A filter by Chebyshev series, see `chebyshev`.

    Attributes:
        at_nodes: [B · M, F], its values at the nodes of the bins.
        values: [P, F], those of the pairs, as `series_at` gives them.
        binned: the distances of the pairs, which are sorted by bin.
        width: of a bin, Å.
    """

    at_nodes: Tensor
    values: Tensor
    binned: chebyshev.Binned
    width: float


def interaction(
    h: Tensor,
    weight: Tensor | SeriesFilter,
    message: Tensor,
    update: Tensor,
    update_bias: Tensor | None,
    out: Tensor,
    out_bias: Tensor | None,
    pairs: EdgePairs,
    *,
    mean: bool,
) -> Tensor:
    """h + out(softplus(update(Σ weight[pair] · message(h)[sender]))), [N, H].

    The softplus is the shifted one. Tensors are such as `is_fusable` allows.

    Args:
        h: [N, H].
        weight: [P, F], a filter row a pair; or the series that gives them.
        message: [F, H], out by in, as the weights of torch.nn.Linear.
        update: [H, F].
        update_bias: [H].
        out: [H, H].
        out_bias: [H].
        pairs: the edges.
        mean: of the messages that reach a node, instead of their sum.
    """
    series = None
    if isinstance(weight, SeriesFilter):
        series, learned_filter, weight = weight, weight.at_nodes, weight.values
        shape = (chebyshev.TERMS * (len(series.binned.starts) - 1), weight.shape[-1])
        right = learned_filter.shape == shape and len(series.binned.distances) == len(weight)
        require(right and series.binned.order is None, "values at all nodes needed", learned_filter)
    else:
        learned_filter = weight
    nodes, width, filters = pairs.nodes, h.shape[-1], weight.shape[-1]
    right = h.shape == (nodes, width) and weight.shape == (pairs.count, filters)
    right = right and message.shape == (filters, width) and update.shape == (width, filters)
    right = right and out.shape == (width, width)
    needed = "h [N, H], weight [P, F], layers [F, H], [H, F] and [H, H] needed"
    require(right, needed, h, weight, message, update, out)
    right = all(bias is None or bias.shape == (width,) for bias in (update_bias, out_bias))
    require(right, "biases [H] needed", update_bias, out_bias)
    if (update_bias is None) != (out_bias is None):
        raise ValueError("both layers have a bias, or neither")
    # As one argument: each tensor that autograd looks at takes microseconds.
    fixed = (pairs, mean, series)
    learned = (h, learned_filter, message, update, update_bias, out, out_bias)
    result: Tensor = _Interaction.apply(*learned, fixed)  # type: ignore[no-untyped-call]
    return result


class _Interaction(torch.autograd.Function):
    # One function with ctx: torch would inspect the signature of a separate forward at each call.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        h, weight, message, update, update_bias, out, out_bias, (pairs, mean, series) = arguments
        weight = weight if series is None else series.values
        (nodes, width), filters = h.shape, weight.shape[1]
        messages, sums = h.new_empty(nodes, filters), h.new_empty(nodes, filters)
        inner, result = h.new_empty(nodes, width), h.new_empty(nodes, width)
        given: Any = (
            POOL,
            threads_for(h.numel() * width),
            gemm_address(h.dtype),
            *map(array_of, (h, weight)),
            pairs.arrays,
            mean,
            array_of(message),
            tuple(map(array_of, (update, update_bias, out, out_bias))),
            chunk_of(nodes),
            messages.numpy(),
            (sums.numpy(), inner.numpy(), result.numpy()),
        )
        _forward_loop(*given)
        ctx.save_for_backward(*arguments[:7], messages, sums, inner)
        ctx.fixed = arguments[7]
        assert isinstance(result, Tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        *given, messages, sums, inner = ctx.saved_tensors
        pairs, mean, series = ctx.fixed
        if torch.is_grad_enabled():
            function = functools.partial(_plain, pairs=pairs, mean=mean, series=series)
            return *differentiable_gradients(ctx, function, given, grads), None
        h, weight, message, update, bias, out, _ = given
        bins = None
        if series is not None:
            starts, _, distances = series.binned
            bins = (distances, series.width, starts, chebyshev.transform())
        nodes, width = h.shape
        chunk = chunk_of(nodes)
        grad_h, *grad_layers = (
            torch.empty(t.shape, dtype=h.dtype) for t in (h, message, update, out)
        )
        grad_weight = torch.empty(weight.shape, dtype=h.dtype) if ctx.needs_input_grad[1] else None
        biases = None if bias is None else h.new_empty(2, -(-nodes // chunk), width)
        arguments: Any = (
            POOL,
            threads_for(h.numel() * width),
            gemm_address(h.dtype),
            *map(array_of, (grad, h, weight if series is None else series.values)),
            pairs.arrays,
            mean,
            *map(array_of, (message, update, out)),
            (messages.numpy(), sums.numpy(), inner.numpy()),
            chunk,
            bins,
            *map(array_of, (grad_h, grad_weight, *grad_layers, biases)),
        )
        _backward_loop(*arguments)
        grad_message, grad_update, grad_out = grad_layers
        of_update, of_out = (None, None) if biases is None else biases.sum(1)
        return grad_h, grad_weight, grad_message, grad_update, of_update, grad_out, of_out, None


def _plain(
    h: Tensor,
    weight: Tensor,
    message: Tensor,
    update: Tensor,
    update_bias: Tensor | None,
    out: Tensor,
    out_bias: Tensor | None,
    *,
    pairs: EdgePairs,
    mean: bool,
    series: SeriesFilter | None,
) -> Tensor:
    if series is not None:
        weight = chebyshev.values_of_series(series.binned, weight, series.width)
    sums = pair_spmm(functional.linear(h, message), weight, *pairs.tensors)
    if mean:
        offsets = pairs.tensors[2]
        sums = sums / offsets.diff().clamp(min=1).to(h.dtype)[:, None]
    inner = shifted_softplus(functional.linear(sums, update, update_bias))
    return h + functional.linear(inner, out, out_bias)
