"""Norms over all nodes of a graph that ranks share, the same as in one process."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.parallel.distributed_graph import DistributedGraph


class BatchNorm(nn.BatchNorm1d):
    """torch's BatchNorm1d, parameters and running statistics included, over the nodes of all ranks.

    Called with the graph and the features [m, F] of this rank's nodes.
    """

    def forward(self, graph: DistributedGraph, x: Tensor) -> Tensor:  # type: ignore[override]
        """The features [m, F], of mean 0 and variance 1 over all nodes, scaled and shifted."""
        if not self.training:
            return super().forward(x)
        count = graph.num_nodes
        mean = graph.over_nodes(x) / count
        centred = x - mean
        variance = graph.over_nodes(centred.square()) / count
        with torch.no_grad():
            # torch's own statistics: an unbiased variance, and what `momentum` is.
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            if not _replays():
                self.num_batches_tracked += 1
                rate = self.momentum or 1 / int(self.num_batches_tracked)
                self.running_mean.lerp_(mean, rate)
                self.running_var.lerp_(variance * (count / max(1, count - 1)), rate)
        return centred * (variance + self.eps).rsqrt() * self.weight + self.bias


class GraphNorm(nn.Module):
    """The graph norm of Cai et al. (2021), with parameters as torch_geometric names them."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.mean_scale = nn.Parameter(torch.ones(width))

    def forward(self, graph: DistributedGraph, x: Tensor) -> Tensor:
        """The features [m, F], less a learned share of their mean, of variance 1."""
        centred = x - graph.over_nodes(x) / graph.num_nodes * self.mean_scale
        variance = graph.over_nodes(centred.square()) / graph.num_nodes
        return centred * (variance + self.eps).rsqrt() * self.weight + self.bias


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, which is of each node alone, called like the norms over all nodes."""

    def forward(self, graph: DistributedGraph, x: Tensor) -> Tensor:  # type: ignore[override]
        """The features [m, F], of mean 0 and variance 1 in each node, scaled and shifted."""
        return super().forward(x)


def _replays() -> bool:
    """Whether a checkpoint computes this again, in the backward pass."""
    return torch._C._current_graph_task_id() != -1
