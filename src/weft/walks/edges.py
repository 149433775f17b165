"""What all walks begin with: the edges that leave each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable
from weft.sources import EdgeList

Edges: TypeAlias = EdgeList | Graph | GraphTable
"""What walks go over. The graphs of a table are one graph side by side, numbered through."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgesOf:
    """Directed edges of n nodes.

    Attributes:
        num_nodes: n.
        senders: int [e], in 0..n-1.
        receivers: int [e].
        time: float64 [e], or None.
    """

    num_nodes: int
    senders: Array
    receivers: Array
    time: Array | None


def edges_of(graph: Edges) -> EdgesOf:
    """The edges of anything that has some.

    Raises:
        DataError: an edge names a node that is not there, or a time is not finite.
    """
    if isinstance(graph, GraphTable):
        graph.check_edges()
        shift = np.repeat(graph.node_offsets[:-1], graph.num_edges)
        found = EdgesOf(
            num_nodes=graph.total_nodes,
            senders=graph.columns["senders"] + shift,
            receivers=graph.columns["receivers"] + shift,
            time=graph.column("time") if "time" in graph.schema else None,
        )
    else:
        time = graph.time if isinstance(graph, EdgeList) else graph.edges.get("time")
        found = EdgesOf(
            num_nodes=graph.num_nodes, senders=graph.senders, receivers=graph.receivers, time=time
        )
    Graph(num_nodes=found.num_nodes, senders=found.senders, receivers=found.receivers).validate()
    if found.num_nodes >= 2**31:
        raise DataError(f"walks number nodes in 32 bits; the graph has {found.num_nodes:,} nodes")
    if found.time is not None:
        _check_time(found.time, len(found.senders))
    return found


def _check_time(time: Array, edges: int) -> None:
    if time.shape != (edges,):
        raise DataError(f"time has shape {list(time.shape)}; one number for each of {edges} edges")
    finite = np.isfinite(time)
    if not finite.all():
        edge = int(np.argmin(finite))
        raise DataError(f"edge {edge} has the time {time[edge]}; times must be finite")


def check_walks(walks: int, length: int, seed: int) -> None:
    """Refuse numbers that no walk has."""
    for name, value, low in (("walks", walks, 1), ("length", length, 1), ("seed", seed, 0)):
        if value < low:
            raise ValueError(f"{name} is {value}; it must be at least {low}")
    if seed >= 2**64:
        raise ValueError(f"seed is {seed}; it must be below 2**64")


def new_walks(num_nodes: int, walks: int, length: int) -> Array:
    """Walks to be written: int32 [n * walks, length]."""
    return np.empty((num_nodes * walks, length), dtype=np.int32)
