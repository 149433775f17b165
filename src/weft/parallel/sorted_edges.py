"""Edges of a big graph sorted and weighted in little memory.

They are counted and scattered as int32, once by sender and once by receiver: beside the graph and
the result there is room for one more array as long as the edges (two, if they have weights).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph
from weft.graphs.loops import group_starts
from weft.parallel.shard_loops import (
    group_by_sender,
    order_by_sender,
    scale_weights,
    sort_by_receiver,
    sum_rows,
)

NORMALISATIONS = ("symmetric", "row", "none")
"""symmetric: D^-1/2 (A + I) D^-1/2 as in a GCN, row: D^-1 A, a mean, none: weights as given."""

_CHUNK = 2**24


@dataclass(frozen=True, kw_only=True, eq=False)
class SortedEdges:
    """Edges sorted by (receiver, sender), nodes by their place.

    Attributes:
        senders: int [e].
        receivers: int [e].
        in_starts: int64 [n + 1].
        out_starts: int64 [n + 1].
        out_order: int [e].
        weights: [e], or [0] for all 1.
    """

    senders: Array
    receivers: Array
    in_starts: Array
    out_starts: Array
    out_order: Array
    weights: Array


def sort_edges(graph: Graph, order: Array, *, loops: bool) -> SortedEdges:
    """The edges between the nodes' places, with the weights that the graph has.

    Args:
        graph: its ends int32 or int64, its edge column `weight`, if any, float32 or float64.
        order: int64 [n], the node at each place.
        loops: add a self-loop of weight 1 to nodes that have none.
    """
    num_nodes = graph.num_nodes
    given = graph.edges.get("weight", np.empty(0, dtype=np.float32))
    missing = np.zeros(num_nodes, dtype=np.bool_)
    if loops:
        missing[:] = True
        for first in range(0, graph.num_edges, _CHUNK):
            part = slice(first, first + _CHUNK)
            missing[graph.senders[part][graph.senders[part] == graph.receivers[part]]] = False
    total = graph.num_edges + int(np.count_nonzero(missing))
    index = np.dtype(np.int32 if max(num_nodes, total) < 2**31 else np.int64)
    place = np.empty(num_nodes, dtype=index)
    place[order] = np.arange(num_nodes, dtype=index)
    new_loops = np.flatnonzero(missing[order])

    def starts_of(ends: Array) -> Array:
        degrees = np.diff(group_starts(ends, num_nodes)) + missing
        starts = np.zeros(num_nodes + 1, dtype=np.int64)
        np.cumsum(degrees[order], out=starts[1:])
        return starts

    in_starts, out_starts = starts_of(graph.receivers), starts_of(graph.senders)
    to = np.empty(total, dtype=index)
    weighted = total if "weight" in graph.edges else 0
    grouped = np.empty(weighted, dtype=given.dtype)
    ends = graph.senders, graph.receivers
    group_by_sender(*ends, given, place, new_loops, out_starts.copy(), to, grouped)
    senders = np.empty(total, dtype=index)
    weights = np.empty(weighted, dtype=given.dtype)
    sort_by_receiver(out_starts, to, grouped, in_starts.copy(), senders, weights)
    # Its memory is taken for the next array of this size.
    out_order = to
    order_by_sender(senders, out_starts.copy(), out_order)
    return SortedEdges(
        senders=senders,
        receivers=np.repeat(np.arange(num_nodes, dtype=index), np.diff(in_starts)),
        in_starts=in_starts,
        out_starts=out_starts,
        out_order=out_order,
        weights=weights,
    )


def normalised_weights(edges: SortedEdges, normalisation: str, dtype: str) -> Array:
    """Weights [e] of `dtype`, see `weft.graphs.gcn_weights` and `row_weights`."""
    num_nodes = len(edges.in_starts) - 1
    sums = np.diff(edges.in_starts).astype(np.float64)
    if edges.weights.size:
        sum_rows(edges.in_starts, edges.weights, sums)
    rows = columns = np.ones(num_nodes)
    if normalisation == "symmetric":
        if (sums < 0).any():
            raise DataError(
                f"the weights that enter a node sum to {sums.min():g}; a symmetric normalisation "
                "needs sums of 0 or more: use 'row' or 'none'"
            )
        rows = columns = _inverse(np.sqrt(sums))
    elif normalisation == "row":
        rows = _inverse(sums)
    out = np.empty(len(edges.senders), dtype=dtype)
    scale_weights(edges.in_starts, edges.senders, edges.weights, rows, columns, out)
    check_finite("the normalised edge column 'weight'", out)
    return out


def _inverse(values: Array) -> Array:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)


def check_finite(what: str, values: Array) -> None:
    """Raise DataError, naming `what` and the row, unless all values [n, ...] are finite."""
    step = max(1, _CHUNK // max(1, int(np.prod(values.shape[1:]))))
    for first in range(0, len(values), step):
        finite = np.isfinite(values[first : first + step])
        if not finite.all():
            row = int(np.argwhere(~finite)[0][0])
            bad = np.ravel(values[first + row])[~np.ravel(finite[row])][0]
            raise DataError(f"{what} is {bad} in row {first + row}; correct or remove it")
