"""How many programs a supergraph holds, and how full it is, by the size of its blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.graphs import Array, GraphTable
from weft.recipes.programs.supergraph_choice import packed_sampler


@dataclass(frozen=True, kw_only=True)
class SupergraphCount:
    """Supergraphs of the graphs whose edges all fall into the blocks.

    Attributes:
        block: S.
        nodes: N, a multiple of S.
        share: graphs with a bandwidth of at most S, and fewer than N nodes, among all.
        graphs: real graphs in a supergraph, mean.
        node_fill: real nodes among all.
        cell_fill: edges among the cells of the blocks, over all types.
        megabytes: of the blocks of a supergraph, a byte a cell.
        products: multiply-adds of a round of messages and its GRU, in millions a graph.
    """

    block: int
    nodes: int
    share: float
    graphs: float
    node_fill: float
    cell_fill: float
    megabytes: float
    products: float


def count_supergraphs(
    table: GraphTable, bandwidth: Array, *, block: int, nodes: int, num_types: int, hidden: int
) -> SupergraphCount | None:
    """What one epoch of supergraphs of programs looks like; None if no graph fits.

    Args:
        table: the programs.
        bandwidth: int [g], of each graph.
        block: S.
        nodes: N, rounded up to a multiple of S.
        num_types: P.
        hidden: H.
    """
    nodes = -(-nodes // block) * block
    fitting = np.flatnonzero((bandwidth <= block) & (table.num_nodes < nodes))
    if not len(fitting):
        return None
    found = packed_sampler(table, fitting, nodes).statistics()
    blocks = nodes // block
    cells = (3 * blocks - 2) * block**2 * num_types
    edges = float(table.num_edges[fitting].sum()) / found.batches
    products = cells * hidden + nodes * (num_types + 6) * hidden**2
    return SupergraphCount(
        block=block,
        nodes=nodes,
        share=len(fitting) / len(table),
        graphs=found.graphs_per_batch,
        node_fill=found.node_fill,
        cell_fill=edges / cells,
        megabytes=cells / 1e6,
        products=products / found.graphs_per_batch / 1e6,
    )
