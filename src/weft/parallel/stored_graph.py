"""The edges of a file, checked and stored as numbers on disk, for graphs beyond memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array
from weft.parallel.external_sort import CHUNK, Records, sorted_by
from weft.runtime import compiled
from weft.sources.config import EdgeColumn
from weft.sources.edge_lists import edge_blocks, index_dtype

Progress = Callable[[str, int | None], Callable[[int], object]]
"""Begins a stage of so many edges, None if unknown; what it gives is called with more of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredGraph:
    """Edges in a folder: senders and receivers, and their weights if they have any.

    Attributes:
        folder: of the files.
        num_nodes: n.
        stored: edges in the files.
        num_edges: e; of an undirected graph both directions count, and only one is stored.
        undirected: each edge goes both ways, and is there once.
        weighted: edges have weights.
        degrees: int64 [2, n], edges that leave and that enter each node.
        loops: bool [n], nodes with an edge to themselves.
    """

    folder: Path
    num_nodes: int
    stored: int
    num_edges: int
    undirected: bool
    weighted: bool
    degrees: Array
    loops: Array

    def chunks(self) -> Iterator[Records]:
        """Senders, receivers and, if there are any, weights of some edges, one after another."""
        for records in _stored(self.folder, self.num_nodes, self.stored, self.weighted):
            yield records
            if self.undirected:
                apart = records[0] != records[1]
                senders, receivers, *weights = (each[apart] for each in records)
                yield receivers, senders, *weights


def store_edges(
    path: Path,
    folder: Path,
    *,
    columns: Sequence[EdgeColumn],
    num_nodes: int,
    called: str,
    directed: bool,
    room: int,
    progress: Progress,
) -> StoredGraph:
    """Read the edges of a file block by block.

    Args:
        path: text, plain or gzip, Parquet or .npy, see `edge_blocks`; nodes are called 0 to n - 1.
        folder: a new one.
        columns: of the file.
        num_nodes: n.
        called: whose rows count the nodes, for the message.
        directed: take edges as they are; otherwise each goes both ways, once, and edges of a node
            to itself are left out unless they have weights.
        room: bytes that may be held beside arrays of nodes.
        progress: shows how far it is.

    Raises:
        DataError: a line is malformed, names a node that is not there, or gives a pair of nodes
            another weight than an earlier one.
    """
    folder.mkdir(parents=True)
    index, weighted = index_dtype(num_nodes), "weight" in columns
    degrees = np.zeros((2, num_nodes), dtype=np.int64)
    loops = np.zeros(num_nodes, dtype=np.bool_)
    done = progress(f"reading {path}", None)
    total = 0
    raw = folder if directed else folder / "listed"
    raw.mkdir(exist_ok=True)
    with (
        (raw / "0").open("wb") as first,
        (raw / "1").open("wb") as second,
        (raw / "2").open("wb") as third,
    ):
        for block in edge_blocks(path, columns=columns):
            ends = block["src"], block["dst"]
            for each in ends:
                _check_ids(path, each, num_nodes, called)
            records = tuple(each.astype(index) for each in ends)
            if not directed:
                records = np.minimum(*records), np.maximum(*records)
            records = (*records, *([block["weight"]] if weighted else []))
            if not directed and not weighted:
                apart = records[0] != records[1]
                records = tuple(each[apart] for each in records)
            total += _append(records, (first, second, third), degrees, loops)
            done(len(ends[0]))
    if directed:
        return StoredGraph(
            folder=folder,
            num_nodes=num_nodes,
            stored=total,
            num_edges=total,
            undirected=False,
            weighted=weighted,
            degrees=degrees,
            loops=loops,
        )
    moved = progress("joining repeated edges", 4 * total)
    low_starts, high_starts = (np.append(0, np.cumsum(each)) for each in degrees)
    listed = _stored(raw, num_nodes, total, weighted)
    by_high = sorted_by(listed, 1, high_starts, folder / "by high", room, moved)
    by_low = sorted_by(by_high, 0, low_starts, folder / "by low", room, moved)
    degrees[:] = 0
    stored, before = 0, None
    with (
        (folder / "0").open("wb") as first,
        (folder / "1").open("wb") as second,
        (folder / "2").open("wb") as third,
    ):
        for number, records in enumerate(by_low):
            if number == 0:
                # All of it is in the buckets by now.
                for file in raw.iterdir():
                    file.unlink()
            records, before = _distinct(path, records, before)
            stored += _append(records, (first, second, third), degrees, loops)
    # So far the lower node of a pair counts as the sender.
    degrees[:] = degrees.sum(axis=0) - loops
    return StoredGraph(
        folder=folder,
        num_nodes=num_nodes,
        stored=stored,
        num_edges=2 * stored - int(np.count_nonzero(loops)),
        undirected=True,
        weighted=weighted,
        degrees=degrees,
        loops=loops,
    )


def _check_ids(path: Path, ids: Array, num_nodes: int, called: str) -> None:
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise DataError(
            f"{path} names node {bad}; {called} has {num_nodes} rows, so nodes are called 0 to "
            f"{num_nodes - 1}"
        )


def _append(records: Records, files: tuple[Any, ...], degrees: Array, loops: Array) -> int:
    """Write the records, count their ends and mark loops; how many there are."""
    for values, file in zip(records, files, strict=False):
        file.write(np.ascontiguousarray(values).data)
    count_ends(records[0], records[1], degrees, loops)
    return len(records[0])


def _stored(folder: Path, num_nodes: int, count: int, weighted: bool) -> Iterator[Records]:
    kinds = [index_dtype(num_nodes)] * 2 + [np.dtype(np.float64)] * weighted
    for first in range(0, count, CHUNK):
        yield tuple(
            np.fromfile(folder / str(number), kind, CHUNK, offset=first * kind.itemsize)
            for number, kind in enumerate(kinds)
        )


def _distinct(path: Path, records: Records, before: Records | None) -> tuple[Records, Records]:
    """The first of equal pairs in sorted records, and the last record; `before` is that before."""
    joined = (
        records
        if before is None
        else tuple(np.concatenate(both) for both in zip(before, records, strict=True))
    )
    same = (joined[0][1:] == joined[0][:-1]) & (joined[1][1:] == joined[1][:-1])
    if len(records) == 3:
        differ = np.flatnonzero(same & (joined[2][1:] != joined[2][:-1]))
        if differ.size:
            at = int(differ[0])
            raise DataError(
                f"{path} gives nodes {joined[0][at]} and {joined[1][at]} the weights "
                f"{joined[2][at]:g} and {joined[2][at + 1]:g}; give a pair one weight, or take "
                "edges as they are (--directed)"
            )
    new = ~same if before is not None else np.append(True, ~same)
    return tuple(each[new] for each in records), tuple(each[-1:] for each in records)


@compiled()
def count_ends(senders: Any, receivers: Any, degrees: Any, loops: Any) -> None:
    """Add to int64 [2, n] the edges that leave and enter; mark nodes with loops in bool [n]."""
    for edge in range(senders.shape[0]):
        degrees[0, senders[edge]] += 1
        degrees[1, receivers[edge]] += 1
        if senders[edge] == receivers[edge]:
            loops[senders[edge]] = True
