"""A sparse matrix on a grid, and its product with a dense one.

Dense blocks travel whole, by a broadcast along the grid's rows for each stage (`BlockExchange`); or
only those of their rows that another rank's nonzeros touch (`RowExchange`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from weft.graphs import Array
from weft.kernels.segment_ops import add_product
from weft.parallel.grid import balanced
from weft.parallel.method import Method
from weft.parallel.world import Pending, World

FIRST_PRODUCT = "first product"
"""Purpose of the product that is computed once for all steps."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CSRBlock:
    """A block of a sparse matrix; columns ascend in each row, and may repeat (they then add up).

    Attributes:
        offsets: int64 [rows + 1], where each row begins.
        columns: int32 [nnz], counted from the block's first column.
        weights: [nnz].
        num_columns: width of the block.
    """

    offsets: Tensor
    columns: Tensor
    weights: Tensor
    num_columns: int

    @property
    def num_bytes(self) -> int:
        """Memory of the three arrays."""
        return sum(part.nbytes for part in (self.offsets, self.columns, self.weights))

    def to(self, device: torch.device) -> CSRBlock:
        """The same block on a device."""
        return replace(
            self,
            offsets=self.offsets.to(device),
            columns=self.columns.to(device),
            weights=self.weights.to(device),
        )


class GridMatrix:
    """This rank's panel of a square sparse matrix: the rows of its grid row, cut into stages.

    Args:
        world: the ranks.
        method: what travels.
        offsets: int64 [blocks + 1], where each block of nodes begins.
        blocks: the nonzeros of each stage, or None where another column of the grid sends them;
            where rows are exchanged they are taken over and changed.
        nonzeros: how many there are in each stage.
        dtype: of the weights.
    """

    def __init__(
        self,
        world: World,
        method: Method,
        offsets: Array,
        blocks: Sequence[CSRBlock | None],
        nonzeros: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        self.world, self.method, self.dtype = world, method, dtype
        self.nonzeros = tuple(nonzeros)
        self.stages = world.grid.stages(world.place)
        sizes = [int(stop - first) for first, stop in pairwise(offsets)]
        # Rows of the panel's blocks, and of each stage's dense block.
        self._heights = [sizes[block] for block in world.grid.blocks_of_row(world.place.row)]
        self.stage_heights = [sizes[stage.block] for stage in self.stages]
        kind = RowExchange if method.exchange == "rows" else BlockExchange
        self.exchange: BlockExchange | RowExchange = kind(self, blocks)

    def unweighted(self) -> GridMatrix:
        """The same nonzeros, all 1; only their values take memory of their own, once."""
        found = copy(self)
        found.exchange = copy(self.exchange)
        most = max((len(block.columns) for block in self.exchange.kept), default=0)
        ones = torch.ones(most, dtype=self.dtype, device=self.world.device)

        def unit(block: CSRBlock) -> CSRBlock:
            return replace(block, weights=ones[: len(block.columns)])

        if isinstance(found.exchange, RowExchange):
            found.exchange.local = list(map(unit, found.exchange.local))
            found.exchange.rounds = [
                replace(part, blocks=list(map(unit, part.blocks))) for part in found.exchange.rounds
            ]
        else:
            found.exchange.blocks = [
                None if block is None else unit(block) for block in found.exchange.blocks
            ]
        return found

    @property
    def height(self) -> int:
        """Rows of the panel."""
        return sum(self._heights)

    @property
    def num_bytes(self) -> int:
        """Memory of the nonzeros kept on this rank."""
        return sum(block.num_bytes for block in self.exchange.kept)

    def multiply(self, x: Tensor, purpose: str) -> Tensor:
        """This rank's rows of the product, [n, F], for its rows and features x [n, F]."""
        partial = self.partial_product(x, purpose)
        if self.world.grid.replicated:
            return self.world.all_reduce("layer", partial, purpose)
        return self.world.reduce_scatter("layer", partial, self._heights, 0, purpose)

    def read(self, values: Tensor, purpose: str) -> Tensor:
        """The rows [m, F] as a product reads them: its weights' dtype, or bfloat16.

        The first product is computed once, so that its precision costs nothing.
        """
        rounds = self.method.reads == "bfloat16" and self.dtype == torch.float32
        rounds = rounds and purpose != FIRST_PRODUCT and not getattr(_here, "exact", False)
        return values.to(torch.bfloat16 if rounds else self.dtype)

    def partial_product(self, x: Tensor, purpose: str) -> Tensor:
        """What this rank's stages add to the panel's rows, [height, F]; layers are not summed."""
        partial = x.new_zeros(self.height, x.shape[1])
        self.exchange.add_to(partial, x.contiguous(), purpose)
        return partial


# Of this thread: tests run several ranks in one process.
_here = threading.local()


@contextmanager
def exact_reads() -> Iterator[None]:
    """Within this context products read in full precision, whatever the method says."""
    before = getattr(_here, "exact", False)
    _here.exact = True
    try:
        yield
    finally:
        _here.exact = before


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: GridMatrix, transpose: GridMatrix) -> Tensor:
        ctx.transpose = transpose
        return matrix.multiply(x, "forward")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.transpose.multiply(grads[0], "backward"), None, None


def propagate(x: Tensor, matrix: GridMatrix, transpose: GridMatrix) -> Tensor:
    """matrix @ x [n, F] on this rank's block; the gradient is transpose @ gradient."""
    out: Tensor = _Propagate.apply(x, matrix, transpose)  # type: ignore[no-untyped-call]
    return out


class BlockExchange:
    """The stages of a product, one dense block after another; arguments as of GridMatrix."""

    def __init__(self, matrix: GridMatrix, blocks: Sequence[CSRBlock | None]) -> None:
        self.matrix, self.world, self.method = matrix, matrix.world, matrix.method
        self.stages = matrix.stages
        self.blocks = [None if block is None else block.to(self.world.device) for block in blocks]
        self.sent = self.method.panels == "sent" and self.world.grid.columns > 1

    @property
    def kept(self) -> list[CSRBlock]:
        """The nonzeros in memory between products."""
        return [block for block in self.blocks if block is not None]

    def add_to(self, partial: Tensor, x: Tensor, purpose: str) -> None:
        """Add the product of the stages with everyone's blocks x [n, F] to partial [rows, F]."""
        count = len(self.stages)
        coming = self._start(0, x, purpose) if count else None
        for number in range(count):
            assert coming is not None
            edges, features = coming
            following = number + 1 < count
            if following and self.method.overlap:
                coming = self._start(number + 1, x, purpose)
            block = self._received(number, edges)
            found = features.wait()
            own = self.stages[number].row == self.world.place.row
            values = self.matrix.read(x if own else found, purpose)
            add_product(partial, block.weights, block.columns, block.offsets, values)
            if following and not self.method.overlap:
                coming = self._start(number + 1, x, purpose)

    def _start(self, number: int, x: Tensor, purpose: str) -> tuple[Pending | None, Pending]:
        stage = self.stages[number]
        own = stage.row == self.world.place.row
        block = x if own else x.new_empty(self.matrix.stage_heights[number], x.shape[1])
        if self.method.wire == "bfloat16":
            block = block.bfloat16()
        edges = self._start_edges(number) if self.sent else None
        return edges, self.world.broadcast("row", stage.row, block.contiguous(), purpose)

    def _start_edges(self, number: int) -> Pending:
        """Nonzeros on their way along the grid's columns, as bytes."""
        block = self.blocks[number]
        if block is None:
            size = sum(self._sizes(number))
            packed = torch.empty(size, dtype=torch.uint8, device=self.world.device)
        else:
            parts = (block.offsets, block.columns, block.weights)
            packed = torch.cat([part.contiguous().view(torch.uint8) for part in parts])
        owner = self.stages[number].row % self.world.grid.columns
        return self.world.broadcast("column", owner, packed, "edges")

    def _sizes(self, number: int) -> list[int]:
        """Bytes of a stage's offsets, columns and weights."""
        count = self.matrix.nonzeros[number]
        return [8 * (self.matrix.height + 1), 4 * count, self.matrix.dtype.itemsize * count]

    def _received(self, number: int, edges: Pending | None) -> CSRBlock:
        packed = None if edges is None else edges.wait()
        if (block := self.blocks[number]) is not None:
            return block
        assert packed is not None
        offsets, columns, weights = torch.split(packed, self._sizes(number))
        # Each part is copied to an address that is aligned for its type.
        return CSRBlock(
            offsets=offsets.clone().view(torch.int64),
            columns=columns.clone().view(torch.int32),
            weights=weights.clone().view(self.matrix.dtype),
            num_columns=self.matrix.stage_heights[number],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Round:
    """A part of the exchange.

    Attributes:
        receive: rows from each rank of the group.
        send: rows to each rank of the group.
        rows: int64 [Σ send], the own rows that go out, those for the group's first rank first.
        sources: the sending rank of each block.
        blocks: the nonzeros that wait for each sending rank's rows, columns counted among these.
    """

    receive: list[int]
    send: list[int]
    rows: Tensor
    sources: list[int]
    blocks: list[CSRBlock]


class RowExchange:
    """The stages of a product, all at once or in rounds.

    The ranks agree once, on the CPU, which rows each of them needs. The exchange goes in rounds, so
    that about one block at most is on its way; meanwhile the nonzeros whose rows have arrived are
    multiplied. Arguments as of GridMatrix.
    """

    def __init__(self, matrix: GridMatrix, blocks: Sequence[CSRBlock | None]) -> None:
        self.matrix, self.method = matrix, matrix.method
        self.world = world = matrix.world
        own = world.position("row")
        self.local: list[CSRBlock] = []
        # By rank of the group: the rows wanted from it, and the nonzeros that they multiply.
        wanted: dict[int, Tensor] = {}
        compressed: dict[int, CSRBlock] = {}
        for stage, block in zip(matrix.stages, blocks, strict=True):
            assert block is not None
            if stage.row == own:
                self.local.append(block.to(world.device))
                continue
            wanted[stage.row], compressed[stage.row] = _compressed(block)
        self.rows_wanted = {source: len(rows) for source, rows in wanted.items()}
        given = self._agree(wanted)
        self.rounds = [
            self._round(sources, wanted, given, compressed)
            for sources in self._shifts(max(matrix.stage_heights, default=0))
        ]

    @property
    def kept(self) -> list[CSRBlock]:
        """The nonzeros in memory between products."""
        return [*self.local, *(block for part in self.rounds for block in part.blocks)]

    def add_to(self, partial: Tensor, x: Tensor, purpose: str) -> None:
        """Add the product of the stages with everyone's blocks x [n, F] to partial [rows, F]."""
        overlap = self.method.overlap
        coming = self._start(0, x, purpose) if overlap and self.rounds else None
        values = self.matrix.read(x, purpose) if self.local else x
        for block in self.local:
            add_product(partial, block.weights, block.columns, block.offsets, values)
        for number, part in enumerate(self.rounds):
            found = (coming or self._start(number, x, purpose)).wait()
            last = number + 1 == len(self.rounds)
            coming = self._start(number + 1, x, purpose) if overlap and not last else None
            rows = torch.split(found, [block.num_columns for block in part.blocks])
            for block, values in zip(part.blocks, rows, strict=True):
                values = self.matrix.read(values, purpose)
                add_product(partial, block.weights, block.columns, block.offsets, values)

    def _start(self, number: int, x: Tensor, purpose: str) -> Pending:
        part = self.rounds[number]
        rows = x.index_select(0, part.rows)
        if self.method.wire == "bfloat16":
            rows = rows.bfloat16()
        return self.world.all_to_all("row", rows, part.send, part.receive, purpose)

    def _agree(self, wanted: dict[int, Tensor]) -> dict[int, Tensor]:
        """The own rows that each other rank of the group wants."""
        size = self.world.size("row")
        if size == 1:
            return {}
        none = torch.zeros(0, dtype=torch.int64)
        asked = [wanted.get(source, none) for source in range(size)]
        receive = [len(rows) for rows in asked]
        if self.world.dry:
            return {}
        own = self.world.position("row")
        counts = torch.tensor([n for place, n in enumerate(receive) if place != own])
        one_each = [int(place != own) for place in range(size)]
        send = self.world.all_to_all("row", counts, one_each, one_each, "setup").wait().tolist()
        send.insert(own, 0)
        found = self.world.all_to_all("row", torch.cat(asked), receive, send, "setup").wait()
        return dict(enumerate(torch.split(found, send)))

    def _shifts(self, height: int) -> list[list[int]]:
        """For each round the distances, around the group, of the ranks that this one receives from.

        There are as few rounds as possible such that no rank receives more rows in one of them
        than the largest block has.
        """
        size = self.world.size("row")
        if size == 1:
            return []
        total = sum(self.rows_wanted.values())
        rounds = torch.tensor([max(1, -(-total // max(height, 1)))])
        self.world.all_reduce("row", rounds, "setup", "max")
        cuts = balanced(size - 1, min(size - 1, int(rounds))) + 1
        return [list(range(int(a), int(b))) for a, b in pairwise(cuts)]

    def _round(
        self,
        shifts: list[int],
        wanted: dict[int, Tensor],
        given: dict[int, Tensor],
        compressed: dict[int, CSRBlock],
    ) -> _Round:
        size, own = self.world.size("row"), self.world.position("row")
        sources = sorted((own + shift) % size for shift in shifts)
        targets = sorted((own - shift) % size for shift in shifts)
        none = torch.zeros(0, dtype=torch.int64)
        out = [given.get(target, none) if target in targets else none for target in range(size)]
        heard = [source for source in sources if source in wanted]
        return _Round(
            receive=[len(wanted[source]) if source in heard else 0 for source in range(size)],
            send=[len(rows) for rows in out],
            rows=torch.cat(out).to(self.world.device),
            sources=heard,
            blocks=[compressed[source].to(self.world.device) for source in heard],
        )


def _compressed(block: CSRBlock) -> tuple[Tensor, CSRBlock]:
    """Rows int64 [m] of a dense block that the nonzeros touch, and these counted among the m.

    In place: both forms of a panel at once would take half as much memory again.
    """
    rows = torch.bincount(block.columns, minlength=block.num_columns).nonzero()[:, 0]
    places = torch.empty(block.num_columns, dtype=torch.int32)
    places[rows] = torch.arange(len(rows), dtype=torch.int32)
    block.columns.copy_(places.index_select(0, block.columns))
    return rows, replace(block, num_columns=len(rows))
