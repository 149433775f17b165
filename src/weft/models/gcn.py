"""GCN (Kipf and Welling 2017) and GraphSAGE (Hamilton, Ying and Leskovec 2017) for nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.kernels import dropout, hidden_product, relu_dropout, spmm
from weft.models.config import GCNConfig, SAGEConfig

FIRST_PRODUCT = "ax"
"""Node column that holds the first layer's A x where it was computed ahead of training."""


def _aggregates_first(x: Tensor, weight: Tensor) -> bool:
    """Whether (A x) W costs less than A (x W), in training both ways.

    A product's width is its traffic. Aggregating first needs A again in the backward pass only if
    x itself learns: dW = (A x)ᵀ G.
    """
    width_in, width_out = weight.shape
    learning = torch.is_grad_enabled()
    return width_in * (1 + (learning and x.requires_grad)) <= width_out * (1 + learning)


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
        if _aggregates_first(x, self.weight):
            return torch.addmm(self.bias, spmm(batch, x, weight), self.weight)
        return self.aggregate(batch, x @ self.weight)

    def aggregate(self, batch: GraphBatch, product: Tensor) -> Tensor:
        """The rest of `forward` for product [N, width_out], x W."""
        return spmm(batch, product, batch.edges.get("weight")) + self.bias


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
        if _aggregates_first(x, self.neighbours):
            return own + spmm(batch, x, weight) @ self.neighbours
        return own + spmm(batch, x @ self.neighbours, weight)


class _LayerStack(nn.Module):
    """Layers over one graph with ReLU and dropout between them."""

    def __init__(
        self,
        layer: type[GCNLayer] | type[SAGELayer],
        features: int,
        classes: int,
        config: GCNConfig,
    ) -> None:
        super().__init__()
        self.config = config
        widths = [features, *config.hidden, classes]
        self.layers = nn.ModuleList(map(layer, widths[:-1], widths[1:]))

    def forward(self, batch: GraphBatch) -> Tensor:
        """Logits [N, classes]."""
        x, done = self._first_layers(batch)
        for layer in self.layers[done:]:
            x = relu_dropout(x, self.config.dropout, self.training)
            x = layer(batch, x)
        return x

    def _first_layers(self, batch: GraphBatch) -> tuple[Tensor, int]:
        """What the first layers make of the inputs, and how many these are."""
        x = dropout(batch.nodes["x"], self.config.input_dropout, self.training)
        return self.layers[0](batch, x), 1


class GCN(_LayerStack):
    """Layers of A x W + b with ReLU and dropout between them.

    Reads the node column `x` [N, f] (or `ax`, see `with_first_product`) and the edge column
    `weight` [E] (see `weft.graphs.gcn_weights`); returns logits [N, classes].
    """

    def __init__(self, features: int, classes: int, config: GCNConfig | None = None) -> None:
        super().__init__(GCNLayer, features, classes, config or GCNConfig())

    def _first_layers(self, batch: GraphBatch) -> tuple[Tensor, int]:
        if FIRST_PRODUCT not in batch.nodes:
            return super()._first_layers(batch)
        if self.config.input_dropout and self.training:
            raise ValueError(
                f"input_dropout is {self.config.input_dropout}: A x changes with every mask and "
                "cannot be kept; set it to 0, or use the batch as it was before"
            )
        sums, (first, *others) = batch.nodes[FIRST_PRODUCT], self.layers
        assert isinstance(first, GCNLayer)
        if others and type(others[0]) is GCNLayer and not others[0]._forward_hooks:
            second, learning = others[0], torch.is_grad_enabled()
            width_in, width_out = second.weight.shape
            # The order that `_aggregates_first` finds for activations that learn.
            if width_in > width_out and learning:
                rest = (second.weight, self.config.dropout, self.training)
                product = hidden_product(sums, first.weight, first.bias, *rest)
                return second.aggregate(batch, product), 2
        return torch.addmm(first.bias, sums, first.weight), 1


class GraphSAGE(_LayerStack):
    """Layers of A x W_neighbours + x W_self + b with ReLU and dropout between them.

    Reads the node column `x` [N, f] and the edge column `weight` [E] (see
    `weft.graphs.row_weights`); returns logits [N, classes].
    """

    def __init__(self, features: int, classes: int, config: SAGEConfig | None = None) -> None:
        super().__init__(SAGELayer, features, classes, config or SAGEConfig())


def with_first_product(batch: GraphBatch) -> GraphBatch:
    """The batch with A x as node column `ax` in place of `x`: no epoch computes it again.

    Exact, as neither A nor x changes; for a GCN without input dropout.
    """
    product = spmm(batch, batch.nodes["x"], batch.edges.get("weight"))
    others = {name: column for name, column in batch.nodes.items() if name != "x"}
    return batch.replace(nodes={**others, FIRST_PRODUCT: product})
