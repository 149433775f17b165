"""Recipe: the class of a node, from an embedding of walks (FNN) or from its neighbours (GCN)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import DataError
from weft.graphs import (
    Array,
    Graph,
    GraphBatch,
    assemble,
    gcn_weights,
    symmetrised,
    table_from_graphs,
)
from weft.models import FNN, GCN, FNNConfig, GCNConfig
from weft.recipes.links.data import node_names, scaled, text_column
from weft.recipes.nodes.config import NodesConfig
from weft.sources import row_normalise
from weft.sparsify import Masks
from weft.training.batches import RowBatches
from weft.training.config import FitResult
from weft.training.loop import fit
from weft.training.randomness import seed_everything
from weft.training.ranks import load_on_all
from weft.training.run import Run
from weft.training.saved_inputs import keep_inputs
from weft.training.schedules import make_scheduler
from weft.training.scores import Score, accuracy_score
from weft.training.sparse_form import load_dense
from weft.training.sparse_step import SparseStep, StepCosts, check_form
from weft.walks import skip_gram, sparse_embedding, temporal_walks, uniform_walks

if TYPE_CHECKING:
    from weft.parallel.world import World

KIND = "nodes"

_PARTS = ("train", "validation", "test")
_SPLIT = 60_20_20


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedNodes:
    """A graph made ready for a recipe.

    Attributes:
        config: the recipe, settled.
        y: int64 [n], classes; -1 for none.
        classes: how many there are.
        parts: node numbers for training, validation and test.
        inputs: embeddings float32 [n, dim], or the batch that a GCN reads.
        seconds: that walks and embeddings took.
        names: [n], of the nodes.
        class_names: what the file of labels calls the classes; their numbers without one.
    """

    config: NodesConfig
    y: Tensor
    classes: int
    parts: dict[str, Tensor]
    inputs: Tensor | GraphBatch
    seconds: float
    names: Array
    class_names: list[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedNodes:
    """What `train_nodes` gives.

    Attributes:
        model: gives logits [n, classes].
        result: how the training went.
        scores: the accuracy on each part, with an interval.
        losses: the cross entropy on each part.
        counts: nodes in each part, classes, weights and those that are active.
        guess: share of the test nodes that are of the commonest class in training.
        costs: of a training step of a sparse model, if they were asked for; not of several ranks.
        masks: those after the last step, not of the best epoch; None where the model is dense, or
            has sparse layers alone.
    """

    model: nn.Module
    result: FitResult
    scores: dict[str, Score]
    losses: dict[str, float]
    counts: dict[str, int]
    guess: float
    costs: StepCosts | None = None
    masks: Masks | None = None


def node_split(y: Array, *, seed: int = 0) -> dict[str, Array]:
    """Random 60/20/20 of the nodes that have a class: numbers int64, by part.

    Raises:
        DataError: too few nodes have a class.
    """
    # A stream of its own: a generated graph whose classes were shuffled by the same seed would be
    # cut along its classes.
    rng = np.random.default_rng([seed, _SPLIT])
    order = rng.permutation(np.flatnonzero(y >= 0))
    first, second = round(0.6 * len(order)), round(0.8 * len(order))
    parts = {"train": order[:first], "validation": order[first:second], "test": order[second:]}
    if not all(len(part) for part in parts.values()):
        raise DataError(f"{len(order)} nodes have a class, too few for three parts")
    return parts


def prepare_nodes(graph: Graph, config: NodesConfig) -> PreparedNodes:
    """Split the nodes and make what the network reads.

    Edges count either way. Embeddings are made of all of them, as the edges of test nodes are
    known: only their classes are not.

    Args:
        graph: with the node column `y`, int [n] (-1 for no class); `x` for a GCN; masks `train`,
            `validation` and `test` for the public split; the edge column `time`, if there is one,
            for walks in its order.
        config: the recipe.

    Raises:
        DataError: a column is missing or wrong, there are too few nodes with a class, or gensim
            is missing.
    """
    config = config.settled()
    y = _labels(graph)
    if config.split == "public":
        parts = {name: np.flatnonzero(_column(graph, name)) for name in _PARTS}
        for name, nodes in parts.items():
            if not len(nodes) or (y[nodes] < 0).any():
                raise DataError(f"the public split's part '{name}' is empty or has no classes")
    else:
        parts = node_split(y, seed=config.seed)
    began = time.perf_counter()
    inputs: Tensor | GraphBatch
    if config.model == "gcn":
        masks = {name: np.isin(np.arange(graph.num_nodes), parts[name]) for name in _PARTS}
        plain = Graph(
            num_nodes=graph.num_nodes,
            senders=graph.senders,
            receivers=graph.receivers,
            nodes={"x": _column(graph, "x"), "y": y, **masks},
        )
        inputs = _gcn_batch(symmetrised(plain))
    else:
        walk = temporal_walks if "time" in graph.edges else uniform_walks
        paths = walk(_either_way(graph), walks=config.walks, length=config.length, seed=config.seed)
        embedding = skip_gram(paths, graph.num_nodes, dim=config.dim, seed=config.seed)
        inputs = torch.from_numpy(scaled(sparse_embedding(embedding, config.keep)))
    classes = int(y.max()) + 1
    return PreparedNodes(
        config=config,
        y=torch.from_numpy(y),
        classes=classes,
        parts={name: torch.from_numpy(np.sort(nodes)) for name, nodes in parts.items()},
        inputs=inputs,
        seconds=time.perf_counter() - began,
        names=node_names(graph),
        class_names=text_column(graph, "classes") or [str(number) for number in range(classes)],
    )


def _gcn_batch(graph: Graph) -> GraphBatch:
    """The graph ready for a GCN: the features of a node sum to 1, edges have weights."""
    graph = replace(graph, nodes={**graph.nodes, "x": row_normalise(graph.nodes["x"])})
    return assemble(table_from_graphs([gcn_weights(graph)]), [0])


def _either_way(graph: Graph) -> Graph:
    """The graph with each edge there and back, so that every node with an edge has an embedding."""
    ends = np.stack([graph.senders, graph.receivers])
    time = {"time": np.tile(graph.edges["time"], 2)} if "time" in graph.edges else {}
    return Graph(
        num_nodes=graph.num_nodes,
        senders=ends.reshape(-1),
        receivers=ends[::-1].reshape(-1),
        edges=time,
    )


def _column(graph: Graph, name: str) -> Array:
    if name not in graph.nodes:
        raise DataError(
            f"the graph has no node column '{name}'; it has {', '.join(graph.nodes) or 'none'}"
        )
    return graph.nodes[name]


def _labels(graph: Graph) -> Array:
    y = _column(graph, "y")
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"y is {y.dtype}{list(y.shape)}; a class is one whole number a node")
    y = y.astype(np.int64)
    if len(np.unique(y[y >= 0])) < 2:
        raise DataError("all nodes with a class have the same; there is nothing to tell apart")
    return y


def check_ranks(config: NodesConfig, world: World | None) -> None:
    """Raise ValueError where several ranks are to train a gcn, or sparse layers."""
    if world is not None and world.ranks > 1 and config.model == "gcn":
        raise ValueError(
            f"model is gcn, which takes all nodes in every step, and there are {world.ranks} "
            "ranks; share the graph among them with `weft train full-graph`"
        )
    check_form(config, world)


def train_nodes(
    prepared: PreparedNodes,
    *,
    run: Run | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
    measure_step: bool = False,
    world: World | None = None,
) -> TrainedNodes:
    """Train; the model ends with the weights of the best validation accuracy.

    Args:
        prepared: the graph and the recipe.
        run: folder to log to and to resume from; `weft predict` finds the nodes there.
        init_from: a run folder or file whose weights to start from.
        quiet: no progress.
        measure_step: count and time a step of a sparse training afterwards, unless ranks share it.
        world: ranks that share every batch of an fnn; they give the same losses as one process.

    Raises:
        ValueError: several ranks are to train a gcn, which takes all nodes in every step, or
            sparse layers.
    """
    check_ranks(prepared.config, world)
    config, y, parts = prepared.config, prepared.y, prepared.parts
    epochs = config.epochs
    assert epochs is not None
    seed_everything(config.seed)
    inputs = prepared.inputs
    width = (inputs if isinstance(inputs, Tensor) else inputs.nodes["x"]).shape[1]
    model = make_network(config, width, prepared.classes)
    if init_from is not None:
        load_on_all(model, lambda: load_dense(model, init_from), world)
    if run is not None:
        keep_inputs(
            run.folder, KIND, prepared.names, _tensors(inputs), classes=prepared.class_names
        )
    batches: Iterable[Any]
    if config.model == "fnn":
        rows = RowBatches(
            parts["train"], batch_size=config.batch_size, seed=config.seed, world=world
        )
        batches, count = rows, len(rows)
    else:
        batches, count = [(parts["train"],)], 1
    steps = epochs * count

    def optimizer_for(model: nn.Module) -> tuple[Optimizer, LRScheduler]:
        optimizer = _optimizer(model, config)
        return optimizer, make_scheduler(optimizer, config.schedule, max(1, steps))

    def logits(model: nn.Module, nodes: Tensor) -> Tensor:
        if isinstance(inputs, Tensor):
            found: Tensor = model(inputs[nodes])
        else:
            found = model(inputs)[nodes]
        return found

    def loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        (nodes,) = batch
        return functional.cross_entropy(logits(model, nodes), y[nodes])

    @torch.no_grad()
    def measured(model: nn.Module, part: str) -> tuple[int, float]:
        """How many of the nodes are right, and the loss."""
        nodes = parts[part]
        found = logits(model, nodes)
        right = int((found.argmax(1) == y[nodes]).sum())
        return right, float(functional.cross_entropy(found, y[nodes]))

    def ones() -> Tensor:
        if isinstance(inputs, Tensor):
            output: Tensor = model(torch.ones(1, config.dim))
        else:
            x = torch.ones_like(inputs.nodes["x"])
            output = model(inputs.replace(nodes={**inputs.nodes, "x": x}))
        return output

    def evaluate(model: nn.Module) -> dict[str, float]:
        right, value = measured(model, "validation")
        return {
            "validation_accuracy": right / len(parts["validation"]),
            "validation_loss": value,
        }

    step = SparseStep(
        model,
        optimizer_for,
        batches,
        loss,
        config=config,
        epochs=epochs,
        steps=steps,
        sample=(parts["train"],),
        ones=ones,
        run=run,
        quiet=quiet,
        seed=config.seed,
        world=world,
    )
    result = fit(
        model,
        step.optimizer,
        batches,
        step,
        config=step.fit_config(checkpoint_every=config.checkpoint_every, patience=config.patience),
        evaluate=step.selecting(evaluate, "validation_accuracy"),
        scheduler=step.scheduler,
        run=run,
    )
    example = inputs[: config.batch_size] if isinstance(inputs, Tensor) else inputs
    costs = step.costs(result, example) if measure_step else None
    model.eval()
    commonest = y[parts["train"]].mode().values
    found = {name: measured(model, name) for name in _PARTS}
    return TrainedNodes(
        model=model,
        result=result,
        scores={
            name: accuracy_score(right, len(parts[name])) for name, (right, _) in found.items()
        },
        losses={name: value for name, (_, value) in found.items()},
        counts={
            "nodes": len(y),
            "classes": prepared.classes,
            **{name: len(nodes) for name, nodes in parts.items()},
            **step.counts(result),
        },
        guess=float((y[parts["test"]] == commonest).float().mean()),
        costs=costs,
        masks=step.masks,
    )


def make_network(config: NodesConfig, width: int, classes: int) -> FNN | GCN:
    """The network for inputs that are so wide."""
    hidden, dropout, inputs = config.hidden, config.dropout, config.input_dropout
    assert hidden is not None
    assert dropout is not None
    if config.model == "fnn":
        return FNN((width, *hidden, classes), FNNConfig(dropout=dropout))
    inputs = dropout if inputs is None else inputs
    return GCN(width, classes, GCNConfig(hidden=hidden, dropout=dropout, input_dropout=inputs))


def _tensors(inputs: Tensor | GraphBatch) -> dict[str, Tensor]:
    """What predictions need of the inputs."""
    if isinstance(inputs, Tensor):
        return {"x": inputs}
    return {
        "x": inputs.nodes["x"],
        "weight": inputs.edges["weight"],
        "senders": inputs.senders,
        "receivers": inputs.receivers,
    }


def _optimizer(model: nn.Module, config: NodesConfig) -> Optimizer:
    if not isinstance(model, GCN):
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    first, *others = model.layers
    groups: list[dict[str, Any]] = [
        {"params": list(first.parameters()), "weight_decay": config.weight_decay},
        {"params": [p for layer in others for p in layer.parameters()]},
    ]
    return torch.optim.Adam([group for group in groups if group["params"]], lr=config.learning_rate)
