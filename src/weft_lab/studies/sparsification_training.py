"""Trainings of the study of sparsification, with what each would compute if no zero were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from weft.graphs import Array, Graph
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import PreparedLinks, prepare_links
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.nodes.training import PreparedNodes, prepare_nodes
from weft.recipes.sparse_training import train_network
from weft.sources import EdgeList
from weft.sparsify import FlopCount, count_flops, rigl_step_flops
from weft.training.metrics import read_metrics
from weft.training.run import Run
from weft.walks import sparse_embedding
from weft_lab.study_settings import SparsificationStudy, Task

Way = Literal["dense", "oneshot", "slr", "rigl"]
Embedding = Literal["dense", "sparse"]

METRICS: dict[Task, str] = {
    "links": "validation_auc",
    "nodes": "validation_accuracy",
    "gcn": "validation_accuracy",
}
"""The score of each epoch; that of the test is of the same kind."""

_RHO: dict[Task, float] = {"links": 0.01, "nodes": 0.02, "gcn": 0.02}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Which training it is.

    Attributes:
        task: what is learned.
        way: dense, pruned once by magnitude and retrained (oneshot), the same after re-weighting
            (slr), or sparse training (rigl).
        embedding: whether the input has all of its values.
        sparsity: of the weights at the end; 0 for dense.
        seed: of weights and batches.
    """

    task: Task
    way: Way
    embedding: Embedding
    sparsity: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class SparseRun:
    """One training. FLOPs are shares of those of dense training on dense inputs.

    Attributes:
        kind: which one.
        score: AUC (links) or accuracy on the test data, of the best epoch by validation.
        weights: in the matrices.
        active: those that no mask forces to 0 at the end.
        training_flops: of the whole training, if zeros were never multiplied.
        inference_flops: of a pass forward, if zeros were never multiplied.
        seconds: that the training took: masks on dense weights, one thread.
        curve: score on the validation data after each epoch.
    """

    kind: Kind
    score: float
    weights: int
    active: int
    training_flops: float
    inference_flops: float
    seconds: float
    curve: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedTask:
    """Data of a task, the same for all of its trainings.

    Attributes:
        task: which one.
        dense: with the inputs as they are.
        sparse: with sparse embeddings; None where there are none.
        density: share of the training inputs that is not 0 with sparse embeddings.
    """

    task: Task
    dense: PreparedLinks | PreparedNodes
    sparse: PreparedLinks | PreparedNodes | None
    density: float


def kinds_of(config: SparsificationStudy, task: Task) -> Iterator[Kind]:
    """Every training of a task, seed by seed."""
    embeddings: tuple[Embedding, ...] = ("dense",) if task == "gcn" else ("dense", "sparse")
    for seed in range(config.repeats):
        for embedding in embeddings:
            yield Kind(task=task, way="dense", embedding=embedding, sparsity=0.0, seed=seed)
            for sparsity in sorted({*config.sparsities, config.curve_sparsity}):
                # What re-weighting is worth can be told beside the same without it.
                ways: tuple[Way, ...] = ("slr", "rigl")
                for way in ("oneshot", *ways) if embedding == "dense" else ways:
                    yield Kind(
                        task=task, way=way, embedding=embedding, sparsity=sparsity, seed=seed
                    )


def prepare_task(
    config: SparsificationStudy, task: Task, edges: EdgeList, graph: Graph
) -> PreparedTask:
    """Split the data and embed it, once with all values and once with the largest."""
    if task == "links":
        links = prepare_links(
            edges,
            # The paper's network reads embeddings alone.
            LinksConfig(
                features=False,
                epochs=config.epochs,
                batch_size=config.batch_size,
                seed=config.seed,
            ),
        )
        few = sparse_embedding(links.embedding, config.links_keep)
        return PreparedTask(
            task=task,
            dense=links,
            sparse=replace(links, embedding=few),
            density=_density(few[links.split.train.nodes]),
        )
    fnn = task == "nodes"
    nodes = prepare_nodes(
        graph,
        NodesConfig(
            model="fnn" if fnn else "gcn",
            epochs=config.nodes_epochs if fnn else config.gcn_epochs,
            batch_size=config.batch_size,
            seed=config.seed,
        ),
    )
    if not isinstance(nodes.inputs, Tensor):
        return PreparedTask(task=task, dense=nodes, sparse=None, density=1.0)
    few = sparse_embedding(nodes.inputs.numpy(), config.nodes_keep)
    return PreparedTask(
        task=task,
        dense=nodes,
        sparse=replace(nodes, inputs=torch.from_numpy(few)),
        density=_density(few[nodes.parts["train"].numpy()]),
    )


def _density(values: Array) -> float:
    return np.count_nonzero(values) / values.size


def train_kind(prepared: PreparedTask, kind: Kind) -> SparseRun:
    """Train, and count what was needed.

    Raises:
        KeyboardInterrupt: the training was interrupted.
    """
    data = prepared.dense if kind.embedding == "dense" else prepared.sparse
    assert data is not None
    settings: dict[str, Any] = {
        "sparsify": "none" if kind.way == "dense" else kind.way,
        "sparsity": kind.sparsity,
        "rho": _RHO[kind.task],
        "seed": kind.seed,
    }
    with (
        TemporaryDirectory(prefix="weft-study-") as place,
        _one_thread(),
        Run.create(Path(place) / "run", {}, tensorboard=False) as run,
    ):
        asked: Any = replace(data.config, **settings)
        trained = train_network(replace(data, config=asked), run=run, quiet=True)
        metric = METRICS[kind.task]
        lines = read_metrics(run.folder / "metrics.jsonl")
        curve = [line[metric] for line in lines if metric in line]
    if trained.result.stopped.startswith("interrupted"):
        raise KeyboardInterrupt
    density = prepared.density if kind.embedding == "sparse" else 1.0
    count = count_flops(trained.model, trained.masks, data.example(1))
    result = trained.result
    training, inference = _flops(count, kind.way, density, result.epochs, result.steps)
    return SparseRun(
        kind=kind,
        score=trained.scores["auc" if kind.task == "links" else "test"].value,
        weights=trained.counts["weights"],
        active=trained.counts["active"],
        training_flops=training,
        inference_flops=inference,
        seconds=result.seconds,
        curve=curve,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Layers as small as these wait for their threads longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _flops(
    count: FlopCount, way: Way, density: float, epochs: int, steps: int
) -> tuple[float, float]:
    """FLOPs of the training and of a pass forward, over those with all weights and inputs."""
    # Zeros of the input save what the first layer would do with them.
    first = count.weights[0]
    sparse = count.sparse - (1 - density) * first.sparse
    dense = count.dense - (1 - density) * first.dense
    if way == "rigl":
        # As often as the recipe updates by default.
        training = rigl_step_flops(sparse, dense, max(1, steps // 20)) / 3
    elif way in ("slr", "oneshot"):
        retrain = epochs // 4
        training = ((epochs - retrain) * dense + retrain * sparse) / epochs
    else:
        training = dense
    return training / count.dense, sparse / count.dense
