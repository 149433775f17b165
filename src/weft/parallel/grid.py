"""Grids of ranks: 1D, 1.5D, 2D and 3D distributed products as one shape.

A grid has R rows, C columns and L layers of ranks. Nodes are cut into blocks over the rows (and,
where the layers do not hold replicas, each row's block once more over the layers), features into
slices over the columns. A product of the adjacency with features is a sum over stages: the block
of features of one row after another travels to all rows, and the sums of the layers are added
up. The published algorithms are four shapes of this:

  1d    P x 1 x 1    whole features; every block travels to all ranks
  1.5d  P/c x 1 x c  c replicas of every block share the stages, then add up
  2d    q x q x 1    features are sliced too, P = q²
  3d    q x q x q    each layer sums a part of the neighbours, P = q³
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from weft.graphs import Array
from weft.parallel.recorder import Along

_SHAPE = re.compile(r"(\d+)x(\d+)(?:x(\d+))?")


@dataclass(frozen=True)
class Place:
    """Where a rank is in its grid.

    Attributes:
        row: i, of R.
        column: j, of C.
        layer: k, of L.
    """

    row: int
    column: int
    layer: int


@dataclass(frozen=True)
class Stage:
    """One step of a product.

    Attributes:
        row: the row of the grid whose features travel.
        block: the block of nodes that they belong to.
    """

    row: int
    block: int


@dataclass(frozen=True, kw_only=True)
class Grid:
    """R x C x L ranks; rank (i, j, k) has the number (i · C + j) · L + k.

    Attributes:
        rows: R.
        columns: C.
        layers: L.
        replicated: the layers hold the same blocks of nodes (1.5D), not parts of them (3D).
    """

    rows: int
    columns: int = 1
    layers: int = 1
    replicated: bool = False

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.layers) < 1:
            raise ValueError(f"a grid of {self.shape}: each side must be at least 1")
        if self.replicated and self.layers > self.rows:
            raise ValueError(
                f"{self.layers} replicas share {self.rows} stages: the replication must be at most "
                f"the root of the ranks, {math.isqrt(self.ranks)}"
            )

    @property
    def shape(self) -> str:
        """`RxCxL`."""
        return f"{self.rows}x{self.columns}x{self.layers}"

    @property
    def name(self) -> str:
        """What `grid_of` calls it: 1d, 1.5d, 2d, 3d, or its shape."""
        if self.columns == self.layers == 1:
            return "1d"
        if self.replicated and self.columns == 1:
            return "1.5d"
        if self.rows == self.columns and self.layers == 1:
            return "2d"
        if self.rows == self.columns == self.layers:
            return "3d"
        return self.shape

    @property
    def ranks(self) -> int:
        """P."""
        return self.rows * self.columns * self.layers

    @property
    def blocks(self) -> int:
        """Into how many blocks the nodes are cut."""
        return self.rows if self.replicated else self.rows * self.layers

    def group_size(self, along: Along) -> int:
        """How many ranks each collective along a dimension has."""
        sides = {"row": self.rows, "column": self.columns, "layer": self.layers}
        return {**sides, "weights": self.blocks, "world": self.ranks}[along]

    def place(self, rank: int) -> Place:
        """Where the rank is."""
        assert 0 <= rank < self.ranks
        row, rest = divmod(rank, self.columns * self.layers)
        return Place(row, *divmod(rest, self.layers))

    def rank(self, place: Place) -> int:
        """The number of the rank at `place`."""
        return (place.row * self.columns + place.column) * self.layers + place.layer

    def block_of(self, place: Place) -> int:
        """The block of nodes whose features the rank holds."""
        return place.row if self.replicated else place.row * self.layers + place.layer

    def blocks_of_row(self, row: int) -> range:
        """The blocks whose neighbours the ranks of a row sum up."""
        return (
            range(row, row + 1)
            if self.replicated
            else range(row * self.layers, (row + 1) * self.layers)
        )

    def slice_widths(self, width: int) -> list[int]:
        """How many of `width` features each column of the grid holds."""
        widths: list[int] = np.diff(balanced(width, self.columns)).tolist()
        return widths

    def stages(self, place: Place) -> tuple[Stage, ...]:
        """The stages of a product that the rank takes part in, in their order."""
        if not self.replicated:
            return tuple(Stage(s, s * self.layers + place.layer) for s in range(self.rows))
        first, stop = balanced(self.rows, self.layers)[place.layer : place.layer + 2]
        return tuple(Stage(s, s) for s in range(int(first), int(stop)))


def balanced(total: int, parts: int) -> Array:
    """Offsets int64 [parts + 1] of parts whose sizes differ by at most 1."""
    return np.arange(parts + 1, dtype=np.int64) * total // parts


def grid_of(name: str, ranks: int, replication: int | None = None) -> Grid:
    """The grid of that name.

    Args:
        name: 1d, 1.5d, 2d, 3d, or a shape such as 4x2 or 2x2x3 (rows, columns, layers).
        ranks: P.
        replication: c of 1.5d; by default the one with the least traffic, about √(P / 2).

    Raises:
        ValueError: it does not fit; the message names what does.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be at least 1")
    if replication is not None and name != "1.5d":
        raise ValueError(f"replication is {replication}, but only the grid 1.5d has replicas")
    if name == "1d":
        return Grid(rows=ranks)
    if name == "1.5d":
        fitting = _replications(ranks)
        if replication is None:
            replication = min(fitting, key=lambda c: 1 / c + 2 * (c - 1) / ranks)
        if replication not in fitting:
            raise ValueError(
                f"replication is {replication} for {ranks} ranks; it must divide them and be at "
                f"most their root: {_listed(fitting)}"
            )
        return Grid(rows=ranks // replication, layers=replication, replicated=True)
    for power, power_name in ((2, "2d"), (3, "3d")):
        if name == power_name:
            side = round(ranks ** (1 / power))
            if side**power == ranks:
                return Grid(rows=side, columns=side, layers=side if power == 3 else 1)
            below = max(1, side - (side**power > ranks))
            raise ValueError(
                f"the grid {name} needs q{'²' if power == 2 else '³'} ranks, not {ranks}: take "
                f"{below**power} or {(below + 1) ** power} of them, or one of the grids that fit "
                f"{ranks}: {_listed(_names(ranks))}"
            )
    if match := _SHAPE.fullmatch(name):
        rows, columns, layers = (int(side or 1) for side in match.groups())
        grid = Grid(rows=rows, columns=columns, layers=layers)
        if grid.ranks != ranks:
            raise ValueError(
                f"a grid of {name} has {grid.ranks} ranks, not {ranks}: start {grid.ranks} of "
                f"them, or take one that fits {ranks}: {_listed(_names(ranks))}"
            )
        return grid
    raise ValueError(f"grid is {name!r}; it must be 1d, 1.5d, 2d, 3d, or a shape such as 4x2")


def grids_for(ranks: int) -> list[Grid]:
    """The published grids of that many ranks: 1d, 1.5d of every replication, 2d, 3d."""
    found = [Grid(rows=ranks)]
    found += [grid_of("1.5d", ranks, c) for c in _replications(ranks) if c > 1]
    for power in (2, 3):
        side = round(ranks ** (1 / power))
        if side > 1 and side**power == ranks:
            found.append(grid_of(f"{power}d", ranks))
    return found


def _replications(ranks: int) -> list[int]:
    return [c for c in range(1, math.isqrt(ranks) + 1) if ranks % c == 0]


def _names(ranks: int) -> list[str]:
    names = ["1d", *(f"1.5d with replication {c}" for c in _replications(ranks) if c > 1)]
    names += [grid.name for grid in grids_for(ranks) if grid.name in ("2d", "3d")]
    names += [f"{ranks // c}x{c}" for c in _replications(ranks) if c > 1 and c * c < ranks]
    return names


def _listed(items: list[str] | list[int]) -> str:
    return ", ".join(map(str, items))


def check_grid(
    grid: Grid, *, whole_rows: str | None = None, whole_features: str | None = None
) -> None:
    """Raise ValueError where something needs what the grid cuts; it is named in the argument."""
    if whole_rows is not None and grid.layers > 1:
        raise ValueError(
            f"{whole_rows} needs all edges of a node on one rank, but the grid {grid.shape} shares "
            f"them among {grid.layers} layers; take a grid of one layer, such as 1d or 2d"
        )
    if whole_features is not None and grid.columns > 1:
        raise ValueError(
            f"{whole_features} needs all features of a node on one rank, but the grid {grid.shape} "
            f"shares them among {grid.columns} columns; take a grid of one column, such as 1d or "
            "1.5d"
        )
