"""DataTable: the graphs of a torch_geometric data set as columns, whose batches are one gather.

A batch equals `Batch.from_data_list` of the same graphs, attribute by attribute. Attributes that no
column holds are collated by torch_geometric.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from weft.graphs import Array
from weft.integrations.geometric.data_columns import (
    Column,
    Padding,
    Picks,
    Row,
    Rows,
    TensorColumn,
)


class DataTable:
    """All graphs of a data set, attribute by attribute.

    Attributes:
        stock: the names of the attributes that torch_geometric collates.
    """

    def __init__(
        self,
        dataset: Any,
        columns: Mapping[str, Column | None],
        num_nodes: Array,
        *,
        counted: bool,
        follow_batch: Sequence[str] = (),
    ) -> None:
        """Connect the parts.

        Args:
            dataset: the graphs, which are read for attributes that torch_geometric collates.
            columns: every attribute in order; None is left to torch_geometric.
            num_nodes: int64 [g], the nodes of each graph.
            counted: graphs have their number of nodes as an attribute.
            follow_batch: attributes that get a vector `<name>_batch` and a `<name>_ptr`.
        """
        self._dataset, self._columns, self._nodes = dataset, dict(columns), num_nodes
        self._counted, self._follow = counted, tuple(follow_batch)
        first = dataset[0]
        self._has_vector: bool = first._store.can_infer_num_nodes
        self._kind = type(first)
        # A copy of an empty Batch is cheaper than making one, but might share what a class of its
        # own puts there.
        usual = self._kind.__init__ is Data.__init__
        self._empty = Batch(_base_cls=self._kind) if usual else None
        self.stock = [name for name, column in columns.items() if column is None]
        self._not_stock = [name for name in first.keys() if name not in self.stock]  # noqa: SIM118
        # Columns with the same rows share them, so that a batch finds them once.
        every: list[Rows] = []
        for column in self._columns.values():
            if isinstance(column, TensorColumn):
                column.rows = _shared(column.rows, every)

    def batch(self, numbers: Array, padding: Padding | None = None) -> Any:
        """The Batch of the graphs with these numbers, int64 [b], followed by the padding's."""
        nodes = self._nodes[numbers]
        if padding is not None:
            numbers = np.append(numbers, [padding.source] * padding.graphs)
            nodes = np.append(nodes, [0] * (padding.graphs - 1) + [padding.nodes])
        picks = Picks(graphs=numbers, nodes=nodes, padding=padding)
        theirs: Any = self._theirs(picks.numbers) if self.stock else None
        values: dict[str, Any] = {}
        slices: dict[str, Any] = {}
        increments: dict[str, Any] = {}
        for name, column in self._columns.items():
            if column is None:
                values[name] = theirs[name]
                slices[name], increments[name] = theirs._slice_dict[name], theirs._inc_dict[name]
            else:
                values[name], slices[name], increments[name] = column.collated(picks)
            if name in self._follow:
                vector, pointers = f"{name}_batch", f"{name}_ptr"
                if column is not None:
                    values[vector] = _graph_of_rows(np.diff(slices[name].numpy()))
                    values[pointers] = slices[name].clone()
                elif vector in theirs:
                    values[vector], values[pointers] = theirs[vector], theirs[pointers]
        if padding is not None and padding.edges:
            # Back and forth between two nodes, as in an undirected graph.
            first, ends = picks.node_offsets[-2], np.arange(padding.edges) % 2
            senders, receivers = values["edge_index"].numpy()[:, -padding.edges :]
            senders[:], receivers[:] = first + ends, first + 1 - ends
        batch = copy.copy(self._empty) if self._empty is not None else Batch(_base_cls=self._kind)
        store = batch._store
        if self._counted:
            store._num_nodes = nodes.tolist()
            values["num_nodes"] = int(nodes.sum())
        if self._has_vector:
            values["batch"] = _graph_of_rows(nodes)
            values["ptr"] = torch.from_numpy(picks.node_offsets.copy())
        # Its own assignments look each name up in several places.
        store._mapping.update(values)
        store._num_graphs, store._slice_dict, store._inc_dict = len(numbers), slices, increments
        return batch

    def _theirs(self, numbers: list[int]) -> Any:
        graphs = [self._dataset[i] for i in numbers]
        return Batch.from_data_list(graphs, self._follow, exclude_keys=self._not_stock)

    def one_number(self, name: str) -> tuple[Array, Array] | None:
        """An attribute of one whole number for each graph, and its nodes: [g] each; else None."""
        column = self._columns.get(name)
        values = column.one_number() if isinstance(column, TensorColumn) else None
        return None if values is None else (values, self._nodes)

    def can_pad(self, num_edges: Array, levels: Mapping[str, Row], labels: Sequence[str]) -> bool:
        """Prepare for padding with these levels of attributes; False where the table cannot.

        Args:
            num_edges: int64 [g], the edges of each graph.
            levels: whether a tensor has a row for each node, for each edge, or for the graph.
            labels: attributes to which nothing is added.
        """
        ends = self._columns.get("edge_index")
        if self.stock or not isinstance(ends, TensorColumn) or len(ends.lines) != 2:
            return False
        sizes = {"node": self._nodes, "edge": num_edges}
        for name, column in self._columns.items():
            level = "edge" if name == "edge_index" else levels.get(name, "graph")
            if level == "graph":
                continue
            if not isinstance(column, TensorColumn):
                return False
            if not np.array_equal(column.rows.sizes, sizes[level]):
                return False
            column.level = level
        for name in labels:
            column = self._columns[name]
            assert isinstance(column, TensorColumn)
            column.without_increments()
        return True

    def padding(self, numbers: Array, nodes: int, edges: int, count: int) -> Padding | None:
        """Padding for a batch that repeats its first edge between two nodes.

        None where it has no such edge.

        Args:
            numbers: int64 [b], the graphs of the batch.
            nodes: to add.
            edges: to add.
            count: graphs to add.
        """
        column = self._columns["edge_index"]
        assert isinstance(column, TensorColumn)
        senders, receivers = column.lines
        for graph in numbers.tolist():
            rows = slice(column.rows.starts[graph], column.rows.stops[graph])
            apart = np.flatnonzero(senders[rows] != receivers[rows])
            if len(apart):
                edge = int(apart[0])
                ends = int(senders[rows][edge]), int(receivers[rows][edge])
                if min(ends) < 0 or max(ends) >= self._nodes[graph]:
                    return None
                return Padding(
                    source=graph, edge=edge, ends=ends, nodes=nodes, edges=edges, graphs=count
                )
        return None


def _shared(rows: Rows, every: list[Rows]) -> Rows:
    """The same rows, as an object that other columns have too."""
    for known in every:
        if np.array_equal(known.starts, rows.starts) and np.array_equal(known.stops, rows.stops):
            return known
    every.append(rows)
    return rows


def _graph_of_rows(sizes: Array) -> Tensor:
    """int64, the number of its graph for each row."""
    return torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
