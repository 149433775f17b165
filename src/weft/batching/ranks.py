"""Sharing an epoch's batches between ranks: as many for each, alike in cost at each step."""

from __future__ import annotations

import heapq

import numpy as np

from weft.graphs import Array


def split(starts: Array, cost: Array, ranks: int) -> Array:
    """`starts` [b + 1] with the costliest batches halved until `ranks` divides their number.

    Args:
        starts: int64 [b + 1], where batches begin among the graphs.
        cost: int64 [g], of each graph.
        ranks: processes that share the batches.
    """
    missing = -(len(starts) - 1) % ranks
    if missing == 0:
        return starts
    before = np.concatenate([[0], np.cumsum(cost)])
    sums = before[starts]
    pieces = [
        (-int(sums[b + 1] - sums[b]), int(starts[b]), int(starts[b + 1]))
        for b in np.flatnonzero(np.diff(starts) > 1).tolist()
    ]
    heapq.heapify(pieces)
    cuts: list[int] = []
    while len(cuts) < missing:
        if not pieces:
            raise ValueError(
                f"{len(starts) - 1 + len(cuts)} batches of one graph each cannot be shared evenly "
                f"by {ranks} ranks; use a larger batch_size or budget, or other ranks"
            )
        _, first, stop = heapq.heappop(pieces)
        half = (before[first] + before[stop]) / 2
        cut = int(np.searchsorted(before[first + 1 : stop], half)) + first + 1
        # Of the two cuts around the middle the nearer one.
        if cut == stop or (cut - 1 > first and half - before[cut - 1] < before[cut] - half):
            cut -= 1
        cuts.append(cut)
        for low, high in ((first, cut), (cut, stop)):
            if high - low > 1:
                heapq.heappush(pieces, (-int(before[high] - before[low]), low, high))
    return np.sort(np.concatenate([starts, np.array(cuts, dtype=np.int64)]))


def deal(cost: Array, ranks: int) -> Array:
    """An order of batches, int64 [b], in which each `ranks` in a row cost about the same.

    Steps keep the order of their earliest batch; who has the costliest one changes from step to
    step.
    """
    steps = np.argsort(-cost, kind="stable").reshape(-1, ranks)
    steps = steps[np.argsort(steps.min(axis=1), kind="stable")]
    turn = (np.arange(ranks)[None, :] + np.arange(len(steps))[:, None]) % ranks
    dealt: Array = np.take_along_axis(steps, turn, axis=1).reshape(-1)
    return dealt
