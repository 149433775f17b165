"""The compiled loops of this room: copying ranges of rows, pairs of edges, and checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.runtime import compiled


@compiled()
def copy_ranges(source: Any, starts: Any, stops: Any, width: int, out: Any) -> None:
    """Copy rows starts[i]:stops[i] of `source`, `width` items each, one range after another."""
    position = 0
    for i in range(starts.shape[0]):
        values = source[starts[i] * width : stops[i] * width]
        copied = out[position : position + values.shape[0]]
        # An assignment of slices is eight times slower: it allows for overlaps.
        for k in range(values.shape[0]):
            copied[k] = values[k]
        position += values.shape[0]


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
            # Already paired as the reverse of another; their number is checked below.
            single += 1
            edge += 1
            continue
        if sender == receiver:
            # Edges of a node to its own images: two adjacent ones are opposite.
            partner = edge + 1 if edge + 1 < edges else edge
            if senders[partner] != sender or receivers[partner] != receiver:
                return edge
        else:
            partner = np.int64(out_order[edge])
            single -= 1
            # In a damaged table two edges could share a partner: more pairs than there is room.
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


@compiled()
def edges_fault(
    senders: Any,
    receivers: Any,
    out_order: Any,
    in_start: Any,
    out_start: Any,
    node_offsets: Any,
    edge_offsets: Any,
    graphs: Any,
) -> Any:
    """The first fault in the edges of these graphs of a table, and its graph; (0, -1) if none.

    1, 2, 3: a number of senders, receivers, out_order is out of range. 4: receivers and in_start
    disagree. 5: senders, out_order and out_start do. Any one changed number is found.
    """
    for graph in graphs:
        first, nodes = node_offsets[graph], node_offsets[graph + 1] - node_offsets[graph]
        base, edges = edge_offsets[graph], edge_offsets[graph + 1] - edge_offsets[graph]
        for e in range(base, base + edges):
            if senders[e] < 0 or senders[e] >= nodes:
                return 1, graph
            if receivers[e] < 0 or receivers[e] >= nodes:
                return 2, graph
            if out_order[e] < 0 or out_order[e] >= edges:
                return 3, graph
        entered = left = 0
        for node in range(nodes):
            if in_start[first + node] != entered:
                return 4, graph
            while entered < edges and receivers[base + entered] == node:
                entered += 1
            if out_start[first + node] != left:
                return 5, graph
            before = -1
            while left < edges:
                edge = np.int64(out_order[base + left])
                if senders[base + edge] != node:
                    break
                # Ascending, so that no edge is there twice.
                if edge <= before:
                    return 5, graph
                before = edge
                left += 1
        if entered != edges:
            return 4, graph
        if left != edges:
            return 5, graph
    return 0, -1
