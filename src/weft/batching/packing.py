"""Packing: choosing graphs so that a batch's nodes, edges and graphs are full together."""

from __future__ import annotations

import numpy as np

from weft.batching.loops import deal_out
from weft.graphs import Array

# Batches that are filled at the same time. More fill a little better and take longer.
_OPEN = 128


def pack_evenly(nodes: Array, edges: Array, room: Array) -> Array:
    """The batch of each graph, int64 [g]; batches are numbered from 0 without gaps.

    Takes as many graphs in their order as fill some batches, and deals them out in decreasing
    size, each to the batch with most room left. (The tightest fit would give the large graphs
    batches of their own, which run out of edges while they have nodes left, and the small ones the
    reverse.) What does not fit is dealt again with the next graphs.

    Args:
        nodes: int64 [g], in the order in which they are taken; none larger than the room.
        edges: int64 [g].
        room: int64 [3], the most nodes, edges and graphs of a batch.
    """
    count = len(nodes)
    # How much of a batch each graph takes, in nodes, edges and graphs.
    share = np.stack([nodes, edges, np.ones(count)]) / np.maximum(room, 1)[:, None]
    before = np.concatenate([np.zeros((3, 1)), np.cumsum(share, axis=1)], axis=1)
    batch = np.empty(count, dtype=np.int64)
    held = np.empty(0, dtype=np.int64)
    taken = made = 0
    while len(held) or taken < count:
        wanted = _OPEN - share[:, held].sum(axis=1)
        stop = min(
            int(np.searchsorted(row, row[taken] + more))
            for row, more in zip(before, wanted, strict=True)
        )
        stop = min(max(stop, taken), count)
        hand = np.concatenate([held, np.arange(taken, stop)])
        taken = stop
        # Rounding must not open a batch too many where the graphs fill them exactly.
        need = int(np.ceil(share[:, hand].sum(axis=1).max() - 1e-9))
        order = hand[np.argsort(-share[:2, hand].max(axis=0), kind="stable")]
        dealt = deal_out(nodes[order], edges[order], room, max(1, min(need, _OPEN)))
        fits = dealt >= 0
        batch[order[fits]] = made + dealt[fits]
        made = int(batch[order[fits]].max()) + 1
        held = order[~fits]
    return batch
