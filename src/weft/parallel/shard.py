"""One rank's part of a graph, which is all that the rank reads of a prepared table.

An edge s -> r is the entry [r, s] of the matrix. A prepared table (see `prepare`) has its edges
sorted by row, and where the matrix is not symmetric a second copy sorted by column, so a rank
reads one piece of each file. Mapped pages are released after each chunk, so that a rank holds only
its own part and one chunk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError
from weft.graphs import Array, GraphTable, Schema
from weft.graphs.checksums import column_sums
from weft.graphs.store import release as release
from weft.parallel.grid import Grid, balanced
from weft.parallel.grid_layers import slice_of
from weft.parallel.grid_matrix import CSRBlock, GridMatrix, RowExchange
from weft.parallel.method import CUT_FOR_GRID, Method, Model
from weft.parallel.recorder import Recorder
from weft.parallel.shard_loops import count_range, fill_range
from weft.parallel.splits import PARTS
from weft.parallel.traffic_formulas import Direction, Sizes, predicted_events
from weft.parallel.world import World

KIND = "full graph"
"""`kind` in the metadata of a prepared table."""

_CHUNK_EDGES = 2**21
_CHUNK_BYTES = 2**25


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphShard:
    """The nodes, features and edges of one rank, on the device that it computes on.

    Attributes:
        world: the ranks.
        method: what travels between them.
        table: the prepared table, see `prepare`; mapped, read when needed.
        offsets: int64 [blocks + 1], where each block of nodes begins.
        matrix: Aᵀ, which sums what enters a node.
        transpose: A, for the backward pass; the same object where the two are equal.
        ids: int64 [n], the numbers of this rank's nodes in the original graph.
        y: int64 [n], their classes, -1 where unknown; or labels or numbers [n, t], nan for unknown.
        masks: bool [n], for each part of the split.
        counts: nodes in each part, over all ranks.
        features: f, over all ranks.
        classes: c, or t where there are labels or numbers.
        dtype: of features and weights.
    """

    world: World
    method: Method
    table: GraphTable
    offsets: Array
    matrix: GridMatrix
    transpose: GridMatrix
    ids: Tensor
    y: Tensor
    masks: dict[str, Tensor]
    counts: dict[str, int]
    features: int
    classes: int
    dtype: torch.dtype

    @staticmethod
    def open(
        table: GraphTable, world: World, method: Method, dtype: torch.dtype = torch.float32
    ) -> GraphShard:
        """Read this rank's part of a prepared table; all ranks together."""
        offsets = row_offsets(table, world.grid)

        def nodes(name: str) -> Tensor:
            return read_nodes(table, name, *_own_nodes(world, offsets)).to(world.device)

        def read(*, transposed: bool) -> GridMatrix:
            grid, place = world.grid, world.place
            rows = grid.blocks_of_row(place.row)
            stages = grid.stages(place)
            ranges = [(int(offsets[s.block]), int(offsets[s.block + 1])) for s in stages]
            sent = method.panels == "sent" and grid.columns > 1
            # A dry rank has no others to count the nonzeros of some stages for it.
            mine = [not sent or world.dry or s.row % grid.columns == place.column for s in stages]
            found = iter(
                read_blocks(
                    table,
                    int(offsets[rows.start]),
                    int(offsets[rows.stop]),
                    [span for span, own in zip(ranges, mine, strict=True) if own],
                    transposed=transposed,
                    dtype=dtype,
                )
            )
            blocks = [next(found) if own else None for own in mine]
            sizes = [0 if block is None else len(block.columns) for block in blocks]
            counts = torch.tensor(sizes, dtype=torch.int64)
            if sent and not world.dry:
                world.all_reduce("column", counts, "setup")
            return GridMatrix(world, method, offsets, blocks, counts.tolist(), dtype)

        matrix, y = read(transposed=False), nodes("y")
        return GraphShard(
            world=world,
            method=method,
            table=table,
            offsets=offsets,
            matrix=matrix,
            transpose=matrix if table.metadata["symmetric_values"] else read(transposed=True),
            ids=nodes("id").long(),
            y=y.long() if y.ndim == 1 else y.to(dtype),
            masks={part: nodes(part).bool() for part in PARTS},
            counts=dict(table.metadata["counts"]),
            features=int(table.column("x").shape[1]),
            classes=int(table.metadata["classes"]),
            dtype=dtype,
        )

    def x(self) -> Tensor:
        """This rank's rows and slice of the features, [n, f / C], read again."""
        own, columns = _own_nodes(self.world, self.offsets), slice_of(self.world, self.features)
        return read_nodes(self.table, "x", *own, columns).to(self.world.device, self.dtype)


def _own_nodes(world: World, offsets: Array) -> tuple[int, int]:
    """The first of this rank's nodes, and the one after its last."""
    block = world.grid.block_of(world.place)
    return int(offsets[block]), int(offsets[block + 1])


def predicted_own_bytes(
    shard: GraphShard, widths: tuple[int, ...], *, model: Model, input_dropout: bool
) -> dict[str, int]:
    """Bytes that this rank receives in an epoch by the formulas, for each kind of collective.

    Arguments as of `plan_layers`.
    """
    world = shard.world
    events = predicted_events(
        Sizes(
            grid=world.grid,
            place=world.place,
            offsets=shard.offsets,
            forward=_direction(shard.matrix),
            backward=_direction(shard.transpose),
            # Only a loss of classes needs sums of other columns.
            training=int((shard.masks["train"] & (shard.y >= 0)).sum()) if shard.y.ndim == 1 else 0,
        ),
        shard.method,
        widths,
        model=model,
        item=shard.dtype.itemsize,
        input_dropout=input_dropout,
    )
    return {kind: total.bytes for kind, total in Recorder(events).totals().items()}


def _direction(matrix: GridMatrix) -> Direction:
    exchange = matrix.exchange
    of = exchange.rows_wanted if isinstance(exchange, RowExchange) else {}
    return Direction(
        nonzeros=np.array(matrix.nonzeros, dtype=np.int64),
        wanted=np.array([of.get(stage.row, 0) for stage in matrix.stages], dtype=np.int64),
        rounds=max(1, len(exchange.rounds)) if isinstance(exchange, RowExchange) else 1,
    )


def read_blocks(
    table: GraphTable,
    first: int,
    stop: int,
    ranges: Sequence[tuple[int, int]],
    *,
    transposed: bool,
    dtype: torch.dtype = torch.float32,
) -> list[CSRBlock]:
    """Rows first:stop of the matrix, or of its transpose, cut into ranges of columns.

    Args:
        table: a prepared table.
        first: first row (receivers; senders if transposed).
        stop: the row after the last.
        ranges: columns low:high of each block.
        transposed: the rows are senders.
        dtype: of the weights, float32 or float64.

    Raises:
        DataError: not a prepared table, or one that was damaged or changed while it was read.
    """
    _check_prepared(table)
    _check_rows(table, first, stop)
    for low, high in ranges:
        _check_rows(table, low, high)
    if not transposed or table.metadata["symmetric_values"]:
        names = ("in_start", "senders", "weight")
    else:
        names = ("out_start", "out_receivers", "out_weight")
    begins, columns, weights = (table.columns[name] for name in names)
    starts = np.append(begins[first:stop], begins[stop] if stop < len(begins) else len(columns))
    starts = starts.astype(np.int64)
    if starts[0] < 0 or starts[-1] > len(columns) or (np.diff(starts) < 0).any():
        raise _damaged(table, names[0])
    offsets = np.zeros((len(ranges), stop - first + 1), dtype=np.int64)
    for rows, edges in _row_chunks(starts):
        own = columns[edges]
        if own.size and not (own.min() >= 0 and own.max() < table.total_nodes):
            raise _damaged(table, names[1])
        for counts, (low, high) in zip(offsets[:, 1:], ranges, strict=True):
            count_range(
                own, starts[rows.start : rows.stop + 1] - edges.start, low, high, counts[rows]
            )
        release(columns)
    np.cumsum(offsets, axis=1, out=offsets)
    blocks = [
        CSRBlock(
            # Each block has separate memory, so that one can be freed without the others.
            offsets=torch.from_numpy(rows.copy()),
            columns=torch.empty(int(rows[-1]), dtype=torch.int32),
            weights=torch.empty(int(rows[-1]), dtype=dtype),
            num_columns=high - low,
        )
        for rows, (low, high) in zip(offsets, ranges, strict=True)
    ]
    del offsets
    for rows, edges in _row_chunks(starts):
        own_starts = starts[rows.start : rows.stop + 1] - edges.start
        for block, (low, high) in zip(blocks, ranges, strict=True):
            good = fill_range(
                columns[edges],
                weights[edges],
                own_starts,
                low,
                high,
                block.offsets.numpy()[rows.start : rows.stop + 1],
                block.columns.numpy(),
                block.weights.numpy(),
            )
            if not good:
                raise _damaged(table, names[1])
        release(columns)
        release(weights)
    return blocks


def read_nodes(
    table: GraphTable, name: str, first: int, stop: int, columns: slice | None = None
) -> Tensor:
    """A copy of rows first:stop of a node column, of some of its features if `columns` says so."""
    values = table.column(name)
    _check_rows(table, first, stop)
    if columns is not None:
        values = values[:, columns]
    out = np.empty((stop - first, *values.shape[1:]), dtype=values.dtype)
    # Pages are read whole, so the size of a chunk includes features that are not wanted.
    row = max(1, values.strides[0])
    step = max(1, _CHUNK_BYTES // row)
    for begin in range(0, stop - first, step):
        out[begin : begin + step] = values[first + begin : min(first + begin + step, stop)]
        release(values)
    return torch.from_numpy(out)


def row_offsets(table: GraphTable, grid: Grid) -> Array:
    """Where each of the grid's blocks of nodes begins, int64 [grid.blocks + 1].

    The partition's own blocks, if there are as many; an order without blocks of its own
    (contiguous, random, rcm) is cut again.

    Raises:
        ValueError: blocks that were made for another number of them, or fewer nodes than blocks.
    """
    _check_prepared(table)
    partition = table.metadata["partition"]
    if partition["blocks"] == grid.blocks:
        return np.array(partition["offsets"], dtype=np.int64)
    if partition["how"] in CUT_FOR_GRID:
        raise ValueError(
            f"the partition {partition['how']} has {partition['blocks']} blocks, the grid "
            f"{grid.shape} has {grid.blocks}; prepare the graph again with {grid.blocks} blocks"
        )
    if table.total_nodes < grid.blocks:
        raise ValueError(
            f"{table.total_nodes} nodes cannot be cut into the {grid.blocks} blocks of the grid "
            f"{grid.shape}; use fewer ranks"
        )
    return balanced(table.total_nodes, grid.blocks)


def fingerprint_of(table: GraphTable) -> str:
    """A hash of the whole content of a table, by which ranks check that they opened the same one.

    For a mapped table the checksums in its manifest are used and no column is read. The same table
    in memory has the same fingerprint.
    """
    arrays = {
        **table.columns,
        "node_offsets": table.node_offsets,
        "edge_offsets": table.edge_offsets,
    }
    sums = column_sums(table, arrays)
    described = {
        name: (values.dtype.name, list(values.shape), sums[name]) for name, values in arrays.items()
    }
    return fingerprint_from(table.schema, described, table.metadata)


def fingerprint_from(
    schema: Schema,
    arrays: Mapping[str, tuple[str, list[int], int]],
    metadata: Mapping[str, Any],
) -> str:
    """The same of a table that is not written yet: dtype, shape and CRC-32 of each array."""
    about = {
        "columns": {name: asdict(column) for name, column in schema.items()},
        "arrays": {name: list(entry) for name, entry in arrays.items()},
        "metadata": {k: v for k, v in metadata.items() if k != "fingerprint"},
    }
    text = json.dumps(about, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _row_chunks(starts: Array) -> Iterator[tuple[slice, slice]]:
    """Rows and edges of chunks of about _CHUNK_EDGES edges, whole rows, at least one."""
    rows, row = len(starts) - 1, 0
    while row < rows:
        stop = int(np.searchsorted(starts, starts[row] + _CHUNK_EDGES, side="right")) - 1
        stop = min(max(stop, row + 1), rows)
        yield slice(row, stop), slice(int(starts[row]), int(starts[stop]))
        row = stop


def _check_prepared(table: GraphTable) -> None:
    if table.metadata.get("kind") != KIND or len(table) != 1:
        raise DataError(
            f"the table{f' {table.path}' if table.path else ''} is not a graph that was prepared "
            f"for full-graph training; make one with weft.parallel.prepare"
        )


def _check_rows(table: GraphTable, first: int, stop: int) -> None:
    if not 0 <= first <= stop <= table.total_nodes:
        raise ValueError(f"nodes {first} to {stop} of a graph with {table.total_nodes}")


def _damaged(table: GraphTable, name: str) -> DataError:
    where = f"{table.path}/{name}.npy" if table.path else f"column '{name}'"
    return DataError(f"{where} is damaged or changed while it was read; prepare the graph again")
