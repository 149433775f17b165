"""The compiled loops of this room: counting sort of edges and copying ranges of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiled import compiled

__all__ = ["copy_ranges", "counting_order", "group_starts", "pair_up", "shift_ranges"]


@compiled()
def counting_order(keys: Any, num_keys: int) -> Any:
    """Stable order that sorts integer `keys` [e] in 0..num_keys-1: O(e), int64 [e]."""
    starts = np.zeros(num_keys + 1, dtype=np.int64)
    for key in keys:
        starts[key + 1] += 1
    for key in range(num_keys):
        starts[key + 1] += starts[key]
    order = np.empty(keys.shape[0], dtype=np.int64)
    for edge in range(keys.shape[0]):
        order[starts[keys[edge]]] = edge
        starts[keys[edge]] += 1
    return order


@compiled()
def group_starts(keys: Any, num_keys: int) -> Any:
    """CSR offsets int64 [num_keys + 1] of integer `keys` [e], sorted or not."""
    starts = np.zeros(num_keys + 1, dtype=np.int64)
    for key in keys:
        starts[key + 1] += 1
    for key in range(num_keys):
        starts[key + 1] += starts[key]
    return starts


@compiled()
def copy_ranges(source: Any, starts: Any, stops: Any, width: int, out: Any) -> None:
    """Copy rows starts[i]:stops[i] of `source`, `width` items each, one range after another."""
    position = 0
    for i in range(starts.shape[0]):
        first = starts[i] * width
        count = (stops[i] - starts[i]) * width
        out[position : position + count] = source[first : first + count]
        position += count


@compiled()
def shift_ranges(source: Any, starts: Any, stops: Any, shifts: Any, out: Any) -> None:
    """Like copy_ranges for an index column: adds shifts[i] to every value of range i."""
    position = 0
    for i in range(starts.shape[0]):
        count = stops[i] - starts[i]
        # Slices of known length and one integer width: the compiler then uses vectors.
        values = source[starts[i] : stops[i]]
        shifted = out[position : position + count]
        shift = out.dtype.type(shifts[i])
        for k in range(count):
            shifted[k] = out.dtype.type(values[k]) + shift
        position += count


@compiled()
def pair_up(
    senders: Any, receivers: Any, out_order: Any, forward: Any, backward: Any, of_edge: Any
) -> int:
    """Number the pairs of edges that are each other's reverse, see GraphBatch.pairs.

    Returns:
        -1, or an edge without a reverse where the edges are not symmetric.
    """
    edges = senders.shape[0]
    pairs = 0
    single = 0
    edge = 0
    while edge < edges:
        sender, receiver = senders[edge], receivers[edge]
        if sender > receiver:
            # Met already, as the reverse of another; how many there are is counted below.
            single += 1
            edge += 1
            continue
        if sender == receiver:
            # Edges of a node to its own images: two neighbours in the list are opposite.
            partner = edge + 1 if edge + 1 < edges else edge
            if senders[partner] != sender or receivers[partner] != receiver:
                return edge
        else:
            partner = np.int64(out_order[edge])
            single -= 1
            # Of a damaged table two edges could have one partner: more pairs than there is room.
            if (
                senders[partner] != receiver
                or receivers[partner] != sender
                or out_order[partner] != edge
            ):
                return edge
        forward[pairs], backward[pairs] = edge, partner
        of_edge[edge], of_edge[partner] = pairs, pairs
        pairs += 1
        edge = partner + 1 if sender == receiver else edge + 1
    if single != 0:
        for edge in range(edges):
            partner = np.int64(out_order[edge])
            if senders[partner] != receivers[edge] or receivers[partner] != senders[edge]:
                return edge
    return -1
