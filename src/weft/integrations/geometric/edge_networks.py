"""torch_geometric's NNConv: the last matrix of its network multiplies nodes, not edges.

torch_geometric makes a matrix for every edge, [E, I, O]. A message is linear in the sender's
features and in the network's last activations: the sum over a receiver's edges of their outer
products is multiplied with the matrix of the last layer once. I and O features in and out, K
activations of an edge.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from weft.integrations.geometric.edge_cache import ends_range, walks_of
from weft.integrations.geometric.running import Seen, has_hooks, plain_reduction
from weft.kernels.custom_op import has_loop
from weft.kernels.outer_sums import outer_sums
from weft.models.atomistic import is_only_linear
from weft.sparsify.sparse_layers import FusingSequential

_CHAINS = (nn.Sequential, FusingSequential)


def _last(network: Any) -> Any:
    """The linear layer that a network ends with; None if it ends with another."""
    last = network
    if type(network) in _CHAINS and len(network) and not has_hooks(network):
        last = network[-1]
    return last if is_only_linear(last) else None


# Modules that give a row of numbers for a row of numbers.
_OF_ROWS: set[type] = {
    *(nn.Linear, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid),
    *(nn.Softplus, nn.Dropout, nn.BatchNorm1d, nn.LayerNorm, nn.Identity),
}


def _keeps_rows(network: Any) -> bool:
    modules = list(network)[:-1] if type(network) is nn.Sequential else []
    return all(type(each) in _OF_ROWS for each in modules)


def takes(layer: Any, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None) -> bool:
    """Whether `forward` supports this call."""
    if size is not None or plain_reduction(layer) is None:
        return False
    left, right = x if isinstance(x, tuple) else (x, x)
    given = (left, right, edge_index, edge_attr)
    if any(type(t) is not Tensor for t in given) or not has_loop(left, right, edge_attr):
        return False
    last = _last(layer.nn)
    if last is None or last.weight.dtype != left.dtype or edge_attr.dtype != left.dtype:
        return False
    if left.ndim != 2 or right.ndim != 2 or edge_attr.ndim != 2:
        return False
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or not _keeps_rows(layer.nn):
        return False
    edges, receivers = edge_index.shape[1], right.shape[0]
    if edge_index.dtype != torch.int64 or not edge_index.is_cpu or edge_attr.shape[0] != edges:
        return False
    width = layer.in_channels_l
    if left.shape[1] != width or last.out_features != width * layer.out_channels:
        return False
    # Else the products of nodes are the larger tensor, or the more of them.
    if receivers > edges or receivers * last.in_features > edges * layer.out_channels:
        return False
    row = 1 if layer.flow == "source_to_target" else 0
    most = (left.shape[0], right.shape[0]) if row else (right.shape[0], left.shape[0])
    low, high, lowest, highest = ends_range(edge_index)
    return min(low, lowest) >= 0 and high < most[0] and highest < most[1]


def forward(layer: Any, *arguments: Any) -> Any:
    """The output of the layer."""
    propagate = functools.partial(_aggregated, layer)
    return type(layer).forward(Seen(layer, propagate=propagate), *arguments)


def _aggregated(layer: Any, edge_index: Tensor, x: Any, edge_attr: Tensor, size: Any) -> Tensor:
    """The messages into each receiver summed, or their mean, [N, O]."""
    left, right = x
    row = 1 if layer.flow == "source_to_target" else 0
    walks = walks_of(edge_index, row, left.shape[0], right.shape[0])
    modules: list[Any] = list(layer.nn) if type(layer.nn) in _CHAINS else [layer.nn]
    *before, last = modules
    hidden = edge_attr
    for module in before:
        hidden = module(hidden)
    shape = (layer.in_channels_l, layer.out_channels)
    matrices = last.weight.view(*shape, -1).permute(2, 0, 1)
    if last.bias is not None:
        # It belongs to an activation that is always 1.
        hidden = torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)
        matrices = torch.cat([matrices, last.bias.view(1, *shape)])
    sums = outer_sums(hidden, left, walks).flatten(1)
    out: Tensor = sums @ matrices.flatten(0, 1)
    if plain_reduction(layer) == "mean":
        out = out / walks.in_degrees.clamp(min=1).to(out.dtype)[:, None]
    return out
