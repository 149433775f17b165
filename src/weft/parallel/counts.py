"""What the bytes of every rank depend on, counted from a graph: nonzeros, rows wanted, rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.graphs import Array
from weft.parallel.grid import Grid, Place
from weft.parallel.traffic_formulas import Direction, Sizes, exchange_rounds


@dataclass(frozen=True, kw_only=True, eq=False)
class GridCounts:
    """A graph as a grid cuts it; R rows of the grid, B blocks of nodes.

    Attributes:
        grid: the ranks.
        offsets: int64 [B + 1], where each block of nodes begins.
        nonzeros: int64 [R, B], edges from each block to the nodes of each row of the grid.
        wanted: int64 [R, B], nodes of the block that they come from.
        nonzeros_back: int64 [R, B], edges to each block from the nodes of each row.
        wanted_back: int64 [R, B], nodes of the block that they go to.
        training: int64 [B], nodes that the network learns from.
    """

    grid: Grid
    offsets: Array
    nonzeros: Array
    wanted: Array
    nonzeros_back: Array
    wanted_back: Array
    training: Array

    def of(self, place: Place) -> Sizes:
        """Those of one rank, for `predicted_events`."""
        return Sizes(
            offsets=self.offsets,
            forward=self._direction(place, self.nonzeros, self.wanted),
            backward=self._direction(place, self.nonzeros_back, self.wanted_back),
            training=int(self.training[self.grid.block_of(place)]),
        )

    def _direction(self, place: Place, nonzeros: Array, wanted: Array) -> Direction:
        stages = self.grid.stages(place)
        blocks = [stage.block for stage in stages]
        rows = np.array([stage.row for stage in stages])
        travelling = wanted[:, blocks] * (rows != np.arange(self.grid.rows)[:, None])
        return Direction(
            nonzeros=nonzeros[place.row, blocks],
            wanted=wanted[place.row, blocks],
            rounds=exchange_rounds(
                self.grid,
                int(travelling.sum(1).max()),
                int(np.diff(self.offsets)[blocks].max()),
            ),
        )


def count_graph(
    grid: Grid, offsets: Array, senders: Array, receivers: Array, training: Array
) -> GridCounts:
    """Count a graph for all ranks of a grid at once.

    Args:
        grid: the ranks.
        offsets: int64 [B + 1], where each block of nodes begins.
        senders: int [E], in the order of nodes that the blocks are cut from.
        receivers: int [E].
        training: bool [n], nodes that the network learns from.
    """
    nonzeros, wanted = _panels(grid, offsets, senders, receivers)
    nonzeros_back, wanted_back = _panels(grid, offsets, receivers, senders)
    return GridCounts(
        grid=grid,
        offsets=offsets,
        nonzeros=nonzeros,
        wanted=wanted,
        nonzeros_back=nonzeros_back,
        wanted_back=wanted_back,
        training=np.diff(np.concatenate([[0], np.cumsum(training)])[offsets]),
    )


def _panels(grid: Grid, offsets: Array, columns: Array, rows: Array) -> tuple[Array, Array]:
    """Nonzeros and distinct columns, both [R, B], of a matrix with entries (rows, columns)."""
    if np.any(np.diff(rows) < 0):
        order = np.argsort(rows, kind="stable")
        columns, rows = columns[order], rows[order]
    nonzeros = np.zeros((grid.rows, grid.blocks), dtype=np.int64)
    wanted = np.zeros_like(nonzeros)
    # A grid row at a time: a mask of all nodes is the most that is held.
    touched = np.zeros(int(offsets[-1]), dtype=bool)
    for row in range(grid.rows):
        blocks = grid.blocks_of_row(row)
        first, stop = np.searchsorted(rows, offsets[[blocks.start, blocks.stop]])
        own = columns[first:stop]
        touched[:] = False
        touched[own] = True
        block = np.searchsorted(offsets, own, side="right") - 1
        nonzeros[row] = np.bincount(block, minlength=grid.blocks)
        wanted[row] = np.diff(np.concatenate([[0], np.cumsum(touched)])[offsets])
    return nonzeros, wanted
