"""A trained network for nodes as a program: classes from features and edges, or by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import weft
from weft.graphs import GraphBatch
from weft.models import GCN
from weft.models.exported_program import Exported
from weft.recipes.nodes.training import load_network
from weft.sparsify.export import export_model


class NodeProgram(nn.Module):
    """Probabilities of the classes for any graph with the features that a GCN was trained on."""

    def __init__(self, network: GCN) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """[N, classes] for x [N, f], senders and receivers [2, E] and weights [E]."""
        senders, receivers = edge_index[0], edge_index[1]
        # In plain operations, as edges come in any order.
        layers: list[Any] = list(self.network.layers)
        for number, layer in enumerate(layers):
            messages = ((x.relu() if number else x) @ layer.weight)[senders] * edge_weight[:, None]
            sums = x.new_zeros(x.shape[0], messages.shape[1])
            x = sums.index_add(0, receivers, messages) + layer.bias
        return x.softmax(1)


class RowProgram(nn.Module):
    """Probabilities of the classes for nodes of the run's graph, by their numbers."""

    x: Tensor

    def __init__(self, network: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("x", x)

    def forward(self, nodes: Tensor) -> Tensor:
        """[M, classes] for numbers int64 [M]."""
        found: Tensor = self.network(self.x[nodes]).softmax(1)
        return found


def export_nodes(run: Path, path: Path, *, int8: bool = False) -> Exported:
    """Write the network of a run as .pt2 or .onnx; see `export_model`.

    Raises:
        DataError: the run cannot be read, the file cannot be written, or what was written would
            differ from the run.
    """
    trained = load_network(run)
    metadata = {
        "weft_version": weft.__version__,
        "model": trained.config.model,
        "classes": "\n".join(trained.classes),
    }
    if isinstance(trained.network, GCN):
        assert isinstance(trained.inputs, GraphBatch)
        batch = trained.inputs
        ends = torch.stack([batch.senders, batch.receivers]).long()
        example = (batch.nodes["x"], ends, batch.edges["weight"])
        return export_model(
            NodeProgram(trained.network),
            path,
            example=example,
            int8=int8,
            metadata=metadata,
            model_in="weft",
        )
    assert isinstance(trained.inputs, Tensor)
    return export_model(
        RowProgram(trained.network, trained.inputs),
        path,
        example=torch.arange(min(512, len(trained.inputs))),
        int8=int8,
        metadata=metadata,
        model_in="weft",
    )
