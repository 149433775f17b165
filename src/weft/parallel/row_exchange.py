"""Products for which only the rows travel that somebody's nonzeros touch.

What each rank needs is agreed once, on the CPU. The exchange goes in rounds, so that what is on its
way is about one block at most; the nonzeros whose rows are here already are multiplied meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from weft.kernels.segment_ops import add_product
from weft.parallel.grid import balanced
from weft.parallel.method import Method
from weft.parallel.shard_io import CSRBlock
from weft.parallel.world import Pending, World


@dataclass(frozen=True, kw_only=True, eq=False)
class _Round:
    """A part of the exchange.

    Attributes:
        receive: rows from each rank of the group.
        send: rows to each rank of the group.
        rows: int64 [Σ send], the own rows that go out, those for the group's first rank first.
        blocks: the nonzeros that wait for each sending rank's rows, columns counted among these.
    """

    receive: list[int]
    send: list[int]
    rows: Tensor
    blocks: list[CSRBlock]


class RowExchange:
    """The stages of a product, all at once or in rounds.

    Args:
        world: the ranks.
        method: what travels, and when.
        heights: rows of each stage's dense block.
        blocks: the nonzeros of each stage; they are taken over and changed.
    """

    def __init__(
        self, world: World, method: Method, heights: Sequence[int], blocks: Sequence[CSRBlock]
    ) -> None:
        self.world, self.method = world, method
        own = world.position("row")
        self.local: list[CSRBlock] = []
        # By rank of the group: the rows wanted from it, and the nonzeros that want them.
        wanted: dict[int, Tensor] = {}
        compressed: dict[int, CSRBlock] = {}
        for stage, block in zip(world.grid.stages(world.place), blocks, strict=True):
            if stage.row == own:
                self.local.append(block.to(world.device))
                continue
            wanted[stage.row], compressed[stage.row] = _compressed(block)
        self.rows_wanted = {source: len(rows) for source, rows in wanted.items()}
        given = self._agree(wanted)
        self.rounds = [
            self._round(sources, wanted, given, compressed)
            for sources in self._shifts(max(heights, default=0))
        ]

    @property
    def kept(self) -> list[CSRBlock]:
        """The nonzeros in memory between products."""
        return [*self.local, *(block for part in self.rounds for block in part.blocks)]

    def add_to(self, partial: Tensor, x: Tensor, purpose: str) -> None:
        """Add the product of the stages with everyone's blocks x [n, F] to partial [rows, F]."""
        overlap = self.method.overlap
        coming = self._start(0, x, purpose) if overlap and self.rounds else None
        for block in self.local:
            add_product(partial, block.weights, block.columns, block.offsets, x)
        for number, part in enumerate(self.rounds):
            found = (coming or self._start(number, x, purpose)).wait()
            last = number + 1 == len(self.rounds)
            coming = self._start(number + 1, x, purpose) if overlap and not last else None
            rows = torch.split(found, [block.num_columns for block in part.blocks])
            for block, values in zip(part.blocks, rows, strict=True):
                values = values.to(x.dtype)
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
        told = self.world.all_to_all("row", counts, one_each, one_each, "setup").wait().tolist()
        told.insert(own, 0)
        found = self.world.all_to_all("row", torch.cat(asked), receive, told, "setup").wait()
        return dict(enumerate(torch.split(found, told)))

    def _shifts(self, height: int) -> list[list[int]]:
        """For each round the distances, around the group, of the ranks that this one hears.

        As few rounds as bring no rank more rows at a time than the largest block has.
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
            blocks=[compressed[source].to(self.world.device) for source in heard],
        )


def _compressed(block: CSRBlock) -> tuple[Tensor, CSRBlock]:
    """Rows int64 [m] of a dense block that the nonzeros touch, and these counted among the m.

    In place: a panel and its compressed form at once would be half as much memory again.
    """
    rows = torch.bincount(block.columns, minlength=block.num_columns).nonzero()[:, 0]
    places = torch.empty(block.num_columns, dtype=torch.int32)
    places[rows] = torch.arange(len(rows), dtype=torch.int32)
    block.columns.copy_(places.index_select(0, block.columns))
    return rows, replace(block, num_columns=len(rows))
