"""Which partition pays: fewer bytes that travel, or ranks with equally many nonzeros.

Both cannot be had at once: blocks with few edges between them differ in their edges, and blocks of
equally many edges tear neighbours apart. So each partition is made and counted rank by rank, and
the cost model says what an epoch takes with it on the grid, the network and the rates at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.graphs import Array, Graph
from weft.parallel.balance import imbalance
from weft.parallel.cost_model import Estimate
from weft.parallel.grid import Grid
from weft.parallel.partition import Partition, partition_nodes
from weft.parallel.traffic_formulas import Sizes, count_graph

# Shares of bytes and of nonzeros that are not worth a word.
_ALIKE = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class CountedPartition:
    """A partition of a graph, and what an epoch costs with it.

    Attributes:
        how: one of PARTITIONS.
        parts: the nodes in blocks.
        imbalance: the most nonzeros of a rank over the mean, of the matrix or its transpose.
        cost: by the cost model, of the counted sizes.
    """

    how: str
    parts: Partition
    imbalance: float
    cost: Estimate


def counted_partitions(
    graph: Graph,
    grid: Grid,
    names: Iterable[str],
    cost_of: Callable[[Sequence[Sizes]], Estimate],
    *,
    training: Array,
    loops: bool = False,
    seed: int = 0,
) -> list[CountedPartition]:
    """Make each of these partitions and count it; the fastest first.

    Args:
        graph: valid.
        grid: the ranks.
        names: of PARTITIONS.
        cost_of: the estimate for the sizes of all ranks.
        training: bool [n], nodes that the network learns from.
        loops: the matrix has a self-loop for each node that has none.
        seed: of the partitions.
    """
    ends = graph.senders, graph.receivers
    if loops:
        lone = np.ones(graph.num_nodes, dtype=np.bool_)
        lone[ends[0][ends[0] == ends[1]]] = False
        own = np.flatnonzero(lone).astype(ends[0].dtype)
        ends = np.concatenate([ends[0], own]), np.concatenate([ends[1], own])
    found = []
    for how in names:
        parts = partition_nodes(graph, grid.blocks, how, seed, grid)
        place = np.empty(graph.num_nodes, dtype=ends[0].dtype)
        place[parts.order] = np.arange(graph.num_nodes)
        placed = place[ends[0]], place[ends[1]]
        counts = count_graph(grid, parts.offsets, *placed, training[parts.order])
        found.append(
            CountedPartition(
                how=how,
                parts=parts,
                imbalance=max(
                    imbalance(np.array([getattr(own, way).nonzeros.sum() for own in counts]))
                    for way in ("forward", "backward")
                ),
                cost=cost_of(counts),
            )
        )
    return sorted(found, key=lambda each: each.cost.seconds)


def weighed(chosen: CountedPartition, others: Iterable[CountedPartition]) -> str:
    """Why `chosen` and not the one that it is hardest to compare with, in a phrase.

    That is the one with the most even ranks if `chosen` has the fewest bytes, else that with the
    fewest bytes.
    """
    every = [chosen, *others]
    if len(every) == 1:
        return "the only one that was counted"
    fewest = min(every, key=lambda each: each.cost.bytes)
    evenest = min(every, key=lambda each: each.imbalance)
    few = chosen.cost.bytes <= (1 + _ALIKE) * fewest.cost.bytes
    if few and chosen.imbalance <= (1 + _ALIKE) * evenest.imbalance:
        return "none has fewer bytes or more even ranks"
    other = evenest if few else fewest
    share = chosen.cost.bytes / other.cost.bytes - 1 if other.cost.bytes else 0.0
    volume = f"{abs(share):.0%} {'more' if share > 0 else 'fewer'} bytes than {other.how}"
    even = (
        f"its busiest rank has {chosen.imbalance:.2f} times the mean nonzeros "
        f"({other.how}: {other.imbalance:.2f})"
    )
    slower = other.cost.seconds / chosen.cost.seconds
    return f"{volume}, but {even}; by the cost model {slower:.2f} times as fast"
