"""GraphTable: a data set of graphs as columns, in memory or mapped from disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from weft.errors import DataError
from weft.graphs.edge_loops import copy_ranges, edges_fault
from weft.graphs.graph import LEVEL_FIELDS, TOPOLOGY, Array, Graph, Schema

# By the number of a fault, see `edges_fault`.
_FAULTS = (
    ("senders",),
    ("receivers",),
    ("out_order",),
    ("receivers", "in_start"),
    ("senders", "out_order", "out_start"),
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GraphTable:
    """g graphs with N nodes and E edges in all, every column concatenated over the graphs.

    Edges are sorted by (receiver, sender) within each graph; node and edge numbers are local to
    their graph. Made by `table_from_graphs`, `table_from_columns` or `open_table`; the arrays are
    never changed.

    Attributes:
        schema: the user's columns.
        columns: every array by name: node columns [N, ...], edge columns [E, ...], graph columns
            [g, ...], ragged ones [rows, ...]; and the topology: `senders`, `receivers` [E],
            `out_order` [E] (the edges in order of sender), `in_start`, `out_start` [N] (where a
            node's edges begin among its graph's edges, in either order).
        node_offsets: int64 [g + 1], where each graph's nodes begin.
        edge_offsets: int64 [g + 1], where each graph's edges begin.
        ragged_offsets: int64 [g + 1] for each ragged column.
        metadata: what the source wrote about itself; JSON values. With `symmetric` true every edge
            has a reverse: of several edges between two nodes the first one way is the reverse of
            the first the other way, and a node's edges to itself come in adjacent pairs.
        path: the folder it is mapped from, or None.
        checked: the edges are known to be right, see `known_right`. Otherwise the edges of a graph
            are checked whenever they are read.
    """

    schema: Schema
    columns: Mapping[str, Array]
    node_offsets: Array
    edge_offsets: Array
    ragged_offsets: Mapping[str, Array] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    checked: bool = field(default=False, init=False)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """A mapped table travels to another process as its path."""
        if self.path is None:
            return super().__reduce_ex__(protocol)
        from weft.graphs.store import open_table

        return open_table, (self.path, self.checked)

    def known_right(self) -> GraphTable:
        """This table, whose edges need no check: weft made them or compared every byte.

        A copy with other fields (`dataclasses.replace`) has to be checked again.
        """
        object.__setattr__(self, "checked", True)
        return self

    def with_columns(self, schema: Schema, columns: Mapping[str, Array]) -> GraphTable:
        """The same graphs with these columns alone, in memory; none of them is ragged."""
        topology = {name: v for name, v in self.columns.items() if name not in self.schema}
        changed = replace(
            self, schema=schema, columns={**columns, **topology}, ragged_offsets={}, path=None
        )
        return changed.known_right() if self.checked else changed

    def __len__(self) -> int:
        return int(self.node_offsets.shape[0]) - 1

    def __repr__(self) -> str:
        return (
            f"GraphTable({len(self):,} graphs, {self.total_nodes:,} nodes, "
            f"{self.total_edges:,} edges, columns: {', '.join(self.schema) or 'none'})"
        )

    @property
    def total_nodes(self) -> int:
        """N, the number of nodes in all graphs."""
        return int(self.node_offsets[-1])

    @property
    def total_edges(self) -> int:
        """E, the number of edges in all graphs."""
        return int(self.edge_offsets[-1])

    @property
    def num_nodes(self) -> Array:
        """int64 [g], the nodes of each graph: sizes without loading anything."""
        return np.diff(self.node_offsets)

    @property
    def num_edges(self) -> Array:
        """int64 [g], the edges of each graph."""
        return np.diff(self.edge_offsets)

    @property
    def symmetric(self) -> bool:
        """Whether every edge has a reverse, so that batches have `pairs`."""
        return bool(self.metadata.get("symmetric", False))

    @property
    def num_bytes(self) -> int:
        """Size of all columns in bytes."""
        return sum(int(array.nbytes) for array in self.columns.values())

    def offsets(self, name: str) -> Array:
        """int64 [g + 1], where each graph's rows of a column, or of the topology, begin."""
        level = self.schema[name].level if name in self.schema else TOPOLOGY[name]
        if level == "ragged":
            return self.ragged_offsets[name]
        if level == "graph":
            return np.arange(len(self) + 1, dtype=np.int64)
        return self.node_offsets if level == "node" else self.edge_offsets

    @property
    def arrays(self) -> dict[str, Array]:
        """All that a table holds, by the names of its files: columns, topology and offsets."""
        ragged = {f"{name}_offsets": offsets for name, offsets in self.ragged_offsets.items()}
        offsets = {"node_offsets": self.node_offsets, "edge_offsets": self.edge_offsets}
        return {**self.columns, **ragged, **offsets}

    def column(self, name: str) -> Array:
        """The whole column `name`; the error for an unknown one lists those that there are."""
        if name not in self.schema:
            where = f" of {self.path}" if self.path else ""
            raise DataError(
                f"no column '{name}' in the table{where}; it has {', '.join(self.schema) or 'none'}"
            )
        return self.columns[name]

    def __getitem__(self, index: int) -> Graph:
        """Graph `index` as views of the columns, its edges in the table's order."""
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"graph {index} of a table of {count}")
        i = index % count
        self.check_edges(np.array([i]))
        nodes, edges = (
            slice(*o[i : i + 2].tolist()) for o in (self.node_offsets, self.edge_offsets)
        )
        parts: dict[str, dict[str, Array]] = {name: {} for name in LEVEL_FIELDS.values()}
        for name, column in self.schema.items():
            if column.level == "ragged":
                rows: Any = slice(*self.ragged_offsets[name][i : i + 2].tolist())
            else:
                rows = {"node": nodes, "edge": edges, "graph": i}[column.level]
            parts[LEVEL_FIELDS[column.level]][name] = self.columns[name][rows, ...]
        return Graph(
            num_nodes=nodes.stop - nodes.start,
            senders=self.columns["senders"][edges],
            receivers=self.columns["receivers"][edges],
            **parts,
        )

    def __iter__(self) -> Iterator[Graph]:
        return (self[i] for i in range(len(self)))

    def select(self, graphs: Sequence[int] | Array) -> GraphTable:
        """A table in memory of the graphs with these numbers, in this order."""
        ids = check_ids(self, graphs)
        self.check_edges(ids)
        columns = {}
        for name, values in self.columns.items():
            offsets = self.offsets(name)
            columns[name] = gather_rows(values, offsets[ids], offsets[ids + 1])
        return GraphTable(
            schema=self.schema,
            columns=columns,
            node_offsets=offsets_of(self.num_nodes[ids]),
            edge_offsets=offsets_of(self.num_edges[ids]),
            ragged_offsets={
                name: offsets_of(np.diff(offsets)[ids])
                for name, offsets in self.ragged_offsets.items()
            },
            metadata=self.metadata,
        ).known_right()

    def check_edges(self, graphs: Array | None = None) -> None:
        """Refuse a table in which the edges of these graphs (None: all) contradict themselves.

        The compiled loops follow these numbers without a check of their own. This takes a few
        nanoseconds per edge, and nothing for a table that is `checked`.

        Raises:
            DataError: a number is out of range, edges are not sorted, or a graph's receivers and
                in_start, or its senders, out_order and out_start, disagree; it names the file.
        """
        if self.checked:
            return
        _ = self._offsets_fit
        graphs = np.arange(len(self)) if graphs is None else graphs
        given: Any = [self.columns[name] for name in TOPOLOGY]
        given += [self.node_offsets, self.edge_offsets, graphs]
        code, graph = edges_fault(*given)
        if code == 0:
            return
        names = _FAULTS[code - 1]
        if self.path is not None:
            from weft.graphs.store import check_files

            # The numbers disagree; the checksums tell which of them changed.
            check_files(self.path, names)
        where = " and ".join(map(self._file, names))
        what = "disagree" if len(names) > 1 else "is damaged: a number is out of range"
        raise DataError(f"{where} {what} in graph {graph}; build the table again")

    @cached_property
    def _offsets_fit(self) -> bool:
        self.check_offsets()
        return True

    def check_offsets(self) -> None:
        """Refuse offsets that do not rise from 0 to the length of every column of their level."""
        count = len(self)
        levels = {name: self.schema[name].level for name in self.schema} | TOPOLOGY
        for name, level in levels.items():
            offsets = self.offsets(name)
            rows = self.columns[name].shape[0]
            fits = offsets.shape == (count + 1,) and offsets[0] == 0 and offsets[-1] == rows
            if not (fits and (np.diff(offsets) >= 0).all()):
                whose = {"node": "node_offsets", "edge": "edge_offsets", "graph": "node_offsets"}
                of = whose.get(level, f"{name}_offsets")
                raise DataError(
                    f"{self._file(name)} has {rows} rows, which do not match the offsets of its "
                    f"graphs, {self._file(of)}; build the table again"
                )

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}.npy" if self.path else f"column '{name}'"


def check_ids(table: GraphTable, graphs: Sequence[int] | Array) -> Array:
    """`graphs` as int64 [b], every one a graph of `table`."""
    given = np.asarray(graphs).reshape(-1)
    if given.size and given.dtype.kind not in "iu":
        raise DataError(f"graphs are chosen by number, got {given.dtype} (np.flatnonzero a mask)")
    ids = given.astype(np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= len(table)):
        bad = int(ids[(ids < 0) | (ids >= len(table))][0])
        holds = f"graphs 0 to {len(table) - 1}" if len(table) else "no graphs"
        raise DataError(f"graph {bad} is out of range: the table holds {holds}")
    return ids


def gather_rows(values: Array, starts: Array, stops: Array, *, rows: int | None = None) -> Array:
    """Rows starts[i]:stops[i] of `values` one range after another, padded with 0 to `rows`."""
    real = int((stops - starts).sum())
    out = np.empty((real if rows is None else rows, *values.shape[1:]), dtype=values.dtype)
    # Bytes have one compiled loop for every dtype and row shape.
    width = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    if width:
        copy_ranges(_bytes(values), starts, stops, width, _bytes(out))
    out[real:] = 0
    return out


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def offsets_of(counts: Array) -> Array:
    """CSR offsets int64 [g + 1] of int `counts` [g]."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
