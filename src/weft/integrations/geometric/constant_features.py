"""torch_geometric's GCNConv on features that never change: summed over the edges once and kept.

Â (X W) = (Â X) W: in the first layer of full-graph training Â X is the same at every step, so that
a step is left with the product and neither pass over the edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.dense.linear import Linear

from weft.integrations.geometric.helpers import gcn_norm
from weft.integrations.geometric.kept_results import seen_before
from weft.integrations.geometric.running import has_hooks, plain_reduction
from weft.kernels.custom_op import has_loop
from weft.kernels.message_code import MOST_FEATURES

_MOST_WIDER = 4
"""Times that the features may be wider than the layer's output: the first sums cost that much."""


def takes(layer: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> bool:
    """Whether `forward` supports this call, and an earlier one had the same features."""
    if type(layer.lin) is not Linear or layer.lin.bias is not None or layer.cached:
        return False
    if not layer.normalize or has_hooks(layer.lin) or plain_reduction(layer) != "sum":
        return False
    if _is_checkpointed():
        return False
    if type(x) is not Tensor or type(edge_index) is not Tensor or x.ndim != 2 or not has_loop(x):
        return False
    if x.layout != torch.strided or edge_index.layout != torch.strided or edge_index.ndim != 2:
        return False
    if isinstance(edge_weight, Tensor) and edge_weight.requires_grad:
        return False
    width = x.shape[1]
    if width > MOST_FEATURES or width > _MOST_WIDER * layer.out_channels:
        return False
    return seen_before(x, edge_index, "layer")


def _is_checkpointed() -> bool:
    """Whether somebody counts the tensors that are saved, so that every call must save the same."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None


def forward(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Any = None) -> Tensor:
    """The output of the layer."""
    edge_index, edge_weight = gcn_norm(
        edge_index,
        edge_weight,
        x.shape[0],
        layer.improved,
        layer.add_self_loops,
        layer.flow,
        x.dtype,
    )
    out: Tensor = layer.lin(layer.propagate(edge_index, x=x, edge_weight=edge_weight))
    return out if layer.bias is None else out + layer.bias
