"""One rank's part of a graph, which is all that the rank reads of a prepared table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.graphs import Array, GraphTable
from weft.parallel.grid_layers import slice_of
from weft.parallel.grid_matrix import GridMatrix, RowExchange
from weft.parallel.method import Method, Model
from weft.parallel.recorder import Recorder
from weft.parallel.shard_io import read_blocks, read_nodes, row_offsets
from weft.parallel.splits import PARTS
from weft.parallel.traffic_formulas import Direction, Sizes, predicted_events
from weft.parallel.world import World


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
        y: int64 [n], their classes; -1 where unknown.
        masks: bool [n], for each part of the split.
        counts: nodes in each part, over all ranks.
        features: f, over all ranks.
        classes: c.
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
            return _matrix(table, world, method, offsets, dtype, transposed=transposed)

        matrix = read(transposed=False)
        return GraphShard(
            world=world,
            method=method,
            table=table,
            offsets=offsets,
            matrix=matrix,
            transpose=matrix if table.metadata["symmetric_values"] else read(transposed=True),
            ids=nodes("id").long(),
            y=nodes("y").long(),
            masks={part: nodes(part).bool() for part in PARTS},
            counts=dict(table.metadata["counts"]),
            features=int(table.column("x").shape[1]),
            classes=int(table.metadata["classes"]),
            dtype=dtype,
        )

    def x(self) -> Tensor:
        """This rank's rows and slice of the features, [n, f / C], read anew."""
        own, columns = _own_nodes(self.world, self.offsets), slice_of(self.world, self.features)
        return read_nodes(self.table, "x", *own, columns).to(self.world.device, self.dtype)


def _own_nodes(world: World, offsets: Array) -> tuple[int, int]:
    """The first of this rank's nodes, and the one after its last."""
    block = world.grid.block_of(world.place)
    return int(offsets[block]), int(offsets[block + 1])


def _matrix(
    table: GraphTable,
    world: World,
    method: Method,
    offsets: Array,
    dtype: torch.dtype,
    *,
    transposed: bool,
) -> GridMatrix:
    grid, place = world.grid, world.place
    rows = grid.blocks_of_row(place.row)
    first, stop = int(offsets[rows.start]), int(offsets[rows.stop])
    stages = grid.stages(place)
    ranges = [(int(offsets[s.block]), int(offsets[s.block + 1])) for s in stages]
    sent = method.panels == "sent" and grid.columns > 1
    # A dry rank has no others to count the nonzeros of some stages for it.
    mine = [not sent or world.dry or s.row % grid.columns == place.column for s in stages]
    wanted = [span for span, own in zip(ranges, mine, strict=True) if own]
    read = iter(read_blocks(table, first, stop, wanted, transposed=transposed, dtype=dtype))
    blocks = [next(read) if own else None for own in mine]
    counts = torch.from_numpy(
        np.array([0 if block is None else len(block.columns) for block in blocks], dtype=np.int64)
    )
    if sent and not world.dry:
        world.all_reduce("column", counts, "setup")
    return GridMatrix(world, method, offsets, blocks, counts.tolist(), dtype)


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
            training=int((shard.masks["train"] & (shard.y >= 0)).sum()),
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
