"""The compiled loops of walks, and the order in which temporal walks read their edges.

Random numbers are a function of (seed, node, walk, step), never of the thread or of what was drawn
before: any number of threads, and any way of cutting the nodes into parts, makes the same walks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.counting_sort import group_starts
from weft.graphs import Array
from weft.runtime import compiled, shared_rows

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53
# Rejections in a row after which the draw is made over all neighbours instead; still exact.
_PATIENCE = 32


@compiled(inline="always")
def _word(key: Any, number: int) -> Any:
    """Random 64 bits number `number` of the stream `key` (splitmix64)."""
    word = key + (np.uint64(number) + np.uint64(1)) * _WEYL
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


@compiled(inline="always")
def _fraction(word: Any) -> float:
    """A number of [0, 1) of 53 random bits."""
    return float(word >> np.uint64(11)) * _UNIT


@compiled(inline="always")
def _below(word: Any, count: int) -> int:
    """A whole number of 0..count-1, count below 2^31, of 53 random bits."""
    return min(int(_fraction(word) * count), count - 1)


@shared_rows
@compiled()
def exponential_sums(edges: Any, offsets: Any, sums: Any, first_node: int, stop_node: int) -> None:
    """Running sums, from 0 for each node, of exp((t - t_last) / Δ) over its edges by time.

    Δ is the range of the node's times; the exponents are from -1 to 0, so nothing overflows and
    no term is lost in the sum. Where Δ is 0 every edge counts 1.

    Args:
        edges: [e], see `by_sender`.
        offsets: int64 [n + 1], likewise.
        sums: float64 [e], written.
        first_node: the first node whose sums are written.
        stop_node: the one after the last.
    """
    for node in range(first_node, stop_node):
        first, stop = offsets[node], offsets[node + 1]
        if first == stop:
            continue
        last = edges[stop - 1].time
        # Halves: the range of two large times of opposite sign may overflow, half of it cannot.
        half = 0.5 * last - 0.5 * edges[first].time
        total = 0.0
        for edge in range(first, stop):
            if half > 0:
                total += np.exp((0.5 * edges[edge].time - 0.5 * last) / half)
            else:
                total += 1.0
            sums[edge] = total


@shared_rows
@compiled()
def temporal_walks(
    offsets: Any,
    edges: Any,
    sums: Any,
    walks: int,
    seed: Any,
    out: Any,
    first_node: int,
    stop_node: int,
) -> None:
    """Walks from some nodes; `offsets` and `edges` as `by_sender` returns them."""
    length = out.shape[1]
    for start in range(first_node, stop_node):
        of_node = _word(seed, start)
        for walk in range(walks):
            key = _word(of_node, walk)
            row = out[start * walks + walk]
            row[0] = start
            node = start
            low = np.int64(offsets[start])
            step = 1
            while step < length:
                begin, stop = np.int64(offsets[node]), np.int64(offsets[node + 1])
                if low == stop:
                    break
                before = sums[low - 1] if low > begin else 0.0
                goal = before + _fraction(_word(key, step)) * (sums[stop - 1] - before)
                # The last one where rounding has carried the goal to the very end.
                high = stop - 1
                while low < high:
                    middle = (low + high) >> 1
                    if sums[middle] > goal:
                        high = middle
                    else:
                        low = middle + 1
                node = np.int64(edges[low].receiver)
                low = np.int64(edges[low].later)
                row[step] = node
                step += 1
            row[step:] = -1


@compiled()
def _first_at_least(receivers: Any, low: int, high: int, node: int) -> int:
    """The first place of low..high whose receiver, ascending there, is not below `node`."""
    while low < high:
        middle = (low + high) >> 1
        if receivers[middle] < node:
            low = middle + 1
        else:
            high = middle
    return low


@compiled()
def _is_edge(offsets: Any, receivers: Any, sender: int, receiver: int) -> bool:
    stop = np.int64(offsets[sender + 1])
    place = _first_at_least(receivers, np.int64(offsets[sender]), stop, receiver)
    return bool(place < stop and receivers[place] == receiver)


@compiled()
def _next_of_pair(
    offsets: Any, receivers: Any, before: int, node: int, p: float, q: float, key: Any
) -> Any:
    """The edge of `node` that a walk takes which came from `before`."""
    first, stop = np.int64(offsets[node]), np.int64(offsets[node + 1])
    # Edges back to `before` lie side by side. They are drawn apart from the others, or a small p
    # would have nearly all draws of the others rejected.
    back = _first_at_least(receivers, first, stop, before)
    ahead = _first_at_least(receivers, back, stop, before + 1)
    others = (stop - first) - (ahead - back)
    largest = max(1.0, 1.0 / q)
    weight_back = (ahead - back) / p
    share_back = weight_back / (weight_back + others * largest)
    for attempt in range(_PATIENCE):
        if _fraction(_word(key, 3 * attempt)) < share_back:
            return back + _below(_word(key, 3 * attempt + 1), ahead - back)
        if others == 0:
            return back
        edge = first + _below(_word(key, 3 * attempt + 1), others)
        if edge >= back:
            edge += ahead - back
        limit = 1.0 if _is_edge(offsets, receivers, before, receivers[edge]) else 1.0 / q
        if _fraction(_word(key, 3 * attempt + 2)) * largest < limit:
            return edge
    total = 0.0
    for edge in range(first, stop):
        total += _weight(offsets, receivers, before, receivers[edge], p, q)
    goal = _fraction(_word(key, 3 * _PATIENCE)) * total
    total = 0.0
    for edge in range(first, stop):
        total += _weight(offsets, receivers, before, receivers[edge], p, q)
        if total > goal:
            return edge
    return stop - 1


@compiled()
def _weight(offsets: Any, receivers: Any, before: int, node: int, p: float, q: float) -> float:
    if node == before:
        return 1.0 / p
    return 1.0 if _is_edge(offsets, receivers, before, node) else 1.0 / q


@shared_rows
@compiled()
def static_walks(
    offsets: Any,
    receivers: Any,
    pull: tuple[float, float] | None,
    walks: int,
    seed: Any,
    out: Any,
    first_node: int,
    stop_node: int,
) -> None:
    """Walks from nodes first_node:stop_node, biased by pull = (p, q), or uniform for None."""
    length = out.shape[1]
    for start in range(first_node, stop_node):
        of_node = _word(seed, start)
        for walk in range(walks):
            key = _word(of_node, walk)
            row = out[start * walks + walk]
            row[0] = start
            node = start
            before = -1
            step = 1
            while step < length:
                first, stop = np.int64(offsets[node]), np.int64(offsets[node + 1])
                if first == stop:
                    break
                word = _word(key, step)
                edge = first + _below(word, stop - first)
                if pull is not None:  # noqa: SIM102 - alone, so that uniform walks leave it out
                    if before >= 0:
                        edge = _next_of_pair(offsets, receivers, before, node, *pull, word)
                before = node
                node = np.int64(receivers[edge])
                row[step] = node
                step += 1
            row[step:] = -1


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
