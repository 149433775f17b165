"""Tables on disk: a folder with one .npy file a column and a manifest that is written last."""

from __future__ import annotations

import json
import mmap
import os
import secrets
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.errors import DataError
from weft.files import read_object
from weft.graphs.build import table_from_graphs
from weft.graphs.graph import TOPOLOGY, Array, Column, Graph, Schema, check_schema, infer_schema
from weft.graphs.table import GraphTable

FORMAT = "weft graph table"
VERSION = 1
MANIFEST = "table.json"
# Tables up to this size are checked to the last byte when they are opened (about 0.1 s).
CHECK_BYTES = 128 * 2**20
_CHUNK_GRAPHS = 2048
_CHUNK_BYTES = 32 * 2**20


def write_table(
    path: str | Path,
    graphs: Iterable[Graph | GraphTable],
    schema: Schema | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> GraphTable:
    """Write graphs (or tables in memory, one after another) to the folder `path` and open it.

    Memory stays bounded: graphs are taken in chunks and streamed to disk. The folder appears
    under its name only when it is whole; on any failure nothing is left behind.

    Raises:
        DataError: a graph that does not fit the schema; `path` exists already.
        OSError: the disk is full or not writable; it names the file.
    """
    try:
        json.dumps(dict(metadata or {}))
    except TypeError as error:
        raise DataError(f"{path}: metadata must be JSON values: {error}") from None
    with TableWriter(path) as writer:
        _write(writer, _chunks(graphs, schema), schema, dict(metadata or {}))
    return open_table(path)


def _chunks(graphs: Iterable[Graph | GraphTable], schema: Schema | None) -> Iterator[GraphTable]:
    """Tables of some graphs each; one without graphs if there are none but a schema."""
    waiting: list[Graph] = []
    size = first = 0
    for item in graphs:
        is_table = isinstance(item, GraphTable)
        full = len(waiting) >= _CHUNK_GRAPHS or size >= _CHUNK_BYTES
        if waiting and (is_table or full):
            yield table_from_graphs(waiting, schema, first=first)
            first += len(waiting)
            waiting, size = [], 0
        if isinstance(item, GraphTable):
            yield item
            first += len(item)
        else:
            schema = infer_schema(item) if schema is None else schema
            waiting.append(item)
            size += item.num_bytes
    if waiting or (first == 0 and schema is not None):
        yield table_from_graphs(waiting, schema, first=first)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's name into an OSError such as a full disk; write() itself does not know it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class _ColumnFile:
    """A .npy file that grows: numpy leaves room in the header for the final number of rows."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self.rows, self.crc = 0, 0
        self.file: BinaryIO = path.open("w+b")
        self._header()

    def _header(self) -> None:
        self.file.seek(0)
        np.lib.format.write_array_header_1_0(
            self.file,
            {
                "descr": np.lib.format.dtype_to_descr(self.dtype),
                "fortran_order": False,
                "shape": (self.rows, *self.shape),
            },
        )
        self._begin = self.file.tell()

    def append(self, values: Array) -> None:
        if not np.can_cast(values.dtype, self.dtype, "safe"):
            raise DataError(
                f"column '{self.path.stem}' is {self.dtype} in the first chunk and {values.dtype} "
                "in a later one; write the largest graphs first"
            )
        data = np.ascontiguousarray(values, dtype=self.dtype).reshape(-1).view(np.uint8).data
        self.crc = zlib.crc32(data, self.crc)
        with _naming(self.path):
            self.file.write(data)
        self.rows += values.shape[0]

    def read(self, first: int, stop: int) -> Array:
        with _naming(self.path):
            self.file.flush()
        row = self.dtype.itemsize * int(np.prod(self.shape))
        count = (min(stop, self.rows) - first) * int(np.prod(self.shape))
        found = np.fromfile(self.path, self.dtype, count, offset=self._begin + first * row)
        return found.reshape(-1, *self.shape)

    def close(self) -> None:
        with _naming(self.path):
            self._header()
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def discard(self) -> None:
        # On a full disk closing fails once more; the first error, with its file, is the one to see.
        with suppress(OSError):
            self.file.close()

    def entry(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype.name,
            "shape": [self.rows, *self.shape],
            "bytes": self.path.stat().st_size,
            "crc32": self.crc,
        }


class TableWriter:
    """A table that is written column by column, in chunks; it appears whole, or not at all."""

    def __init__(self, path: str | Path) -> None:
        """Begin the table of that folder.

        Raises:
            DataError: `path` exists already.
        """
        self.path = Path(path)
        if self.path.exists():
            raise DataError(f"{path} exists already; remove it first or choose another name")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = self.path.parent / f".{self.path.name}.{secrets.token_hex(4)}.partial"
        self._folder.mkdir()
        self._files: dict[str, _ColumnFile] = {}

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.discard()
        shutil.rmtree(self._folder, ignore_errors=True)

    def append(self, name: str, values: Array) -> None:
        """Add rows to an array; the first ones decide its dtype and width."""
        if name not in self._files:
            path = self._folder / f"{name}.npy"
            self._files[name] = _ColumnFile(path, values.dtype, values.shape[1:])
        self._files[name].append(values)

    def rows(self, name: str) -> int:
        """How many rows an array has so far."""
        return self._files[name].rows if name in self._files else 0

    def read(self, name: str, first: int, stop: int) -> Array:
        """Rows first:stop of what was written, a copy: pages of a mapped file would be held."""
        return self._files[name].read(first, stop)

    def remove(self, name: str) -> None:
        """Leave out an array that was written."""
        file = self._files.pop(name)
        file.discard()
        file.path.unlink()

    def entries(self) -> dict[str, dict[str, Any]]:
        """Dtype, shape, size and CRC-32 of each array so far, by name."""
        return {name: file.entry() for name, file in sorted(self._files.items())}

    def finish(self, schema: Schema, metadata: dict[str, Any]) -> None:
        """Let the table appear, with all that was appended."""
        for file in self._files.values():
            file.close()
        manifest = {
            "columns": {name: asdict(column) for name, column in schema.items()},
            "arrays": self.entries(),
            "metadata": metadata,
        }
        _write_manifest(self._folder / MANIFEST, manifest)
        self._folder.rename(self.path)


def _write(
    writer: TableWriter,
    chunks: Iterable[GraphTable],
    schema: Schema | None,
    metadata: dict[str, Any],
) -> None:
    totals: Counter[str] = Counter()
    for chunk in chunks:
        schema = chunk.schema if schema is None else schema
        if dict(chunk.schema) != dict(schema):
            raise DataError(
                f"chunks have different columns: {sorted(chunk.schema)} after {sorted(schema)}"
            )
        chunk.check_edges()
        for name, values in chunk.arrays.items():
            if name.endswith("_offsets"):
                # A chunk's first offset is 0, the last one of the chunks before.
                rows, values = int(values[-1]), values[writer.rows(name) > 0 :] + totals[name]
                totals[name] += rows
            writer.append(name, values)
        del chunk, values  # not held while the next one is built
    if schema is None:
        raise DataError("no graphs to write and no schema: the columns are unknown")
    writer.finish(schema, metadata)


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    body = json.dumps(manifest)
    whole = {"format": FORMAT, "version": VERSION, "crc32": zlib.crc32(body.encode()), **manifest}
    with _naming(path), path.open("w", encoding="utf-8") as file:
        json.dump(whole, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def open_table(path: str | Path, check: bool | None = None) -> GraphTable:
    """Map the table in the folder `path`.

    Structure, sizes, and the checksums of all offsets are always checked. `check` decides whether
    the checksum of every other byte is too: by default for tables up to 128 MiB. The edges of a
    larger table are checked as they are read, see `GraphTable.check_edges`.

    Raises:
        DataError: not a table, another format version, a file that is missing, cut or corrupted;
            the message names the file and what to do.
    """
    path = Path(path)
    manifest = _read_manifest(path)
    try:
        schema = {
            name: Column(**{**entry, "shape": tuple(entry["shape"])})
            for name, entry in manifest["columns"].items()
        }
        check_schema(schema)
        arrays = _check_arrays(manifest["arrays"], schema)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path / MANIFEST} is damaged ({error}); build the table again") from None
    if check is None:
        check = sum(entry["bytes"] for entry in arrays.values()) <= CHECK_BYTES
    ragged = [name for name, column in schema.items() if column.level == "ragged"]
    mapped = {name: _map_array(path / f"{name}.npy", arrays[name], check) for name in arrays}
    table = GraphTable(
        schema=schema,
        columns={name: mapped[name] for name in [*TOPOLOGY, *schema]},
        node_offsets=mapped["node_offsets"],
        edge_offsets=mapped["edge_offsets"],
        ragged_offsets={name: mapped[f"{name}_offsets"] for name in ragged},
        metadata=manifest["metadata"],
        path=path,
    )
    table.check_offsets()
    if check:
        return table.known_right()
    # The sizes of graphs can be checked against nothing but their checksums.
    check_files(path, [name for name in arrays if name.endswith("_offsets")])
    return table


def check_files(path: Path, names: Iterable[str]) -> None:
    """Refuse a table of which one of these arrays is not what was written: it names the file."""
    entries = _read_manifest(path)["arrays"]
    for name in names:
        _map_array(path / f"{name}.npy", entries[name], check=True)


def array_sums(path: Path) -> dict[str, int]:
    """The CRC-32 of each array of the table in a folder, as its manifest has them.

    Raises:
        DataError: the folder holds no table, or its manifest is damaged.
    """
    try:
        arrays = _read_manifest(path)["arrays"]
        return {name: int(entry["crc32"]) for name, entry in arrays.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path / MANIFEST} is damaged ({error!r}); build the table again"
        ) from None


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        raise DataError(f"{path} is not a graph table: it has no {MANIFEST}")
    fields = {"format": object, "version": object}
    # A user's metadata may have any number.
    whole = read_object(file, fields, remedy="build the table again", finite=False)
    found, version = whole["format"], whole["version"]
    if found != FORMAT:
        raise DataError(f"{file} says format {found!r}, not {FORMAT!r}")
    if version != VERSION:
        raise DataError(
            f"{file} has format version {version}; this weft reads version {VERSION}. "
            "Build the table again with this weft, or open it with the one that wrote it"
        )
    manifest = {key: whole.get(key) for key in ("columns", "arrays", "metadata")}
    if whole.get("crc32") != zlib.crc32(json.dumps(manifest).encode()):
        raise DataError(f"{file} is damaged (its checksum is wrong); build the table again")
    return manifest


def _check_arrays(arrays: dict[str, Any], schema: Schema) -> dict[str, dict[str, Any]]:
    """The manifest's entries of the arrays that this schema needs, each of the right kind."""
    ragged = [f"{name}_offsets" for name, column in schema.items() if column.level == "ragged"]
    wanted: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
        **dict.fromkeys(("node_offsets", "edge_offsets", *ragged), (("int64",), ())),
        **dict.fromkeys(TOPOLOGY, (("int32", "int64"), ())),
        **{name: ((np.dtype(c.dtype).name,), tuple(c.shape)) for name, c in schema.items()},
    }
    for name, (dtypes, row) in wanted.items():
        if name not in arrays:
            raise DataError(f"it lists no array '{name}'")
        entry = arrays[name]
        sizes = [*entry["shape"], entry["bytes"], entry["crc32"]]
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise DataError(f"the sizes of array '{name}' are not whole numbers")
        if entry["dtype"] not in dtypes or tuple(entry["shape"][1:]) != row or not entry["shape"]:
            raise DataError(
                f"array '{name}' is {entry['dtype']}{entry['shape']}, which is not its column's"
            )
    if arrays["node_offsets"]["shape"] == [0]:
        raise DataError("array 'node_offsets' has no rows")
    return {name: arrays[name] for name in wanted}


def _map_array(file: Path, entry: dict[str, Any], check: bool) -> Array:
    try:
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise DataError(
                f"{file} has {size} bytes, {entry['bytes']} expected: it was cut or overwritten; "
                "build the table again"
            )
        mapped = np.load(file, mmap_mode="r" if all(entry["shape"]) else None, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{file} is missing; build the table again") from None
    except DataError:
        raise
    except Exception as error:  # numpy parses the header: a flipped byte there can raise anything
        raise DataError(f"{file} is damaged ({error}); build the table again") from None
    array: Array = np.asarray(mapped)
    # Dtypes, not their names: '>f4' is called float32 too.
    if list(array.shape) != entry["shape"] or array.dtype != np.dtype(entry["dtype"]):
        raise DataError(
            f"{file} holds {array.dtype}{list(array.shape)}, "
            f"{entry['dtype']}{entry['shape']} expected; build the table again"
        )
    if check and _crc32(array) != entry["crc32"]:
        raise DataError(f"{file} is damaged (its checksum is wrong); build the table again")
    return array


def _crc32(array: Array) -> int:
    """The checksum of a mapped array, of which a part is in memory at a time."""
    data, found = array.reshape(-1).view(np.uint8), 0
    for first in range(0, len(data), _CHUNK_BYTES):
        found = zlib.crc32(data[first : first + _CHUNK_BYTES].data, found)
        if len(data) > _CHUNK_BYTES:
            release(array)
    return found


def release(values: Array) -> None:
    """Release the pages of a mapped file that were read; otherwise they count as used memory."""
    base: object = values
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
