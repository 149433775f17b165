"""What a partition of a graph's nodes leaves to travel on the 1D grid, counted without ranks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.graphs import Array, Graph
from weft.parallel.balance import imbalance, panel_nonzeros
from weft.parallel.grid import grid_of
from weft.parallel.method import Method
from weft.parallel.partition import Partition, partition_nodes
from weft.parallel.traffic_formulas import count_graph
from weft_lab.grid_training import predicted_bytes


@dataclass(kw_only=True)
class CountedPartition:
    """A partition for some ranks of the 1D grid, where only the rows that edges touch travel.

    Attributes:
        how: the nodes are cut.
        ranks: P.
        received: bytes that each rank receives in an epoch of a GCN, by formula.
        rows: of the forward product that travel, all ranks together.
        imbalance: nonzeros of the largest rank over the mean.
    """

    how: str
    ranks: int
    received: list[int]
    rows: int
    imbalance: float

    @property
    def mean(self) -> float:
        """Bytes of the mean rank."""
        return statistics.fmean(self.received)


def counted_partition(
    graph: Graph, ranks: int, how: str, widths: Sequence[int], seed: int = 0
) -> CountedPartition:
    """Count what a partition of a graph with its self-loops leaves, see `with_loops`.

    Raises:
        DataError: the partition needs a package that is not installed.
    """
    grid = grid_of("1d", ranks)
    parts = partition_nodes(graph, ranks, how, seed)
    place = np.argsort(parts.order)
    ends = place[graph.senders], place[graph.receivers]
    # All nodes to train on: they decide nothing that travels in 1D.
    sizes = count_graph(grid, parts.offsets, *ends, np.ones(graph.num_nodes, dtype=bool))
    return CountedPartition(
        how=how,
        ranks=ranks,
        received=predicted_bytes(sizes, Method(), widths),
        rows=sum(
            int(own.forward.wanted.sum() - own.forward.wanted[k]) for k, own in enumerate(sizes)
        ),
        imbalance=imbalance(panel_nonzeros(grid, blocks_of(parts), graph.senders, graph.receivers)),
    )


def with_loops(graph: Graph) -> Graph:
    """As the symmetric matrix has them: one for each node that has none."""
    own = np.setdiff1d(
        np.arange(graph.num_nodes), graph.senders[graph.senders == graph.receivers]
    ).astype(graph.senders.dtype)
    return Graph(
        num_nodes=graph.num_nodes,
        senders=np.concatenate([graph.senders, own]),
        receivers=np.concatenate([graph.receivers, own]),
    )


def blocks_of(parts: Partition) -> Array:
    """The block of each node."""
    blocks = np.empty(len(parts.order), dtype=np.int64)
    blocks[parts.order] = np.repeat(np.arange(len(parts.offsets) - 1), np.diff(parts.offsets))
    return blocks
