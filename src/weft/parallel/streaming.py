"""The table that ranks read, made of edges that stay on disk: the same as `prepare` makes.

Arrays of nodes are in memory; edges pass through it in chunks, sorted with files of buckets: by
sender, then by receiver, and for the transpose by sender again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable, open_table
from weft.graphs.checksums import edges_sum, sum_text
from weft.graphs.store import TableWriter, release
from weft.parallel.balance import dealt_out, panel_nonzeros
from weft.parallel.external_sort import CHUNK, Budget, Records, in_megabytes, sorted_by
from weft.parallel.grid import Grid
from weft.parallel.partition import Partition, blocks_in_order, partition_nodes
from weft.parallel.prepare import (
    ROWS_HASHED,
    SortedEdges,
    _inverse,
    about,
    check_finite,
    checked_graph,
    contents,
    described_table,
    original,
)
from weft.parallel.shard import fingerprint_from
from weft.parallel.stored_graph import Progress, StoredGraph

# Bytes for each edge, beside 16 to load it: METIS and `volume` took 99 for R-MAT, RCM less.
_WHOLE_BYTES = {"metis": 125, "volume": 125, "rcm": 60}
# A page that is touched maps its neighbours, 64 KB in all, and a pair of nodes touches four.
_PAIR_BYTES = 4 * 2**16


def prepare_stored(
    graph: StoredGraph,
    nodes: Mapping[str, Array],
    x: Array,
    scaled: Callable[[Array], Array],
    folder: Path,
    *,
    scratch: Path,
    budget: Budget,
    blocks: int,
    partition: str,
    normalisation: str,
    dtype: str,
    target: str = "auto",
    seed: int = 0,
    grid: Grid | None = None,
    progress: Progress,
) -> GraphTable:
    """The table of `weft.parallel.prepare`, to the byte, within a limit of memory.

    Args:
        graph: the edges.
        nodes: columns of the nodes but `x`.
        x: [n, f], mapped.
        scaled: makes features of some rows of x, float32 or float64.
        folder: a new one, for the table.
        scratch: a folder for what is needed meanwhile.
        budget: the limit.
        blocks: see `prepare`, as the others up to `grid`.
        partition: `metis`, `volume` and `rcm` need the edges in memory.
        normalisation: of the matrix.
        dtype: of its entries.
        target: what is learned.
        seed: of the partition.
        grid: of the ranks.
        progress: shows how far it is.

    Raises:
        DataError: as `prepare`, or the limit is too small; the message has the least that would do.
    """
    grid = grid or Grid(rows=max(1, blocks))
    room, num_nodes = budget.room(graph.num_nodes), graph.num_nodes
    none = np.empty(0, dtype=np.int32)
    # Without edges and with features of no width, what is checked and described is the nodes.
    bare = {**nodes, "x": np.empty((num_nodes, 0), dtype=np.float32)}
    kind, checked = checked_graph(
        Graph(num_nodes=num_nodes, senders=none, receivers=none, nodes=bare), target
    )
    parts = _partition(graph, blocks, partition, seed, grid, scratch, room, budget, progress)
    order = parts.order
    missing = ~graph.loops if normalisation == "symmetric" else np.zeros_like(graph.loops)
    total = graph.num_edges + int(np.count_nonzero(missing))
    index = np.dtype(np.int32 if max(num_nodes, total) < 2**31 else np.int64)
    place = np.empty(num_nodes, dtype=index)
    place[order] = np.arange(num_nodes, dtype=index)
    out_starts, in_starts = (
        np.append(0, np.cumsum((each + missing)[order])) for each in graph.degrees
    )
    sizes = np.diff(parts.offsets)
    block = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    cut, panels = 0, np.zeros((grid.rows, grid.layers), dtype=np.int64)
    sums = {"edges": 0, "weights": 0}

    def placed() -> Iterator[Records]:
        for senders, receivers, *weights in graph.chunks():
            sums["edges"] += edges_sum(senders, receivers)
            if weights:
                sums["weights"] += edges_sum(senders, receivers, weights[0])
            yield place[senders], place[receivers], *weights
        loops = np.flatnonzero(missing[order]).astype(index)
        for first in range(0, len(loops), CHUNK):
            own = loops[first : first + CHUNK]
            yield own, own, *([np.ones(len(own))] if graph.weighted else [])

    with TableWriter(folder) as table:
        moved = progress("sorting edges", 4 * total)
        by_sender = sorted_by(placed(), 0, out_starts, scratch / "by sender", room, moved)
        by_receiver = sorted_by(by_sender, 1, in_starts, scratch / "by receiver", room, moved)
        incoming = np.zeros(num_nodes) if graph.weighted else np.diff(in_starts).astype(np.float64)
        for name in ("senders", "receivers", *(["given"] if graph.weighted else [])):
            table.append(name, np.empty(0, dtype=np.float64 if name == "given" else index))
        for senders, receivers, *weights in by_receiver:
            table.append("senders", senders)
            table.append("receivers", receivers)
            for given in weights:
                table.append("given", given)
                # Unbuffered, in the order of the edges: the sums are those of one loop over rows.
                np.add.at(incoming, receivers, given)
        rows, columns = _scales(incoming, normalisation, order)

        def weighed() -> Iterator[Records]:
            nonlocal cut, panels
            for first in range(0, total, CHUNK):
                span = first, min(first + CHUNK, total)
                senders, receivers = table.read("senders", *span), table.read("receivers", *span)
                weights = rows[receivers] * columns[senders]
                if graph.weighted:
                    weights *= table.read("given", *span)
                weights = weights.astype(dtype)
                check_finite("the normalised edge column 'weight'", weights)
                table.append("weight", weights)
                cut += int(np.count_nonzero(block[senders] != block[receivers]))
                panels += panel_nonzeros(grid, block, senders, receivers)
                yield senders, np.arange(*span, dtype=index), receivers, weights

        moved = progress("normalising and transposing", 2 * total)
        table.append("weight", np.empty(0, dtype=dtype))
        by_sender = sorted_by(weighed(), 0, out_starts, scratch / "transpose", room, moved)
        symmetric = _write_transposed(table, by_sender, index, dtype)
        if graph.weighted:
            table.remove("given")
        table.append("in_start", in_starts[:-1].astype(index))
        table.append("out_start", out_starts[:-1].astype(index))
        head, features = _write_features(table, x, scaled, place, scratch, room, progress)
        bare_table = _described(checked, order, index, dtype, symmetric)
        ordered = bare_table.columns
        for name in (*(each for each in checked.nodes if each != "x"), "id"):
            table.append(name, ordered[name])
        for name in checked.ragged:
            table.append(name, ordered[name])
            table.append(f"{name}_offsets", bare_table.ragged_offsets[name])
        table.append("node_offsets", np.array([0, num_nodes], dtype=np.int64))
        table.append("edge_offsets", np.array([0, total], dtype=np.int64))
        schema = dict(bare_table.schema)
        schema["x"] = replace(schema["x"], dtype=head.dtype.name, shape=head.shape[1:])
        settings = {"how": partition, "blocks": blocks, "seed": seed}
        both = {**checked.nodes, "x": head}
        weights_sum = sum_text(graph.num_edges, sums["weights"]) if graph.weighted else "none"
        metadata = {
            **about(ordered, parts, settings, kind, cut, panels),
            "normalisation": normalisation,
            "symmetric_values": symmetric,
            "original": original(both, order, (in_starts, out_starts), x.shape, normalisation),
            "contents": {
                **contents(checked),
                "features": features,
                "edges": sum_text(graph.num_edges, sums["edges"]),
                "weights": weights_sum,
            },
        }
        described = {
            name: (entry["dtype"], entry["shape"], entry["crc32"])
            for name, entry in table.entries().items()
            if name.removesuffix("_offsets") not in checked.ragged or name in checked.ragged
        }
        metadata["fingerprint"] = fingerprint_from(schema, described, metadata)
        table.finish(schema, metadata)
    return open_table(folder, check=False)


def _write_transposed(
    table: TableWriter, by_sender: Iterator[Records], index: Any, dtype: str
) -> bool:
    """Write what is in order of sender; whether the matrix is its own transpose.

    It is if the k-th edge by receiver is the reverse of the k-th by sender, for all; then their
    order is enough.
    """
    kinds = {"out_order": index, "out_receivers": index, "out_weight": dtype}
    for name, kind in kinds.items():
        table.append(name, np.empty(0, dtype=kind))
    symmetric, done = True, 0
    for senders, *values in by_sender:
        first, done = done, done + len(senders)
        reverse = {"receivers": senders, "senders": values[1], "weight": values[2]}
        symmetric = symmetric and all(
            np.array_equal(table.read(name, first, done), each) for name, each in reverse.items()
        )
        for name, each in zip(kinds, values, strict=True):
            table.append(name, each)
    if symmetric:
        table.remove("out_receivers")
        table.remove("out_weight")
    return symmetric


def _described(checked: Graph, order: Array, index: Any, dtype: str, symmetric: bool) -> GraphTable:
    """Columns of the nodes in order, and the schema of the whole table."""
    ends, none = np.empty(0, dtype=index), np.zeros(checked.num_nodes + 1, dtype=np.int64)
    edges = SortedEdges(
        senders=ends,
        receivers=ends,
        in_starts=none,
        out_starts=none,
        out_order=ends,
        weights=np.empty(0, dtype=dtype),
    )
    return described_table(checked, order, edges, symmetric)


def _scales(sums: Array, normalisation: str, order: Array) -> tuple[Array, Array]:
    """What the rows and columns of the matrix are multiplied with, float64 [n] each."""
    ones = np.ones(len(sums))
    if normalisation == "none":
        return ones, ones
    if normalisation == "row":
        return _inverse(sums), ones
    if (sums < 0).any():
        at = int(np.argmax(sums < 0))
        raise DataError(
            f"the weights that enter node {order[at]} sum to {sums[at]:g}; a symmetric "
            "normalisation needs sums of 0 or more: use 'row' or 'none'"
        )
    both = _inverse(np.sqrt(sums))
    return both, both


def _write_features(
    table: TableWriter,
    x: Array,
    scaled: Callable[[Array], Array],
    place: Array,
    scratch: Path,
    room: int,
    progress: Progress,
) -> tuple[Array, str]:
    """Write `x` in the order of the places; its first rows as they were, and its checksum."""
    num_nodes = len(x)
    width = max(1, x.shape[1] * max(8, x.itemsize))
    step = max(1, min(CHUNK, 2**24 // width))
    crc, head = 0, scaled(np.array(x[:ROWS_HASHED]))
    moved = progress("writing features", 2 * num_nodes)

    def rows() -> Iterator[Records]:
        nonlocal crc
        for first in range(0, num_nodes, step):
            part = scaled(np.array(x[first : first + step]))
            release(x)
            check_finite("node column 'x'", part)
            crc = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, crc)
            yield place[first : first + step], part

    if bool((place == np.arange(num_nodes)).all()):
        for places, part in rows():
            table.append("x", part)
            moved(2 * len(places))
    else:
        starts = np.arange(num_nodes + 1)
        for _, part in sorted_by(rows(), 0, starts, scratch / "features", room, moved):
            table.append("x", part)
    return head, f"{head.dtype.name}{list(x.shape)} {crc:08x}"


def _partition(
    graph: StoredGraph,
    blocks: int,
    how: str,
    seed: int,
    grid: Grid,
    scratch: Path,
    room: int,
    budget: Budget,
    progress: Progress,
) -> Partition:
    """The blocks that `partition_nodes` makes of the whole graph."""
    none = np.empty(0, dtype=np.int32)
    bare = Graph(num_nodes=graph.num_nodes, senders=none, receivers=none)
    progress(f"partition: {how}, {blocks} blocks", None)
    if how in ("contiguous", "random") or not 1 <= blocks <= graph.num_nodes:
        return partition_nodes(bare, blocks, how, seed, grid)
    if how == "balanced":
        found = _balanced(graph, grid, seed, scratch, room, progress)
        return blocks_in_order(found, blocks)
    needed = _WHOLE_BYTES[how] * graph.num_edges
    if needed > room:
        raise DataError(
            f"the partition '{how}' reads all {graph.num_edges:,} edges at once and needs about "
            f"{in_megabytes(needed)} for them, but --memory {in_megabytes(budget.limit)} leaves "
            f"{in_megabytes(room)}; give at least --memory "
            f"{in_megabytes(budget.limit + needed - room)}, or take --partition balanced, random "
            "or contiguous, which work on disk"
        )
    ends = [np.concatenate(each) for each in zip(*(c[:2] for c in graph.chunks()), strict=True)]
    ends = ends or [none, none]
    whole = replace(bare, senders=ends[0], receivers=ends[1])
    return partition_nodes(whole, blocks, how, seed, grid)


def _balanced(
    graph: StoredGraph, grid: Grid, seed: int, scratch: Path, room: int, progress: Progress
) -> Array:
    """The blocks of `balanced_blocks`, from lists of neighbours that are on disk if need be."""
    ways = 1 if graph.undirected else 2
    moved = progress("listing neighbours", 2 * ways * graph.num_edges)
    starts = [np.append(0, np.cumsum(each)) for each in graph.degrees]
    files = []
    for way in range(ways):
        files.append(scratch / f"neighbours {way}")
        with files[-1].open("wb") as file:
            folder = scratch / "neighbours"
            for records in sorted_by(graph.chunks(), way, starts[way], folder, room, moved):
                file.write(records[1 - way].astype(np.int32, copy=False).data)
    fits = 4 * graph.num_edges * ways <= room
    others: list[Array] = [
        np.asarray(np.memmap(each, np.int32, "c"))
        if graph.num_edges and not fits
        else np.fromfile(each, np.int32)
        for each in files
    ]

    def panels(blocks: Array) -> Array:
        counts = np.zeros((2, grid.rows, grid.layers), dtype=np.int64)
        for records in graph.chunks():
            senders, receivers = records[:2]
            counts[0] += panel_nonzeros(grid, blocks, senders, receivers)
            counts[1] += panel_nonzeros(grid, blocks, receivers, senders)
        return counts

    at_once = None if fits else max(64, room // 2 // _PAIR_BYTES)
    progress("evening out the blocks", None)
    both = others * 2 if ways == 1 else others
    found = dealt_out(starts, both, grid, seed, panels, at_once)
    del others, both
    for each in files:
        each.unlink()
    return found
