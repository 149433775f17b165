"""Sorting edges that do not fit in memory: dealt out to files of buckets, sorted one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.counting_sort import counting_order
from weft.errors import DataError
from weft.graphs import Array

CHUNK = 2**19
"""Records that are handled at a time."""

# What a chunk of them needs on its way: a dozen arrays, read, mapped, dealt out and written. A
# block of text is parsed in less.
_CHUNK_BYTES = 256 * 2**20
# Arrays of nodes: degrees both ways, where rows begin, places, scales, classes and what is drawn.
_NODE_BYTES = 112
_LEAST_BUCKET = 2**24

Records = tuple[Array, ...]
"""Arrays of equal length: a record has a row of each."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a process may hold.

    Attributes:
        limit: bytes in all.
        held: bytes that it held before: libraries, compiled code.
    """

    limit: int
    held: int

    def room(self, num_nodes: int) -> int:
        """Bytes that are left for edges beside the nodes and the chunks on their way.

        Raises:
            DataError: there are too few; the message has the least that would do.
        """
        fixed = self.held + _NODE_BYTES * num_nodes + _CHUNK_BYTES
        if self.limit - fixed < _LEAST_BUCKET:
            raise DataError(
                f"--memory {in_megabytes(self.limit)} is too little to prepare {num_nodes:,} "
                f"nodes: the program itself holds {in_megabytes(self.held)} and the nodes need "
                f"{_NODE_BYTES} bytes each; give at least --memory "
                f"{in_megabytes(fixed + _LEAST_BUCKET)}"
            )
        return self.limit - fixed


def in_megabytes(size: float) -> str:
    """A size for people, rounded up."""
    return f"{-int(-size // 1e6)}MB"


def sorted_by(
    chunks: Iterable[Records],
    key: int,
    starts: Array,
    folder: Path,
    room: int,
    moved: Callable[[int], object] = lambda records: None,
) -> Iterator[Records]:
    """The records in the order of one of their arrays, those of one key as they came.

    They are read once, when the first one is requested.

    Args:
        chunks: of records.
        key: which of the arrays, int [k], below n.
        starts: int64 [n + 1], where each key's records begin in the order.
        folder: for the files of the buckets, a new one; gone at the end.
        room: bytes that may be held.
        moved: called with the number of records, once as they are dealt out, once as they are
            given.
    """
    folder.mkdir()
    bounds: list[int] = []
    bucket_of = np.empty(0, dtype=np.int32)
    kinds: list[tuple[np.dtype[np.generic], tuple[int, ...]]] = []
    most = 0
    for records in chunks:
        if not kinds:
            kinds = [(each.dtype, each.shape[1:]) for each in records]
            # Beside a bucket's records there are their order and one array as it was stored.
            width = sum(_row_bytes(*kind) for kind in kinds)
            most = max(1, room // (width + max(_row_bytes(*kind) for kind in kinds) + 8))
            bounds = _bounds(starts, most)
            sizes = np.diff(bounds)
            bucket_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        bucket = bucket_of[records[key]]
        order = counting_order(bucket, len(bounds) - 1)
        cuts = np.append(0, np.cumsum(np.bincount(bucket, minlength=len(bounds) - 1)))
        for number, values in enumerate(records):
            values = values[order]
            for b in np.flatnonzero(np.diff(cuts)).tolist():
                with (folder / f"{b}.{number}").open("ab") as file:
                    file.write(np.ascontiguousarray(values[cuts[b] : cuts[b + 1]]).data)
        moved(len(bucket))
    del bucket_of
    for b in range(len(bounds) - 1):
        first, stop = bounds[b], bounds[b + 1]
        count = int(starts[stop] - starts[first])
        files = [folder / f"{b}.{number}" for number in range(len(kinds))]
        if count > most:
            # One key alone: its records are in order, and are never all in memory.
            assert stop == first + 1
            for begin in range(0, count, CHUNK):
                yield tuple(
                    _read(file, kind, begin, min(CHUNK, count - begin))
                    for file, kind in zip(files, kinds, strict=True)
                )
                moved(min(CHUNK, count - begin))
        elif count:
            order = counting_order(_read(files[key], kinds[key]) - first, stop - first)
            ordered = [_read(f, kind)[order] for f, kind in zip(files, kinds, strict=True)]
            del order
            for begin in range(0, count, CHUNK):
                # Copies: a part that somebody still has would keep the whole bucket in memory.
                yield tuple(values[begin : begin + CHUNK].copy() for values in ordered)
                moved(min(CHUNK, count - begin))
            del ordered
        for path in files:
            path.unlink(missing_ok=True)
    folder.rmdir()


def _bounds(starts: Array, most: int) -> list[int]:
    """Where buckets of at most so many records begin, or of one key with more."""
    bounds, keys = [0], len(starts) - 1
    while bounds[-1] < keys:
        low = bounds[-1]
        stop = int(np.searchsorted(starts, starts[low] + most, side="right")) - 1
        bounds.append(min(max(stop, low + 1), keys))
    return bounds


def _row_bytes(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> int:
    return dtype.itemsize * int(np.prod(shape))


def _read(
    file: Path,
    kind: tuple[np.dtype[np.generic], tuple[int, ...]],
    first: int = 0,
    count: int | None = None,
) -> Array:
    dtype, shape = kind
    row = int(np.prod(shape))
    number = -1 if count is None else count * row
    found: Array = np.fromfile(file, dtype, number, offset=first * row * dtype.itemsize)
    return found.reshape(-1, *shape)
