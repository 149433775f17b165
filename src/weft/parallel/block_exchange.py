"""Products whose dense blocks travel whole: a broadcast along the grid's rows for each stage."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.kernels.segment_ops import add_product
from weft.parallel.method import Method
from weft.parallel.shard_io import CSRBlock
from weft.parallel.world import Pending, World


class BlockExchange:
    """The stages of a product, one dense block after another.

    Args:
        world: the ranks.
        method: what travels beside them, and when.
        heights: rows of each stage's dense block.
        blocks: the nonzeros of each stage, or None where another column of the grid sends them.
        nonzeros: how many there are in each stage.
        rows: of the panel.
        dtype: of the weights.
    """

    def __init__(
        self,
        world: World,
        method: Method,
        heights: Sequence[int],
        blocks: Sequence[CSRBlock | None],
        nonzeros: Sequence[int],
        rows: int,
        dtype: torch.dtype,
    ) -> None:
        self.world, self.method = world, method
        self.stages = world.grid.stages(world.place)
        self.heights, self.nonzeros = heights, nonzeros
        self.blocks = [None if block is None else block.to(world.device) for block in blocks]
        self.rows, self.dtype = rows, dtype
        self.sent = method.panels == "sent" and world.grid.columns > 1

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
            values = x if own else found.to(x.dtype)
            add_product(partial, block.weights, block.columns, block.offsets, values)
            if following and not self.method.overlap:
                coming = self._start(number + 1, x, purpose)

    def _start(self, number: int, x: Tensor, purpose: str) -> tuple[Pending | None, Pending]:
        stage = self.stages[number]
        own = stage.row == self.world.place.row
        block = x if own else x.new_empty(self.heights[number], x.shape[1])
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
        count = self.nonzeros[number]
        return [8 * (self.rows + 1), 4 * count, self.dtype.itemsize * count]

    def _received(self, number: int, edges: Pending | None) -> CSRBlock:
        packed = None if edges is None else edges.wait()
        if (block := self.blocks[number]) is not None:
            return block
        assert packed is not None
        offsets, columns, weights = torch.split(packed, self._sizes(number))
        # Each part moves to an address that its type can be read at.
        return CSRBlock(
            offsets=offsets.clone().view(torch.int64),
            columns=columns.clone().view(torch.int32),
            weights=weights.clone().view(self.dtype),
            num_columns=self.heights[number],
        )
