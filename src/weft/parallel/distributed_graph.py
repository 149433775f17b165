"""A graph that ranks share, as a model sees it: its own nodes, and sums over their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from weft.graphs import GraphTable
from weft.kernels import dropout as counter_dropout
from weft.kernels.attention import attention_part
from weft.kernels.counter_dropout import Part, relu_dropout
from weft.kernels.custom_op import have_one_loop
from weft.kernels.fused_messages import EdgeWalks, fused_messages
from weft.kernels.message_code import MOST_FEATURES, Leaf, MessageProgram
from weft.parallel.grid import check_grid
from weft.parallel.grid_layers import cross_entropy, scores
from weft.parallel.grid_matrix import GridMatrix, RowExchange, exact_reads
from weft.parallel.method import Method
from weft.parallel.node_exchange import Halo, Layout, join_layers, linear
from weft.parallel.shard import GraphShard, read_nodes
from weft.parallel.world import World

Weight = Literal["matrix", "ones", "symmetric"]
Reduction = Literal["sum", "mean", "max"]
_LARGEST = MessageProgram(("leaf", 0), (Leaf("j", by_head=False),), ("max",))


class DistributedGraph:
    """One graph that the ranks of a grid share; a model reads it like a graph of its own.

    Every rank owns some nodes and has all of their features, so that what is computed node by node
    (linear layers, activations, layer norms) is plain torch. What reads neighbours or all nodes
    is a method here, which every rank calls in the same order. A model that is written so runs
    unchanged in one process and on every grid.

    Each rank has a part of the loss, and its parameters the gradients of that part until
    `sum_gradients` adds them up. Gradients are exact.

    Attributes:
        shard: this rank's part of the edges.
        world: the ranks.
        flat: the same ranks as a grid of one column, over which the nodes are cut.
        ids: int64 [m], the numbers of this rank's nodes in the original graph.
        x: [m, f], their features. What is computed of them and of nothing else may be kept.
        y: int64 [m], their classes; -1 where unknown.
        masks: bool [m], for each part of the split.
        counts: nodes in each part, over all ranks.
        num_nodes: nodes of all ranks.
        features: f.
        classes: c.
    """

    def __init__(self, shard: GraphShard) -> None:
        self.shard, self.world, self.flat = shard, shard.world, shard.world.flat()
        self.layout = Layout(shard.world, shard.offsets)
        span = slice(self.layout.begin, self.layout.begin + self.layout.stop - self.layout.first)
        self.ids, self.y = shard.ids[span], shard.y[span]
        self.masks = {name: mask[span] for name, mask in shard.masks.items()}
        self.counts, self.features, self.classes = shard.counts, shard.features, shard.classes
        self.num_nodes = shard.table.total_nodes
        rows = read_nodes(shard.table, "x", self.layout.first, self.layout.stop)
        self.x = rows.to(self.world.device, shard.dtype)
        self._loops_added = shard.table.metadata["normalisation"] == "symmetric"
        # Products of the features, which never change.
        self._kept: dict[tuple[str, str], Tensor] = {}

    @classmethod
    def open(
        cls,
        table: GraphTable,
        world: World,
        method: Method | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> DistributedGraph:
        """This rank's part of a prepared table (see `prepare`); all ranks together."""
        return cls(GraphShard.open(table, world, method or Method(), dtype))

    # Sums over neighbours.

    def propagate(
        self, x: Tensor, weight: Weight = "matrix", *, reduce: Reduction = "sum"
    ) -> Tensor:
        """What enters each node, [m, F], of the features x [m, F] of all nodes.

        Args:
            x: of this rank's nodes.
            weight: of an edge: `matrix`, as the graph was prepared; `ones`; or `symmetric`, that of
                a GCN, D^-1/2 (A + I) D^-1/2, where it was prepared without normalisation.
            reduce: the sum; `mean`, divided by the number of edges into a node; or `max`, for which
                weights do not count. A node without edges gets 0.

        Raises:
            ValueError: on every rank, before anything travels: the grid cuts rows where whole ones
                are needed, or the graph was prepared in another way.
        """
        _check("weight", weight, Weight)
        _check("reduce", reduce, Reduction)
        if weight == "ones" or reduce != "sum":
            self._need_original(f"a {reduce} over neighbours, each counted once")
        if weight == "symmetric" and not self._loops_added:
            self._need_plain()
        if reduce == "max":
            check_grid(self.world.grid, whole_rows="a maximum over neighbours")
            self._need_rows()
        if x is not self.x or x.requires_grad:
            return self._propagate(x, weight, reduce)
        return self.kept((weight, reduce), lambda: self._propagate(x, weight, reduce))

    def kept(self, name: tuple[str, str], compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` makes of the features alone, computed once for all steps."""
        if name not in self._kept:
            with torch.no_grad(), exact_reads():
                self._kept[name] = compute()
        return self._kept[name]

    def _propagate(self, x: Tensor, weight: Weight, reduce: Reduction) -> Tensor:
        if reduce == "max":
            return self._max(x)
        if reduce == "mean":
            ones = self._product(x, *self._ones)
            return ones / self.degrees.clamp(min=1)[:, None]
        if weight == "ones":
            return self._product(x, *self._ones)
        matrices = self.shard.matrix, self.shard.transpose
        if weight == "matrix" or self._loops_added:
            return self._product(x, *matrices)
        scale, missing = self._symmetric
        scaled = x * scale
        return scale * (self._product(scaled, *matrices) + missing * scaled)

    def _product(self, x: Tensor, matrix: GridMatrix, transpose: GridMatrix) -> Tensor:
        layout, width = self.layout, x.shape[1]

        def multiply(rows: Tensor, by: GridMatrix, purpose: str) -> Tensor:
            block = layout.to_block(rows[..., None])[..., 0]
            sums = layout.summed(by.partial_product(block, purpose))
            return layout.to_own(sums[..., None], width)[..., 0].contiguous()

        return linear(
            x,
            lambda rows: multiply(rows, matrix, "forward"),
            lambda grad: multiply(grad, transpose, "backward"),
        )

    def _max(self, x: Tensor) -> Tensor:
        width = x.shape[1]
        senders = self._halo_of(self._block_of(x[..., None]))[..., 0]
        edges = self.halo.edges
        if have_one_loop(senders):
            # The loops have room for so many features at a time.
            parts = [part[:, None] for part in torch.split(senders, MOST_FEATURES, 1)]
            found = [fused_messages(_LARGEST, edges, [p.contiguous()], ())[0][:, 0] for p in parts]
            out = torch.cat(found, 1)
        else:
            index = edges.receivers[:, None].expand(-1, senders.shape[1])
            zeros = senders.new_zeros(edges.num_receivers, senders.shape[1])
            rows = senders[edges.senders]
            out = zeros.scatter_reduce(0, index, rows, "amax", include_self=False)
        return self._own_of(out[..., None], width)[..., 0]

    @cached_property
    def degrees(self) -> Tensor:
        """Edges that enter each of this rank's nodes, [m], in the graph's dtype."""
        ones = self.x.new_ones(len(self.ids), 1)
        with torch.no_grad():
            return self._product(ones, *self._ones)[:, 0]

    @cached_property
    def _ones(self) -> tuple[GridMatrix, GridMatrix]:
        matrix = self.shard.matrix.unweighted()
        if self.shard.transpose is self.shard.matrix:
            return matrix, matrix
        return matrix, self.shard.transpose.unweighted()

    @cached_property
    def _symmetric(self) -> tuple[Tensor, Tensor]:
        """D^-1/2, and 1 for each of this rank's nodes without an edge to itself, [m, 1] each."""
        loops = self.layout.summed(self.halo.has_loop.to(self.x.dtype)[:, None])
        missing = 1 - self.layout.to_own(self._one_column(loops)[..., None], 1)[..., 0]
        ones = self.x.new_ones(len(self.ids), 1)
        with torch.no_grad():
            sums = self._product(ones, self.shard.matrix, self.shard.transpose) + missing
        return sums.pow(-0.5).where(sums > 0, 0), missing

    def _one_column(self, values: Tensor) -> Tensor:
        """A column [n, 1] that every column of the grid has, as the slices of one feature."""
        own = self.world.grid.slice_widths(1)[self.world.place.column]
        return values[:, :own]

    # Attention.

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float | None = None,
        self_loops: bool = False,
    ) -> Tensor:
        """Attention of each node to those whose edges enter it, [m, H, C]: softmax(q·k) v.

        Args:
            queries: [m, H, C], of this rank's nodes.
            keys: [m, H, C].
            values: [m, H, C].
            scale: of q·k; by default 1 / √C.
            self_loops: every node attends to itself, once.
        """
        scale = queries.shape[2] ** -0.5 if scale is None else scale
        return self._attend(values, keys, receivers=queries, self_loops=self_loops, scale=scale)

    def attend_additively(
        self,
        values: Tensor,
        receivers: Tensor,
        *,
        senders: Tensor | None = None,
        vector: Tensor | None = None,
        slope: float = 0.2,
        self_loops: bool = True,
    ) -> Tensor:
        """Attention [m, H, C] with the scores of GAT (`senders`) or those of GATv2 (`vector`).

        An edge from j to i has the score leaky_relu(senders_j + receivers_i), or
        vector · leaky_relu(values_j + receivers_i).

        Args:
            values: [m, H, C], of this rank's nodes.
            receivers: [m, H], or [m, H, C] with a vector.
            senders: [m, H].
            vector: [H, C], the same on every rank.
            slope: of leaky_relu below 0.
            self_loops: every node attends to itself, once.
        """
        if (senders is None) == (vector is None):
            raise ValueError("additive attention takes either senders (GAT) or a vector (GATv2)")
        more = values[..., :0] if senders is None else senders[..., None]
        return self._attend(
            values,
            more,
            receivers=receivers if senders is None else receivers[..., None],
            self_loops=self_loops,
            slope=slope,
            vector=vector,
        )

    def _attend(
        self,
        values: Tensor,
        more: Tensor,
        *,
        receivers: Tensor,
        self_loops: bool,
        slope: float = 1.0,
        scale: float | None = None,
        vector: Tensor | None = None,
    ) -> Tensor:
        """Attention whose edges read values and `more` of the sender, and `receivers`."""
        self._need_rows()
        if not self_loops:
            self._need_original("attention without loops")
        heads, width = values.shape[1:]
        if self.world.ranks == 1:
            # Nothing travels: the rows are read where they are.
            v, rest, panel = values.contiguous(), more, receivers
        else:
            # All that travels of a node, as one message.
            block = self._block_of(torch.cat([values, more, receivers], -1))
            sent, asked = torch.split(block, [width + more.shape[-1], receivers.shape[-1]], -1)
            halo, panel = self._halo_of(sent), self._panel_of(asked)
            v, rest = halo[..., :width].contiguous(), halo[..., width:]
        own = self.world.grid.slice_widths(heads)
        first = sum(own[: self.world.place.column])
        mine = slice(first, first + own[self.world.place.column])
        if not v.shape[1]:
            # A column without heads takes part in every message all the same.
            out = panel.new_zeros(len(panel), 0, width) + (v.sum() + rest.sum() + panel.sum())
            sums = panel.new_zeros(len(panel), 0)
        else:
            edges = self.halo.loops if self_loops else self.halo.edges
            given = {"queries": panel.contiguous()}
            if vector is not None:
                given["vector"] = vector[mine]
            elif scale is not None:
                given["keys"] = rest.contiguous()
            else:
                scores = (part[..., 0].contiguous() for part in (rest, panel))
                given = dict(zip(("sender_scores", "receiver_scores"), scores, strict=True))
            out, sums = _attention(edges, v, given, slope=slope, scale=scale or 1.0)
        return self._own_of(join_layers(out, sums, self.layout), heads)

    # Messages of any kind.

    def gather(self, x: Tensor, end: Literal["senders", "receivers"] = "senders") -> Tensor:
        """The rows x [e, F] of the nodes at one end of each of this rank's edges."""
        self._need_edges()
        block = self._block_of(x[..., None])
        if end == "senders":
            return self._halo_of(block)[..., 0].index_select(0, self.halo.edges.senders)
        return self._panel_of(block)[..., 0].index_select(0, self.halo.edges.receivers)

    def reduce(self, messages: Tensor, how: Reduction = "sum") -> Tensor:
        """The sums, means or maxima [m, F] of messages [e, F] on the edges that `gather` has."""
        self._need_edges()
        _check("how", how, Reduction)
        edges = self.halo.edges
        rows, width = edges.num_receivers, messages.shape[1]
        zeros = messages.new_zeros(rows, width)
        if how == "max":
            check_grid(self.world.grid, whole_rows="a maximum over edges")
            index = edges.receivers[:, None].expand_as(messages)
            return zeros.scatter_reduce(0, index, messages, "amax", include_self=False)
        sums = linear(
            zeros.index_add(0, edges.receivers, messages), self.layout.summed, self.layout.gathered
        )
        return sums / self.degrees.clamp(min=1)[:, None] if how == "mean" else sums

    def over_nodes(self, values: Tensor) -> Tensor:
        """The sum [F] over the nodes of all ranks of values [m, F], to compute with on every rank.

        The gradient is summed over ranks too: each uses the sum for its own nodes.
        """
        total = values.sum(0)
        return linear(
            total,
            lambda own: self.flat.all_reduce("world", own.clone(), "nodes"),
            lambda grad: self.flat.all_reduce("world", grad.clone(), "nodes"),
        )

    def dropout(self, x: Tensor, p: float, training: bool = True, *, relu: bool = False) -> Tensor:
        """Dropout of x [m, F], or of relu(x), with a mask that depends on the node, not its rank.

        Its seed is drawn by torch, so all ranks need torch's random state to be the same.
        """
        if not (training and p > 0):
            return x.relu() if relu else x
        part = Part(seed=int(torch.randint(2**62, (1,))), ids=self.ids)
        return relu_dropout(x, p, part=part) if relu else counter_dropout(x, p, part=part)

    # Training.

    def cross_entropy(self, logits: Tensor, part: str = "train") -> Tensor:
        """The mean loss over a part of the split, of all ranks' logits [m, c]; the same on each."""
        rows = (self.masks[part] & (self.y >= 0)).nonzero()[:, 0]
        count, classes = self.counts[part], logits.shape[1]
        return cross_entropy(self.flat, logits, self.y, rows, classes=classes, count=count)

    def total(self, value: Tensor) -> Tensor:
        """The sum over ranks of each one's part of a loss; the last step before `backward`."""
        return linear(
            value,
            lambda own: self.flat.all_reduce("world", own.clone(), "loss"),
            lambda grad: grad,
        )

    def scores(self, logits: Tensor) -> dict[str, float]:
        """Loss and accuracy of each part of the split, see `grid_layers.scores`."""
        return scores(self.flat, logits, self.y, self.masks, classes=logits.shape[1])

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over ranks; all ranks need the same parameters."""
        self.world.add_gradients(parameters, "weights")

    # How it is done.

    @cached_property
    def halo(self) -> Halo:
        """The rows of other ranks that this rank's edges touch."""
        matrix = self.shard.matrix
        assert isinstance(matrix.exchange, RowExchange)
        size = len(self.shard.ids)
        return Halo(matrix.exchange, self.layout, matrix.height, size)

    def _block_of(self, x: Tensor) -> Tensor:
        heads = x.shape[1]
        return linear(
            x, self.layout.to_block, lambda grad: self.layout.from_block(grad, heads).contiguous()
        )

    def _own_of(self, rows: Tensor, heads: int) -> Tensor:
        """This rank's nodes of its layer's share of a panel, and its slice of heads."""
        if self.world.grid.columns == 1:
            return rows
        return linear(
            rows,
            lambda own: self.layout.to_own(own, heads),
            self.layout.to_share,
        )

    def _halo_of(self, block: Tensor) -> Tensor:
        shape = block.shape[1:]
        rows = linear(
            block.flatten(1), self.halo.gather, lambda grad: self.halo.scatter(grad, len(block))
        )
        return rows.view(len(rows), *shape)

    def _panel_of(self, block: Tensor) -> Tensor:
        if self.world.grid.replicated or self.world.grid.layers == 1:
            return block
        return linear(block, self.layout.gathered, self.layout.summed)

    def _need_rows(self) -> None:
        if self.shard.method.exchange != "rows":
            raise ValueError(
                "attention, maxima and messages read rows of neighbours, but method.exchange is "
                f"{self.shard.method.exchange!r}; set it to 'rows'"
            )

    def _need_original(self, what: str) -> None:
        if self._loops_added:
            raise ValueError(
                f"{what} needs the graph's own edges, but it was prepared with the symmetric "
                "normalisation, which adds self-loops; prepare it with normalisation 'none'"
            )

    def _need_plain(self) -> None:
        how = self.shard.table.metadata["normalisation"]
        if how != "none":
            raise ValueError(
                f"weight 'symmetric' needs the graph's own weights, but it was prepared with "
                f"normalisation {how!r}; prepare it with 'none' or 'symmetric'"
            )
        self._need_rows()

    def _need_edges(self) -> None:
        self._need_rows()
        self._need_original("gathering messages")
        check_grid(self.world.grid, whole_features="a message of an edge")


def _attention(
    edges: EdgeWalks,
    values: Tensor,
    given: dict[str, Tensor],
    *,
    slope: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`attention_part`, by so many heads at a time as its loops have room for."""
    heads, width = values.shape[1:]
    if width > MOST_FEATURES:
        raise ValueError(f"a head has {width} features; attention takes at most {MOST_FEATURES}")
    room = max(1, MOST_FEATURES // max(1, width))
    if heads <= room:
        return attention_part(edges, values, slope=slope, scale=scale, **given)
    found = []
    for first in range(0, heads, room):
        part = slice(first, first + room)
        own = {
            name: t[part] if name == "vector" else t[:, part].contiguous()
            for name, t in given.items()
        }
        found.append(
            attention_part(edges, values[:, part].contiguous(), slope=slope, scale=scale, **own)
        )
    return torch.cat([out for out, _ in found], 1), torch.cat([sums for _, sums in found], 1)


def _check(name: str, value: str, legal: object) -> None:
    if value not in get_args(legal):
        raise ValueError(f"{name} is {value!r}; choose from {', '.join(get_args(legal))}")
