"""Which nodes go together: an order of a graph's nodes that is cut into one block for each rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph
from weft.layout.orders import ORDERS, neighbour_matrix
from weft.parallel.balance import balanced_blocks
from weft.parallel.grid import Grid, balanced
from weft.parallel.method import CUT_FOR_GRID, PARTITIONS
from weft.parallel.volume import with_less_volume

# METIS keeps the best of this many cuts, of graphs with few enough edges that one takes a second.
_CUTS = 8
_CUTS_EDGES = 5_000_000

# The stream of random numbers of this module.
_STREAM = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """The nodes of a graph in blocks.

    Attributes:
        order: int64 [n], the number in the graph of the node at each place.
        offsets: int64 [blocks + 1]; block b is the places offsets[b]:offsets[b + 1].
    """

    order: Array
    offsets: Array


def partition_nodes(
    graph: Graph, blocks: int, how: str, seed: int = 0, grid: Grid | None = None
) -> Partition:
    """Cut the nodes into blocks. Directions of edges and repeated edges matter to `balanced` alone.

    Blocks differ by at most one node, except those of `metis`, which may differ by a few, and of a
    graph with hardly more nodes than blocks may even be empty, and of `volume`, up to 1.05 times
    their even share. Nodes of blocks that are made for one number of them keep their order.

    Args:
        graph: the nodes and edges.
        blocks: number of blocks, at most the number of nodes.
        how: one of PARTITIONS.
        seed: of all but `contiguous` and `rcm`; the same seed gives the same blocks.
        grid: whose ranks `balanced` gives equally many nonzeros, self-loops as far as the graph
            has them; by default 1d. It has so many blocks.

    Raises:
        ValueError: more blocks than nodes, or an unknown partition.
        DataError: `metis` or `volume` without pymetis, or an edge of a node that is not there.
    """
    if how not in PARTITIONS:
        raise ValueError(f"partition is {how!r}; choose from {', '.join(PARTITIONS)}")
    if not 1 <= blocks <= graph.num_nodes:
        raise ValueError(
            f"{graph.num_nodes} nodes cannot be cut into {blocks} blocks; give 1 to "
            f"{graph.num_nodes} blocks, that is, fewer ranks"
        )
    if how in CUT_FOR_GRID:
        graph.validate()
        grid = grid or Grid(rows=blocks)
        assert grid.blocks == blocks
        if how == "balanced":
            part = balanced_blocks(graph, grid, seed)
        else:
            part = _metis_parts(graph, blocks, seed, how)
        if how == "volume":
            part = with_less_volume(graph, part, blocks, seed)
        return blocks_in_order(part, blocks)
    if how == "random":
        # A separate stream: with the seed of a generated graph it would undo that shuffling.
        order = np.random.default_rng((seed, _STREAM)).permutation(graph.num_nodes)
    elif how == "rcm":
        order = ORDERS["rcm"](graph.num_nodes, graph.senders, graph.receivers)
    else:
        order = np.arange(graph.num_nodes)
    return Partition(order=order, offsets=balanced(graph.num_nodes, blocks))


def blocks_in_order(part: Array, blocks: int) -> Partition:
    """The partition of nodes into the blocks int64 [n] of each, in which they keep their order."""
    sizes = np.bincount(part, minlength=blocks)
    return Partition(order=np.argsort(part, kind="stable"), offsets=np.append(0, np.cumsum(sizes)))


def _metis_parts(graph: Graph, blocks: int, seed: int, how: str) -> Array:
    """The block of each node, int64 [n].

    Recursive bisection into blocks of equally many nodes: fewer rows travel than with k-way cuts,
    which also leave blocks of a small graph empty. Weighing nodes by their degree would even out
    the edges, but more rows would travel and the blocks of features differ.
    """
    try:
        import pymetis
    except ImportError:
        raise DataError(
            f"the partition '{how}' needs pymetis, which is not installed: pip install "
            "'weft[partition]'"
        ) from None
    if blocks == 1:
        return np.zeros(graph.num_nodes, dtype=np.int64)
    apart = graph.senders != graph.receivers
    neighbours = neighbour_matrix(graph.num_nodes, graph.senders[apart], graph.receivers[apart])
    _, part = pymetis.part_graph(
        blocks,
        pymetis.CSRAdjacency(neighbours.indptr, neighbours.indices),
        recursive=True,
        # METIS takes the seeds 0 and 1 for the same.
        options=pymetis.Options(seed=seed + 1, ncuts=_CUTS if neighbours.nnz <= _CUTS_EDGES else 1),
    )
    return np.asarray(part, dtype=np.int64)
