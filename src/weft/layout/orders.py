"""Orders of a graph's nodes: which numbering brings neighbours close together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from weft.errors import DataError
from weft.graphs import Array, GraphTable, open_table, table_from_columns, write_table

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
    """A hash of all that a table says."""
    about = {name: asdict(column) for name, column in table.schema.items()}
    text = json.dumps([about, dict(table.metadata)], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    offsets = {"node": table.node_offsets, "edge": table.edge_offsets, **table.ragged_offsets}
    for arrays in (offsets, table.columns):
        for name in sorted(arrays):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
