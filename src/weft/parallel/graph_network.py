"""Networks over a graph that ranks share: the kind of their layers is data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.models import GCNLayer, SAGELayer
from weft.models.config import GraphNetworkConfig
from weft.parallel.distributed_graph import DistributedGraph
from weft.parallel.graph_norms import BatchNorm, GraphNorm, LayerNorm
from weft.parallel.grid import Grid, check_grid

_NORMS = {"layer": LayerNorm, "batch": BatchNorm, "graph": GraphNorm}


class GINLayer(nn.Module):
    """A perceptron of two layers of (1 + eps) x and the sum over neighbours (Xu et al. 2019)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.first = nn.Linear(width_in, width_out)
        self.second = nn.Linear(width_out, width_out)

    def forward(self, graph: DistributedGraph, x: Tensor) -> Tensor:
        """Output [m, width_out] for x [m, width_in]."""
        sums = graph.propagate(x, "ones") + (1 + self.eps) * x
        out: Tensor = self.second(self.first(sums).relu())
        return out


class GATLayer(nn.Module):
    """Attention of each node to its neighbours and itself (Veličković et al. 2018).

    Args:
        width_in: features of a node.
        width_out: of the result: of all heads beside each other, or of their mean.
        heads: H.
        concat: heads are beside each other.
    """

    def __init__(self, width_in: int, width_out: int, heads: int, *, concat: bool) -> None:
        super().__init__()
        self.heads, self.concat = heads, concat
        channels = width_out // heads if concat else width_out
        self.weight = nn.Parameter(torch.empty(width_in, heads * channels))
        self.sender_vector = nn.Parameter(torch.empty(heads, channels))
        self.receiver_vector = nn.Parameter(torch.empty(heads, channels))
        self.bias = nn.Parameter(torch.zeros(width_out))
        for weight in (self.weight, self.sender_vector, self.receiver_vector):
            nn.init.xavier_uniform_(weight)

    def forward(self, graph: DistributedGraph, x: Tensor) -> Tensor:
        """Output [m, width_out] for x [m, width_in]."""
        values = (x @ self.weight).view(len(x), self.heads, -1)
        # Products of the values and the vectors, of the weights first: none is as wide as values.
        weights = self.weight.view(-1, *self.sender_vector.shape)
        vectors = (self.sender_vector, self.receiver_vector)
        rows = torch.cat([(weights * vector).sum(-1).t() for vector in vectors])
        # Not x @ columns: of so few columns the gradient is then four times as slow.
        scores = nn.functional.linear(x, rows)
        senders, receivers = scores[:, : self.heads], scores[:, self.heads :]
        found = graph.attend_additively(values, receivers, senders=senders)
        return _joined_heads(found, self.concat) + self.bias


class GATv2Layer(nn.Module):
    """Attention whose score is of both ends at once (Brody et al. 2022); see GATLayer."""

    def __init__(self, width_in: int, width_out: int, heads: int, *, concat: bool) -> None:
        super().__init__()
        self.heads, self.concat = heads, concat
        channels = width_out // heads if concat else width_out
        self.senders = nn.Linear(width_in, heads * channels)
        self.receivers = nn.Linear(width_in, heads * channels)
        self.vector = nn.Parameter(torch.empty(heads, channels))
        self.bias = nn.Parameter(torch.zeros(width_out))
        for weight in (self.senders.weight, self.receivers.weight, self.vector):
            nn.init.xavier_uniform_(weight)

    def forward(self, graph: DistributedGraph, x: Tensor) -> Tensor:
        """Output [m, width_out] for x [m, width_in]."""
        values = self.senders(x).view(len(x), self.heads, -1)
        receivers = self.receivers(x).view(values.shape)
        found = graph.attend_additively(values, receivers, vector=self.vector)
        return _joined_heads(found, self.concat) + self.bias


def _joined_heads(values: Tensor, concat: bool) -> Tensor:
    return values.flatten(1) if concat else values.mean(1)


class GraphNetwork(nn.Module):
    """Layers of one kind over a graph that ranks share, with norms, residuals and dropout.

    A hidden layer is followed by its norm, ReLU, dropout, and its input where `residual` adds it.
    Every rank needs the same weights. `model(graph, x)` gives the logits of this rank's nodes.

    Args:
        features: f.
        classes: c.
        config: the kind of the layers and their widths.
    """

    def __init__(self, features: int, classes: int, config: GraphNetworkConfig) -> None:
        super().__init__()
        self.config = config
        hidden = () if config.kind == "sgc" else config.hidden
        widths = (features, *hidden, classes)
        last = len(widths) - 2
        self.layers = nn.ModuleList(
            self._layer(widths[k], widths[k + 1], last=k == last) for k in range(last + 1)
        )
        norms: list[nn.Module] = []
        if config.norm != "none":
            norms = [_NORMS[config.norm](width) for width in hidden]
        self.norms = nn.ModuleList(norms)

    def _layer(self, width_in: int, width_out: int, *, last: bool) -> nn.Module:
        kind = self.config.kind
        if kind in ("gat", "gatv2"):
            make = GATLayer if kind == "gat" else GATv2Layer
            return make(width_in, width_out, self.config.heads, concat=not last)
        if kind in ("appnp", "sgc"):
            return nn.Linear(width_in, width_out)
        return {"gcn": GCNLayer, "sage": SAGELayer, "gin": GINLayer}[kind](width_in, width_out)

    def check(self, grid: Grid) -> None:
        """Raise ValueError, with the reason, where the model cannot run on a grid."""
        if self.config.kind == "sage" and self.config.aggregate == "max":
            check_grid(grid, whole_rows="GraphSAGE with maxima")

    def forward(self, graph: DistributedGraph, x: Tensor) -> Tensor:
        """Logits [m, c] for the features x [m, f] of this rank's nodes."""
        config = self.config
        self.check(graph.world.grid)
        x = graph.dropout(x, config.input_dropout, self.training)
        if config.kind == "sgc":
            return self._sgc(graph, x)
        for number in range(len(self.layers)):
            hidden = number < len(self.layers) - 1
            if hidden and config.checkpoint and torch.is_grad_enabled():
                x = checkpoint(self._hidden, graph, x, number, use_reentrant=False)
            elif hidden:
                x = self._hidden(graph, x, number)
            else:
                x = _apply(config, self.layers[number], graph, x)
        if config.kind != "appnp":
            return x
        start = x
        for _ in range(config.steps):
            x = (1 - config.teleport) * graph.propagate(x) + config.teleport * start
        return x

    def _hidden(self, graph: DistributedGraph, x: Tensor, number: int) -> Tensor:
        config = self.config
        out = _apply(config, self.layers[number], graph, x)
        if self.norms:
            out = self.norms[number](graph, out)
        out = graph.dropout(out, config.dropout, self.training, relu=True)
        return out + x if config.residual and x.shape == out.shape else out

    def _sgc(self, graph: DistributedGraph, x: Tensor) -> Tensor:
        first = x is graph.x
        if first:
            # The whole product is the same in every step.
            x = graph.kept(("sgc", str(self.config.steps)), lambda: self._steps(graph, x))
        else:
            x = self._steps(graph, x)
        out: Tensor = self.layers[0](x)
        return out

    def _steps(self, graph: DistributedGraph, x: Tensor) -> Tensor:
        for _ in range(self.config.steps):
            x = graph.propagate(x)
        return x


def _apply(
    config: GraphNetworkConfig, layer: nn.Module, graph: DistributedGraph, x: Tensor
) -> Tensor:
    apply: Callable[..., Tensor] = layer
    if isinstance(layer, GCNLayer):
        return graph_convolution(graph, x, layer.weight) + layer.bias
    if isinstance(layer, SAGELayer):
        if config.aggregate == "max":
            found = graph.propagate(x, reduce="max") @ layer.neighbours
        else:
            found = graph_convolution(graph, x, layer.neighbours)
        return found + torch.addmm(layer.bias, x, layer.own)
    if isinstance(layer, nn.Linear):
        return apply(x)
    return apply(graph, x)


def graph_convolution(
    graph: DistributedGraph, x: Tensor, weight: Tensor, how: Any = "matrix", **reduce: Any
) -> Tensor:
    """A x W in the order that moves fewer numbers; see `DistributedGraph.propagate`."""
    width_in, width_out = weight.shape
    # A product of the features themselves is kept.
    narrow = width_in * (1 + x.requires_grad) <= 2 * width_out or x is graph.x
    if narrow:
        return graph.propagate(x, how, **reduce) @ weight
    return graph.propagate(x @ weight, how, **reduce)
