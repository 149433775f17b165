"""torch_geometric's layers of attention: scores, softmax, dropout and sum as one operator.

Their own code runs, but for what computes tensors of edges: GATConv and GATv2Conv ask for the
weights of all edges and pass them on; here what they pass on are the scores' inputs on nodes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.conv import GATConv, GATv2Conv, SuperGATConv, TransformerConv

from weft.integrations.geometric.helpers import (
    add_self_loops,
    remove_self_loops,
    with_fast_helpers,
)
from weft.integrations.geometric.lazy_edges import EdgeRangeError, Edges
from weft.integrations.geometric.running import Seen, note, plain_reduction
from weft.kernels.attention import Dropout, attention, self_attention
from weft.kernels.custom_op import have_one_loop
from weft.kernels.fused_messages import EdgeWalks
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
    if type(edge_index) is not Tensor or edge_index.layout != torch.strided:
        return False
    return edge_index.ndim == 2 and edge_index.shape[0] == 2


def forward(layer: Any, *given: Any) -> Any:
    """The output of the layer."""
    kind: Any = type(layer)
    if kind is GATConv and layer.lin is not None and _is_large(layer, given[0]):
        out = _gat(layer, *given[:2])
        if out is not None:
            return out
    bias = getattr(layer, "bias", None) if layer.concat else None
    calls = _Calls(layer, bias)
    others = {} if bias is None else {"bias": None}
    seen = Seen(layer, edge_updater=calls.edge_updater, propagate=calls.propagate, **others)
    out = _own_forward(kind)(seen, *given)
    if kind is SuperGATConv and layer.training:
        layer.att_x, layer.att_y = seen.att_x, seen.att_y
    return out


LARGE = 1 << 20
"""Numbers in the output of a GATConv from which on it pays to have fewer tensors of that size."""


def _is_large(layer: Any, x: Any) -> bool:
    if type(x) is not Tensor or x.ndim != 2:
        return False
    return bool(x.shape[0] * layer.heads * layer.out_channels >= LARGE)


@functools.cache
def _own_forward(kind: Any) -> Any:
    return with_fast_helpers(kind.forward) or kind.forward


def _gat(layer: Any, x: Tensor, edge_index: Tensor) -> Tensor | None:
    """The output of a GATConv on one set of nodes, with fewer tensors; None where that fails."""
    values = layer.lin(x).view(-1, layer.heads, layer.out_channels)
    vectors = layer.att_src[0], layer.att_dst[0]
    if layer.add_self_loops:
        edge_index, _ = remove_self_loops(edge_index)
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.shape[0])
    walks = _walks(edge_index, x.shape[0], x.shape[0], values, *vectors)
    if walks is None:
        return None
    note("attention in one loop")
    dropout = _dropout(layer, edge_index)
    out = self_attention(walks, values, *vectors, slope=layer.negative_slope, dropout=dropout)
    if layer.concat:
        out = _plus(out, layer.bias).flatten(1)
    else:
        out = out.mean(dim=1) if layer.bias is None else out.mean(dim=1) + layer.bias
    return out if layer.res is None else out + layer.res(x)


@dataclass(frozen=True, eq=False)
class _Scores:
    """What the weights of the edges are computed from, in place of them."""

    edge_index: Tensor
    given: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Calls:
    """The methods of a layer that its forward calls; the bias is added in them."""

    layer: Any
    bias: Tensor | None

    def edge_updater(self, edge_index: Any, **given: Any) -> Any:
        return _Scores(edge_index, given)

    def propagate(self, edge_index: Any, **given: Any) -> Any:
        scores = given.get("alpha")
        out = _computed(self.layer, edge_index, _inputs(self.layer, given))
        if out is None:
            if isinstance(scores, _Scores):
                given["alpha"] = self.layer.edge_updater(scores.edge_index, **scores.given)
            out = self.layer.propagate(edge_index, **given)
        return _plus(out, self.bias)


def _plus(out: Tensor, bias: Tensor | None) -> Tensor:
    """The output [N, H, C] of all heads, plus a bias [H · C]; in place: it is as large as any."""
    if bias is None:
        return out
    whole = bias.view(out.shape[1:])
    return out.add_(whole) if out.dtype == bias.dtype else out + whole


KINDS = (GATConv, GATv2Conv, TransformerConv, SuperGATConv)
"""The classes that `forward` computes."""


def _inputs(layer: Any, given: Any) -> dict[str, Any]:
    """What `attention` takes, from the arguments of the layer's propagate."""
    if type(layer) is GATConv:
        senders, receivers = given["alpha"].given["alpha"]
        scores = {"sender_scores": senders, "receiver_scores": receivers}
        return {"values": given["x"][0], **scores, "slope": layer.negative_slope}
    if type(layer) is GATv2Conv:
        values, queries = given["x"]
        scores = {"queries": queries, "vector": layer.att[0]}
        return {"values": values, **scores, "slope": layer.negative_slope}
    scale = 1 / math.sqrt(layer.out_channels)
    if type(layer) is TransformerConv:
        scores = {"keys": given["key"], "queries": given["query"]}
        return {"values": given["value"], **scores, "scale": scale}
    x = given["x"]
    slope = layer.negative_slope
    return {"values": x, "keys": x, "queries": x, "scale": scale, "slope": slope}


def _computed(layer: Any, edge_index: Tensor, inputs: dict[str, Any]) -> Tensor | None:
    """The weighted sums; None if the loops do not take these tensors."""
    tensors = [each for each in inputs.values() if isinstance(each, Tensor)]
    values = inputs["values"]
    ends = [inputs.get(name) for name in ("receiver_scores", "queries")]
    receivers = next((each for each in ends if each is not None), values)
    walks = _walks(edge_index, values.shape[0], receivers.shape[0], *tensors)
    if walks is None:
        return None
    note("attention in one loop")
    return attention(walks, **inputs, dropout=_dropout(layer, edge_index))


def _walks(edge_index: Tensor, senders: int, receivers: int, *tensors: Tensor) -> EdgeWalks | None:
    """The edges of a call; None if the loops do not take them, or the tensors."""
    if not have_one_loop(*tensors) or not edge_index.is_cpu or not edge_index.shape[1]:
        return None
    if edge_index.dtype not in (torch.int64, torch.int32):
        return None
    try:
        return Edges(edge_index, 1, {"j": senders, "i": receivers}, learning=False).walks()
    except EdgeRangeError:
        return None


def _dropout(layer: Any, edge_index: Tensor) -> Dropout | None:
    """The weights that torch would drop: the same draws, in the order of the edges."""
    if not layer.training or layer.dropout == 0:
        return None
    kept = torch.empty(edge_index.shape[1], layer.heads, dtype=torch.bool)
    return Dropout(kept=kept.bernoulli_(1 - layer.dropout), p=layer.dropout)
