"""torch_geometric's layers of attention: scores, softmax, dropout and sum as one operator.

Their own code runs, but for what computes tensors of edges: GATConv and GATv2Conv ask for the
weights of all edges and pass them on; here what they pass on are the scores' inputs on nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.conv import GATConv, GATv2Conv, SuperGATConv, TransformerConv

from weft.integrations.geometric.helpers import with_fast_helpers
from weft.integrations.geometric.lazy_edges import EdgeRangeError, Edges
from weft.integrations.geometric.running import Seen, note, plain_reduction
from weft.kernels.attention import Dropout, attention
from weft.kernels.custom_op import have_one_loop
from weft.kernels.message_code import MOST_FEATURES


def takes(layer: Any, x: Any, edge_index: Any, *more: Any) -> bool:
    """Whether `forward` supports this call: nobody asks for weights, and edges have no features."""
    if any(each is not None for each in more) and type(layer) is not SuperGATConv:
        return False
    if getattr(layer, "edge_dim", None) is not None or layer.flow != "source_to_target":
        return False
    if plain_reduction(layer) != "sum" or not 0 <= layer.dropout < 1:
        return False
    if getattr(layer, "attention_type", "SD") != "SD":
        return False
    if layer.heads * layer.out_channels > MOST_FEATURES:
        return False
    return type(edge_index) is Tensor and edge_index.layout == torch.strided


def forward(layer: Any, *given: Any) -> Any:
    """The output of the layer."""
    kind: Any = type(layer)
    calls = _Calls(layer)
    seen = Seen(layer, edge_updater=calls.edge_updater, propagate=calls.propagate)
    out = (with_fast_helpers(kind.forward) or kind.forward)(seen, *given)
    if kind is SuperGATConv and layer.training:
        layer.att_x, layer.att_y = seen.att_x, seen.att_y
    return out


@dataclass(frozen=True, eq=False)
class _Scores:
    """What the weights of the edges are computed from, in place of them."""

    edge_index: Tensor
    given: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Calls:
    """The methods of a layer that its forward calls."""

    layer: Any

    def edge_updater(self, edge_index: Any, **given: Any) -> Any:
        return _Scores(edge_index, given)

    def propagate(self, edge_index: Any, **given: Any) -> Any:
        scores = given.get("alpha")
        inputs = _INPUTS[type(self.layer)](self.layer, given)
        out = _computed(self.layer, edge_index, inputs)
        if out is not None:
            note("attention in one loop")
            return out
        if isinstance(scores, _Scores):
            given["alpha"] = self.layer.edge_updater(scores.edge_index, **scores.given)
        return self.layer.propagate(edge_index, **given)


def _of_gat(layer: Any, given: Any) -> dict[str, Any]:
    senders, receivers = given["alpha"].given["alpha"]
    slope = layer.negative_slope
    return _inputs(given["x"][0], sender_scores=senders, receiver_scores=receivers, slope=slope)


def _of_gatv2(layer: Any, given: Any) -> dict[str, Any]:
    values, queries = given["x"]
    return _inputs(values, queries=queries, vector=layer.att[0], slope=layer.negative_slope)


def _of_transformer(layer: Any, given: Any) -> dict[str, Any]:
    scale = 1 / math.sqrt(layer.out_channels)
    return _inputs(given["value"], keys=given["key"], queries=given["query"], scale=scale)


def _of_supergat(layer: Any, given: Any) -> dict[str, Any]:
    x, scale = given["x"], 1 / math.sqrt(layer.out_channels)
    return _inputs(x, keys=x, queries=x, scale=scale, slope=layer.negative_slope)


def _inputs(values: Tensor, **others: Any) -> dict[str, Any]:
    return {"values": values, **others}


_INPUTS = {
    GATConv: _of_gat,
    GATv2Conv: _of_gatv2,
    TransformerConv: _of_transformer,
    SuperGATConv: _of_supergat,
}
KINDS = tuple(_INPUTS)
"""The classes that `forward` computes."""


def _computed(layer: Any, edge_index: Tensor, inputs: dict[str, Any]) -> Tensor | None:
    """The weighted sums; None if the loops do not take these tensors."""
    tensors = [each for each in inputs.values() if isinstance(each, Tensor)]
    if not have_one_loop(*tensors) or not edge_index.is_cpu or not edge_index.shape[1]:
        return None
    if edge_index.dtype not in (torch.int64, torch.int32):
        return None
    values = inputs["values"]
    ends = [inputs.get(name) for name in ("receiver_scores", "queries")]
    receivers = next((each for each in ends if each is not None), values)
    sizes = {"j": values.shape[0], "i": receivers.shape[0]}
    try:
        walks = Edges(edge_index, 1, sizes, torch.is_grad_enabled()).walks()
    except EdgeRangeError:
        return None
    dropout = None
    if layer.training and layer.dropout > 0:
        # The same draws as torch's, in the order of the edges.
        kept = torch.empty(edge_index.shape[1], layer.heads, dtype=torch.bool)
        dropout = Dropout(kept=kept.bernoulli_(1 - layer.dropout), p=layer.dropout)
    return attention(walks, **inputs, dropout=dropout)
