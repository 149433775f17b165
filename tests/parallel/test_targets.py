"""Labels, numbers and weighted classes on grids, beside torch's own losses on dense matrices."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from grid_examples import graph_of, model_of
from rank_processes import results_of
from scipy.stats import mannwhitneyu
from target_runs import losses_and_scores
from torch.nn import functional

from weft.errors import DataError
from weft.parallel.grid import Grid
from weft.parallel.labels import as_target
from weft.parallel.method import Method
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard
from weft.parallel.targets import target_of
from weft.parallel.world import alone

GRIDS = [("1d", None), ("1.5d", 2), ("2d", None)]
WEIGHTS = {
    "classes": [("balanced",), ("1", "0.5", "2", "0")],
    "multilabel": [(), ("balanced",), ("1", "2", "3")],
    "regression": [(), ()],
}


def graphs():
    plain = graph_of(directed=False)
    rng = np.random.default_rng(3)
    labels = (rng.random((plain.num_nodes, 3)) < 0.4).astype(np.float32)
    numbers = rng.normal(5, 3, (plain.num_nodes, 2))
    for values in (labels, numbers):
        # Some are unknown, and of one node all are.
        values[rng.random(values.shape) < 0.2] = np.nan
        values[:, 0][~np.isfinite(values).any(1)] = 1
    return {
        "classes": plain,
        "multilabel": replace(plain, nodes={**plain.nodes, "y": labels}),
        "regression": replace(plain, nodes={**plain.nodes, "y": numbers}),
    }


def dense_outputs(graph, model):
    n = graph.num_nodes
    matrix = np.zeros((n, n))
    np.add.at(matrix, (graph.receivers, graph.senders), graph.edges["weight"])
    loops = np.zeros(n, dtype=bool)
    loops[graph.senders[graph.senders == graph.receivers]] = True
    matrix[~loops, ~loops] += 1
    scale = matrix.sum(1) ** -0.5
    a = torch.from_numpy(scale[:, None] * matrix * scale)
    h = torch.from_numpy(graph.nodes["x"])
    for number, layer in enumerate(model.layers):
        h = (a @ (h.relu() if number else h)) @ layer.weight + layer.bias
    return h


def plain_loss(kind, graph, outputs, weights, part="train"):
    """Torch's own loss of the nodes of a part."""
    mask = torch.from_numpy(graph.nodes[part])
    y = torch.from_numpy(graph.nodes["y"])[mask]
    outputs = outputs[mask]
    train = graph.nodes["y"][graph.nodes["train"]]
    train = train if kind == "classes" else train.astype(np.float64)
    if kind == "classes":
        each = None
        if weights == ("balanced",):
            counts = np.bincount(train, minlength=4)
            each = torch.tensor(
                [len(train) / (np.count_nonzero(counts) * max(c, 1)) for c in counts],
                dtype=torch.float64,
            )
        elif weights:
            each = torch.tensor([float(word) for word in weights])
        return functional.cross_entropy(outputs, y, None if each is None else each.double())
    known = ~y.isnan()
    if kind == "regression":
        mean, std = np.nanmean(train, 0), np.nanstd(train, 0)
        scaled = (y - torch.from_numpy(mean)) / torch.from_numpy(std)
        return functional.mse_loss(outputs[known], scaled[known])
    positive = None
    if weights == ("balanced",):
        positive = torch.from_numpy(np.nansum(1 - train, 0) / np.nansum(train, 0)).double()
    elif weights:
        positive = torch.tensor([float(word) for word in weights]).double()
    losses = functional.binary_cross_entropy_with_logits(
        outputs, y.double().nan_to_num(0), pos_weight=positive, reduction="none"
    )
    return losses[known].mean()


def plain_scores(kind, graph, outputs, part):
    mask = graph.nodes[part]
    y, outputs = graph.nodes["y"][mask], outputs.numpy()[mask]
    if kind == "classes":
        return {"accuracy": (outputs.argmax(1) == y).mean()}
    known = ~np.isnan(y)
    if kind == "multilabel":
        found, there = (outputs > 0) & known, (y == 1) & known
        aucs = []
        for scores, truth in zip(outputs.T, y.T, strict=True):
            above, below = scores[truth == 1], scores[truth == 0]
            if len(above) and len(below):
                aucs.append(mannwhitneyu(above, below).statistic / (len(above) * len(below)))
        f1 = 2 * (found & there).sum() / (found.sum() + there.sum())
        return {"f1": f1, "auc": np.mean(aucs)}
    train = graph.nodes["y"][graph.nodes["train"]]
    error = (outputs * np.nanstd(train, 0) + np.nanmean(train, 0) - y)[known]
    spread = ((y - np.nanmean(train, 0))[known] ** 2).sum()
    return {
        "mae": np.abs(error).mean(),
        "rmse": np.sqrt((error**2).mean()),
        "r2": 1 - (error**2).sum() / spread,
    }


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    return {
        kind: str(prepare(graph, folder / kind, blocks=4, partition="random", dtype="float64").path)
        for kind, graph in graphs().items()
    }


def test_losses_gradients_and_scores_are_torchs_on_any_grid(tables):
    cases = [
        (tables[kind], grid, replication, weights)
        for kind, all_weights in WEIGHTS.items()
        for weights, (grid, replication) in zip(all_weights, reversed(GRIDS), strict=False)
    ]
    ranks = results_of(4, losses_and_scores, cases)
    kinds = {path: kind for kind, path in tables.items()}
    for case, *found in zip(cases, *ranks, strict=True):
        kind, weights = kinds[case[0]], case[3]
        graph = graphs()[kind]
        width = {"classes": 4, "multilabel": 3, "regression": 2}[kind]
        model = model_of("gcn", 5, (6,), width)
        outputs = dense_outputs(graph, model)
        loss = plain_loss(kind, graph, outputs, weights)
        loss.backward()
        outputs = outputs.detach()
        expected = {f"test_{k}": v for k, v in plain_scores(kind, graph, outputs, "test").items()}
        # Scores are not weighted where classes are; those of labels are what is learned.
        shown = () if kind == "classes" else weights
        expected["test_loss"] = plain_loss(kind, graph, outputs, shown, "test").item()
        assert not any(each["unpredicted"] for each in found), case
        for each in (*found, *(each["module"] for each in found)):
            assert each["loss"] == pytest.approx(loss.item(), rel=1e-12)
            for gradient, parameter in zip(each["gradients"], model.parameters(), strict=True):
                torch.testing.assert_close(gradient, parameter.grad, rtol=1e-10, atol=1e-12)
            scores = {name: each["scores"][name] for name in expected}
            # A ranking is made of float32.
            assert scores == pytest.approx(expected, rel=1e-10), case
        train = graph.nodes["y"][graph.nodes["train"]]
        plain = outputs.softmax(1) if kind == "classes" else outputs.sigmoid()
        if kind == "regression":
            plain = outputs * torch.tensor(np.nanstd(train, 0)) + torch.tensor(np.nanmean(train, 0))
        for network in (found, [each["module"] for each in found]):
            ids = torch.cat([each["ids"] for each in network])
            assert sorted(ids.tolist()) == list(range(graph.num_nodes))
            predictions = torch.cat([each["predictions"] for each in network])
            torch.testing.assert_close(predictions, plain[ids], rtol=1e-10, atol=1e-12)


def test_what_a_target_is():
    whole = np.array([0, 1, -1])
    assert as_target(whole) == ("classes", pytest.approx(whole))
    assert as_target(np.array([[0.0], [1.0], [math.nan]]), "classes")[1].tolist() == [0, 1, -1]
    kind, labels = as_target(np.array([[0, 1], [1, -1], [0, 0]]))
    assert kind == "multilabel"
    np.testing.assert_array_equal(labels, [[0, 1], [1, np.nan], [0, 0]])
    assert as_target(np.array([[True, False]]))[0] == "multilabel"
    kind, numbers = as_target(np.array([0.5, math.nan]))
    assert (kind, numbers.shape) == ("regression", (2, 1))
    assert as_target(np.array([1.0, 2.0]), "regression")[0] == "regression"


@pytest.mark.parametrize(
    ("y", "asked", "words"),
    [
        (np.array([0.0, 1.0]), "auto", "whole numbers only: pass --target classes"),
        (np.array([0.5, 1.0]), "classes", "the target of node 0 is 0.5; a class is a whole"),
        (np.array([0, 7]), "classes", "the target of node 1 is 7; classes are numbered from 0"),
        (np.array([0, -2]), "auto", "the target of node 1 is -2"),
        (np.zeros((2, 3)), "classes", "a node has one class"),
        (np.array([[0, 2]]), "multilabel", "node 0, column 1 is 2; a label is 0 or 1"),
        (np.array([[0.5, math.inf]]), "auto", "column 1 is inf; a finite number is needed"),
        (np.array(["a"]), "auto", "node column 'y' is"),
        (np.zeros((2, 0)), "auto", "node column 'y' is"),
        (np.array([0]), "both", "target is 'both'; choose from"),
    ],
)
def test_targets_that_cannot_be(y, asked, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        as_target(y, asked)


def test_a_node_with_nothing_known_is_in_no_part():
    graph = graphs()["regression"]
    graph.nodes["y"][3] = np.nan
    with pytest.raises(DataError, match="node 3 is in 'train' but has no class"):
        prepare(graph, blocks=1)


def test_weights_that_do_not_fit():
    def target(kind, *weights):
        table = prepare(graphs()[kind], blocks=1)
        shard = GraphShard.open(table, alone(Grid(rows=1), 0), Method())
        return target_of(shard, shard.classes, weights)

    with pytest.raises(ValueError, match="2 class weights for 4 classes: give one for each"):
        target("classes", "1", "2")
    with pytest.raises(ValueError, match="class weights of all training nodes are 0"):
        target("classes", "0", "0", "0", "0")
    with pytest.raises(ValueError, match="the target is numbers; leave them out"):
        target("regression", "balanced")
