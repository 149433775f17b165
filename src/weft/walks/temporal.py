"""Temporal walks: every edge of a walk is later than the one before it."""

from __future__ import annotations

import numpy as np

from weft.errors import DataError
from weft.graphs import Array
from weft.kernels.threads import openmp, threads_for
from weft.walks import loops
from weft.walks.edges import Edges, check_walks, edges_of, new_walks
from weft.walks.time_order import by_sender

# What a step and a weight cost beside a multiply-add, roughly: a binary search, an exponential.
_STEP, _EXPONENTIAL = 64, 16


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
    nodes = found.num_nodes
    offsets, ordered = by_sender(found.senders, found.receivers, time, nodes)
    sums = np.empty_like(time)
    threads = threads_for(len(time) * _EXPONENTIAL)
    loops.share_exponential_sums(openmp(), threads, (ordered, offsets, sums), offsets, nodes)
    out = new_walks(nodes, walks, length)
    arguments = (offsets, ordered, sums, walks, np.uint64(seed), out)
    loops.share_temporal(openmp(), threads_for(out.size * _STEP), arguments, nodes)
    return out
