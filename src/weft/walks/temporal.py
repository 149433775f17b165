"""Temporal walks: every edge of a walk is later than the one before it."""

from __future__ import annotations

import numpy as np

from weft.errors import DataError
from weft.graphs import Array
from weft.graphs.loops import counting_order, group_starts
from weft.kernels.team import openmp, threads_for
from weft.walks import loops
from weft.walks.edges import Edges, check_walks, edges_of, new_walks

__all__ = ["temporal_walks"]

# What a step costs beside a multiply-add, roughly: two binary searches.
_STEP = 64


def temporal_walks(edges: Edges, *, walks: int = 10, length: int = 5, seed: int = 0) -> Array:
    """Walks from every node along edges of ever later times.

    At node u, reached at time t, the candidates are u's edges later than t; one of time t_e is
    taken with a probability proportional to exp((t_e - t) / Δ), Δ being the range of the times of
    all edges that leave u (all alike where it is 0). At the start every edge is a candidate.
    Neither the unit nor the origin of the times matters. Parallel edges count each.

    Args:
        edges: an edge list, graph or table with times; edges go from sender to receiver.
        walks: how many walks begin at each node.
        length: nodes of a walk, the first included.
        seed: the same seed gives the same walks, on any number of threads; more walks or longer
            ones begin with those.

    Returns:
        int32 [n * walks, length], nodes; row u * walks + w is walk w from node u. -1 after the end
        of a walk that has no later edge to take.

    Raises:
        DataError: there are no times, or one is not finite.
    """
    check_walks(walks, length, seed)
    found = edges_of(edges)
    if found.time is None:
        raise DataError(
            "temporal walks need the time of each edge: read the edge list with the columns src, "
            "dst, time, or take uniform_walks"
        )
    time = np.ascontiguousarray(found.time, dtype=np.float64)
    senders, nodes = found.senders, found.num_nodes
    # Most files are in order of time already, and looking costs far less than sorting.
    if (time[1:] >= time[:-1]).all():
        order = counting_order(senders, nodes)
    else:
        by_time = np.argsort(time, kind="stable")
        order = by_time[counting_order(senders[by_time], nodes)]
    offsets = group_starts(senders, nodes)
    receivers, time = found.receivers[order].astype(np.int32), time[order]
    sums = np.empty_like(time)
    loops.exponential_sums(time, offsets, sums)
    out = new_walks(nodes, walks, length)
    arguments = (offsets, receivers, time, sums, walks, np.uint64(seed), out)
    loops.share_temporal(openmp(), threads_for(out.size * _STEP), arguments, nodes)
    return out
