"""How features of nodes travel between the ranks that own them and those that multiply them.

Every rank owns some nodes, with all of their features. A grid multiplies blocks of nodes and slices
of features. What goes from the one to the other and back, and the rows that a rank's edges touch,
are collectives in conjugate pairs: backward, each of them is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.counting_sort import counting_order
from weft.graphs import Array
from weft.kernels.fused_messages import EdgeWalks
from weft.parallel.grid import balanced
from weft.parallel.grid_matrix import CSRBlock, RowExchange
from weft.parallel.world import World


class Layout:
    """Which nodes each rank owns, and where the blocks of the grid are.

    A block of nodes is cut over the layers that hold replicas of it, and then over the columns.
    Tensors are [rows, H, U]: slices are made of the H heads (or features, of U = 1 number each).

    Attributes:
        world: the ranks.
        first: the first node that this rank owns, in the order of the prepared table.
        stop: the node after its last.
        begin: its first node, counted from the first of its block.
        heights: rows of the panel that each layer gets of a sum over layers.
        place: where the rows of this rank's block begin in its panel.
    """

    def __init__(self, world: World, offsets: Array) -> None:
        self.world, grid, place = world, world.grid, world.place
        block = grid.block_of(place)
        size = int(offsets[block + 1] - offsets[block])
        replicas = balanced(size, grid.layers if grid.replicated else 1)
        part = place.layer if grid.replicated else 0
        low, high = (int(cut) for cut in replicas[part : part + 2])
        columns = low + balanced(high - low, grid.columns)
        self.begin = int(columns[place.column])
        self.first = int(offsets[block]) + self.begin
        self.stop = int(offsets[block]) + int(columns[place.column + 1])
        blocks = grid.blocks_of_row(place.row)
        inside = offsets[blocks.start : blocks.stop + 1] - offsets[blocks.start]
        self.heights = _sizes(replicas if grid.replicated else inside)
        self.place = 0 if grid.replicated else int(inside[place.layer])
        self._columns = _sizes(columns)

    def to_block(self, x: Tensor) -> Tensor:
        """This rank's block and slice, [n, H / C, U], of its own nodes x [m, H, U]."""
        x = self.to_share(x)
        return self.gathered(x) if self.world.grid.replicated else x

    def to_share(self, x: Tensor) -> Tensor:
        """This layer's share of the block, and a slice of it, of own nodes x [m, H, U]."""
        if self.world.grid.columns == 1:
            return x
        heads = self.world.grid.slice_widths(x.shape[1])
        mine = heads[self.world.place.column]
        shapes = [(n, mine, x.shape[2]) for n in self._columns]
        return torch.cat(self._swapped(torch.split(x, heads, 1), shapes))

    def from_block(self, rows: Tensor, heads: int) -> Tensor:
        """This rank's own nodes, [m, H, U], of blocks of which replicas hold a part each.

        The reverse of `to_block` where there are no replicas; otherwise their sum.
        """
        return self.to_own(self.summed(rows) if self.world.grid.replicated else rows, heads)

    def to_own(self, rows: Tensor, heads: int) -> Tensor:
        """This rank's own nodes, [m, H, U], of what `summed` gives, [n / L, H / C, U]."""
        if self.world.grid.columns == 1:
            return rows
        shapes = [
            (self.stop - self.first, n, rows.shape[2]) for n in self.world.grid.slice_widths(heads)
        ]
        return torch.cat(self._swapped(torch.split(rows, self._columns), shapes), 1)

    def gathered(self, x: Tensor) -> Tensor:
        """The rows of all layers, [height, ...], of this layer's share of them."""
        width = int(np.prod(x.shape[1:]))
        sizes = [height * width for height in self.heights]
        return self.world.all_gather("layer", x.reshape(1, -1), sizes, "nodes").view(
            -1, *x.shape[1:]
        )

    def summed(self, rows: Tensor) -> Tensor:
        """This layer's share of the sum over layers of rows [height, ...]."""
        return self.world.reduce_scatter("layer", rows.contiguous(), self.heights, 0, "nodes")

    def _swapped(self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """What each column sends here, in these shapes, for the parts that go to each of them."""
        own = self.world.place.column
        others = [k for k in range(len(parts)) if k != own]
        counts = [0 if k == own else part.numel() for k, part in enumerate(parts)]
        sizes = [0 if k == own else int(np.prod(shape)) for k, shape in enumerate(shapes)]
        flat = torch.cat([parts[k].flatten() for k in others])
        found = torch.split(
            self.world.all_to_all("column", flat, counts, sizes, "nodes").wait(), sizes
        )
        return [parts[k] if k == own else found[k].view(shapes[k]) for k in range(len(parts))]


class Halo:
    """The rows of other ranks that this rank's edges touch, beside those of its own block.

    Attributes:
        edges: from rows of the halo to rows of the panel, those of the stages of this rank.
        loops: the same with exactly one edge from each node to itself.
        has_loop: bool [height], the rows of the panel with such an edge in this rank's stages.
    """

    def __init__(self, exchange: RowExchange, layout: Layout, height: int, size: int) -> None:
        self.world, self._wire = exchange.world, exchange.method.wire
        group = self.world.size("row")
        none = torch.zeros(0, dtype=torch.int64, device=self.world.device)
        sent = [[none] for _ in range(group)]
        self._receive = [0] * group
        found: dict[int, CSRBlock] = {}
        for part in exchange.rounds:
            for target, rows in enumerate(torch.split(part.rows, part.send)):
                sent[target].append(rows)
            for source, block in zip(part.sources, part.blocks, strict=True):
                found[source] = block
                self._receive[source] += part.receive[source]
        self._rows = torch.cat([rows for of in sent for rows in of])
        self._send = [sum(map(len, of)) for of in sent]
        # The own block is read where it is, and only if a stage of this rank has it.
        self._own = bool(exchange.local)
        starts, first = {}, size if self._own else 0
        for source in range(group):
            starts[source] = first
            first += self._receive[source]
        self.size = first
        senders, receivers = [none], [none]
        for start, block in [(0, block) for block in exchange.local] + [
            (starts[source], block) for source, block in found.items()
        ]:
            degrees = block.offsets.diff()
            rows = torch.arange(height, device=self.world.device)
            receivers.append(rows.repeat_interleave(degrees))
            senders.append(block.columns.long() + start)
        ends = torch.cat(senders), torch.cat(receivers)
        loop = (ends[0] == ends[1] - layout.place) & (ends[0] < (size if self._own else 0))
        self.has_loop = torch.zeros(height, dtype=torch.bool, device=self.world.device)
        self.has_loop[ends[1][loop]] = True
        self.edges = _sorted_edges(*ends, self.size, height)
        nodes = torch.arange(size if self._own else 0, device=self.world.device)
        self.loops = _sorted_edges(
            torch.cat([ends[0][~loop], nodes]),
            torch.cat([ends[1][~loop], nodes + layout.place]),
            self.size,
            height,
        )

    def gather(self, x: Tensor) -> Tensor:
        """The halo [h, F] of this rank's block x [n, F] and those of the others of its group."""
        rows = x.index_select(0, self._rows)
        if self._wire == "bfloat16":
            rows = rows.bfloat16()
        came = self.world.all_to_all("row", rows, self._send, self._receive, "halo").wait()
        return torch.cat([x, came.to(x.dtype)]) if self._own else came.to(x.dtype)

    def scatter(self, grad: Tensor, size: int) -> Tensor:
        """The gradient [n, F] to a block of that size, of the gradient [h, F] to the halo."""
        own, others = torch.split(grad, [len(grad) - sum(self._receive), sum(self._receive)])
        came = self.world.all_to_all("row", others, self._receive, self._send, "halo").wait()
        total = own.clone() if self._own else grad.new_zeros(size, grad.shape[1])
        return total.index_add_(0, self._rows, came)


class _Conjugates(torch.autograd.Function):
    """A linear function of one tensor, and the one that takes its gradients back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        there: Callable[[Tensor], Tensor],
        back: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.back = back
        out = there(x)
        return out.view_as(out) if out is x else out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.back(grads[0].contiguous()), None, None


def linear(
    x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
) -> Tensor:
    """there(x), whose gradient is back(gradient)."""
    out: Tensor = _Conjugates.apply(x, there, back)  # type: ignore[no-untyped-call]
    return out


class _JoinLayers(torch.autograd.Function):
    """Softmaxes over parts of each row's edges as one: of a row only log Σ exp travels."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, log_sums: Tensor, layout: Layout) -> Tensor:
        world = layout.world
        most = world.all_reduce("layer", log_sums.contiguous().clone(), "softmax", "max")
        # A row without edges on any rank has none to subtract.
        share = (log_sums - most.where(most > -torch.inf, 0)).exp()
        total = world.all_reduce("layer", share.clone(), "softmax")
        share = share / total.where(total > 0, 1)
        result = layout.summed(out * share[..., None])
        ctx.save_for_backward(out, share, result)
        ctx.layout = layout
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        out, share, result = ctx.saved_tensors
        # The result of other layers is not needed whole: its product with the gradient is.
        products = (grads[0] * result).sum(-1, keepdim=True)
        found = ctx.layout.gathered(torch.cat([grads[0], products], -1))
        grad, total = found[..., :-1], found[..., -1]
        return grad * share[..., None], share * ((grad * out).sum(-1) - total), None


def join_layers(out: Tensor, log_sums: Tensor, layout: Layout) -> Tensor:
    """This layer's share of the attention [n / L, H, C] that the layers have parts of.

    Args:
        out: [height, H, C], by this rank's edges alone.
        log_sums: [height, H], log Σ exp of the scores of these edges.
        layout: the ranks.
    """
    if layout.world.grid.layers == 1:
        return out
    joined: Tensor = _JoinLayers.apply(out, log_sums, layout)  # type: ignore[no-untyped-call]
    return joined


def _sizes(cuts: Array) -> list[int]:
    found: list[int] = np.diff(cuts).tolist()
    return found


def _sorted_edges(senders: Tensor, receivers: Tensor, sources: int, height: int) -> EdgeWalks:
    """The edges by receiver, as the loops like them best."""
    order = torch.from_numpy(counting_order(receivers.cpu().numpy(), height)).to(senders.device)
    return EdgeWalks(senders[order], receivers[order], sources, height)
