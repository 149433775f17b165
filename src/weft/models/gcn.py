"""Graph convolutional network (Kipf and Welling 2017) for node classification."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.kernels import dropout, relu_dropout, spmm
from weft.models.config import GCNConfig

FIRST_PRODUCT = "ax"
"""Node column that holds the first layer's A x where it was computed ahead of training."""


class GCNLayer(nn.Module):
    """A x W + b, multiplied in the cheaper order; A is the batch's adjacency with edge weights."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(width_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, batch: GraphBatch, x: Tensor) -> Tensor:
        """Output [N, width_out] for x [N, width_in]; edge column `weight` [E], or ones."""
        weight = batch.edges.get("weight")
        # A product's width is its traffic. Aggregating first needs A again in the backward pass
        # only if x itself learns: dW = (A x)ᵀ G.
        width_in, width_out = self.weight.shape
        learning = torch.is_grad_enabled()
        first = width_in * (1 + (learning and x.requires_grad))
        if first <= width_out * (1 + learning):
            return torch.addmm(self.bias, spmm(batch, x, weight), self.weight)
        return spmm(batch, x @ self.weight, weight) + self.bias


class GCN(nn.Module):
    """Layers of A x W + b with ReLU and dropout between them.

    Reads the node column `x` [N, f] (or `ax`, see `with_first_product`) and the edge column
    `weight` [E] (see `weft.graphs.gcn_weights`); gives logits [N, classes].
    """

    def __init__(self, features: int, classes: int, config: GCNConfig | None = None) -> None:
        super().__init__()
        self.config = config or GCNConfig()
        widths: Sequence[int] = [features, *self.config.hidden, classes]
        self.layers = nn.ModuleList(map(GCNLayer, widths[:-1], widths[1:]))

    def forward(self, batch: GraphBatch) -> Tensor:
        """Logits [N, classes]."""
        config = self.config
        if FIRST_PRODUCT in batch.nodes:
            if config.input_dropout and self.training:
                raise ValueError(
                    f"input_dropout is {config.input_dropout}: A x changes with every mask and "
                    "cannot be kept; set it to 0, or use the batch as it was before"
                )
            first = self.layers[0]
            assert isinstance(first, GCNLayer)
            x = torch.addmm(first.bias, batch.nodes[FIRST_PRODUCT], first.weight)
        else:
            x = dropout(batch.nodes["x"], config.input_dropout, self.training)
            x = self.layers[0](batch, x)
        for layer in self.layers[1:]:
            x = relu_dropout(x, config.dropout, self.training)
            x = layer(batch, x)
        return x


def with_first_product(batch: GraphBatch) -> GraphBatch:
    """The batch with A x as node column `ax` in place of `x`: no epoch computes it again.

    Exact, as neither A nor x changes; for a GCN without input dropout.
    """
    product = spmm(batch, batch.nodes["x"], batch.edges.get("weight"))
    others = {name: column for name, column in batch.nodes.items() if name != "x"}
    return batch.replace(nodes={**others, FIRST_PRODUCT: product})
