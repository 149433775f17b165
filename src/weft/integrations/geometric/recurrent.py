"""torch_geometric's GatedGraphConv, and GRUCell, by one operator for the gated unit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.integrations.geometric.running import has_hooks, plain_reduction
from weft.kernels.custom_op import have_one_loop
from weft.kernels.recurrent import gru


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


def takes(layer: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> bool:
    """Whether `forward` supports this call of a GatedGraphConv."""
    if plain_reduction(layer) is None or type(edge_index) is not Tensor:
        return False
    unit = layer.rnn
    if type(unit) is not nn.GRUCell or unit.bias_ih is None or has_hooks(unit):
        return False
    if type(x) is not Tensor or x.ndim != 2 or x.shape[1] > layer.out_channels:
        return False
    return edge_index.layout == torch.strided and have_one_loop(x, *layer.parameters())


def forward(layer: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
    """The output of the layer."""
    unit = layer.rnn
    x = functional.pad(x, (0, layer.out_channels - x.shape[1]))
    for matrix in layer.weight:
        # The messages are multiplied with the matrix after they are summed, and in one with the
        # unit's own: a sum of products is the product of the sum.
        sums = layer.propagate(edge_index, x=x, edge_weight=edge_weight)
        weight = unit.weight_ih @ matrix.t()
        x = gru(sums, x, weight, unit.weight_hh, unit.bias_ih, unit.bias_hh)
    return x
