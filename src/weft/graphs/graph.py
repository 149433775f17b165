"""One graph in memory: what sources yield, what a table gives back, what converters exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import DataError

Array = npt.NDArray[Any]


def _no_edges() -> Array:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A directed multigraph with columns of numpy arrays. Messages flow sender -> receiver.

    Attributes:
        num_nodes: n, the number of nodes; isolated nodes count.
        senders: int [e], the node each edge leaves.
        receivers: int [e], the node each edge enters.
        nodes: node columns, each [n, ...].
        edges: edge columns, each [e, ...].
        graph: columns of the whole graph, each [...] (a scalar is a 0-d array).
        ragged: columns of any length, each [k, ...]: text as UTF-8 bytes, candidate lists.
    """

    num_nodes: int
    senders: Array = field(default_factory=_no_edges)
    receivers: Array = field(default_factory=_no_edges)
    nodes: Mapping[str, Array] = field(default_factory=dict)
    edges: Mapping[str, Array] = field(default_factory=dict)
    graph: Mapping[str, Array] = field(default_factory=dict)
    ragged: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Lists and CPU tensors are welcome; what is stored is numpy.
        for name in ("senders", "receivers"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        for name in ("nodes", "edges", "graph", "ragged"):
            columns = {key: np.asarray(values) for key, values in getattr(self, name).items()}
            object.__setattr__(self, name, columns)

    @property
    def num_edges(self) -> int:
        """The number of edges e."""
        return int(self.senders.shape[0])

    @property
    def num_bytes(self) -> int:
        """Size of the edges and all columns in bytes."""
        levels = (self.nodes, self.edges, self.graph, self.ragged)
        columns = sum(np.asarray(values).nbytes for level in levels for values in level.values())
        return int(self.senders.nbytes + self.receivers.nbytes + columns)

    def validate(self, name: str = "graph") -> None:
        """Check lengths and edge ends; raise DataError naming the field. `name` says which graph.

        Whether values are finite is the table's business: its columns say where NaN means missing.
        """
        if self.num_nodes < 0:
            raise DataError(f"{name}: num_nodes is {self.num_nodes}; it must be 0 or more")
        for field_name in ("senders", "receivers"):
            ends = getattr(self, field_name)
            if ends.ndim != 1 or ends.dtype.kind not in "iu":
                raise DataError(
                    f"{name}: {field_name} must be a vector of integers, "
                    f"got {ends.dtype}{list(ends.shape)}"
                )
            if ends.size and (ends.min() < 0 or ends.max() >= self.num_nodes):
                where = int(np.flatnonzero((ends < 0) | (ends >= self.num_nodes))[0])
                raise DataError(
                    f"{name}: edge {where} has {field_name} = {ends[where]}, out of range for "
                    f"{self.num_nodes} nodes (0 to {self.num_nodes - 1})"
                )
        if self.senders.shape != self.receivers.shape:
            raise DataError(
                f"{name}: {self.senders.shape[0]} senders but {self.receivers.shape[0]} receivers"
            )
        for level, columns, rows in (
            ("node", self.nodes, self.num_nodes),
            ("edge", self.edges, self.num_edges),
        ):
            for column, values in columns.items():
                if values.ndim == 0 or values.shape[0] != rows:
                    raise DataError(
                        f"{name}: {level} column '{column}' has shape {list(values.shape)}; "
                        f"its first dimension must be {rows}, the number of {level}s"
                    )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The padded size of a batch. One node and one graph are kept for the padding.

    Attributes:
        nodes: N, room for N - 1 real nodes.
        edges: E, room for E real edges.
        graphs: G, room for G - 1 real graphs.
    """

    nodes: int
    edges: int
    graphs: int
