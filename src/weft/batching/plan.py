"""The batches of one epoch, planned from sizes alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from weft.batching.budgets import own_budget
from weft.batching.config import Policy
from weft.batching.loops import cut_in_order
from weft.batching.packing import pack_evenly
from weft.batching.ranks import deal, split
from weft.graphs import Array, Budget

# More than any graph has, and far from overflow in a sum.
_ENDLESS = 2**62


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedBatch:
    """Which graphs a batch holds, int64 [b], and what it is padded to."""

    graphs: Array
    budget: Budget | None


@dataclass(frozen=True, kw_only=True)
class BatchStatistics:
    """What an epoch's batches look like, over all ranks.

    Attributes:
        batches: b.
        graphs: real graphs in all.
        graphs_per_batch: their mean.
        node_fill: real nodes among all nodes, padding included; 1 where nothing is padded.
        edge_fill: the same for edges.
        graph_fill: the same for graphs.
        distinct_shapes: different padded (nodes, edges, graphs): compilations with static shapes.
        skipped: graphs left out because they are larger than the budget.
        alone: graphs with a batch of their own for that reason.
    """

    batches: int
    graphs: int
    graphs_per_batch: float
    node_fill: float
    edge_fill: float
    graph_fill: float
    distinct_shapes: int
    skipped: int
    alone: int


class EpochPlan(Sequence[PlannedBatch]):
    """A sequence of batches, kept as three arrays.

    Attributes:
        graphs: int64 [g], the graphs of one batch after another.
        starts: int64 [b + 1], where each batch begins in `graphs`.
        shapes: int64 [b, 3], padded nodes, edges and graphs; the real ones where `padded` is False.
        padded: whether the batches have a budget.
    """

    def __init__(self, graphs: Array, starts: Array, shapes: Array, *, padded: bool) -> None:
        self.graphs, self.starts, self.shapes, self.padded = graphs, starts, shapes, padded

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> PlannedBatch: ...
    @overload
    def __getitem__(self, index: slice) -> EpochPlan: ...
    def __getitem__(self, index: int | slice) -> PlannedBatch | EpochPlan:
        if isinstance(index, slice):
            return self._chosen(np.arange(len(self))[index])
        number = range(len(self))[index]
        nodes, edges, graphs = self.shapes[number].tolist()
        return PlannedBatch(
            graphs=self.graphs[self.starts[number] : self.starts[number + 1]],
            budget=Budget(nodes=nodes, edges=edges, graphs=graphs) if self.padded else None,
        )

    def __iter__(self) -> Iterator[PlannedBatch]:
        return (self[i] for i in range(len(self)))

    def _chosen(self, batches: Array) -> EpochPlan:
        graphs, starts = _take(self.graphs, self.starts, batches)
        return EpochPlan(graphs, starts, self.shapes[batches], padded=self.padded)


@dataclass(frozen=True, kw_only=True)
class Room:
    """What one batch can hold: the policy, and its budget where it has one."""

    policy: Policy
    budget: Budget | None
    batch_size: int

    def limits(self) -> Array:
        """int64 [3], the most real nodes, edges and graphs."""
        nodes, edges, graphs = _ENDLESS, _ENDLESS, self.batch_size - self.policy.padded
        if self.policy.limited:
            assert self.budget is not None
            nodes, edges = self.budget.nodes - 1, self.budget.edges
            graphs = self.budget.graphs - 1
        return np.array([nodes, edges, graphs], dtype=np.int64)

    def shapes(self, sizes: Array) -> Array:
        """int64 [b, 3], the padded sizes of batches with these real sizes [b, 3]."""
        if self.budget is not None:
            b = self.budget
            shapes = np.tile(
                np.array([b.nodes, b.edges, b.graphs], dtype=np.int64), (len(sizes), 1)
            )
            # Only a graph larger than the budget makes such a batch, and has it alone.
            over = (sizes > self.limits()).any(axis=1)
            shapes[over] = own_budget(sizes[over, 0], sizes[over, 1])
            return shapes
        if self.policy.round_up is None:
            return sizes
        shapes = self.policy.round_up(sizes + np.array([1, 0, 0]))
        shapes[:, 2] = self.batch_size
        return shapes


def plan_epoch(
    num_nodes: Array,
    num_edges: Array,
    graphs: Array,
    room: Room,
    *,
    shuffle: np.random.Generator | None,
    ranks: int,
) -> EpochPlan:
    """All ranks' batches of one epoch: batch s·ranks + r is rank r's in step s.

    Args:
        num_nodes: int64, of every graph of the table.
        num_edges: int64, the same.
        graphs: int64 [g], the numbers of those to batch.
        room: the policy and its budget; a graph larger than the budget has a batch alone.
        shuffle: where the order comes from; None keeps that of `graphs`.
        ranks: processes that share the epoch.
    """
    order = graphs if shuffle is None else shuffle.permutation(graphs)
    limits = room.limits()
    nodes, edges = num_nodes[order], num_edges[order]
    over = (nodes > limits[0]) | (edges > limits[1])
    rest = np.flatnonzero(~over)
    if room.policy.packed:
        batch = pack_evenly(nodes[rest], edges[rest], limits)
        rest = rest[np.argsort(batch, kind="stable")]
        starts = np.concatenate([[0], np.cumsum(np.bincount(batch))])
    else:
        starts = cut_in_order(nodes[rest], edges[rest], limits)
    alone = np.flatnonzero(over)
    positions = np.concatenate([rest, alone])
    starts = np.concatenate([starts, len(rest) + 1 + np.arange(len(alone))])
    if room.policy.packed and shuffle is not None:
        turn = shuffle.permutation(len(starts) - 1)
    else:
        turn = np.argsort(positions[starts[:-1]], kind="stable")
    positions, starts = _take(positions, starts, turn)
    if ranks > 1:
        starts = split(starts, nodes[positions] + edges[positions], ranks)
    shapes = room.shapes(_batch_sizes(nodes[positions], edges[positions], starts))
    plan = EpochPlan(order[positions], starts, shapes, padded=room.policy.padded)
    if ranks > 1:
        plan = plan._chosen(deal(shapes[:, 0] + shapes[:, 1], ranks))
    return plan


def _batch_sizes(nodes: Array, edges: Array, starts: Array) -> Array:
    """int64 [b, 3], real nodes, edges and graphs of batches that begin at `starts` [b + 1]."""
    sums = [np.concatenate([[0], np.cumsum(each)])[starts] for each in (nodes, edges)]
    return np.stack([*(np.diff(each) for each in sums), np.diff(starts)], axis=1)


def statistics_of(
    plan: EpochPlan, num_nodes: Array, num_edges: Array, *, skipped: int, alone: int
) -> BatchStatistics:
    """What the batches of `plan` look like."""
    graphs = plan.graphs
    real = _batch_sizes(num_nodes[graphs], num_edges[graphs], plan.starts).sum(axis=0)
    padded = plan.shapes.sum(axis=0)
    node_fill, edge_fill, graph_fill = (
        float(r) / float(p) if p else 1.0 for r, p in zip(real, padded, strict=True)
    )
    return BatchStatistics(
        batches=len(plan),
        graphs=len(graphs),
        graphs_per_batch=len(graphs) / max(1, len(plan)),
        node_fill=node_fill,
        edge_fill=edge_fill,
        graph_fill=graph_fill,
        distinct_shapes=len(np.unique(plan.shapes, axis=0)),
        skipped=skipped,
        alone=alone,
    )


def _take(values: Array, starts: Array, batches: Array) -> tuple[Array, Array]:
    """Values and starts of the chosen batches, one after another."""
    counts = np.diff(starts)[batches]
    taken = np.concatenate([[0], np.cumsum(counts)])
    rows = np.arange(taken[-1]) + np.repeat(starts[batches] - taken[:-1], counts)
    return values[rows], taken
