"""A sparse matrix on a grid, and its product with a dense one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.graphs import Array
from weft.parallel.block_exchange import BlockExchange
from weft.parallel.method import Method
from weft.parallel.row_exchange import RowExchange
from weft.parallel.shard_io import CSRBlock
from weft.parallel.world import World


class GridMatrix:
    """This rank's panel of a square sparse matrix: the rows of its grid row, cut into stages.

    Args:
        world: the ranks.
        method: what travels.
        offsets: int64 [blocks + 1], where each block of nodes begins.
        blocks: the nonzeros of each stage, or None where another column of the grid sends them.
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
        self.world = world
        self.nonzeros = tuple(nonzeros)
        grid, place = world.grid, world.place
        self._heights = [int(offsets[b + 1] - offsets[b]) for b in grid.blocks_of_row(place.row)]
        heights = [int(offsets[s.block + 1] - offsets[s.block]) for s in grid.stages(place)]
        self.exchange: BlockExchange | RowExchange
        if method.exchange == "rows":
            present = [block for block in blocks if block is not None]
            self.exchange = RowExchange(world, method, heights, present)
        else:
            self.exchange = BlockExchange(
                world, method, heights, blocks, nonzeros, self.height, dtype
            )

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
        partial = x.new_zeros(self.height, x.shape[1])
        self.exchange.add_to(partial, x.contiguous(), purpose)
        if self.world.grid.replicated:
            return self.world.all_reduce("layer", partial, purpose)
        return self.world.reduce_scatter("layer", partial, self._heights, 0, purpose)


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
