"""What travels in an epoch, by formula: the published count of words, and the exact bytes.

The published formulas count the words that a rank receives in one layer, forward and backward, as
the authors of the algorithms do (Tripathy, Yelick and Buluç 2020, and their code). The exact bytes
follow from what `count_graph` counts in a graph: nonzeros, wanted rows, rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from weft.graphs import Array
from weft.parallel.grid import Grid, Place, balanced
from weft.parallel.method import LayerPlan, Method, Model, plan_layers
from weft.parallel.recorder import Along, Event, Kind


def published_words(
    grid: Grid,
    width_in: int,
    width_out: int,
    *,
    nodes: int,
    nonzeros: int,
    nonzero_words: float = 2.0,
    weights: bool = True,
) -> float:
    """Words that a rank receives in one layer, as the authors' code computes it.

    Args:
        grid: 1d, 1.5d, 2d or 3d.
        width_in: f_in, features before the layer.
        width_out: f_out, features after it.
        nodes: n.
        nonzeros: of the adjacency, nnz.
        nonzero_words: words that one of them takes: an int32 column and a float32 value are 2.
        weights: count the gradient of the weights too, the terms with f².

    Raises:
        ValueError: nothing is published about a grid of another shape.
    """
    P, side, c, both = grid.ranks, grid.rows, grid.layers, width_in + width_out
    square = width_in * width_out if weights else 0
    name = _published_name(grid)
    if name == "1d":
        return nodes * both * (P - 1) / P + 2 * square
    if name == "1.5d":
        return nodes * both * _replicated_share(P, c) + 2 * square
    if name == "2d":
        sparse = 2 * nonzero_words * nonzeros / side
        return sparse + 3 * nodes * both / side + nodes * width_in / P + square
    # Two sparse products; the authors have no code for the rest of a layer.
    return 2 * nonzero_words * nonzeros / side**2 + 2 * nodes * both / side**2


def reduced_words(grid: Grid, widths: Sequence[int], *, nodes: int) -> float:
    """Words a rank receives in an epoch on a grid 1d or 1.5d, with our exact reductions.

    The published formula with the widths that still travel; whole blocks, no f² terms.
    """
    share = {
        "1d": (grid.ranks - 1) / grid.ranks,
        "1.5d": _replicated_share(grid.ranks, grid.layers),
    }
    travelling = sum(sum(plan.products) for plan in plan_layers(widths, Method()))
    return nodes * travelling * share[grid.name]


def published_latency(grid: Grid) -> float:
    """Messages that a rank waits for in one layer, one after another: the factor of α.

    1d 2 P lg P, 1.5d 2 (P / c²) lg (P / c), 2d 10 q lg q, 3d 2 q lg q for each of two products.
    """
    P, side, c = grid.ranks, grid.rows, grid.layers
    name = _published_name(grid)
    if name == "1d":
        return 2 * P * math.log2(P)
    if name == "1.5d":
        return 2 * P / c**2 * math.log2(P / c)
    return (10 if name == "2d" else 4) * side * math.log2(side)


def _published_name(grid: Grid) -> str:
    if grid.name not in ("1d", "1.5d", "2d", "3d"):
        raise ValueError(f"nothing is published about a grid of {grid.shape}")
    return grid.name


def _replicated_share(P: int, c: int) -> float:
    return 1 / c + 2 * (c - 1) / P


@dataclass(frozen=True, kw_only=True, eq=False)
class Direction:
    """One rank's panel of the adjacency, or of its transpose.

    Attributes:
        nonzeros: int64 [stages], in each of the rank's stages.
        wanted: int64 [stages], rows of each stage's block that they touch.
        rounds: of an exchange of rows, see `exchange_rounds`.
    """

    nonzeros: Array
    wanted: Array
    rounds: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Sizes:
    """What the bytes that a rank receives depend on, beside the method and the widths.

    Attributes:
        grid: the ranks.
        place: of this one.
        offsets: int64 [blocks + 1], where each block of nodes begins.
        forward: the panel of the matrix that sums what enters a node.
        backward: the panel of its transpose.
        training: nodes of the rank's block that it learns from.
    """

    grid: Grid
    place: Place
    offsets: Array
    forward: Direction
    backward: Direction
    training: int

    @property
    def rows(self) -> int:
        """Nodes of the rank's own block."""
        return self.height(self.grid.block_of(self.place))

    @property
    def panel_rows(self) -> int:
        """Nodes whose neighbours the rank sums up."""
        return sum(map(self.height, self.grid.blocks_of_row(self.place.row)))

    def height(self, block: int) -> int:
        """Nodes of a block."""
        return int(self.offsets[block + 1] - self.offsets[block])


def exchange_rounds(grid: Grid, most_wanted: int, height: int) -> int:
    """The number of rounds in which rows are exchanged.

    Args:
        grid: the ranks.
        most_wanted: the most rows that any rank of the group wants from all others.
        height: rows of the largest block of the group's stages.
    """
    return min(grid.rows - 1, max(1, -(-most_wanted // max(height, 1))))


def count_graph(
    grid: Grid, offsets: Array, senders: Array, receivers: Array, training: Array
) -> list[Sizes]:
    """Count a graph for each rank of a grid.

    Args:
        grid: the ranks.
        offsets: int64 [B + 1], where each block of nodes begins.
        senders: int [E], in the order of nodes that the blocks are cut from.
        receivers: int [E].
        training: bool [n], nodes that the network learns from.
    """
    forward = _panels(grid, offsets, senders, receivers)
    backward = _panels(grid, offsets, receivers, senders)
    learned = np.diff(np.concatenate([[0], np.cumsum(training)])[offsets])

    def direction(place: Place, nonzeros: Array, wanted: Array) -> Direction:
        stages = grid.stages(place)
        blocks, rows = ([getattr(s, name) for s in stages] for name in ("block", "row"))
        travelling = wanted[:, blocks] * (np.array(rows) != np.arange(grid.rows)[:, None])
        highest = int(np.diff(offsets)[blocks].max())
        return Direction(
            nonzeros=nonzeros[place.row, blocks],
            wanted=wanted[place.row, blocks],
            rounds=exchange_rounds(grid, int(travelling.sum(1).max()), highest),
        )

    return [
        Sizes(
            grid=grid,
            place=place,
            offsets=offsets,
            forward=direction(place, *forward),
            backward=direction(place, *backward),
            training=int(learned[grid.block_of(place)]),
        )
        for place in map(grid.place, range(grid.ranks))
    ]


def _panels(grid: Grid, offsets: Array, columns: Array, rows: Array) -> tuple[Array, Array]:
    """Nonzeros and distinct columns, both [R, B], of a matrix with entries (rows, columns)."""
    if np.any(np.diff(rows) < 0):
        # Imported here: formulas are read without compiled code.
        from weft.counting_sort import counting_order

        order = counting_order(rows, int(offsets[-1]))
        columns, rows = columns[order], rows[order]
    nonzeros = np.zeros((grid.rows, grid.blocks), dtype=np.int64)
    wanted = np.zeros_like(nonzeros)
    # One row of the grid at a time, so that no more than a mask of all nodes is held.
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


def predicted_events(
    sizes: Sizes,
    method: Method,
    widths: Sequence[int],
    *,
    model: Model = "gcn",
    item: int = 4,
    input_dropout: bool = False,
) -> list[Event]:
    """What a rank receives in one training step: equal to what a recorder notes.

    Kind, dimension, group and bytes of every collective; seconds are 0 and the purpose is empty.

    Args as of `plan_layers`, and `sizes` of the rank's part of the graph; `item` bytes of a number.
    """
    rank = _Rank(sizes, method, item)
    plans = plan_layers(widths, method, model=model, input_dropout=input_dropout)
    for plan in plans:
        rank.layer(plan, model)
    # Maximum and sum of each row, then the loss.
    for _ in range(2):
        rank.all_reduce("column", sizes.training * item)
    rank.all_reduce("world", item)
    rank.gradients(plans, model)
    return rank.events


class _Rank:
    """Notes the events of one rank as its `World` would."""

    def __init__(self, sizes: Sizes, method: Method, item: int) -> None:
        self.sizes, self.method, self.item = sizes, method, item
        self.grid, self.place = sizes.grid, sizes.place
        self.rows, self.panel_rows = sizes.rows, sizes.panel_rows
        self.events: list[Event] = []

    def layer(self, plan: LayerPlan, model: Model) -> None:
        """Note both passes of a layer, whose collectives along the columns come in pairs."""
        for number, width in enumerate(plan.products):
            # A kept first product is of the features, which do not learn: it has none backward.
            self._product(width, self.sizes.backward if number else self.sizes.forward)
        second = model == "sage"
        if plan.order == "published":
            self._gather(plan.width_in)
            self._gather(plan.width_out)
        elif plan.gather:
            if not plan.kept:
                for _ in range(2 if second and plan.order == "aggregate" else 1):
                    self._gather(plan.width_in)
                    if plan.learns:
                        self._scatter(plan.width_in)
        else:
            for _ in range(2 if second and plan.order == "transform" else 1):
                self._scatter(plan.width_out)
                self._gather(plan.width_out)

    def gradients(self, plans: Sequence[LayerPlan], model: Model) -> None:
        """The sums of the slices of this column, then the slices of all columns."""
        if self.grid.ranks == 1:
            return
        C = self.grid.columns
        slices = np.zeros(C, dtype=np.int64)
        matrices = 2 if model == "sage" else 1
        for plan in plans:
            if plan.gather and plan.order != "published":
                cut, other = plan.width_out, plan.width_in
            else:
                cut, other = plan.width_in, plan.width_out
            slices += np.array(self.grid.slice_widths(cut)) * other * matrices
            slices += self.grid.slice_widths(plan.width_out)
        self.all_reduce("weights", int(slices[self.place.column]) * self.item)
        self._note("all_gather", "column", (C - 1) * int(slices.max()) * self.item)

    def all_reduce(self, along: Along, message: int) -> None:
        group = self.grid.group_size(along)
        self._note("all_reduce", along, 2 * (message * (group - 1) // group))

    def _product(self, width: int, panel: Direction) -> None:
        grid, place, item = self.grid, self.place, self.item
        own = grid.slice_widths(width)[place.column]
        wire = own * (2 if self.method.wire == "bfloat16" else item)
        if self.method.exchange == "rows":
            self._rows_exchanged(panel, wire)
        else:
            self._blocks_sent(panel, wire)
        if grid.replicated:
            self.all_reduce("layer", self.panel_rows * own * item)
        else:
            self._note("reduce_scatter", "layer", (grid.layers - 1) * self.rows * own * item)

    def _blocks_sent(self, panel: Direction, wire: int) -> None:
        grid, place = self.grid, self.place
        for stage, nonzeros in zip(grid.stages(place), panel.nonzeros, strict=True):
            if self.method.panels == "sent":
                message = 8 * (self.panel_rows + 1) + (4 + self.item) * int(nonzeros)
                owner = stage.row % grid.columns
                self._note("broadcast", "column", 0 if owner == place.column else message)
            message = self.sizes.height(stage.block) * wire
            self._note("broadcast", "row", 0 if stage.row == place.row else message)

    def _rows_exchanged(self, panel: Direction, wire: int) -> None:
        R, row = self.grid.rows, self.place.row
        if R == 1:
            return
        # By distance around the group; stages of other layers bring nothing.
        wanted = np.zeros(R, dtype=np.int64)
        for stage, count in zip(self.grid.stages(self.place), panel.wanted, strict=True):
            wanted[(stage.row - row) % R] = count
        for first, stop in pairwise(balanced(R - 1, panel.rounds) + 1):
            self._note("all_to_all", "row", int(wanted[first:stop].sum()) * wire)

    def _gather(self, width: int) -> None:
        C = self.grid.columns
        # Every slice travels as wide as the widest.
        self._note("all_gather", "column", (C - 1) * self.rows * -(-width // C) * self.item)

    def _scatter(self, width: int) -> None:
        C = self.grid.columns
        own = self.grid.slice_widths(width)[self.place.column]
        self._note("reduce_scatter", "column", (C - 1) * self.rows * own * self.item)

    def _note(self, kind: Kind, along: Along, received: int) -> None:
        if (group := self.grid.group_size(along)) > 1:
            self.events.append(
                Event(kind=kind, along=along, group=group, bytes=received, seconds=0.0, purpose="")
            )
