"""The compiled loops of this room: cutting an order into batches, dealing graphs out to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiled import compiled


@compiled()
def cut_in_order(nodes: Any, edges: Any, room: Any) -> Any:
    """Where batches begin, int64 [b + 1], when graphs are appended until one does not fit.

    Args:
        nodes: int64 [g], in the order in which they are taken; none larger than the room.
        edges: int64 [g].
        room: int64 [3], the most nodes, edges and graphs of a batch.
    """
    count = nodes.shape[0]
    starts = np.empty(count + 1, dtype=np.int64)
    batches = 0
    used_nodes = used_edges = used_graphs = 0
    for i in range(count):
        if (
            i == 0
            or used_nodes + nodes[i] > room[0]
            or used_edges + edges[i] > room[1]
            or used_graphs == room[2]
        ):
            starts[batches] = i
            batches += 1
            used_nodes = used_edges = used_graphs = 0
        used_nodes += nodes[i]
        used_edges += edges[i]
        used_graphs += 1
    starts[batches] = count
    return starts[: batches + 1].copy()


@compiled()
def deal_out(nodes: Any, edges: Any, room: Any, batches: int) -> Any:
    """The batch of each graph, int64 [g], -1 where it fits none: always the one with most room.

    Args:
        nodes: int64 [g], in the order in which they are dealt.
        edges: int64 [g].
        room: int64 [3], the most nodes, edges and graphs of a batch.
        batches: how many, all empty.
    """
    by_nodes, by_edges = 1.0 / max(room[0], 1), 1.0 / max(room[1], 1)
    used = np.zeros((batches, 3), dtype=np.int64)
    batch = np.full(nodes.shape[0], -1, dtype=np.int64)
    for i in range(nodes.shape[0]):
        least = np.inf
        for b in range(batches):
            if (
                used[b, 2] < room[2]
                and used[b, 0] + nodes[i] <= room[0]
                and used[b, 1] + edges[i] <= room[1]
            ):
                load = max(used[b, 0] * by_nodes, used[b, 1] * by_edges)
                if load < least:
                    batch[i], least = b, load
        if batch[i] >= 0:
            used[batch[i], 0] += nodes[i]
            used[batch[i], 1] += edges[i]
            used[batch[i], 2] += 1
    return batch
