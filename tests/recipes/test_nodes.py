"""Node classification: both networks learn, both splits, sparse or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from temporal_graphs import grouped

from weft.errors import DataError
from weft.graphs import Graph, GraphBatch
from weft.models import FNN, GCN
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.nodes.training import node_split, prepare_nodes
from weft.recipes.sparse_training import TrainedNetwork, train_network
from weft.sources import planetoid, planted_partition
from weft.training import Run

GRAPH = grouped()
PLANETOID = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "planetoid"
SMALL: dict[str, Any] = {"dim": 12, "epochs": 30, "batch_size": 16, "walks": 100}


def trained(graph: Graph = GRAPH, **settings: Any) -> TrainedNetwork:
    return train_network(prepare_nodes(graph, NodesConfig(**{**SMALL, **settings})), quiet=True)


def test_a_network_on_embeddings() -> None:
    found = trained(model="fnn", hidden=(24,))
    assert isinstance(found.model, FNN)
    assert found.scores["test"].value > 0.6
    assert found.scores["test"].low < found.scores["test"].value <= found.scores["test"].high
    assert found.counts == {
        "nodes": 120,
        "classes": 3,
        "train": 71,
        "validation": 23,
        "test": 24,
        "weights": 12 * 24 + 24 * 3,
        "active": 12 * 24 + 24 * 3,
    }


def test_walks_without_times() -> None:
    timeless = replace(GRAPH, edges={})
    assert trained(timeless, model="fnn", hidden=(24,)).scores["test"].value > 0.6


def test_a_graph_network_on_features() -> None:
    found = trained(model="gcn")
    assert isinstance(found.model, GCN)
    assert found.scores["test"].value > 0.8


def test_edges_count_either_way() -> None:
    batch = prepare_nodes(GRAPH, NodesConfig()).inputs
    assert isinstance(batch, GraphBatch)
    there = set(zip(batch.senders.tolist(), batch.receivers.tolist(), strict=True))
    assert there == {(b, a) for a, b in there}
    # Nobody cites node 0, which has an embedding all the same.
    lone = Graph(
        num_nodes=12,
        senders=[0, *range(1, 12)],
        receivers=[1, *([2] * 11)],
        nodes={"y": np.arange(12) % 2},
        edges={"time": np.arange(12.0)},
    )
    x = prepare_nodes(lone, NodesConfig(model="fnn", dim=4)).inputs
    assert isinstance(x, torch.Tensor)
    assert x.any(dim=1).all()


@pytest.mark.parametrize("model", ["fnn", "gcn"])
@pytest.mark.parametrize("name", ["rigl", "slr", "synflow", "grasp", "lottery"])
def test_sparse_networks(model: Any, name: Any) -> None:
    found = trained(model=model, hidden=(24,), sparsify=name, sparsity=0.75, rounds=2)
    kept = found.counts["weights"] // 4
    assert found.counts["active"] == kept


def test_a_public_split() -> None:
    masks = {
        name: np.isin(np.arange(120) // 20, numbers)
        for name, numbers in (("train", [0, 1]), ("validation", [2]), ("test", [3, 4]))
    }
    graph = replace(GRAPH, nodes={**GRAPH.nodes, **masks})
    prepared = prepare_nodes(graph, NodesConfig(split="public"))
    assert [prepared.parts[name].tolist() for name in ("train", "test")] == [
        list(range(40)),
        list(range(60, 100)),
    ]
    assert prepared.config.weight_decay == 5e-4
    with pytest.raises(DataError, match="no node column 'train'; it has x, y"):
        prepare_nodes(GRAPH, NodesConfig(split="public"))
    empty = replace(graph, nodes={**graph.nodes, "test": np.zeros(120, dtype=bool)})
    with pytest.raises(DataError, match="part 'test' is empty"):
        prepare_nodes(empty, NodesConfig(split="public"))


def test_the_random_split_is_clean() -> None:
    y = np.arange(50) % 3
    y[:5] = -1
    parts = node_split(y, seed=3)
    assert [len(part) for part in parts.values()] == [27, 9, 9]
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(5, 50))
    assert np.array_equal(parts["test"], node_split(y, seed=3)["test"])
    assert not np.array_equal(parts["test"], node_split(y, seed=4)["test"])
    with pytest.raises(DataError, match="2 nodes have a class, too few"):
        node_split(np.array([0, 1, -1]))


def test_the_split_is_not_the_shuffle_of_a_graph_from_the_same_seed() -> None:
    y = planted_partition(500, 5, mean_degree=2, homophily=0.5, num_features=1, seed=7).nodes["y"]
    for nodes in node_split(y, seed=7).values():
        assert np.bincount(y[nodes], minlength=5).min() > 0.1 * len(nodes)


def test_a_run_is_resumed_with_the_same_settings_only(tmp_path: Path) -> None:
    prepared = prepare_nodes(GRAPH, NodesConfig(**{**SMALL, "epochs": 3}))
    with Run.create(tmp_path / "run", prepared.config, tensorboard=False) as run:
        first = train_network(prepared, run=run, quiet=True)
    with Run.create(tmp_path / "run", prepared.config, resume=True, tensorboard=False) as run:
        again = train_network(prepared, run=run, quiet=True)
    assert again.scores == first.scores
    with pytest.raises(DataError, match="was started with sparsity"):
        Run.create(tmp_path / "run", replace(prepared.config, sparsity=0.5), resume=True)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({}, "no node column 'y'; it has none"),
        ({"y": np.zeros(4)}, r"y is float64\[4\]; a class is one whole number"),
        ({"y": np.zeros(4, dtype=np.int64)}, "all nodes with a class have the same"),
        ({"y": np.arange(4)}, "4 nodes have a class|no node column 'x'"),
    ],
)
def test_bad_graphs(nodes: dict[str, Any], message: str) -> None:
    graph = Graph(num_nodes=4, senders=[0], receivers=[1], nodes=nodes)
    with pytest.raises(DataError, match=message):
        prepare_nodes(graph, NodesConfig())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "gat"}, "model is 'gat'; choose from fnn, gcn"),
        ({"split": "mine"}, "split is 'mine'; choose from random, public"),
        ({"epochs": -1}, "epochs is -1"),
        ({"dropout": 1.0}, r"dropout is 1\.0; it must be in \[0, 1\)"),
        ({"hidden": (0,)}, r"hidden widths are \(0,\)"),
        ({"weight_decay": -1.0}, r"weight_decay is -1\.0"),
        ({"keep": 2.0, "model": "fnn"}, r"keep is 2\.0"),
        ({"keep": 0.5}, "keep is for the embeddings of model = fnn"),
        ({"sparsity": 1.0}, r"sparsity is 1\.0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NodesConfig(**settings)


def test_cora_at_nine_tenths() -> None:
    if not PLANETOID.exists():
        pytest.skip("planetoid is not here")
    found = trained(planetoid(PLANETOID, "cora"), epochs=100, sparsify="rigl", sparsity=0.9)
    assert found.scores["test"].value > 0.8
    assert found.counts["active"] == 2304
