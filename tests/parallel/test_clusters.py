"""Steps on clusters: torch_geometric's subgraphs, losses and gradients, on any number of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cluster_runs import an_epoch
from grid_examples import model_of
from rank_processes import results_of
from scipy.sparse import csr_matrix
from torch.nn.functional import cross_entropy

from weft.parallel.clusters import cluster_table
from weft.parallel.prepare import prepare
from weft.parallel.shard import read_blocks
from weft.sources import planted_partition

pytest.importorskip("torch_geometric")

CLUSTERS = 7


@pytest.fixture(scope="module")
def graph():
    found = planted_partition(90, 4, mean_degree=6, homophily=0.8, num_features=5, seed=3)
    rng = np.random.default_rng(1)
    # Directed, weighted, some nodes to train on.
    kept = rng.random(found.num_edges) < 0.7
    train = rng.random(90) < 0.4
    return replace(
        found,
        senders=found.senders[kept],
        receivers=found.receivers[kept],
        nodes={
            **found.nodes,
            "x": found.nodes["x"].astype(np.float64),
            "train": train,
            "validation": ~train,
            "test": np.zeros(90, dtype=bool),
        },
        edges={"weight": rng.random(int(kept.sum())) + 0.5},
    )


@pytest.fixture(scope="module")
def tables(graph, tmp_path_factory):
    """The graph as it is evaluated, and in clusters."""
    folder = tmp_path_factory.mktemp("clusters")
    whole = prepare(graph, folder / "whole", blocks=2, partition="random", dtype="float64")
    clusters = prepare(
        graph,
        folder / "clusters",
        blocks=CLUSTERS,
        partition="metis",
        normalisation="none",
        dtype="float64",
    )
    return whole, clusters


def nodes_of(clusters, numbers):
    offsets, ids = clusters.metadata["partition"]["offsets"], clusters.column("id")
    parts = [ids[offsets[c] : offsets[c + 1]] for c in sorted(numbers)]
    return torch.from_numpy(np.concatenate(parts))


def plain_matrix(graph, nodes):
    """torch_geometric's normalised matrix of the subgraph of some nodes, in their order."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import subgraph, to_dense_adj

    ends = torch.from_numpy(np.stack([graph.senders, graph.receivers])).long()
    place = torch.full((graph.num_nodes,), -1)
    place[nodes] = torch.arange(len(nodes))
    ends, weight = subgraph(nodes, ends, torch.from_numpy(graph.edges["weight"]))
    ends, weight = gcn_norm(place[ends], weight, len(nodes), add_self_loops=True)
    return to_dense_adj(ends, edge_attr=weight, max_num_nodes=len(nodes))[0].T


@pytest.mark.parametrize("numbers", [[2], [5, 0, 3], list(range(CLUSTERS))])
def test_a_batch_is_torch_geometrics_subgraph(graph, tables, numbers):
    batch = cluster_table(tables[1], numbers, "symmetric")
    nodes = nodes_of(tables[1], numbers)
    size = len(nodes)
    for transposed in (False, True):
        (block,) = read_blocks(
            batch, 0, size, [(0, size)], transposed=transposed, dtype=torch.float64
        )
        csr = (block.weights.numpy(), block.columns.numpy(), block.offsets.numpy())
        found = torch.from_numpy(csr_matrix(csr, (size, size)).toarray())
        expected = plain_matrix(graph, nodes)
        expected = expected.T if transposed else expected
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    for name in ("x", "y", "train"):
        np.testing.assert_array_equal(batch.column(name), graph.nodes[name][nodes])
    np.testing.assert_array_equal(batch.column("id"), nodes)


@pytest.mark.parametrize(("ranks", "weights"), [(1, ()), (2, ()), (2, ("balanced",))])
def test_an_epoch_has_plain_losses_and_gradients(graph, tables, ranks, weights):
    whole, clusters = (str(table.path) for table in tables)
    answers = [each[0] for each in results_of(ranks, an_epoch, whole, clusters, "gcn", weights)]
    seen = [number for each in answers for step in each for number in step["own"]]
    assert sorted(seen) == list(range(CLUSTERS))
    x, y, train = (torch.from_numpy(graph.nodes[name]) for name in ("x", "y", "train"))
    counts = torch.bincount(y[train], minlength=4).double()
    each_class = counts.sum() / (4 * counts) if weights else None
    for steps in zip(*answers, strict=True):
        model = model_of("gcn", 5, (6,), 4).double()
        outputs, classes = [], []
        for step in steps:
            if step["own"]:
                nodes = nodes_of(tables[1], step["own"])
                h, matrix = x[nodes], plain_matrix(graph, nodes)
                for number, layer in enumerate(model.layers):
                    h = matrix @ (h.relu() if number else h) @ layer.weight + layer.bias
                outputs.append(h[train[nodes]])
                classes.append(y[nodes][train[nodes]])
        loss = cross_entropy(torch.cat(outputs), torch.cat(classes), each_class)
        loss.backward()
        for step in steps:
            assert step["loss"] == pytest.approx(loss.item(), rel=1e-10)
            assert step["nodes"] == len(torch.cat(classes))
            for gradient, parameter in zip(step["gradients"], model.parameters(), strict=True):
                torch.testing.assert_close(gradient, parameter.grad, rtol=1e-9, atol=1e-12)


def test_norms_are_the_same_on_every_rank(tables):
    whole, clusters = (str(table.path) for table in tables)
    (_, one), (_, other) = results_of(2, an_epoch, whole, clusters, "norm")
    assert any(buffer.abs().sum() > 0 for buffer in one)
    torch.testing.assert_close(one, other, rtol=0, atol=0)
