"""One graph in memory, and what the columns of a table of graphs are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from weft.errors import DataError

Array = npt.NDArray[Any]
Level = Literal["node", "edge", "graph", "ragged"]

LEVEL_FIELDS: dict[Level, str] = {
    "node": "nodes",
    "edge": "edges",
    "graph": "graph",
    "ragged": "ragged",
}
"""The field of a Graph that has the columns of each level."""


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
        for name in LEVEL_FIELDS.values():
            columns = {key: np.asarray(values) for key, values in getattr(self, name).items()}
            object.__setattr__(self, name, columns)

    @property
    def num_edges(self) -> int:
        """The number of edges e."""
        return int(self.senders.shape[0])

    @property
    def num_bytes(self) -> int:
        """Size of the edges and all columns in bytes."""
        columns = [getattr(self, name) for name in LEVEL_FIELDS.values()]
        sizes = [values.nbytes for level in columns for values in level.values()]
        return int(self.senders.nbytes + self.receivers.nbytes + sum(sizes))

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


TOPOLOGY: dict[str, Level] = {
    "senders": "edge",
    "receivers": "edge",
    "out_order": "edge",
    "in_start": "node",
    "out_start": "node",
}
"""Columns that a table writes itself from senders and receivers; no schema may name them."""

# A column's name is also its file's name: nothing that could leave the folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*")
_KINDS = "biuf"
# The arrays of a ragged column `node` would be called like the table's own.
_OWN_OFFSETS = ("node", "edge")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One typed column.

    Attributes:
        level: `node`, `edge` and `graph` columns have a row for each of those; a `ragged` column
            has any number of rows in a graph.
        dtype: numpy dtype name, such as `float32`.
        shape: shape of one row; `()` for scalars, `(3,)` for positions.
        missing: NaN is allowed and means "not measured"; elsewhere a non-finite value is an error.
        unit: physical unit, such as `eV` or `Å`; empty for none.
        doc: one line that describes it.
    """

    level: Level
    dtype: str
    shape: tuple[int, ...] = ()
    missing: bool = False
    unit: str = ""
    doc: str = ""

    def __post_init__(self) -> None:
        # float32, np.float32 and "<f4" are one dtype; what numpy does not know is refused later.
        with suppress(TypeError):
            object.__setattr__(self, "dtype", np.dtype(self.dtype).name)
        object.__setattr__(self, "shape", tuple(self.shape))


Schema = Mapping[str, Column]


def check_schema(schema: Schema) -> None:
    """Raise DataError for a name, level or dtype that a table cannot hold."""
    for name, column in schema.items():
        if not _NAME.fullmatch(name) or name in TOPOLOGY or name.endswith("_offsets"):
            raise DataError(
                f"column name {name!r} is not usable: letters, digits, '_' and '-' only, "
                f"not ending in '_offsets' and none of {sorted(TOPOLOGY)}"
            )
        if column.level == "ragged" and name in _OWN_OFFSETS:
            raise DataError(f"a ragged column cannot be called '{name}'; choose another name")
        if column.level not in get_args(Level):
            raise DataError(
                f"column '{name}' has level {column.level!r}; choose from {list(get_args(Level))}"
            )
        try:
            dtype = np.dtype(column.dtype)
            storable = dtype.kind in _KINDS and dtype.itemsize <= 8
        except TypeError:
            storable = False
        if not storable:
            raise DataError(
                f"column '{name}' has dtype {column.dtype!r}; only booleans, integers and floats "
                "of up to 64 bits can be stored (text: encode it as a ragged uint8 column)"
            )


def infer_schema(graph: Graph) -> dict[str, Column]:
    """The schema of the tables that hold graphs like this one (no column may miss values)."""
    schema: dict[str, Column] = {}
    for level, field_name in LEVEL_FIELDS.items():
        for name, values in getattr(graph, field_name).items():
            if name in schema:
                raise DataError(
                    f"two columns are called '{name}' (level {schema[name].level} and {level}); "
                    "names are unique within a table"
                )
            row = values.shape if level == "graph" else values.shape[1:]
            schema[name] = Column(level=level, dtype=values.dtype.name, shape=row)
    check_schema(schema)
    return schema
