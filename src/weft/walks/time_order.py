"""Edges in the order that temporal walks read them: by sender, then by time."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.graphs import Array
from weft.graphs.edge_loops import group_starts
from weft.runtime import compiled

# Bits of a digit: the ends of 2^8 growing lists fit the nearest cache.
_DIGIT = 8
_SIGN = np.uint64(1 << 63)


def time_order(time: Array) -> Array:
    """Stable order int32 [e] (int64 from 2^31 edges on) that sorts finite float64 times [e].

    Linear in the number of edges: digit by digit, and only those digits in which times differ.
    """
    edges = len(time)
    order = np.arange(edges, dtype=np.int32 if edges < 2**31 else np.int64)
    # Most files are in order of time already, and looking costs far less than sorting.
    if (time[1:] >= time[:-1]).all():
        return order
    keys = np.empty(edges, dtype=np.uint64)
    differing = int(_ordered_keys(time, keys))
    spare_keys, spare_order = np.empty_like(keys), np.empty_like(order)
    shift = (differing & -differing).bit_length() - 1
    while differing >> shift:
        _sort_by_digit(keys, order, np.uint64(shift), spare_keys, spare_order)
        keys, spare_keys = spare_keys, keys
        order, spare_order = spare_order, order
        shift += _DIGIT
    return order


@compiled()
def _ordered_keys(time: Any, keys: Any) -> Any:
    """Write whole numbers in the order of the times; returns the bits in which some differ."""
    bits = time.view(np.uint64)
    differing = np.uint64(0)
    for edge in range(time.shape[0]):
        key = bits[edge]
        if time[edge] == 0:
            # The zero below 0 is equal to the other.
            key = _SIGN
        elif key & _SIGN:
            key = ~key
        else:
            key |= _SIGN
        keys[edge] = key
        differing |= key ^ keys[0]
    return differing


@compiled()
def _sort_by_digit(keys: Any, order: Any, shift: Any, new_keys: Any, new_order: Any) -> None:
    mask = np.uint64((1 << _DIGIT) - 1)
    places = np.zeros((1 << _DIGIT) + 1, dtype=np.int64)
    for key in keys:
        places[((key >> shift) & mask) + np.uint64(1)] += 1
    for digit in range(1 << _DIGIT):
        places[digit + 1] += places[digit]
    for edge in range(keys.shape[0]):
        key = keys[edge]
        digit = (key >> shift) & mask
        place = places[digit]
        places[digit] = place + 1
        new_keys[place] = key
        new_order[place] = order[edge]


def by_sender(senders: Array, receivers: Array, time: Array, num_nodes: int) -> tuple[Array, Array]:
    """The edges of each node in order of time, those of equal times as they are given.

    Args:
        senders: int [e], in 0..n-1.
        receivers: int [e], likewise.
        time: float64 [e], finite.
        num_nodes: n.

    Returns:
        Where the edges of each sender begin, int64 [n + 1]; and [e] records of `time`, `receiver`
        and `later`: where the receiver's own edges that are later than this one begin.
    """
    offsets, order = group_starts(senders, num_nodes), time_order(time)
    # Side by side, as each is written at random and read together.
    kinds = [("time", np.float64), ("receiver", np.int32), ("later", order.dtype)]
    edges = np.empty(len(time), dtype=kinds)
    _place(order, senders, receivers, time, offsets, edges)
    return offsets, edges


@compiled()
def _place(order: Any, senders: Any, receivers: Any, time: Any, offsets: Any, edges: Any) -> None:
    """Write the records of `by_sender`; their places are written over `order`."""
    # Of each sender, the place of its next edge.
    free = offsets[:-1].copy()
    first = 0
    for number in range(order.shape[0]):
        given = order[number]
        sender, receiver, now = senders[given], receivers[given], time[given]
        place = free[sender]
        free[sender] = place + 1
        edges[place].time = now
        edges[place].receiver = receiver
        edges[place].later = free[receiver]
        order[number] = place
        if number + 1 == order.shape[0] or time[order[number + 1]] != now:
            # All edges of this time have their places: where others began too early is known.
            for before in range(first, number):
                place = order[before]
                edges[place].later = free[edges[place].receiver]
            first = number + 1
