"""Citation graphs with the published settings: golden accuracies, and the same losses twice."""

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
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from weft.errors import DataError
from weft.graphs import Graph, GraphBatch, write_table
from weft.models import GCN
from weft.recipes.nodes.config import PUBLISHED, NodesConfig
from weft.recipes.nodes.training import prepare_nodes
from weft.recipes.recipe_data import read_labelled_graph
from weft.recipes.sparse_training import TrainedNetwork, train_network
from weft.sources import planetoid, planted_partition
from weft.training import Run, ScheduleConfig, read_metrics

PLANETOID = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "planetoid"


def papers() -> Graph:
    """Planted topics with words as 0 or 1, as a paper's are."""
    graph = planted_partition(600, 3, mean_degree=8, homophily=0.85, num_features=32, seed=0)
    words = (graph.nodes["x"] > 0).astype(np.float32)
    return replace(graph, nodes={**graph.nodes, "x": words})


def batch_of(graph: Graph) -> GraphBatch:
    batch = prepare_nodes(graph, PUBLISHED).inputs
    assert isinstance(batch, GraphBatch)
    return batch


def trained(
    config: NodesConfig, graph: Graph | None = None, run: Run | None = None
) -> TrainedNetwork:
    return train_network(prepare_nodes(graph or papers(), config), run=run, quiet=True)


def test_the_batch_is_normalised() -> None:
    graph = papers()
    batch = batch_of(graph)
    sums = batch.nodes["x"].sum(1)
    torch.testing.assert_close(sums[sums > 0], torch.ones(int((sums > 0).sum())))
    assert batch.num_edges == graph.num_edges + graph.num_nodes
    assert 0 < float(batch.edges["weight"].min()) <= float(batch.edges["weight"].max()) <= 1
    assert graph.nodes["x"].max() == 1


def test_topics_are_found() -> None:
    found = trained(PUBLISHED)
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


def losses(folder: Path, config: NodesConfig) -> list[float]:
    with Run.create(folder, config, tensorboard=False, resume=True) as run:
        trained(config, run=run)
    return [line["train_loss"] for line in read_metrics(folder) if "train_loss" in line]


def test_a_seed_gives_the_same_losses_to_the_bit(tmp_path: Path) -> None:
    config = replace(PUBLISHED, epochs=20, seed=5)
    first = losses(tmp_path / "1", config)
    assert len(set(first)) == 20
    assert losses(tmp_path / "2", config) == first
    assert losses(tmp_path / "3", replace(config, seed=6)) != first


def test_a_schedule_moves_the_rate_and_resumes_exactly(tmp_path: Path) -> None:
    schedule = ScheduleConfig(shape="cosine", warmup=3, scale=2.0)
    config = replace(PUBLISHED, epochs=60, checkpoint_every=5, schedule=schedule)
    whole = losses(tmp_path / "whole", config)
    assert [line["lr"] for line in read_metrics(tmp_path / "whole") if "lr" in line] == [
        pytest.approx(0.02 * (1 + math.cos(math.pi * 46 / 57)) / 2)
    ]
    assert losses(tmp_path / "constant", replace(config, schedule=ScheduleConfig())) != whole

    steps = itertools.count(1)

    def stop_at_7(module: nn.Module, _: object) -> None:
        if isinstance(module, GCN) and module.training and next(steps) == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    hook = register_module_forward_pre_hook(stop_at_7)
    try:
        first = losses(tmp_path / "cut", config)
    finally:
        hook.remove()
    assert first == whole[:6]
    assert losses(tmp_path / "cut", config) == whole


def test_patience_stops_early() -> None:
    result = trained(replace(PUBLISHED, epochs=500, patience=5, learning_rate=0.0)).result
    assert (result.stopped, result.epochs, result.best_epoch) == ("early stopping", 6, 1)


def test_weight_decay_is_on_the_first_layer_alone() -> None:
    config = replace(PUBLISHED, epochs=1, learning_rate=1e-3, dropout=0.0, input_dropout=0.0)
    plain, decayed = (trained(replace(config, weight_decay=decay)).model for decay in (0.0, 1e3))
    # One step of Adam: so much decay decides the sign of a step, where there is any.
    moved = [not a.equal(b) for a, b in zip(plain.parameters(), decayed.parameters(), strict=True)]
    assert moved == [True, False, False, False]


@pytest.mark.parametrize("name", ["x", "y", "train", "validation", "test"])
def test_a_missing_column_is_named(name: str) -> None:
    graph = papers()
    nodes = {key: values for key, values in graph.nodes.items() if key != name}
    with pytest.raises(DataError, match=f"'{name}'"):
        batch_of(replace(graph, nodes=nodes))


def test_more_than_one_graph(tmp_path: Path) -> None:
    write_table(tmp_path / "cora.weft", [papers(), papers()])
    with pytest.raises(DataError, match="'cora' holds 2 graphs; one is wanted"):
        read_labelled_graph("cora", data_dir=tmp_path, progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs is -1; it must be at least 0"),
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
        replace(PUBLISHED, **settings)


def test_a_warmup_longer_than_the_run() -> None:
    with pytest.raises(ValueError, match="the warm-up of 6 steps is longer than the run of 5"):
        trained(replace(PUBLISHED, epochs=5, schedule=ScheduleConfig(warmup=6)))


def test_the_features_have_a_dropout_of_their_own() -> None:
    plain = replace(PUBLISHED, epochs=1, dropout=0.0, input_dropout=None)
    assert trained(plain).model.config == trained(replace(plain, input_dropout=0.0)).model.config
    assert trained(replace(plain, input_dropout=0.5)).model.config.input_dropout == 0.5


def test_cora_reaches_the_published_accuracy() -> None:
    if not PLANETOID.exists():
        pytest.skip("planetoid is not here")
    assert trained(PUBLISHED, planetoid(PLANETOID, "cora")).scores["test"].value >= 0.79
