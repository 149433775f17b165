"""What the columns of a table are: level, dtype, row shape, unit, and whether NaN means missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from weft.errors import DataError
from weft.graphs.graph import Graph

Level = Literal["node", "edge", "graph", "ragged"]

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
            has any number of rows a graph.
        dtype: numpy dtype name, such as `float32`.
        shape: shape of one row; `()` for scalars, `(3,)` for positions.
        missing: NaN is allowed and means "not measured"; elsewhere a non-finite value is an error.
        unit: physical unit, such as `eV` or `Å`; empty for none.
        doc: one line for people.
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
    levels: list[tuple[Level, Mapping[str, np.ndarray]]] = [
        ("node", graph.nodes),
        ("edge", graph.edges),
        ("graph", graph.graph),
        ("ragged", graph.ragged),
    ]
    for level, columns in levels:
        for name, values in columns.items():
            if name in schema:
                raise DataError(
                    f"two columns are called '{name}' (level {schema[name].level} and {level}); "
                    "names are unique within a table"
                )
            array = np.asarray(values)
            row = array.shape if level == "graph" else array.shape[1:]
            schema[name] = Column(level=level, dtype=array.dtype.name, shape=row)
    check_schema(schema)
    return schema
