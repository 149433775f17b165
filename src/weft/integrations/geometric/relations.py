"""torch_geometric's RGCNConv and FastRGCNConv: one product for each relation and receiver.

Edges of one relation into one receiver are summed first; the sum is multiplied with the relation's
matrix once, and the products of all relations are summed at the receiver. torch_geometric masks the
edges again for every relation and call, or multiplies every edge with a matrix of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.nn.conv import rgcn_conv

from weft.integrations.geometric.edge_cache import ends_range, plain, remembered
from weft.integrations.geometric.running import plain_reduction
from weft.kernels.custom_op import has_loop
from weft.kernels.fused_messages import EdgeWalks, fused_messages
from weft.kernels.message_code import Leaf, MessageProgram

_SUM = MessageProgram(("leaf", 0), (Leaf("j", False),))


@dataclass(frozen=True, eq=False)
class _Relations:
    """Edges grouped by relation and receiver into R groups, sorted by relation.

    Attributes:
        into: edges from the senders to the groups.
        out: an edge from every group to its receiver.
        counts: groups of each relation.
        degrees: edges of each group, [R, 1].
    """

    into: EdgeWalks
    out: EdgeWalks
    counts: list[int]
    degrees: Tensor


def _relations(layer: Any, edge_index: Tensor, edge_type: Tensor, sizes: Any) -> _Relations:
    senders, receivers = sizes
    row = 1 if layer.flow == "source_to_target" else 0

    def make() -> _Relations:
        ends = plain(edge_index)
        kinds = edge_type.detach().numpy().astype(np.int64)
        keys = kinds * receivers + ends[row].numpy()
        groups, group_of, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        numbers = torch.arange(len(groups))
        nodes = torch.from_numpy(groups % max(receivers, 1))
        counts = np.bincount(groups // max(receivers, 1), minlength=layer.num_relations)
        return _Relations(
            EdgeWalks(ends[1 - row].clone(), torch.from_numpy(group_of), senders, len(groups)),
            EdgeWalks(numbers, nodes, len(groups), receivers),
            counts.tolist(),
            torch.from_numpy(sizes)[:, None],
        )

    key = ("relations", row, senders, receivers, layer.num_relations)
    found: _Relations = remembered(edge_index, key, make, beside=edge_type)
    return found


def takes(layer: Any, x: Any, edge_index: Any, edge_type: Any = None) -> bool:
    """Whether `forward` supports this call."""
    if layer.num_blocks is not None or plain_reduction(layer) is None:
        return False
    left = x[0] if isinstance(x, tuple) else x
    right = x[1] if isinstance(x, tuple) else x
    tensors = (left, right, edge_index, edge_type)
    if any(type(t) is not Tensor or t.is_inference() for t in tensors):
        return False
    floats = left.ndim == right.ndim == 2 and has_loop(left, right, layer.weight)
    if not floats or left.dtype != layer.weight.dtype or edge_index.ndim != 2:
        return False
    if edge_index.dtype != torch.int64 or edge_type.dtype != torch.int64 or not edge_type.is_cpu:
        return False
    if edge_index.shape != (2, edge_type.numel()) or edge_type.ndim != 1 or not edge_type.numel():
        return False
    row = 1 if layer.flow == "source_to_target" else 0
    limits = ends_range(edge_index)
    most = (left.shape[0], right.shape[0]) if row else (right.shape[0], left.shape[0])
    inside = limits[0] >= 0 and limits[2] >= 0 and limits[1] < most[0] and limits[3] < most[1]
    low, high = remembered(edge_type, "range", lambda: tuple(map(int, edge_type.aminmax())))
    wide = max(layer.weight.shape[-2:]) <= 1024
    return bool(inside and wide and low >= 0 and high < layer.num_relations)


def forward(layer: Any, x: Any, edge_index: Tensor, edge_type: Tensor) -> Tensor:
    """The output of the layer."""
    left, right = x if isinstance(x, tuple) else (x, x)
    weight = layer.weight
    if layer.num_bases is not None:
        shape = (layer.num_relations, layer.in_channels_l, layer.out_channels)
        weight = (layer.comp @ weight.view(layer.num_bases, -1)).view(shape)
    relations = _relations(layer, edge_index, edge_type, (left.shape[0], right.shape[0]))
    (sums,) = fused_messages(_SUM, relations.into, [left[:, None]], ())
    sums = sums[:, 0]
    if plain_reduction(layer) == "mean":
        sums = sums / relations.degrees.to(sums.dtype)
    parts = torch.split(sums, relations.counts)
    products = [part @ matrix for part, matrix in zip(parts, weight, strict=True) if len(part)]
    (out,) = fused_messages(_SUM, relations.out, [torch.cat(products)[:, None]], ())
    out = out[:, 0]
    if layer.root is not None:
        out = out + right @ layer.root
    return out if layer.bias is None else out + layer.bias


KINDS = (rgcn_conv.RGCNConv, rgcn_conv.FastRGCNConv)
"""The classes that `forward` computes."""
