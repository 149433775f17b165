"""The batches of one epoch, planned from the sizes of the graphs alone, for one rank or many."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, overload

import numpy as np

from weft.batching.policies import Policy, single_graph_budget
from weft.graphs import Array, Budget
from weft.runtime import compiled

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

    def _chosen(self, batches: Array) -> EpochPlan:
        graphs, starts = _take(self.graphs, self.starts, batches)
        return EpochPlan(graphs, starts, self.shapes[batches], padded=self.padded)


@dataclass(frozen=True, kw_only=True)
class Capacity:
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
            shapes = np.tile(np.array(astuple(self.budget), dtype=np.int64), (len(sizes), 1))
            # Only a graph larger than the budget makes such a batch, and has it alone.
            over = (sizes > self.limits()).any(axis=1)
            shapes[over] = single_graph_budget(sizes[over, 0], sizes[over, 1])
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
    room: Capacity,
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
        starts = split_batches(starts, nodes[positions] + edges[positions], ranks)
    shapes = room.shapes(_batch_sizes(nodes[positions], edges[positions], starts))
    plan = EpochPlan(order[positions], starts, shapes, padded=room.policy.padded)
    if ranks > 1:
        plan = plan._chosen(deal_batches(shapes[:, 0] + shapes[:, 1], ranks))
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


# Batches that are filled at the same time. More fill a little better and take longer.
_OPEN = 128


def pack_evenly(nodes: Array, edges: Array, room: Array) -> Array:
    """The batch of each graph, int64 [g]; batches are numbered from 0 without gaps.

    Takes as many graphs in their order as fill some batches, and deals them out in decreasing
    size, each to the batch with most room left. (The tightest fit would give the large graphs
    batches of their own, which run out of edges while they have nodes left, and the small ones the
    reverse.) What does not fit is dealt again with the next graphs.

    Args:
        nodes: int64 [g], in the order in which they are taken; none larger than the room.
        edges: int64 [g].
        room: int64 [3], the most nodes, edges and graphs of a batch.
    """
    count = len(nodes)
    # How much of a batch each graph takes, in nodes, edges and graphs.
    share = np.stack([nodes, edges, np.ones(count)]) / np.maximum(room, 1)[:, None]
    before = np.concatenate([np.zeros((3, 1)), np.cumsum(share, axis=1)], axis=1)
    batch = np.empty(count, dtype=np.int64)
    held = np.empty(0, dtype=np.int64)
    taken = made = 0
    while len(held) or taken < count:
        wanted = _OPEN - share[:, held].sum(axis=1)
        stop = min(
            int(np.searchsorted(row, row[taken] + more))
            for row, more in zip(before, wanted, strict=True)
        )
        stop = min(max(stop, taken), count)
        hand = np.concatenate([held, np.arange(taken, stop)])
        taken = stop
        # Rounding must not open a batch too many where the graphs fill them exactly.
        need = int(np.ceil(share[:, hand].sum(axis=1).max() - 1e-9))
        order = hand[np.argsort(-share[:2, hand].max(axis=0), kind="stable")]
        dealt = deal_out(nodes[order], edges[order], room, max(1, min(need, _OPEN)))
        fits = dealt >= 0
        batch[order[fits]] = made + dealt[fits]
        made = int(batch[order[fits]].max()) + 1
        held = order[~fits]
    return batch


def split_batches(starts: Array, cost: Array, ranks: int) -> Array:
    """`starts` [b + 1] with the costliest batches halved until `ranks` divides their number.

    Args:
        starts: int64 [b + 1], where batches begin among the graphs.
        cost: int64 [g], of each graph.
        ranks: processes that share the batches.
    """
    missing = -(len(starts) - 1) % ranks
    if missing == 0:
        return starts
    before = np.concatenate([[0], np.cumsum(cost)])
    sums = before[starts]
    pieces = [
        (-int(sums[b + 1] - sums[b]), int(starts[b]), int(starts[b + 1]))
        for b in np.flatnonzero(np.diff(starts) > 1).tolist()
    ]
    heapq.heapify(pieces)
    cuts: list[int] = []
    while len(cuts) < missing:
        if not pieces:
            raise ValueError(
                f"{len(starts) - 1 + len(cuts)} batches of one graph each cannot be shared evenly "
                f"by {ranks} ranks; use a larger batch_size or budget, or other ranks"
            )
        _, first, stop = heapq.heappop(pieces)
        half = (before[first] + before[stop]) / 2
        cut = int(np.searchsorted(before[first + 1 : stop], half)) + first + 1
        # Take the nearer of the two cuts around the middle.
        if cut == stop or (cut - 1 > first and half - before[cut - 1] < before[cut] - half):
            cut -= 1
        cuts.append(cut)
        for low, high in ((first, cut), (cut, stop)):
            if high - low > 1:
                heapq.heappush(pieces, (-int(before[high] - before[low]), low, high))
    return np.sort(np.concatenate([starts, np.array(cuts, dtype=np.int64)]))


def deal_batches(cost: Array, ranks: int) -> Array:
    """An order of batches, int64 [b], in which each `ranks` in a row cost about the same.

    Steps keep the order of their earliest batch; who has the costliest one changes from step to
    step.
    """
    steps = np.argsort(-cost, kind="stable").reshape(-1, ranks)
    steps = steps[np.argsort(steps.min(axis=1), kind="stable")]
    turn = (np.arange(ranks)[None, :] + np.arange(len(steps))[:, None]) % ranks
    dealt: Array = np.take_along_axis(steps, turn, axis=1).reshape(-1)
    return dealt


@compiled()
def cut_in_order(nodes: Any, edges: Any, room: Any) -> Any:
    """Where batches begin, int64 [b + 1], when graphs are appended until one does not fit.

    Args:
        nodes: int64 [g], in the order in which they are taken; none larger than the room.
        edges: int64 [g].
        room: int64 [3], the most nodes, edges and graphs of a batch.
    """
    count = nodes.shape[0]
    starts = np.empty(count + 1, dtype=np.int64)
    batches = 0
    used_nodes = used_edges = used_graphs = 0
    for i in range(count):
        if (
            i == 0
            or used_nodes + nodes[i] > room[0]
            or used_edges + edges[i] > room[1]
            or used_graphs == room[2]
        ):
            starts[batches] = i
            batches += 1
            used_nodes = used_edges = used_graphs = 0
        used_nodes += nodes[i]
        used_edges += edges[i]
        used_graphs += 1
    starts[batches] = count
    return starts[: batches + 1].copy()


@compiled()
def deal_out(nodes: Any, edges: Any, room: Any, batches: int) -> Any:
    """The batch of each graph, int64 [g], -1 where it fits none: always the one with most room.

    Args:
        nodes: int64 [g], in the order in which they are dealt.
        edges: int64 [g].
        room: int64 [3], the most nodes, edges and graphs of a batch.
        batches: number of batches, all empty at first.
    """
    by_nodes, by_edges = 1.0 / max(room[0], 1), 1.0 / max(room[1], 1)
    used = np.zeros((batches, 3), dtype=np.int64)
    batch = np.full(nodes.shape[0], -1, dtype=np.int64)
    for i in range(nodes.shape[0]):
        least = np.inf
        for b in range(batches):
            if (
                used[b, 2] < room[2]
                and used[b, 0] + nodes[i] <= room[0]
                and used[b, 1] + edges[i] <= room[1]
            ):
                load = max(used[b, 0] * by_nodes, used[b, 1] * by_edges)
                if load < least:
                    batch[i], least = b, load
        if batch[i] >= 0:
            used[batch[i], 0] += nodes[i]
            used[batch[i], 1] += edges[i]
            used[batch[i], 2] += 1
    return batch
