from __future__ import annotations

import numpy as np

from weft.graphs import Graph, GraphTable, table_from_graphs
from weft.sources import small_graphs


def molecule_graphs(count: int) -> list[Graph]:
    """Made-up molecules as QM9 has them: atoms and an energy, no edges."""
    none = np.zeros(0, dtype=np.int64)
    return [
        Graph(
            num_nodes=graph.num_nodes,
            senders=none,
            receivers=none,
            nodes=graph.nodes,
            graph={"u0": np.float64(graph.graph["energy"])},
        )
        for graph in small_graphs(count, seed=3)
    ]


def molecule_table(count: int) -> GraphTable:
    return table_from_graphs(molecule_graphs(count))
