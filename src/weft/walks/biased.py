"""Walks that know no time: uniform ones, and node2vec's (Grover and Leskovec 2016)."""

from __future__ import annotations

import math

import numpy as np

from weft.graphs import Array
from weft.graphs.loops import counting_order, group_starts
from weft.kernels.threads import openmp, threads_for
from weft.walks import loops
from weft.walks.edges import Edges, check_walks, edges_of, new_walks

_STEP = 64


def uniform_walks(edges: Edges, *, walks: int = 10, length: int = 80, seed: int = 0) -> Array:
    """Walks from every node that take any edge of a node with the same probability.

    Edges go from sender to receiver; an undirected graph has both directions of each. Parallel
    edges count each.

    Args:
        edges: an edge list, graph or table.
        walks: how many walks begin at each node.
        length: nodes of a walk, the first included.
        seed: the same seed gives the same walks, on any number of threads.

    Returns:
        int32 [n * walks, length], nodes; row u * walks + w is walk w from node u. -1 after the end
        of a walk at a node that no edge leaves.
    """
    check_walks(walks, length, seed)
    nodes, offsets, receivers = _sorted(edges)
    out = new_walks(nodes, walks, length)
    arguments = (offsets, receivers, walks, np.uint64(seed), out)
    loops.share_uniform(openmp(), threads_for(out.size * _STEP), arguments, nodes)
    return out


def node2vec_walks(
    edges: Edges, *, p: float, q: float, walks: int = 10, length: int = 80, seed: int = 0
) -> Array:
    """Walks from every node that remember where they came from.

    A walk that came from t to v takes an edge v -> x with a probability proportional to 1 / p if
    x is t, to 1 if there is an edge t -> x, and to 1 / q otherwise; the first step is uniform.
    Drawn by rejection, which is exact: no table of edge pairs is kept.

    Args:
        edges: an edge list, graph or table; directed, as for `uniform_walks`.
        p: return parameter; below 1 a walk turns back more often.
        q: in-out parameter; below 1 a walk moves outward, above 1 it stays near.
        walks: how many walks begin at each node.
        length: nodes of a walk, the first included.
        seed: the same seed gives the same walks, on any number of threads.

    Returns:
        As `uniform_walks`.
    """
    check_walks(walks, length, seed)
    for name, value in (("p", p), ("q", q)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} is {value}; it must be above 0 and finite")
    nodes, offsets, receivers = _sorted(edges)
    out = new_walks(nodes, walks, length)
    arguments = (offsets, receivers, float(p), float(q), walks, np.uint64(seed), out)
    loops.share_node2vec(openmp(), threads_for(out.size * _STEP), arguments, nodes)
    return out


def _sorted(edges: Edges) -> tuple[int, Array, Array]:
    """Nodes; CSR offsets int64 [n + 1] and receivers int32 [e] by (sender, receiver)."""
    found = edges_of(edges)
    nodes = found.num_nodes
    by_receiver = counting_order(found.receivers, nodes)
    order = by_receiver[counting_order(found.senders[by_receiver], nodes)]
    return nodes, group_starts(found.senders, nodes), found.receivers[order].astype(np.int32)
