"""Edges made ready for message passing: self-loops, both directions, normalised weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from weft.counting_sort import counting_order
from weft.errors import DataError
from weft.graphs.graph import Array, Graph


def with_self_loops(graph: Graph, *, fill: Mapping[str, float] | None = None) -> Graph:
    """The graph with a self-loop on every node; nodes that have one keep it as it is.

    The new edges come last, in the order of their nodes. Their edge columns hold the column's
    value in `fill`, or 0.

    Raises:
        DataError: `fill` names a column that the edges do not have.
    """
    fill = fill or {}
    for name in fill:
        if name not in graph.edges:
            raise DataError(
                f"fill names the edge column '{name}'; the graph has "
                f"{', '.join(graph.edges) or 'no edge columns'}"
            )
    graph.validate()
    missing = np.ones(graph.num_nodes, dtype=bool)
    missing[graph.senders[graph.senders == graph.receivers]] = False
    loops = np.flatnonzero(missing)
    return replace(
        graph,
        # The ends' own dtype may be too narrow for the last nodes.
        senders=np.concatenate([graph.senders.astype(np.int64), loops]),
        receivers=np.concatenate([graph.receivers.astype(np.int64), loops]),
        edges={
            name: np.concatenate(
                [values, np.full((loops.size, *values.shape[1:]), fill.get(name, 0), values.dtype)]
            )
            for name, values in graph.edges.items()
        },
    )


def symmetrised(graph: Graph) -> Graph:
    """The graph with every edge in both directions, each once, sorted by (receiver, sender).

    The columns are those of the first of several edges in a direction; where a direction had no
    edge, those of the opposite one.
    """
    graph.validate()
    # One signed dtype, whatever the two were: the compiled loops refuse uint64.
    ends = np.concatenate([graph.senders.astype(np.int64), graph.receivers.astype(np.int64)])
    senders, receivers = ends, np.roll(ends, graph.num_edges)
    order = counting_order(senders, graph.num_nodes)
    # Both sorts are stable, so the first of equal edges is the first in the graph's order.
    order = order[counting_order(receivers[order], graph.num_nodes)]
    senders, receivers = senders[order], receivers[order]
    new = np.ones(order.size, dtype=bool)
    new[1:] = (np.diff(senders) != 0) | (np.diff(receivers) != 0)
    rows = order[new] % max(graph.num_edges, 1)
    return replace(
        graph,
        senders=senders[new],
        receivers=receivers[new],
        edges={name: values[rows] for name, values in graph.edges.items()},
    )


def gcn_weights(graph: Graph, *, dtype: DTypeLike = np.float32) -> Graph:
    """The graph of a GCN: self-loops, and the edge column `weight` of D^-1/2 (A + I) D^-1/2.

    An edge s -> r gets w / sqrt(d_r d_s), of `dtype`, where w is its `weight` so far (1 if there is
    no such column, 1 for new self-loops) and d a node's sum of w over the edges that enter it. A
    node without edges thus gets weight 1 for its self-loop; where d is 0 the weight is 0.

    Raises:
        DataError: the weights that enter a node sum to less than 0.
    """
    graph = with_self_loops(_weighted(graph), fill={"weight": 1.0})
    degrees = _in_degrees(graph)
    if (degrees < 0).any():
        node = int(np.argmax(degrees < 0))
        raise DataError(
            f"the weights that enter node {node} sum to {degrees[node]:g}; "
            "a symmetric normalisation needs sums of 0 or more"
        )
    scale = _inverse(np.sqrt(degrees))
    return _with_weights(graph, scale[graph.receivers] * scale[graph.senders], dtype)


def row_weights(graph: Graph, *, dtype: DTypeLike = np.float32) -> Graph:
    """The graph with the edge column `weight` of D^-1 A, which makes a sum a mean: 1 / in-degree.

    Where there is a column `weight` already the mean is weighted by it; the new one is of `dtype`.
    No self-loops are added.
    """
    graph = _weighted(graph)
    graph.validate()
    return _with_weights(graph, _inverse(_in_degrees(graph))[graph.receivers], dtype)


def _weighted(graph: Graph) -> Graph:
    weights = graph.edges.get("weight", np.ones(graph.num_edges, dtype=np.float32))
    if weights.ndim != 1:
        raise DataError(
            f"edge column 'weight' has shape {list(weights.shape)}; it needs a number for each edge"
        )
    return replace(graph, edges={**graph.edges, "weight": weights.astype(np.float64)})


def _in_degrees(graph: Graph) -> Array:
    degrees = np.zeros(graph.num_nodes)  # bincount forgets the weights' dtype where there are none
    receivers = graph.receivers.astype(np.int64, copy=False)
    degrees += np.bincount(receivers, graph.edges["weight"], minlength=graph.num_nodes)
    return degrees


def _inverse(values: Array) -> Array:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)


def _with_weights(graph: Graph, scale: Array, dtype: DTypeLike) -> Graph:
    weights = (graph.edges["weight"] * scale).astype(dtype)
    return replace(graph, edges={**graph.edges, "weight": weights})
