"""Building tables in memory: checks every value once, sorts edges, writes both CSR views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.counting_sort import counting_order, group_starts
from weft.errors import DataError
from weft.graphs.graph import (
    LEVEL_FIELDS,
    Array,
    Column,
    Graph,
    Schema,
    check_schema,
    infer_schema,
)
from weft.graphs.table import GraphTable, offsets_of


def table_from_graphs(
    graphs: Sequence[Graph],
    schema: Schema | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
    first: int = 0,
) -> GraphTable:
    """A table in memory. `schema` defaults to the first graph's columns.

    Raises:
        DataError: a graph misses a column, has one of another shape, an edge to a node that is
            not there, or a non-finite value; the message names graph (counted from `first`) and
            column.
    """
    if schema is None:
        if not graphs:
            raise DataError("no graphs and no schema: the columns of the table are unknown")
        schema = infer_schema(graphs[0])
    columns: dict[str, Array] = {}
    for name, column in schema.items():
        parts = []
        for i, graph in enumerate(graphs):
            part = getattr(graph, LEVEL_FIELDS[column.level]).get(name)
            if part is None:
                raise DataError(f"graph {first + i}: no {column.level} column '{name}'")
            parts.append(part if column.level != "graph" else np.asarray(part)[None])
        columns[name] = _concatenate(parts, name, column, first)
    for i, graph in enumerate(graphs):
        graph.validate(f"graph {first + i}")
        _check_no_more_columns(graph, schema, f"graph {first + i}")
    ends = {
        # The dtype is not left to promotion: int64 and uint64 together would make float64.
        name: np.concatenate(
            [np.empty(0, np.int64), *(getattr(graph, name) for graph in graphs)],
            dtype=np.int64,
            casting="unsafe",
        )
        for name in ("senders", "receivers")
    }
    return table_from_columns(
        schema,
        num_nodes=np.array([g.num_nodes for g in graphs], dtype=np.int64),
        num_edges=np.array([g.num_edges for g in graphs], dtype=np.int64),
        columns={**columns, **ends},
        ragged_rows={
            name: np.array([len(g.ragged[name]) for g in graphs], dtype=np.int64)
            for name, column in schema.items()
            if column.level == "ragged"
        },
        metadata=metadata,
        first=first,
    )


def _check_no_more_columns(graph: Graph, schema: Schema, name: str) -> None:
    for level, field in LEVEL_FIELDS.items():
        for column in getattr(graph, field):
            if column not in schema or schema[column].level != level:
                raise DataError(
                    f"{name}: {level} column '{column}' is not in the table's schema "
                    f"({', '.join(schema) or 'no columns'}); add it there or leave it out"
                )


def _concatenate(parts: list[Array], name: str, column: Column, first: int) -> Array:
    # Without rows dtype and row shape do not matter: a graph without edges fits any edge column.
    empty = np.empty((0, *column.shape), dtype=column.dtype)
    parts = [empty if part.ndim and not part.shape[0] else part for part in parts]
    for i, part in enumerate(parts):
        if part.ndim == 0 or part.shape[1:] != column.shape:
            raise DataError(
                f"graph {first + i}: a row of {column.level} column '{name}' has shape "
                f"{list(part.shape[1:])}; the table's schema says {list(column.shape)}"
            )
    return np.concatenate(parts) if parts else empty


def table_from_columns(
    schema: Schema,
    *,
    num_nodes: Array,
    columns: Mapping[str, Array],
    num_edges: Array | None = None,
    ragged_rows: Mapping[str, Array] | None = None,
    metadata: Mapping[str, Any] | None = None,
    first: int = 0,
) -> GraphTable:
    """A table in memory from columns that are concatenated already: the fast way for a parser.

    Args:
        schema: the columns.
        num_nodes: int [g], nodes of each graph.
        columns: all columns of the schema, and `senders` and `receivers` [E] (local to their
            graph) where there are edges.
        num_edges: int [g], edges of each graph; none without it.
        ragged_rows: int [g] for each ragged column, its rows in each graph.
        metadata: JSON values about the source.
        first: number of the first graph, for messages.
    """
    check_schema(schema)
    count = len(num_nodes)
    for what, counts in (("num_edges", num_edges), *(ragged_rows or {}).items()):
        if counts is not None and len(counts) != count:
            raise DataError(f"{what} counts the rows of {len(counts)} graphs, num_nodes of {count}")
    node_offsets = offsets_of(num_nodes)
    edge_offsets = offsets_of(np.zeros(count, np.int64) if num_edges is None else num_edges)
    ragged_offsets = {name: offsets_of(rows) for name, rows in (ragged_rows or {}).items()}
    empty = np.empty(0, dtype=np.int32)
    arrays, order = _topology(
        columns.get("senders", empty),
        columns.get("receivers", empty),
        node_offsets,
        edge_offsets,
        first,
    )
    for name, column in schema.items():
        if name not in columns:
            raise DataError(f"column '{name}' is in the schema but has no values")
        offsets = {
            "node": node_offsets,
            "edge": edge_offsets,
            "graph": np.arange(count + 1),
        }.get(column.level)
        if offsets is None:
            if name not in ragged_offsets:
                raise DataError(f"ragged column '{name}' has no entry in ragged_rows")
            offsets = ragged_offsets[name]
        values = _checked(np.asarray(columns[name]), name, column, offsets, first)
        arrays[name] = values[order] if column.level == "edge" and order is not None else values
    return GraphTable(
        schema=dict(schema),
        columns=arrays,
        node_offsets=node_offsets,
        edge_offsets=edge_offsets,
        ragged_offsets=ragged_offsets,
        metadata=dict(metadata or {}),
    ).known_right()


def _checked(values: Array, name: str, column: Column, offsets: Array, first: int) -> Array:
    """`values` in the column's dtype, of the right length and finite where they must be."""
    rows = int(offsets[-1])
    if values.shape != (rows, *column.shape):
        raise DataError(
            f"{column.level} column '{name}' has shape {list(values.shape)}; "
            f"{[rows, *column.shape]} expected"
        )
    target = np.dtype(column.dtype)
    if values.dtype != target:
        if not np.can_cast(values.dtype, target, "same_kind") and values.dtype.kind not in "iu":
            raise DataError(
                f"column '{name}' holds {values.dtype} values; the schema says {target}"
            )
        with np.errstate(over="ignore"):  # what overflows is found below, with its graph
            narrowed = values.astype(target)
        if target.kind in "biu" and not np.array_equal(narrowed, values):
            raise DataError(f"column '{name}' has values that do not fit {target}")
        values = narrowed
    if target.kind == "f":
        finite = ~np.isinf(values) if column.missing else np.isfinite(values)
        if not finite.all():
            row = int(np.argwhere(~finite)[0][0])
            bad = np.ravel(values[row])[~np.ravel(finite[row])][0]
            graph = int(np.searchsorted(offsets, row, side="right")) - 1
            remedy = ", or declare the column with missing=True if NaN means not measured"
            raise DataError(
                f"graph {first + graph}: {column.level} column '{name}' is "
                f"{bad} in row {row - offsets[graph]}; "
                f"correct or remove it{remedy if np.isnan(bad) else ''}"
            )
    return np.ascontiguousarray(values)


def _topology(
    senders: Array, receivers: Array, node_offsets: Array, edge_offsets: Array, first: int
) -> tuple[dict[str, Array], Array | None]:
    """Sorted ends, both CSR views, and the order that sorts edge columns (None: sorted already)."""
    num_nodes, num_edges = np.diff(node_offsets), np.diff(edge_offsets)
    total = int(node_offsets[-1])
    for name, ends in (("senders", senders), ("receivers", receivers)):
        if ends.shape != (edge_offsets[-1],):
            raise DataError(
                f"{name} has shape {list(ends.shape)}; {[int(edge_offsets[-1])]} needed"
            )
        if ends.dtype.kind not in "iu":
            raise DataError(f"{name} holds {ends.dtype} values; integers needed")
        bad = (ends < 0) | (ends >= np.repeat(num_nodes, num_edges))
        if bad.any():
            edge = int(np.argmax(bad))
            graph = int(np.searchsorted(edge_offsets, edge, side="right")) - 1
            raise DataError(
                f"graph {first + graph}: edge {edge - edge_offsets[graph]} has {name} = "
                f"{ends[edge]}, out of range for {num_nodes[graph]} nodes"
            )
    # A table's node numbers are local to their graph, so int32 lasts until one graph outgrows it.
    small = max(num_nodes.max(initial=0), num_edges.max(initial=0)) < 2**31
    index = np.int32 if small else np.int64
    node_base = np.repeat(node_offsets[:-1], num_edges)
    sending = senders.astype(np.int64) + node_base
    receiving = receivers.astype(np.int64) + node_base
    order = None
    step = np.diff(receiving)
    if (step < 0).any() or (np.diff(sending)[step == 0] < 0).any():
        order = counting_order(sending, total)
        order = order[counting_order(receiving[order], total)]
        sending, receiving = sending[order], receiving[order]
    edge_base = np.repeat(edge_offsets[:-1], num_nodes)
    out_order = counting_order(sending, total)
    return {
        "senders": (sending - node_base).astype(index),
        "receivers": (receiving - node_base).astype(index),
        "out_order": (out_order - np.repeat(edge_offsets[:-1], num_edges)).astype(index),
        "in_start": (group_starts(receiving, total)[:-1] - edge_base).astype(index),
        "out_start": (group_starts(sending, total)[:-1] - edge_base).astype(index),
    }, order
