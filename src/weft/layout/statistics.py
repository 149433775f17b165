"""How far from the diagonal the edges of a graph are, and how full blocks around it would be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiled import compiled
from weft.graphs import Array, GraphTable


@dataclass(frozen=True, kw_only=True, eq=False)
class BandStatistics:
    """Of each graph, with all edge types together.

    Attributes:
        bandwidth: int64 [g], the largest |i - j| of an edge; 0 without edges.
        profile: int64 [g], Σ over nodes of the distance to the first neighbour before it.
        entries: int64 [g], distinct (receiver, sender).
        fill: float64 [g], `entries` over the places |i - j| <= bandwidth; 0 without nodes.
        least: int64 [g], what no order can go below: half the neighbours of the largest hub.
    """

    bandwidth: Array
    profile: Array
    entries: Array
    fill: Array
    least: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockFill:
    """Blocks of S x S on the three diagonals, of each graph alone from its first node on.

    Attributes:
        inside: int64 [g], distinct (receiver, sender) in a block.
        outside: int64 [g], those in none.
        cells: int64 [g], places in the blocks: (3K - 2) S².
        fill: float64 [g], `inside` over `cells`.
    """

    inside: Array
    outside: Array
    cells: Array
    fill: Array


def band_statistics(table: GraphTable) -> BandStatistics:
    """Bandwidth, profile and fill of each graph of `table` in the order that it has.

    Raises:
        DataError: the table is damaged.
    """
    table.check_edges()
    bandwidth, profile, entries, least = _bands(
        table.columns["senders"], table.columns["receivers"], table.edge_offsets, table.node_offsets
    )
    nodes = table.num_nodes
    places = (2 * bandwidth + 1) * nodes - bandwidth * (bandwidth + 1)
    return BandStatistics(
        bandwidth=bandwidth,
        profile=profile,
        entries=entries,
        fill=entries / np.maximum(places, 1),
        least=least,
    )


def block_fill(table: GraphTable, block: int) -> BlockFill:
    """What a banded form with blocks of `block` nodes would hold of each graph of `table`.

    Raises:
        DataError: the table is damaged.
    """
    if block < 1:
        raise ValueError(f"block is {block}; it must be at least 1")
    table.check_edges()
    inside, outside = _in_blocks(
        table.columns["senders"], table.columns["receivers"], table.edge_offsets, block
    )
    blocks = -(-table.num_nodes // block)
    cells = np.maximum(3 * blocks - 2, 0) * block**2
    return BlockFill(
        inside=inside, outside=outside, cells=cells, fill=inside / np.maximum(cells, 1)
    )


@compiled()
def _bands(senders: Any, receivers: Any, edge_offsets: Any, node_offsets: Any) -> Any:
    """Bandwidth, profile, distinct entries and least bandwidth, int64 [g] each."""
    graphs = edge_offsets.shape[0] - 1
    bandwidth = np.zeros(graphs, dtype=np.int64)
    profile = np.zeros(graphs, dtype=np.int64)
    entries = np.zeros(graphs, dtype=np.int64)
    least = np.zeros(graphs, dtype=np.int64)
    for g in range(graphs):
        nodes = node_offsets[g + 1] - node_offsets[g]
        first = np.arange(nodes)
        into = np.zeros(nodes, dtype=np.int64)
        out_of = np.zeros(nodes, dtype=np.int64)
        low, high = edge_offsets[g], edge_offsets[g + 1]
        for e in range(low, high):
            i, j = np.int64(receivers[e]), np.int64(senders[e])
            # Sorted by receiver and sender: edges of several types are neighbours in the list.
            if e > low and receivers[e - 1] == i and senders[e - 1] == j:
                continue
            entries[g] += 1
            bandwidth[g] = max(bandwidth[g], abs(i - j))
            later, earlier = max(i, j), min(i, j)
            first[later] = min(first[later], earlier)
            if i != j:
                into[i] += 1
                out_of[j] += 1
        for v in range(nodes):
            profile[g] += v - first[v]
            # Half of that many others must stand on one side. A neighbour both ways is one
            # neighbour, so only one direction is counted.
            least[g] = max(least[g], (max(into[v], out_of[v]) + 1) // 2)
    return bandwidth, profile, entries, least


@compiled()
def _in_blocks(senders: Any, receivers: Any, edge_offsets: Any, block: int) -> Any:
    """Distinct entries in the three diagonals of blocks and elsewhere, int64 [g] each."""
    graphs = edge_offsets.shape[0] - 1
    inside = np.zeros(graphs, dtype=np.int64)
    outside = np.zeros(graphs, dtype=np.int64)
    for g in range(graphs):
        low, high = edge_offsets[g], edge_offsets[g + 1]
        for e in range(low, high):
            i, j = np.int64(receivers[e]), np.int64(senders[e])
            if e > low and receivers[e - 1] == i and senders[e - 1] == j:
                continue
            if abs(i // block - j // block) <= 1:
                inside[g] += 1
            else:
                outside[g] += 1
    return inside, outside
