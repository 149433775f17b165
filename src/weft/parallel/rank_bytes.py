"""Bytes that a rank will receive in an epoch, counted from the edges that it holds."""

from __future__ import annotations

import numpy as np

from weft.parallel.matrix import GridMatrix
from weft.parallel.plan import Model
from weft.parallel.row_exchange import RowExchange
from weft.parallel.shard import GraphShard
from weft.parallel.traffic_formulas import Direction, Sizes, predicted_events


def predicted_own_bytes(
    shard: GraphShard, widths: tuple[int, ...], *, model: Model, input_dropout: bool
) -> dict[str, int]:
    """By kind of collective, what this rank receives in an epoch by the formulas.

    Args:
        shard: the rank's part of the graph.
        widths: of the features, the hidden layers and the classes.
        model: `gcn` or `sage`.
        input_dropout: the features change in every step.
    """
    world = shard.world
    events = predicted_events(
        world.grid,
        world.place,
        shard.method,
        widths,
        Sizes(
            offsets=shard.offsets,
            forward=_direction(shard, shard.matrix),
            backward=_direction(shard, shard.transpose),
            training=int((shard.masks["train"] & (shard.y >= 0)).sum()),
        ),
        model=model,
        item=shard.dtype.itemsize,
        input_dropout=input_dropout,
    )
    found: dict[str, int] = {}
    for event in events:
        found[event.kind] = found.get(event.kind, 0) + event.bytes
    return found


def _direction(shard: GraphShard, matrix: GridMatrix) -> Direction:
    stages = shard.world.grid.stages(shard.world.place)
    exchange = matrix.exchange
    of = exchange.rows_wanted if isinstance(exchange, RowExchange) else {}
    return Direction(
        nonzeros=np.array(matrix.nonzeros, dtype=np.int64),
        wanted=np.array([of.get(stage.row, 0) for stage in stages], dtype=np.int64),
        rounds=max(1, len(exchange.rounds)) if isinstance(exchange, RowExchange) else 1,
    )
