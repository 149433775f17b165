"""Random walks from every node: uniform, node2vec's (Grover and Leskovec 2016), and temporal."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from weft.counting_sort import counting_order, group_starts
from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable
from weft.sources import EdgeList
from weft.walks import walk_loops

Edges: TypeAlias = EdgeList | Graph | GraphTable
"""What walks go over. The graphs of a table are one graph side by side, numbered through."""

# What a step (a binary search) and a weight (an exponential) cost, in multiply-adds, roughly.
_STEP, _EXPONENTIAL = 64, 16


def uniform_walks(edges: Edges, *, walks: int = 10, length: int = 80, seed: int = 0) -> Array:
    """Walks from every node that take any edge of a node with the same probability.

    Edges go from sender to receiver; an undirected graph has both directions of each. Parallel
    edges count each.

    Args:
        edges: an edge list, graph or table.
        walks: how many walks begin at each node.
        length: nodes of a walk, the first included.
        seed: the same seed makes the same walks, on any number of threads.

    Returns:
        int32 [n * walks, length], nodes; row u * walks + w is walk w from node u. A walk that
        reaches a node without outgoing edges ends there and is filled up with -1.
    """
    return _static_walks(edges, None, walks, length, seed)


def node2vec_walks(
    edges: Edges, *, p: float, q: float, walks: int = 10, length: int = 80, seed: int = 0
) -> Array:
    """Walks from every node that remember where they came from.

    A walk that came from t to v takes an edge v -> x with a probability proportional to 1 / p if
    x is t, to 1 if there is an edge t -> x, and to 1 / q otherwise; the first step is uniform.
    Edges are drawn by rejection, which is exact and needs no table of edge pairs.

    Args:
        edges: an edge list, graph or table; directed, as for `uniform_walks`.
        p: return parameter; below 1 a walk turns back more often.
        q: in-out parameter; below 1 a walk moves outward, above 1 it stays near.
        walks: how many walks begin at each node.
        length: nodes of a walk, the first included.
        seed: the same seed makes the same walks, on any number of threads.

    Returns:
        As `uniform_walks`.
    """
    for name, value in (("p", p), ("q", q)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} is {value}; it must be above 0 and finite")
    return _static_walks(edges, (float(p), float(q)), walks, length, seed)


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
        seed: the same seed makes the same walks, on any number of threads. More or longer walks
            with the same seed begin with those.

    Returns:
        As `uniform_walks`; a walk also ends where no edge is later.

    Raises:
        DataError: there are no times, or one is not finite.
    """
    _check_settings(walks, length, seed)
    graph = _as_graph(edges)
    if "time" not in graph.edges:
        raise DataError(
            "temporal walks need the time of each edge: read the edge list with the columns src, "
            "dst, time, or take uniform_walks"
        )
    time = np.ascontiguousarray(graph.edges["time"], dtype=np.float64)
    nodes = graph.num_nodes
    offsets, ordered = walk_loops.by_sender(graph.senders, graph.receivers, time, nodes)
    sums = np.empty_like(time)
    work = len(time) * _EXPONENTIAL
    walk_loops.exponential_sums.share((ordered, offsets, sums), nodes, work, offsets)
    out = np.empty((nodes * walks, length), dtype=np.int32)
    arguments = (offsets, ordered, sums, walks, np.uint64(seed), out)
    walk_loops.temporal_walks.share(arguments, nodes, out.size * _STEP)
    return out


def _static_walks(
    edges: Edges, pull: tuple[float, float] | None, walks: int, length: int, seed: int
) -> Array:
    """Walks as `node2vec_walks` makes them for pull = (p, q), or uniform ones for None."""
    _check_settings(walks, length, seed)
    graph = _as_graph(edges)
    nodes = graph.num_nodes
    # By sender, and by receiver within each.
    by_receiver = counting_order(graph.receivers, nodes)
    order = by_receiver[counting_order(graph.senders[by_receiver], nodes)]
    offsets, receivers = group_starts(graph.senders, nodes), graph.receivers[order].astype(np.int32)
    out = np.empty((nodes * walks, length), dtype=np.int32)
    arguments = (offsets, receivers, pull, walks, np.uint64(seed), out)
    walk_loops.static_walks.share(arguments, nodes, out.size * _STEP)
    return out


def _check_settings(walks: int, length: int, seed: int) -> None:
    for name, value, low in (("walks", walks, 1), ("length", length, 1), ("seed", seed, 0)):
        if value < low:
            raise ValueError(f"{name} is {value}; it must be at least {low}")
    if seed >= 2**64:
        raise ValueError(f"seed is {seed}; it must be below 2**64")


def _as_graph(edges: Edges) -> Graph:
    """One checked graph of nodes and edges, with the edge column `time` where there are times.

    Raises:
        DataError: an edge names a node that is not there, or a time is not finite.
    """
    if isinstance(edges, GraphTable):
        edges.check_edges()
        num_nodes = edges.total_nodes
        shift = np.repeat(edges.node_offsets[:-1], edges.num_edges)
        senders, receivers = (edges.columns[name] + shift for name in ("senders", "receivers"))
        time = edges.column("time") if "time" in edges.schema else None
    else:
        num_nodes, senders, receivers = edges.num_nodes, edges.senders, edges.receivers
        time = edges.time if isinstance(edges, EdgeList) else edges.edges.get("time")
    graph = Graph(
        num_nodes=num_nodes,
        senders=senders,
        receivers=receivers,
        edges={} if time is None else {"time": time},
    )
    if time is not None and time.shape != graph.senders.shape:
        raise DataError(
            f"time has shape {list(time.shape)}; one number for each of {graph.num_edges} edges"
        )
    graph.validate()
    if num_nodes >= 2**31:
        raise DataError(f"walks number nodes in 32 bits; the graph has {num_nodes:,} nodes")
    if time is not None and not np.isfinite(time).all():
        edge = int(np.argmin(np.isfinite(time)))
        raise DataError(f"edge {edge} has the time {time[edge]}; times must be finite")
    return graph
