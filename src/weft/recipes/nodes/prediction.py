"""A trained run of the recipe `nodes`, asked about the nodes of its graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphBatch, assemble, table_from_graphs
from weft.models import FNN, GCN
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.nodes.training import KIND, make_network, node_logits
from weft.recipes.structures.prediction import from_json
from weft.training.saved_inputs import KeptInputs, kept_inputs
from weft.training.sparse_form import load_dense


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedClasses:
    """A trained network with the nodes that it knows.

    Attributes:
        model: gives logits [n, classes] for `inputs`.
        config: of the training.
        inputs: embeddings [n, dim], or the graph of a GCN.
        classes: their names.
        kept: the nodes' names.
    """

    model: FNN | GCN
    config: NodesConfig
    inputs: Tensor | GraphBatch
    classes: list[str]
    kept: KeptInputs


@dataclass(frozen=True, kw_only=True, eq=False)
class NodePredictions:
    """What a network says about nodes.

    Attributes:
        nodes: names, in the order of the file or of the graph.
        classes: the likeliest class of each.
        probability: float64 [m], of that class.
    """

    nodes: list[int | str]
    classes: list[str]
    probability: Array


def load_classes(run: Path) -> TrainedClasses:
    """The best weights of the run in the folder `run`, and its graph.

    Raises:
        DataError: no such run, or one of another recipe, or damaged.
    """
    kept = kept_inputs(run, KIND)
    try:
        config = from_json(NodesConfig, kept.config).settled()
        classes = [str(name) for name in kept.about["classes"]]
        x = kept.tensors["x"]
        inputs = x if config.model == "fnn" else _batch(kept.tensors)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"the run in {run} cannot be read ({error})") from None
    if x.ndim != 2 or len(x) != len(kept.names):
        raise DataError(f"the run in {run} is damaged: its inputs do not fit its nodes")
    model = make_network(config, x.shape[1], len(classes))
    load_dense(model, run)
    model.eval()
    return TrainedClasses(model=model, config=config, inputs=inputs, classes=classes, kept=kept)


def _batch(tensors: dict[str, Tensor]) -> GraphBatch:
    graph = Graph(
        num_nodes=len(tensors["x"]),
        senders=tensors["senders"].numpy(),
        receivers=tensors["receivers"].numpy(),
        nodes={"x": tensors["x"].numpy()},
        edges={"weight": tensors["weight"].numpy()},
    )
    graph.validate()
    return assemble(table_from_graphs([graph]), [0])


@torch.no_grad()
def predict_classes(trained: TrainedClasses, file: Path | None = None) -> NodePredictions:
    """Predict every node of the run's graph, or those that a text file names, one on each line.

    Raises:
        DataError: a line is none of the run's nodes; the message has file and line.
    """
    names, places = trained.kept.names, np.arange(len(trained.kept.names))
    if file is not None:
        places = trained.kept.places(file, 1, "node")[:, 0]
    rows = torch.from_numpy(places)
    logits = node_logits(trained.model, trained.inputs, rows)
    probability, chosen = logits.double().softmax(1).max(1)
    return NodePredictions(
        nodes=[names[place] for place in places.tolist()],
        classes=[trained.classes[number] for number in chosen.tolist()],
        probability=probability.numpy(),
    )
