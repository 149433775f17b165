import numpy as np
import pytest

from weft.graphs import Budget, Graph, assemble, table_from_graphs


@pytest.fixture
def molecules():
    """Makes a batch of small complete graphs with places, whose edges come in pairs."""

    def make(dtype, *, count=5, padded=False):
        rng = np.random.default_rng(0)
        graphs = []
        for n in rng.integers(1, 7, count):
            receivers, senders = np.nonzero(~np.eye(n, dtype=bool))
            places = rng.normal(size=(n, 3)).astype(np.float32)
            graphs.append(
                Graph(num_nodes=n, senders=senders, receivers=receivers, nodes={"pos": places})
            )
        table = table_from_graphs(graphs, metadata={"symmetric": True})
        budget = Budget(nodes=table.total_nodes + 3, edges=table.total_edges + 5, graphs=count + 2)
        batch = assemble(table, range(count), budget if padded else None)
        return batch.replace(nodes={"pos": batch.nodes["pos"].to(dtype)})

    return make
