"""The loops of `schnet_potential`, over chunks of nodes or over pairs of edges.

A block of nodes goes through all dense layers in one thread's cache. Gradients of the weights are
summed by chunk first, and the chunks depend on the number of nodes alone: how many threads there
are changes no bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.kernels.schnet_interaction import BLOCK_ROWS, over_edges
from weft.kernels.vector_math import (
    add_and_activate,
    add_rows,
    multiply_by_derivative,
    softplus_derivative_of,
)
from weft.runtime import compiled, gemm, kernel, prefetch, shared_rows, stack_numbers

# Rows of filters to be read this many edges ahead.
_AHEAD = 8
# Floats that share a cache line of 64 bytes.
_LINE = 16
# Features whose sums are on the stack at a time: the compiler then knows that nothing overlaps.
_TILE = 128
_SPACE = 2 * _TILE


@kernel
def _edge_sums(
    x: Any,
    filters: Any,
    moved: Any,
    of_edge: Any,
    columns: Any,
    offsets: Any,
    order: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """out[r] = Σ w · x[s] + push · derivative · y[s] over the edges of rows first:stop.

    `moved` are y, the filters' derivatives and push. It, or x, is None where there is no such term.
    """
    width = out.shape[1]
    last = columns.shape[0] - 1
    sums = stack_numbers(out, _TILE)
    for row in range(first, stop):
        for tile in range(0, width, _TILE):
            start, count = np.uintp(tile), np.uintp(min(_TILE, width - tile))
            for j in range(count):
                sums[j] = 0
            for k in range(offsets[row], offsets[row + 1]):
                ahead = min(k + _AHEAD, last)
                if order is None:
                    edge, ahead_pair = k, np.intp(of_edge[ahead])
                else:
                    edge, ahead_pair = order[k], np.intp(of_edge[order[ahead]])
                for line in range(tile, tile + count, _LINE):
                    if x is not None:
                        prefetch(filters, ahead_pair, np.intp(line))
                    if moved is not None:
                        prefetch(moved[1], ahead_pair, np.intp(line))
                pair, column = of_edge[edge], columns[edge]
                if moved is not None:
                    y, derivative, push = moved
                    by = push[pair]
                    for j in range(count):
                        f = start + j
                        change = by * derivative[pair, f] * y[column, f]
                        if x is not None:
                            change = filters[pair, f] * x[column, f] + change
                        sums[j] += change
                elif x is not None:
                    for j in range(count):
                        sums[j] += filters[pair, start + j] * x[column, start + j]
            for j in range(count):
                out[row, start + j] = sums[j]


@shared_rows
@kernel
def layer_chunks(
    address: int,
    given: Any,
    filters: Any,
    edges: Any,
    layers: Any,
    after: Any,
    chunk: int,
    made: Any,
    first: int,
    stop: int,
) -> None:
    """A layer of chunks first:stop, and what they send in the next one, if there is one."""
    h, messages = given
    update, update_bias, out, out_bias, mean = layers
    sums, inner, result, sent = made
    width, count = h.shape[1], messages.shape[1]
    for number in range(first, stop):
        stopped = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, stopped, BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, stopped)
            rows = end - start
            _edge_sums(
                messages, filters, None, edges[0], edges[1], edges[2], edges[3], sums, start, end
            )
            own, active, new = sums[start:end], inner[start:end], result[start:end]
            if mean:
                over_edges(own, edges[2], start)
            gemm(address, False, True, rows, width, count, own, update, active, False)
            add_and_activate(active, update_bias, True)
            new[:] = h[start:end]
            gemm(address, False, True, rows, width, width, active, out, new, True)
            add_and_activate(new, out_bias, False)
            if after is not None:
                gemm(address, False, True, rows, count, width, new, after, sent[start:end], False)


@kernel
def _receive(address: int, layer: Any, offsets: Any, grad: Any, made: Any, start: int) -> None:
    """From the gradient of a layer's result to those before its activation and in its sums."""
    update, out, mean, inner = layer
    before, sums = made
    rows, width = grad.shape
    own, result = before[start : start + rows], sums[start : start + rows]
    gemm(address, False, False, rows, width, width, grad, out, own, False)
    multiply_by_derivative(inner[start : start + rows], own)
    gemm(address, False, False, rows, result.shape[1], width, own, update, result, False)
    if mean:
        over_edges(result, offsets, start)


@shared_rows
@kernel
def top_chunks(
    address: int,
    h: Any,
    readout: Any,
    seeds: Any,
    layer: Any,
    offsets: Any,
    chunk: int,
    made: Any,
    below: Any,
    first: int,
    stop: int,
) -> None:
    """Values [N, 1] of the atoms, and back through the readout and the last layer's dense part."""
    one, one_bias, two, two_bias = readout
    atomic, active, before, grad = made
    hidden, width = one.shape
    for number in range(first, stop):
        stopped = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, stopped, BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, stopped)
            rows = end - start
            own, back, result = active[start:end], before[start:end], grad[start:end]
            gemm(address, False, True, rows, hidden, width, h[start:end], one, own, False)
            add_and_activate(own, one_bias, True)
            gemm(address, False, True, rows, 1, hidden, own, two, atomic[start:end], False)
            add_and_activate(atomic[start:end], two_bias, False)
            for i in range(rows):
                for f in range(hidden):
                    back[i, f] = seeds[start + i] * two[0, f]
            multiply_by_derivative(own, back)
            gemm(address, False, False, rows, width, hidden, back, one, result, False)
            _receive(address, layer, offsets, result, below, start)


@shared_rows
@kernel
def back_chunks(
    address: int,
    given: Any,
    filters: Any,
    edges: Any,
    message: Any,
    layer: Any,
    offsets: Any,
    chunk: int,
    made: Any,
    below: Any,
    first: int,
    stop: int,
) -> None:
    """From a layer's sums to its senders, and back through the dense part of the layer below."""
    grad, to_sums = given
    sent, result = made
    width, count = grad.shape[1], to_sums.shape[1]
    for number in range(first, stop):
        stopped = min((number + 1) * chunk, grad.shape[0])
        for start in range(number * chunk, stopped, BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, stopped)
            _edge_sums(
                to_sums, filters, None, edges[0], edges[1], edges[2], edges[3], sent, start, end
            )
            own, rows = result[start:end], end - start
            own[:] = grad[start:end]
            gemm(address, False, False, rows, width, count, sent[start:end], message, own, True)
            _receive(address, layer, offsets, own, below, start)


# Dot products are summed in the order of the vector registers: fixed, whatever the threads.
@shared_rows
@compiled(fastmath={"contract", "reassoc"}, error_model="numpy")
def distance_rows(layers: Any, ends: Any, out: Any, first: int, stop: int) -> None:
    """out[p] = Σ slope · gradient of the sums[r] · message[s] over layers, edges and features."""
    forward, backward, rows, columns = ends
    for pair in range(first, stop):
        edge, other = forward[pair], backward[pair]
        row, column = rows[edge], columns[edge]
        other_row, other_column = rows[other], columns[other]
        total = out.dtype.type(0)
        for number in range(len(layers)):
            slope, grad, messages = layers[number]
            if edge == other:
                for f in range(slope.shape[1]):
                    total += slope[pair, f] * (grad[row, f] * messages[column, f])
            else:
                for f in range(slope.shape[1]):
                    total += slope[pair, f] * (
                        grad[row, f] * messages[column, f]
                        + grad[other_row, f] * messages[other_column, f]
                    )
        out[pair] = total


@shared_rows
@kernel
def tangent_chunks(
    address: int,
    h: Any,
    messages: Any,
    moved: Any,
    inner: Any,
    filters: Any,
    edges: Any,
    layers: Any,
    after: Any,
    chunk: int,
    made: Any,
    first: int,
    stop: int,
) -> None:
    """How a layer's values change, where h and messages change so; None where they do not."""
    update, out, mean = layers
    sums, before, active, result, sent = made
    width, count = before.shape[1], sums.shape[1]
    for number in range(first, stop):
        stopped = min((number + 1) * chunk, before.shape[0])
        for start in range(number * chunk, stopped, BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, stopped)
            rows = end - start
            _edge_sums(
                messages, filters, moved, edges[0], edges[1], edges[2], edges[3], sums, start, end
            )
            if mean:
                over_edges(sums[start:end], edges[2], start)
            own, now, new = before[start:end], active[start:end], result[start:end]
            gemm(address, False, True, rows, width, count, sums[start:end], update, own, False)
            now[:] = own
            multiply_by_derivative(inner[start:end], now)
            if h is not None:
                new[:] = h[start:end]
            gemm(address, False, True, rows, width, width, now, out, new, h is not None)
            if after is not None:
                gemm(address, False, True, rows, count, width, new, after, sent[start:end], False)


@kernel
def _bend(active: Any, tangent: Any, grad: Any, out: Any) -> None:
    """out · d + grad · (1 - d) · tangent, where d is the derivative of the softplus `active`.

    grad is that after the activation already times d, tangent that before the activation.
    """
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            d = softplus_derivative_of(active[i, j])
            out[i, j] = out[i, j] * d + grad[i, j] * (1 - d) * tangent[i, j]


@kernel
def _receive_change(
    address: int,
    layer: Any,
    offsets: Any,
    grads: Any,
    values: Any,
    made: Any,
    biases: Any,
    number: int,
    start: int,
    more: bool,
) -> None:
    """As `_receive` for how the gradients change; adds up the weights' for chunk `number`.

    grads are that of the result, and how it changes, of the block alone; values what the layer had.
    """
    update, out, mean = layer
    grad, change = grads
    inner, active, before_tangent, before_grad, sums, sums_tangent = values
    to_sums, of_update, of_out = made
    rows, width = grad.shape
    end, count = start + rows, sums.shape[1]
    back = np.empty((rows, width), dtype=grad.dtype)
    gemm(address, False, False, rows, width, width, change, out, back, False)
    given = before_grad[start:end]
    _bend(inner[start:end], before_tangent[start:end], given, back)
    target = of_out[number]
    gemm(address, True, False, width, width, rows, grad, active[start:end], target, more)
    gemm(address, True, False, width, width, rows, change, inner[start:end], target, True)
    target = of_update[number]
    gemm(address, True, False, width, count, rows, given, sums_tangent[start:end], target, more)
    gemm(address, True, False, width, count, rows, back, sums[start:end], target, True)
    result = to_sums[start:end]
    gemm(address, False, False, rows, count, width, back, update, result, False)
    if mean:
        over_edges(result, offsets, start)
    if biases is not None:
        if not more:
            biases[0, number] = 0
            biases[1, number] = 0
        add_rows(back, biases[0, number])
        add_rows(change, biases[1, number])


@shared_rows
@kernel
def top_changes(
    address: int,
    given: Any,
    readout: Any,
    seeds: Any,
    kept: Any,
    layer: Any,
    offsets: Any,
    values: Any,
    chunk: int,
    made: Any,
    below: Any,
    bias: Any,
    biases: Any,
    first: int,
    stop: int,
) -> None:
    """Gradients from the readout's change and values through the last layer's dense part.

    seeds are of the changes and of the values, [N] each.
    """
    h, tangent = given
    one, two = readout
    of_change, of_value = seeds
    active, before, grad = kept
    change, of_one, of_two = made
    hidden, width = one.shape
    for number in range(first, stop):
        begin = number * chunk
        stopped = min(begin + chunk, h.shape[0])
        for start in range(begin, stopped, BLOCK_ROWS):
            end, more = min(start + BLOCK_ROWS, stopped), start > begin
            rows = end - start
            own, own_grad = active[start:end], before[start:end]
            moved = np.empty((rows, hidden), dtype=h.dtype)
            back = np.empty((rows, hidden), dtype=h.dtype)
            gemm(address, False, True, rows, hidden, width, tangent[start:end], one, moved, False)
            for i in range(rows):
                for f in range(hidden):
                    back[i, f] = of_value[start + i] * two[0, f]
            _bend(own, moved, own_grad, back)
            multiply_by_derivative(own, moved)
            target = of_two[number]
            for i in range(rows):
                for f in range(hidden):
                    made_of = of_change[start + i] * moved[i, f] + of_value[start + i] * own[i, f]
                    if i > 0 or more:
                        target[0, f] += made_of
                    else:
                        target[0, f] = made_of
            target = of_one[number]
            gemm(
                address,
                True,
                False,
                hidden,
                width,
                rows,
                own_grad,
                tangent[start:end],
                target,
                more,
            )
            gemm(address, True, False, hidden, width, rows, back, h[start:end], target, True)
            if bias is not None:
                if not more:
                    bias[number] = 0
                add_rows(back, bias[number])
            result = change[start:end]
            gemm(address, False, False, rows, width, hidden, back, one, result, False)
            grads = (grad[start:end], result)
            _receive_change(
                address, layer, offsets, grads, values, below, biases, number, start, more
            )


@shared_rows
@kernel
def back_changes(
    address: int,
    given: Any,
    filters: Any,
    moved: Any,
    edges: Any,
    message: Any,
    h: Any,
    tangent: Any,
    kept: Any,
    layer: Any,
    offsets: Any,
    values: Any,
    chunk: int,
    made: Any,
    below: Any,
    biases: Any,
    first: int,
    stop: int,
) -> None:
    """As `_back_chunks` for how the gradients change, with those of the weights.

    tangent, how h changes, is None in the first layer, where the gradients in the weights end; kept
    are the gradients in the messages and in h.
    """
    change, to_sums = given
    sent, grad = kept
    result, of_message = made
    width, count = change.shape[1], to_sums.shape[1]
    for number in range(first, stop):
        begin = number * chunk
        stopped = min(begin + chunk, change.shape[0])
        space = np.empty((BLOCK_ROWS, count), dtype=change.dtype)
        for start in range(begin, stopped, BLOCK_ROWS):
            end, more = min(start + BLOCK_ROWS, stopped), start > begin
            rows = end - start
            back, own = space[:rows], result[start:end]
            here = edges[2][start:]
            _edge_sums(to_sums, filters, moved, edges[0], edges[1], here, edges[3], back, 0, rows)
            own[:] = change[start:end]
            gemm(address, False, False, rows, width, count, back, message, own, True)
            target = of_message[number]
            gemm(address, True, False, count, width, rows, back, h[start:end], target, more)
            if tangent is not None:
                moving = tangent[start:end]
                gemm(
                    address, True, False, count, width, rows, sent[start:end], moving, target, True
                )
                grads = (grad[start:end], own)
                _receive_change(
                    address, layer, offsets, grads, values, below, biases, number, start, more
                )


@shared_rows
@kernel
def filter_rows(
    given: Any, tangent: Any, push: Any, ends: Any, made: Any, first: int, stop: int
) -> None:
    """Gradients of each pair's filter and of its slope in one layer.

    given are gradients of the sums, how they change, and messages; tangent is how those change, or
    None.
    """
    forward, backward, rows, columns = ends
    to_sums, change, messages = given
    of_filter, of_slope = made
    width = to_sums.shape[1]
    sums = stack_numbers(of_filter, _SPACE)
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
                    own, grad = messages[s, f], to_sums[r, f]
                    sums[_TILE + j] += grad * own
                    if tangent is None:
                        sums[j] += change[r, f] * own
                    else:
                        sums[j] += change[r, f] * own + grad * tangent[s, f]
            for j in range(count):
                of_filter[pair, start + j] = sums[j]
                of_slope[pair, start + j] = by * sums[_TILE + j]
