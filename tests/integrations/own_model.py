"""A model of a user's own with its loss, in a module that workers can import by name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.kernels import segment_mean


class Convolution(nn.Module):
    """Written with edges as most libraries have them: senders and receivers, and index_add."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, senders: Tensor, receivers: Tensor) -> Tensor:
        received = torch.zeros_like(x).index_add(0, receivers, self.others(x)[senders])
        return torch.relu(self.own(x) + received)


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.start = nn.Embedding(100, width)
        self.layers = nn.ModuleList(Convolution(width) for _ in range(2))
        self.end = nn.Linear(width, 1)

    def forward(self, batch: GraphBatch) -> Tensor:
        x = self.start(batch.nodes["z"].int())
        for layer in self.layers:
            x = layer(x, batch.senders, batch.receivers)
        return segment_mean(self.end(x), batch.node_offsets, batch.node_graph)[:, 0]


def loss(model: nn.Module, batch: GraphBatch) -> Tensor:
    error = (model(batch) - batch.graphs["energy"]).masked_fill(~batch.graph_mask, 0.0)
    return error.square().sum() / batch.graph_mask.sum()


def broken(model: nn.Module, batch: GraphBatch) -> Tensor:
    raise ValueError("the widget has 3 sides; it must have 4")
