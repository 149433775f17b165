"""Node classification: both networks learn, both splits, sparse or not; published settings."""

from __future__ import annotations

import itertools
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_cases import papers
from temporal_graphs import grouped
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from weft.errors import DataError
from weft.graphs import Graph, GraphBatch, write_table
from weft.models import FNN, GCN
from weft.recipes.nodes.config import PUBLISHED, NodesConfig
from weft.recipes.nodes.recipe import NODES, NodesDataOptions
from weft.recipes.nodes.training import node_split, prepare_nodes
from weft.recipes.sparse_training import TrainedNetwork, train_network
from weft.sources import planetoid, planted_partition
from weft.training import Run, ScheduleConfig, read_metrics

GRAPH, PAPERS = grouped(), papers(600)
PLANETOID = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "planetoid"
SMALL: dict[str, Any] = {"dim": 12, "epochs": 30, "batch_size": 16, "walks": 100}


def trained(graph: Graph = GRAPH, **settings: Any) -> TrainedNetwork:
    return train_network(prepare_nodes(graph, NodesConfig(**{**SMALL, **settings})), quiet=True)


def published(graph: Graph = PAPERS, run: Run | None = None, **settings: Any) -> TrainedNetwork:
    prepared = prepare_nodes(graph, replace(PUBLISHED, **settings))
    return train_network(prepared, run=run, quiet=True)


def batch_of(graph: Graph) -> GraphBatch:
    batch = prepare_nodes(graph, PUBLISHED).inputs
    assert isinstance(batch, GraphBatch)
    return batch


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
        ({"epochs": 0, "sparsify": "rigl"}, "epochs is 0; it must be at least 1"),
        ({"patience": 3, "sparsify": "slr"}, "patience is 3, .*before slr has pruned the model"),
        ({"input_dropout": 1.0}, r"input_dropout is 1\.0; it must be in \[0, 1\)"),
        ({"patience": 0}, "patience is 0; it must be at least 1"),
        ({"checkpoint_every": -2}, "checkpoint_every is -2"),
        ({"learning_rate": -0.1}, r"learning_rate is -0\.1; it must be at least 0"),
        ({"weight_decay": float("nan")}, "weight_decay is nan"),
        ({"seed": -1}, "seed is -1"),
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


def test_the_batch_is_normalised() -> None:
    graph = PAPERS
    batch = batch_of(graph)
    sums = batch.nodes["x"].sum(1)
    torch.testing.assert_close(sums[sums > 0], torch.ones(int((sums > 0).sum())))
    assert batch.num_edges == graph.num_edges + graph.num_nodes
    assert 0 < float(batch.edges["weight"].min()) <= float(batch.edges["weight"].max()) <= 1
    assert graph.nodes["x"].max() == 1


def test_topics_are_found() -> None:
    found = published()
    model, result, scores = found.model, found.result, found.scores
    assert scores["test"].value > 0.8
    assert found.facts["test_loss"] < 0.8
    assert result.stopped == "finished"
    assert (result.epochs, result.steps) == (200, 200)
    assert not model.training
    # The weights are those of the best epoch, not of the last.
    assert scores["validation"].value == result.best_metrics["validation_accuracy"]
    assert scores["validation"].value >= result.metrics["validation_accuracy"]
    assert found.facts["validation_loss"] == result.best_metrics["validation_loss"]


def losses(folder: Path, **settings: Any) -> list[float]:
    config = replace(PUBLISHED, **settings)
    with Run.create(folder, config, tensorboard=False, resume=True) as run:
        published(run=run, **settings)
    return [line["train_loss"] for line in read_metrics(folder) if "train_loss" in line]


def test_a_seed_gives_the_same_losses_to_the_bit(tmp_path: Path) -> None:
    first = losses(tmp_path / "1", epochs=20, seed=5)
    assert len(set(first)) == 20
    assert losses(tmp_path / "2", epochs=20, seed=5) == first
    assert losses(tmp_path / "3", epochs=20, seed=6) != first


def test_a_schedule_moves_the_rate_and_resumes_exactly(tmp_path: Path) -> None:
    schedule = ScheduleConfig(shape="cosine", warmup=3, scale=2.0)
    settings: dict[str, Any] = {"epochs": 60, "checkpoint_every": 5}
    whole = losses(tmp_path / "whole", **settings, schedule=schedule)
    assert [line["lr"] for line in read_metrics(tmp_path / "whole") if "lr" in line] == [
        pytest.approx(0.02 * (1 + math.cos(math.pi * 46 / 57)) / 2)
    ]
    assert losses(tmp_path / "constant", **settings) != whole

    steps = itertools.count(1)

    def stop_at_7(module: nn.Module, _: object) -> None:
        if isinstance(module, GCN) and module.training and next(steps) == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    hook = register_module_forward_pre_hook(stop_at_7)
    try:
        first = losses(tmp_path / "cut", **settings, schedule=schedule)
    finally:
        hook.remove()
    assert first == whole[:6]
    assert losses(tmp_path / "cut", **settings, schedule=schedule) == whole


def test_patience_stops_early() -> None:
    result = published(epochs=500, patience=5, learning_rate=0.0).result
    assert (result.stopped, result.epochs, result.best_epoch) == ("early stopping", 6, 1)


def test_weight_decay_is_on_the_first_layer_alone() -> None:
    settings = {"epochs": 1, "learning_rate": 1e-3, "dropout": 0.0, "input_dropout": 0.0}
    plain, decayed = (published(**settings, weight_decay=decay).model for decay in (0.0, 1e3))
    # One step of Adam: so much decay decides the sign of a step, where there is any.
    moved = [not a.equal(b) for a, b in zip(plain.parameters(), decayed.parameters(), strict=True)]
    assert moved == [True, False, False, False]


@pytest.mark.parametrize("name", ["x", "y", "train", "validation", "test"])
def test_a_missing_column_is_named(name: str) -> None:
    graph = PAPERS
    nodes = {key: values for key, values in graph.nodes.items() if key != name}
    with pytest.raises(DataError, match=f"'{name}'"):
        batch_of(replace(graph, nodes=nodes))


def test_more_than_one_graph(tmp_path: Path) -> None:
    write_table(tmp_path / "cora.weft", [PAPERS, PAPERS])
    with pytest.raises(DataError, match="'cora' holds 2 graphs; exactly one is needed"):
        NODES.read(PUBLISHED, NodesDataOptions(data_dir=tmp_path), progress=False)


def test_a_warmup_longer_than_the_run() -> None:
    with pytest.raises(ValueError, match="the warm-up of 6 steps is longer than the run of 5"):
        published(epochs=5, schedule=ScheduleConfig(warmup=6))


def test_the_features_have_a_dropout_of_their_own() -> None:
    models = [
        published(epochs=1, dropout=0.0, input_dropout=dropout).model for dropout in (None, 0.5)
    ]
    assert [model.config.input_dropout for model in models] == [0.0, 0.5]


def test_cora_reaches_the_published_accuracy() -> None:
    if not PLANETOID.exists():
        pytest.skip("planetoid is not here")
    assert published(planetoid(PLANETOID, "cora")).scores["test"].value >= 0.79
