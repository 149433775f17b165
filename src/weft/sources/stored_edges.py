"""Edges out of Parquet files, by the names of their columns, and out of .npy files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array
from weft.graphs.store import release
from weft.sources.config import EdgeColumn
from weft.sources.edge_lists import HEADINGS, IdKind
from weft.sources.node_files import read_npy
from weft.sources.parquet_files import (
    numbers_of,
    open_parquet,
    parquet_errors,
    refuse_nulls,
    texts_of,
)

_BLOCK_EDGES = 2**19


def stored_edge_blocks(
    path: Path, columns: Sequence[EdgeColumn], ids: IdKind, names: dict[bytes, int]
) -> Iterator[dict[str, Array]]:
    """The edges of a `.parquet` or `.npy` file, see `weft.sources.edge_lists.edge_blocks`."""
    if path.suffix == ".npy":
        yield from _npy_blocks(path, columns)
        return
    row = 0
    for batch in _parquet_batches(path, columns):
        block: dict[str, Array] = {}
        for role, values in batch.items():
            if role in ("src", "dst"):
                block[role] = _ids(path, role, values, ids, names, row)
            else:
                block[role] = _finite(path, role, numbers_of(path, role, values), row)
        row += len(block["src"])
        yield block


def stored_edges(path: Path) -> int:
    """How many edges a `.parquet` or `.npy` file has."""
    if path.suffix == ".npy":
        return read_npy(path).size // 2
    return int(open_parquet(path).metadata.num_rows)


def _npy_blocks(path: Path, columns: Sequence[EdgeColumn]) -> Iterator[dict[str, Array]]:
    if tuple(columns) != ("src", "dst"):
        raise DataError(f"{path} holds edges alone, but {' '.join(columns)} is requested")
    array = read_npy(path)
    if array.dtype.kind not in "iu" or array.ndim != 2 or 2 not in array.shape:
        raise DataError(
            f"{path} is {array.dtype}{list(array.shape)}; whole numbers [e, 2] or [2, e] are needed"
        )
    # A column of two edges could be either; NumPy users have edge_index [2, e].
    by_rows = array.shape[0] != 2
    for first in range(0, array.shape[0 if by_rows else 1], _BLOCK_EDGES):
        part = slice(first, first + _BLOCK_EDGES)
        ends = array[part].T if by_rows else array[:, part]
        yield {
            "src": _signed(path, "its first column", ends[0], first),
            "dst": _signed(path, "its second column", ends[1], first),
        }
        release(array)


def _parquet_batches(path: Path, columns: Sequence[EdgeColumn]) -> Iterator[dict[str, Any]]:
    """The wanted columns of a Parquet file, some rows at a time, as arrays of pyarrow."""
    file = open_parquet(path)
    there = file.schema_arrow.names
    called = {HEADINGS[name.lower()]: name for name in there if name.lower() in HEADINGS}
    if all(role in called for role in columns):
        chosen = {role: called[role] for role in columns}
    elif len(there) == len(columns):
        chosen = dict(zip(columns, there, strict=True))
    else:
        raise DataError(
            f"{path} has the columns {', '.join(there)}; which are {' '.join(columns)} is not "
            "clear: name them so in the file, or keep these alone, in this order"
        )
    with parquet_errors(path):
        first = 0
        for batch in file.iter_batches(batch_size=_BLOCK_EDGES, columns=list(chosen.values())):
            for name in chosen.values():
                refuse_nulls(path, name, batch.column(name), first)
            first += batch.num_rows
            yield {role: batch.column(name) for role, name in chosen.items()}


def _ids(
    path: Path, role: str, values: Any, ids: IdKind, names: dict[bytes, int], first: int
) -> Array:
    """Whole numbers as they are; names by their numbers in `names`."""
    from pyarrow import types

    if types.is_integer(values.type) and ids != "text":
        return _signed(path, f"the column of '{role}'", numbers_of(path, role, values), first)
    if ids == "integer":
        raise DataError(
            f"{path}: the column of '{role}' holds {values.type}; whole numbers are needed, unless "
            "--features is a table whose first column names the nodes"
        )
    number = names.setdefault
    return np.array(
        [number(name.encode(), len(names)) for name in texts_of(path, role, values)], dtype=np.int64
    )


def _signed(path: Path, what: str, values: Array, first: int) -> Array:
    if values.dtype == np.uint64 and (values >= 2**63).any():
        row = int(np.argmax(values >= 2**63))
        raise DataError(
            f"{path}: {what} is {values[row]} in row {first + row}, which does not fit int64"
        )
    return values.astype(np.int64)


def _finite(path: Path, role: str, values: Array, first: int) -> Array:
    wide = values.astype(np.float64)
    bad = ~np.isfinite(wide) if role == "weight" else ~(np.isfinite(wide) & (wide >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"{path}: the {role} is {wide[row]:g} in row {first + row}")
    return wide
