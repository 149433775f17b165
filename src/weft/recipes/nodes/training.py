"""Recipe: the class of a node, from an embedding of walks (FNN) or from its neighbours (GCN)."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

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
from weft.kernels import node_cross_entropy
from weft.models import FNN, GCN, FNNConfig, GCNConfig
from weft.recipes.links.data import node_names, text_column, walk_embedding
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.recipe import from_json, reading
from weft.recipes.sparse_training import Measurements, PreparedNetwork
from weft.sources import row_normalise
from weft.training.saved_inputs import KeptInputs, keep_inputs, kept_inputs
from weft.training.scores import accuracy_score
from weft.training.sparse_form import load_dense
from weft.walks import temporal_walks, uniform_walks

if TYPE_CHECKING:
    from weft.parallel.world import World

KIND = "nodes"

_PARTS = ("train", "validation", "test")
_SPLIT = 60_20_20


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedNodes(PreparedNetwork):
    """A graph made ready for a recipe.

    Attributes:
        config: the recipe, settled.
        graph: as it was read.
        y: int64 [n], classes; -1 for none.
        classes: how many there are.
        parts: node numbers for training, validation and test.
        inputs: embeddings float32 [n, dim], or the batch that a GCN reads.
        class_names: what the file of labels calls the classes; their numbers without one.
    """

    config: NodesConfig
    graph: Graph
    y: Tensor
    classes: int
    parts: dict[str, Tensor]
    inputs: Tensor | GraphBatch
    class_names: list[str]

    units = "nodes"
    score = "validation_accuracy"

    @property
    def linear(self) -> bool:
        """Whether the layers of the network have a sparse form."""
        return self.config.model == "fnn"

    def network(self) -> FNN | GCN:
        """See `make_network`."""
        x = self.inputs if isinstance(self.inputs, Tensor) else self.inputs.nodes["x"]
        return make_network(self.config, x.shape[1], self.classes)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """SGD, or Adam with a decay of a GCN's first layer."""
        config = self.config
        if not isinstance(model, GCN):
            return SGD(model.parameters(), lr=config.learning_rate)
        first, *others = model.layers
        groups: list[dict[str, Any]] = [
            {"params": list(first.parameters()), "weight_decay": config.weight_decay},
            {"params": [p for layer in others for p in layer.parameters()]},
        ]
        return Adam([group for group in groups if group["params"]], lr=config.learning_rate)

    def rows(self) -> tuple[Tensor]:
        """The numbers of the training nodes."""
        return (self.parts["train"],)

    def batches(self, world: World | None = None) -> Any:
        """A GCN takes all nodes in every step."""
        return super().batches(world) if self.linear else [self.rows()]

    def example(self, rows: int) -> Tensor | GraphBatch:
        """Embeddings of ones, or the graph with such features."""
        if isinstance(self.inputs, Tensor):
            return self.inputs.new_ones(rows, self.inputs.shape[1])
        x = torch.ones_like(self.inputs.nodes["x"])
        return self.inputs.replace(nodes={**self.inputs.nodes, "x": x})

    def loss(self, model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        """Cross entropy of a batch of nodes."""
        (nodes,) = batch
        if isinstance(self.inputs, GraphBatch):
            classes = torch.full_like(self.y, -1).index_copy(0, nodes, self.y[nodes])
            return node_cross_entropy(model(self.inputs), classes)
        return functional.cross_entropy(node_logits(model, self.inputs, nodes), self.y[nodes])

    @torch.no_grad()
    def _measure(self, model: nn.Module, part: str) -> tuple[int, float]:
        """How many of the nodes are right, and the loss."""
        nodes = self.parts[part]
        logits, y = node_logits(model, self.inputs, nodes), self.y[nodes]
        return int((logits.argmax(1) == y).sum()), float(functional.cross_entropy(logits, y))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy and loss."""
        right, loss = self._measure(model, "validation")
        return {
            "validation_accuracy": right / len(self.parts["validation"]),
            "validation_loss": loss,
        }

    def measured(self, model: nn.Module) -> Measurements:
        """The accuracy and loss on each part, nodes in each, and the accuracy of a guess."""
        scores, counts = {}, {"nodes": len(self.y), "classes": self.classes}
        facts: dict[str, float] = {}
        for name, nodes in self.parts.items():
            counts[name] = len(nodes)
            right, facts[f"{name}_loss"] = self._measure(model, name)
            scores[name] = accuracy_score(right, len(nodes))
        # The share of the nodes of each part that are of the commonest class in training.
        commonest = self.y[self.parts["train"]].mode().values
        guesses = {
            name: float((self.y[nodes] == commonest).float().mean())
            for name, nodes in self.parts.items()
        }
        baselines = {name: {"commonest class": {"accuracy": guesses[name]}} for name in guesses}
        return scores, counts, {**facts, "guess": guesses["test"], "baselines": baselines}

    def keep(self, folder: Path) -> None:
        """Names of nodes and classes, and what the network reads."""
        inputs = self.inputs
        tensors = (
            {"x": inputs}
            if isinstance(inputs, Tensor)
            else {
                "x": inputs.nodes["x"],
                "weight": inputs.edges["weight"],
                "senders": inputs.senders,
                "receivers": inputs.receivers,
            }
        )
        keep_inputs(folder, KIND, node_names(self.graph), tensors, classes=self.class_names)

    def content(self) -> dict[str, Array]:
        """The inputs, classes and training nodes."""
        inputs = self.inputs
        own = (
            {"x": inputs}
            if isinstance(inputs, Tensor)
            else {"senders": inputs.senders, "receivers": inputs.receivers, **inputs.nodes}
        )
        tensors = {"y": self.y, "train": self.parts["train"], **own}
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def on(self, device: torch.device) -> PreparedNodes:
        """With features or embeddings, classes and numbers there."""
        parts = {name: nodes.to(device) for name, nodes in self.parts.items()}
        return replace(self, inputs=self.inputs.to(device), y=self.y.to(device), parts=parts)

    def hardly_validated(self) -> PreparedNodes:
        """With one node to validate by."""
        return replace(self, parts={**self.parts, "validation": self.parts["validation"][:1]})

    def check_ranks(self, world: World | None) -> None:
        """Raise ValueError where several ranks are to train a gcn, or sparse layers."""
        if world is not None and world.ranks > 1 and not self.linear:
            raise ValueError(
                f"model is gcn, which takes all nodes in every step, and there are {world.ranks} "
                "ranks; share the graph among them with `weft train full-graph`"
            )
        super().check_ranks(world)


def node_logits(model: nn.Module, inputs: Tensor | GraphBatch, nodes: Tensor) -> Tensor:
    """Logits [m, classes] of some nodes, int64 [m]."""
    found: Tensor = model(inputs[nodes]) if isinstance(inputs, Tensor) else model(inputs)[nodes]
    return found


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
            # The features of a node sum to 1.
            nodes={"x": row_normalise(_column(graph, "x")), "y": y, **masks},
        )
        inputs = assemble(table_from_graphs([gcn_weights(symmetrised(plain))]), [0])
    else:
        walk = temporal_walks if "time" in graph.edges else uniform_walks
        inputs = torch.from_numpy(walk_embedding(_either_way(graph), config, walk))
    classes = int(y.max()) + 1
    return PreparedNodes(
        config=config,
        graph=graph,
        y=torch.from_numpy(y),
        classes=classes,
        parts={name: torch.from_numpy(np.sort(nodes)) for name, nodes in parts.items()},
        inputs=inputs,
        seconds=time.perf_counter() - began,
        class_names=text_column(graph, "classes") or [str(number) for number in range(classes)],
    )


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
        raise DataError("all nodes with a class have the same one; there is nothing to learn")
    return y


def make_network(config: NodesConfig, width: int, classes: int) -> FNN | GCN:
    """The network for inputs that are so wide."""
    hidden, dropout, inputs = config.hidden, config.dropout, config.input_dropout
    assert hidden is not None
    assert dropout is not None
    if config.model == "fnn":
        return FNN((width, *hidden, classes), FNNConfig(dropout=dropout))
    inputs = dropout if inputs is None else inputs
    return GCN(width, classes, GCNConfig(hidden=hidden, dropout=dropout, input_dropout=inputs))


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedNodes:
    """The network of a run, with what it reads.

    Attributes:
        config: of the run.
        network: in evaluation mode.
        inputs: embeddings float32 [n, dim], or the batch that a GCN reads.
        classes: their names.
        kept: the run's inputs, with the names of its nodes.
    """

    config: NodesConfig
    network: FNN | GCN
    inputs: Tensor | GraphBatch
    classes: list[str]
    kept: KeptInputs


def load_network(run: Path) -> TrainedNodes:
    """Read a run for predictions.

    Raises:
        DataError: no such run, or one of another recipe, or damaged.
    """
    kept = kept_inputs(run, KIND)
    with reading(run):
        config = from_json(NodesConfig, kept.config).settled()
        classes = [str(name) for name in kept.about["classes"]]
        x = kept.tensors["x"]
        inputs = x if config.model == "fnn" else _kept_batch(kept.tensors)
    if x.ndim != 2 or len(x) != len(kept.names):
        raise DataError(f"the run in {run} is damaged: its inputs do not fit its nodes")
    network = make_network(config, x.shape[1], len(classes))
    load_dense(network, run)
    return TrainedNodes(
        config=config, network=network.eval(), inputs=inputs, classes=classes, kept=kept
    )


@torch.no_grad()
def predict_classes(run: Path, file: Path | None = None) -> list[tuple[int | str, str, float]]:
    """Predict every node of a run's graph, or those that a text file names, one on each line.

    Returns:
        Of each node its name, the likeliest class and that class's probability, in the order of
        the file or of the graph.

    Raises:
        DataError: no such run, or one of another recipe, or damaged; or a line is none of the run's
            nodes (the message has file and line).
    """
    trained = load_network(run)
    names = trained.kept.names
    places = np.arange(len(names)) if file is None else trained.kept.places(file, 1, "node")[:, 0]
    logits = node_logits(trained.network, trained.inputs, torch.from_numpy(places))
    probability, chosen = logits.double().softmax(1).max(1)
    found = zip(places.tolist(), chosen.tolist(), probability.tolist(), strict=True)
    return [(names[place], trained.classes[number], likely) for place, number, likely in found]


def _kept_batch(tensors: dict[str, Tensor]) -> GraphBatch:
    graph = Graph(
        num_nodes=len(tensors["x"]),
        senders=tensors["senders"].numpy(),
        receivers=tensors["receivers"].numpy(),
        nodes={"x": tensors["x"].numpy()},
        edges={"weight": tensors["weight"].numpy()},
    )
    graph.validate()
    return assemble(table_from_graphs([graph]), [0])
