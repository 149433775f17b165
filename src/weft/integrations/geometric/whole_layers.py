"""Layers of torch_geometric that are computed as a whole: GCNConv, GatedGraphConv, GRUCell.

In the first layer of full-graph training the features are the same at every step: GCNConv sums
them once (kept_results keeps the sum), so that a step is left with the product and neither pass
over the edges. The gated unit is one operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn.dense.linear import Linear

from weft.integrations.geometric.helpers import gcn_norm
from weft.integrations.geometric.kept_results import seen_before
from weft.integrations.geometric.running import has_hooks, plain_reduction
from weft.kernels.custom_op import has_loop, have_one_loop
from weft.kernels.message_code import MOST_FEATURES
from weft.kernels.recurrent import gru

_MOST_WIDER = 4
"""Times that the features may be wider than the layer's output: the first sums cost that much."""


def takes_gcn(layer: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> bool:
    """Whether `gcn` supports this call, and an earlier call had the same features."""
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
    """Whether saved-tensor hooks are active: a checkpoint must save the same tensors twice."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None


def gcn(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Any = None) -> Tensor:
    """The output of a GCNConv: (Â X) W in place of Â (X W), where Â X is kept from step to step."""
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


def takes_cell(unit: Any, x: Any, state: Any = None) -> bool:
    """Whether `cell` supports this call of a GRUCell."""
    if type(x) is not Tensor or type(state) is not Tensor or unit.bias_ih is None:
        return False
    right = x.ndim == 2 and x.shape[1] == unit.input_size > 0
    right = right and state.shape == (x.shape[0], unit.hidden_size)
    return right and have_one_loop(x, state, *unit.parameters())


def cell(unit: Any, x: Tensor, state: Tensor) -> Tensor:
    """The new states of a GRUCell."""
    return gru(x, state, unit.weight_ih, unit.weight_hh, unit.bias_ih, unit.bias_hh)


def takes_gated(layer: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> bool:
    """Whether `gated` supports this call."""
    if plain_reduction(layer) is None or type(edge_index) is not Tensor:
        return False
    unit = layer.rnn
    if type(unit) is not nn.GRUCell or unit.bias_ih is None or has_hooks(unit):
        return False
    if type(x) is not Tensor or x.ndim != 2 or x.shape[1] > layer.out_channels:
        return False
    return edge_index.layout == torch.strided and have_one_loop(x, *layer.parameters())


def gated(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
    """The output of a GatedGraphConv."""
    unit = layer.rnn
    x = functional.pad(x, (0, layer.out_channels - x.shape[1]))
    for matrix in layer.weight:
        # The messages are multiplied with the matrix after they are summed, and in one with the
        # unit's own: a sum of products is the product of the sum.
        sums = layer.propagate(edge_index, x=x, edge_weight=edge_weight)
        weight = unit.weight_ih @ matrix.t()
        x = gru(sums, x, weight, unit.weight_hh, unit.bias_ih, unit.bias_hh)
    return x
