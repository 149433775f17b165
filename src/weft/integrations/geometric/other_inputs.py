"""Edges that come as torch.sparse tensors or as torch_geometric's EdgeIndex.

Their index is taken once and cached with the tensor, and everything else that weft finds out about
the edges is cached with the index.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex, utils
from torch_geometric.nn.conv import MessagePassing

from weft.integrations.geometric.edge_cache import plain, remembered, walks_of
from weft.integrations.geometric.running import AS_IT_IS, note
from weft.kernels.custom_op import have_one_loop
from weft.kernels.fused_messages import fused_messages
from weft.kernels.message_code import MOST_FEATURES, Leaf, MessageProgram

_PRODUCT = MessageProgram(
    ("mul", ("leaf", 0), ("leaf", 1)), (Leaf("j", False), Leaf("e", True)), ("sum",)
)


def sparse_index(adjacency: Tensor) -> Tensor | None:
    """The senders and receivers of a sparse adjacency [N, M] as an edge_index, cached.

    Its columns are in the order of adjacency.values(). None for layouts that weft does not take.
    """
    if type(adjacency) is not Tensor or not adjacency.is_cpu or adjacency.is_inference():
        return None
    if adjacency.layout == torch.sparse_coo and not adjacency.is_coalesced():
        return None
    if adjacency.layout not in _LAYOUTS or adjacency.ndim != 2 or adjacency.dense_dim():
        return None

    def make() -> Tensor:
        given = adjacency.detach()
        if given.layout == torch.sparse_coo:
            return given.indices().flip(0)
        if given.layout == torch.sparse_csr:
            senders, receivers = given.col_indices(), _expanded(given.crow_indices())
        else:
            senders, receivers = _expanded(given.ccol_indices()), given.row_indices()
        # torch does not check these tensors; a difference in length is an error of `stack`.
        return torch.stack([senders.long(), receivers])

    found: Tensor = remembered(adjacency, "index", make)
    return found


_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)


def _expanded(offsets: Tensor) -> Tensor:
    return torch.repeat_interleave(offsets.long().diff())


def spmm(src: Any, other: Any, reduce: str = "sum") -> Any:
    """As torch_geometric's."""
    index = sparse_index(src) if _has_product(src, other, reduce) else None
    if index is None or not index.shape[1]:
        note(AS_IT_IS)
        return utils.spmm(src, other, reduce)
    note("sparse product")
    edges = walks_of(index, 1, src.shape[1], src.shape[0])
    leaves = [other[:, None], src.values()[:, None, None]]
    (out,) = fused_messages(_PRODUCT, edges, leaves, ())
    out = out[:, 0]
    if reduce == "mean":
        out = out / edges.in_degrees.clamp(min=1).to(out.dtype)[:, None]
    return out


def _has_product(src: Any, other: Any, reduce: str) -> bool:
    if type(src) is not Tensor or type(other) not in (Tensor, nn.Parameter) or src.ndim != 2:
        return False
    if reduce not in ("sum", "add", "mean") or other.ndim != 2 or src.layout not in _LAYOUTS:
        return False
    # torch has the gradient to the values for this layout only.
    if src.requires_grad and src.layout != torch.sparse_csr:
        return False
    fits = other.shape[0] == src.shape[1] and 0 < other.shape[1] <= MOST_FEATURES
    return fits and have_one_loop(src, other)


def plain_call(
    layer: MessagePassing, edge_index: EdgeIndex, given: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]] | None:
    """The plain edge_index, and other arguments of `propagate`, that give the same result.

    None if the layer treats an EdgeIndex differently.
    """
    if edge_index.is_inference() or not edge_index.is_cpu or _reads_edge_index(layer):
        return None
    if layer.fuse and layer.SUPPORTS_FUSED_EDGE_INDEX and edge_index.is_sorted_by_col:
        # torch's gradient of a sparse maximum goes to one edge only.
        if layer.aggr not in ("add", "sum", "mean"):
            return None
    elif getattr(layer.aggr_module, "_deterministic", False):
        return None
    data = edge_index.as_tensor()
    # Each counts changes of its own.
    index = remembered(edge_index, ("plain", data._version), lambda: plain(data).clone())
    return index, {**given, "size": (edge_index.num_rows, edge_index.num_cols)}


def _reads_edge_index(layer: Any) -> bool:
    functions = ("message", "aggregate", "update", "edge_update")
    return any("edge_index" in layer.inspector.get_param_dict(name) for name in functions)
