"""Orders of a graph's nodes: which numbering brings neighbours close together, and how close."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from weft.errors import DataError
from weft.graphs import Array, GraphTable, open_table, table_from_columns, write_table
from weft.runtime import compiled

# Nodes of a part of the METIS order: about a block of a banded adjacency.
_PART_NODES = 32


def _identity(num_nodes: int, senders: Array, receivers: Array) -> Array:
    """The order that the nodes have already."""
    return np.arange(num_nodes)


def _degree(num_nodes: int, senders: Array, receivers: Array) -> Array:
    """Ascending number of neighbours; nodes with as many stay as they are."""
    order: Array = np.argsort(
        np.diff(neighbour_matrix(num_nodes, senders, receivers).indptr), kind="stable"
    )
    return order


def _rcm(num_nodes: int, senders: Array, receivers: Array) -> Array:
    """Reverse Cuthill-McKee: breadth first from a node of low degree, backwards."""
    neighbours = neighbour_matrix(num_nodes, senders, receivers)
    order = reverse_cuthill_mckee(neighbours, symmetric_mode=True)
    return np.ascontiguousarray(order, dtype=np.int64)


def _metis(num_nodes: int, senders: Array, receivers: Array) -> Array:
    """Parts with few edges between them, by recursive bisection; METIS."""
    try:
        import pymetis
    except ImportError:
        raise ImportError(
            "the order 'metis' needs pymetis: pip install 'weft[partition]'"
        ) from None
    parts = -(-num_nodes // _PART_NODES)
    if parts < 2:
        return np.arange(num_nodes)
    apart = senders != receivers
    neighbours = neighbour_matrix(num_nodes, senders[apart], receivers[apart])
    adjacency = pymetis.CSRAdjacency(neighbours.indptr, neighbours.indices)
    _, part = pymetis.part_graph(parts, adjacency, recursive=True)
    order: Array = np.argsort(part, kind="stable")
    return order


ORDERS: dict[str, Callable[[int, Array, Array], Array]] = {
    "identity": _identity,
    "degree": _degree,
    "rcm": _rcm,
    "metis": _metis,
}
"""By name: (nodes n, senders [e], receivers [e]) -> int64 [n], the old number of the node at each
new place. Edges of all types together; their directions do not matter."""


def neighbour_matrix(num_nodes: int, senders: Array, receivers: Array) -> csr_array:
    """The union of all edges both ways, each once."""
    ends = np.concatenate([senders, receivers]), np.concatenate([receivers, senders])
    return csr_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(num_nodes, num_nodes))


def reorder(table: GraphTable, order: str = "rcm") -> GraphTable:
    """The same graphs in memory, their nodes in another order; the order's name is in metadata.

    Node columns, edges and edge columns follow; columns of graphs and ragged ones do not change.

    Raises:
        DataError: an order that is not one of ORDERS; the table is damaged.
    """
    function = _order_named(order)
    table.check_edges()
    senders, receivers = table.columns["senders"], table.columns["receivers"]
    nodes, edges = table.node_offsets.tolist(), table.edge_offsets.tolist()
    taken = np.empty(table.total_nodes, dtype=np.int64)
    for i in range(len(table)):
        own, to = slice(edges[i], edges[i + 1]), slice(nodes[i], nodes[i + 1])
        if nodes[i + 1] > nodes[i]:
            taken[to] = function(nodes[i + 1] - nodes[i], senders[own], receivers[own])
    taken += np.repeat(table.node_offsets[:-1], table.num_nodes)
    place = np.empty_like(taken)
    place[taken] = np.arange(len(taken))
    base = np.repeat(table.node_offsets[:-1], table.num_edges)
    columns = {
        name: table.columns[name][taken] if column.level == "node" else table.columns[name]
        for name, column in table.schema.items()
    }
    columns["senders"] = place[senders + base] - base
    columns["receivers"] = place[receivers + base] - base
    return table_from_columns(
        table.schema,
        num_nodes=table.num_nodes,
        num_edges=table.num_edges,
        columns=columns,
        ragged_rows={name: np.diff(rows) for name, rows in table.ragged_offsets.items()},
        metadata={**table.metadata, "order": order},
    )


def reordered(table: GraphTable, folder: str | Path, order: str = "rcm") -> GraphTable:
    """`reorder`, written once: `folder` keeps a table for each order of each table.

    Raises:
        DataError: an order that is not one of ORDERS; what is kept is damaged.
    """
    _order_named(order)
    source = _fingerprint(table)
    path = Path(folder) / f"{order}-{source[:16]}"
    if not path.exists():
        made = reorder(table, order)
        metadata = {**made.metadata, "order_of": source}
        try:
            return write_table(path, [made], made.schema, metadata=metadata)
        except (DataError, OSError):
            # Another process was faster: its table is the same.
            if not path.exists():
                raise
    kept = open_table(path)
    if kept.metadata.get("order") != order or kept.metadata.get("order_of") != source:
        raise DataError(f"{path} is not this table in the order '{order}'; remove it")
    return kept


def _order_named(order: str) -> Callable[[int, Array, Array], Array]:
    if order not in ORDERS:
        raise DataError(f"order is {order!r}; choose from {', '.join(ORDERS)}")
    return ORDERS[order]


def _fingerprint(table: GraphTable) -> str:
    """A hash of everything in a table."""
    about = {name: asdict(column) for name, column in table.schema.items()}
    text = json.dumps([about, dict(table.metadata)], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    offsets = {"node": table.node_offsets, "edge": table.edge_offsets, **table.ragged_offsets}
    for arrays in (offsets, table.columns):
        for name in sorted(arrays):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class BandStatistics:
    """How near the diagonal the edges of each graph are, with all edge types together.

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
            # Sorted by receiver and sender: edges of several types are adjacent.
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
