"""The compiled loops that sort the edges of a big graph and cut panels out of it.

They save memory: they allocate no array as long as the edges.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.runtime import compiled


@compiled()
def group_by_sender(
    senders: Any, receivers: Any, weights: Any, place: Any, loops: Any, starts: Any, to: Any, w: Any
) -> None:
    """Receivers `to` [e'] and weights `w` of the edges in order of sender, nodes by their place.

    Args:
        senders: int [e].
        receivers: int [e].
        weights: [e], or [0] for edges without.
        place: int [n], the place of each node.
        loops: int [k], places that get a self-loop of weight 1, after all other edges.
        starts: int64 [n + 1], where each sender's edges begin; changed.
        to: int [e + k], written.
        w: [e + k], or [0].
    """
    weighted = w.shape[0] > 0
    for edge in range(senders.shape[0]):
        sender = place[senders[edge]]
        k = starts[sender]
        starts[sender] = k + 1
        to[k] = place[receivers[edge]]
        if weighted:
            w[k] = weights[edge]
    for node in loops:
        k = starts[node]
        starts[node] = k + 1
        to[k] = node
        if weighted:
            w[k] = 1


@compiled()
def sort_by_receiver(
    out_starts: Any, to: Any, grouped: Any, in_starts: Any, senders: Any, weights: Any
) -> None:
    """Senders [e] and weights of edges grouped by sender, sorted by receiver and sender.

    Args:
        out_starts: int64 [n + 1].
        to: int [e], receivers.
        grouped: [e] weights, or [0].
        in_starts: int64 [n + 1]; changed.
        senders: int [e], written.
        weights: [e], written, or [0].
    """
    weighted = grouped.shape[0] > 0
    for sender in range(out_starts.shape[0] - 1):
        for k in range(out_starts[sender], out_starts[sender + 1]):
            edge = in_starts[to[k]]
            in_starts[to[k]] = edge + 1
            senders[edge] = sender
            if weighted:
                weights[edge] = grouped[k]


@compiled()
def order_by_sender(senders: Any, starts: Any, order: Any) -> None:
    """The stable order of the edges by sender; `starts` int64 [n + 1] is changed."""
    for edge in range(senders.shape[0]):
        k = starts[senders[edge]]
        starts[senders[edge]] = k + 1
        order[k] = edge


@compiled()
def sum_rows(starts: Any, weights: Any, out: Any) -> None:
    """Sums float64 [n] of the weights of each row."""
    for row in range(out.shape[0]):
        total = 0.0
        for edge in range(starts[row], starts[row + 1]):
            total += weights[edge]
        out[row] = total


@compiled()
def scale_weights(
    starts: Any, senders: Any, weights: Any, row_scale: Any, column_scale: Any, out: Any
) -> None:
    """weight · row_scale[receiver] · column_scale[sender] of each edge; no weights means 1."""
    weighted = weights.shape[0] > 0
    for row in range(starts.shape[0] - 1):
        for edge in range(starts[row], starts[row + 1]):
            scale = row_scale[row] * column_scale[senders[edge]]
            out[edge] = weights[edge] * scale if weighted else scale


@compiled()
def equals_transpose(senders: Any, receivers: Any, weights: Any, out_order: Any) -> bool:
    """Whether the k-th edge by receiver is the reverse of the k-th by sender, for all."""
    for edge in range(senders.shape[0]):
        other = out_order[edge]
        if (
            senders[other] != receivers[edge]
            or receivers[other] != senders[edge]
            or weights[other] != weights[edge]
        ):
            return False
    return True


@compiled()
def gather(values: Any, order: Any, out: Any) -> None:
    """values[order]; numpy would make an int64 copy of the order first."""
    for k in range(order.shape[0]):
        out[k] = values[order[k]]


@compiled()
def count_cut(starts: Any, senders: Any, block: Any) -> int:
    """Edges between nodes of different blocks."""
    cut = 0
    for row in range(starts.shape[0] - 1):
        for edge in range(starts[row], starts[row + 1]):
            cut += block[senders[edge]] != block[row]
    return cut


@compiled()
def count_range(columns: Any, starts: Any, low: int, high: int, counts: Any) -> None:
    """How many of each row's ascending columns [e] are in low:high.

    Args:
        columns: int [e].
        starts: int64 [rows + 1], where each row's columns begin.
        low: first column that counts.
        high: the column after the last.
        counts: int64 [rows], written.
    """
    for row in range(counts.shape[0]):
        own = columns[starts[row] : starts[row + 1]]
        counts[row] = np.searchsorted(own, high) - np.searchsorted(own, low)


@compiled()
def fill_range(
    columns: Any,
    weights: Any,
    starts: Any,
    low: int,
    high: int,
    offsets: Any,
    out_columns: Any,
    out_weights: Any,
) -> bool:
    """Write the columns (counted from low) and weights that are in low:high, see `count_range`.

    Args:
        columns: int [e].
        weights: [e].
        starts: int64 [rows + 1].
        low: first column.
        high: the column after the last.
        offsets: int64 [rows + 1], where the rows begin in the outputs.
        out_columns: int32, written.
        out_weights: written.

    Returns:
        False where the columns are not ascending, or not those that were counted.
    """
    for row in range(offsets.shape[0] - 1):
        own = columns[starts[row] : starts[row + 1]]
        first = np.searchsorted(own, low)
        count = np.searchsorted(own, high) - first
        if count != offsets[row + 1] - offsets[row]:
            return False
        for k in range(count):
            column = own[first + k]
            if not low <= column < high:
                return False
            out_columns[offsets[row] + k] = column - low
            out_weights[offsets[row] + k] = weights[starts[row] + first + k]
    return True
