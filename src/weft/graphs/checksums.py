"""Checksums that identify data: of columns in their order, of edges in any order."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from weft.errors import DataError
from weft.graphs.graph import Array, Graph
from weft.graphs.store import MANIFEST, array_sums
from weft.graphs.table import GraphTable

_CHUNK_BYTES = 2**24
# Small enough for the cache: a chunk is passed over a dozen times.
_CHUNK_EDGES = 2**15
# Odd numbers without a pattern, which spread what they are multiplied with over 64 bits.
_SENDER, _RECEIVER, _WEIGHT, _MIX = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xBF58476D1CE4E5B9],
    dtype=np.uint64,
)


def checksum(values: Array) -> str:
    """Dtype, shape and CRC-32 of an array, in its order; of names, if it holds objects."""
    if values.dtype == object:
        text = "\n".join(map(str, values)).encode()
        return f"names{list(values.shape)} {zlib.crc32(text):08x}"
    return _described(values, _crc32(values))


def _described(values: Array, crc: int) -> str:
    return f"{values.dtype.name}{list(values.shape)} {crc:08x}"


def _crc32(values: Array) -> int:
    row = max(1, values.itemsize * int(np.prod(values.shape[1:])))
    step, found = max(1, _CHUNK_BYTES // row), 0
    # In chunks: what is not contiguous, or is mapped, is never copied whole.
    for first in range(0, len(values), step):
        part = np.ascontiguousarray(values[first : first + step])
        found = zlib.crc32(part.reshape(-1).view(np.uint8).data, found)
    return found


def edges_checksum(senders: Array, receivers: Array, weights: Array | None = None) -> str:
    """A checksum of edges, or of weighted ones, that does not depend on their order.

    Args:
        senders: int [e].
        receivers: int [e].
        weights: a number for each edge, [e].
    """
    return sum_text(len(senders), edges_sum(senders, receivers, weights))


def sum_text(num_edges: int, total: int) -> str:
    """The checksum of so many edges whose `edges_sum` is `total`, modulo 2^64."""
    return f"{num_edges} {total % 2**64:016x}"


def edges_sum(senders: Array, receivers: Array, weights: Array | None = None) -> int:
    """What `edges_checksum` is made of: the sum over parts is that of all edges, modulo 2^64."""
    total = np.zeros((), dtype=np.uint64)
    for first in range(0, len(senders), _CHUNK_EDGES):
        part = slice(first, first + _CHUNK_EDGES)
        mixed = senders[part].astype(np.int64).view(np.uint64) * _SENDER
        mixed += receivers[part].astype(np.int64).view(np.uint64) * _RECEIVER
        if weights is not None:
            mixed += weights[part].astype(np.float64).view(np.uint64) * _WEIGHT
        mixed ^= mixed >> np.uint64(32)
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(29)
        total += mixed.sum(dtype=np.uint64)
    return int(total)


def graph_checksums(graph: Graph) -> dict[str, str]:
    """Checksums of a graph's edges and of each of its columns, by name."""
    ends = graph.senders, graph.receivers
    found = {"edges": edges_checksum(*ends)}
    for name, values in graph.edges.items():
        plain = values.ndim == 1 and values.dtype.kind in "fiub"
        found[name] = edges_checksum(*ends, values) if plain else checksum(values)
    for columns in (graph.nodes, graph.ragged, graph.graph):
        found |= {name: checksum(np.atleast_1d(values)) for name, values in columns.items()}
    return found


def column_sums(table: GraphTable, names: Iterable[str]) -> dict[str, int]:
    """CRC-32 of arrays of a table; of a mapped one as its manifest has them: nothing is read.

    Raises:
        DataError: the manifest is gone or changed.
    """
    arrays = {name: table.arrays[name] for name in names}
    if table.path is None:
        return {name: _crc32(values) for name, values in arrays.items()}
    try:
        listed = array_sums(table.path)
        return {name: listed[name] for name in arrays}
    except (DataError, KeyError) as error:
        raise DataError(
            f"{table.path / MANIFEST} changed since the table was opened ({error}); "
            "start again when the table is whole"
        ) from None


def table_checksums(table: GraphTable, names: Iterable[str] | None = None) -> dict[str, str]:
    """Checksums of a table's columns, of those in `names` that it has, and of its graphs' sizes."""
    arrays = table.arrays
    wanted = None if names is None else {*names, "node_offsets"}
    found = [name for name in arrays if wanted is None or name in wanted]
    sums = column_sums(table, found)
    return {name: _described(arrays[name], crc) for name, crc in sums.items()}
