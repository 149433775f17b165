"""GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec 2017) for node classification."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.kernels import dropout, relu_dropout, spmm
from weft.models.config import SAGEConfig


class SAGELayer(nn.Module):
    """A x W_neighbours + x W_self + b; A takes the mean where its weights are `row_weights`."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.neighbours = nn.Parameter(torch.empty(width_in, width_out))
        self.own = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(width_out))
        nn.init.xavier_uniform_(self.neighbours)
        nn.init.xavier_uniform_(self.own)

    def forward(self, batch: GraphBatch, x: Tensor) -> Tensor:
        """Output [N, width_out] for x [N, width_in]; edge column `weight` [E]."""
        weight = batch.edges.get("weight")
        own = torch.addmm(self.bias, x, self.own)
        # As in a GCN: the narrower product, which needs no second one where x does not learn.
        width_in, width_out = self.neighbours.shape
        learning = torch.is_grad_enabled()
        if width_in * (1 + (learning and x.requires_grad)) <= width_out * (1 + learning):
            return own + spmm(batch, x, weight) @ self.neighbours
        return own + spmm(batch, x @ self.neighbours, weight)


class GraphSAGE(nn.Module):
    """Layers of A x W_neighbours + x W_self + b with ReLU and dropout between them.

    Reads the node column `x` [N, f] and the edge column `weight` [E] (see
    `weft.graphs.row_weights`); gives logits [N, classes].
    """

    def __init__(self, features: int, classes: int, config: SAGEConfig | None = None) -> None:
        super().__init__()
        self.config = config or SAGEConfig()
        widths = [features, *self.config.hidden, classes]
        self.layers = nn.ModuleList(map(SAGELayer, widths[:-1], widths[1:]))

    def forward(self, batch: GraphBatch) -> Tensor:
        """Logits [N, classes]."""
        x = dropout(batch.nodes["x"], self.config.input_dropout, self.training)
        for number, layer in enumerate(self.layers):
            if number:
                x = relu_dropout(x, self.config.dropout, self.training)
            x = layer(batch, x)
        return x
