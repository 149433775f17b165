"""Rows reduced by group: torch_geometric's scatter, segment and softmax, on weft's loops.

The rows of each group are found once for an index and cached with it. Each function falls back on
torch_geometric's own where its arguments are not ones for weft, or too few to gain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import utils

from weft.integrations.geometric.edge_cache import ends_range, plain, remembered
from weft.integrations.geometric.lazy_edges import Edges, EdgeTensor, reduced, values_of
from weft.integrations.geometric.running import note, running_edges
from weft.kernels.custom_op import has_loop
from weft.kernels.edge_softmax import edge_softmax
from weft.kernels.message_code import MOST_FEATURES, Reduction

# Wider rows of a softmax do not stay in the cache from one pass to the next.
_WIDEST_SOFTMAX = 16


def gains(src: Any, groups: Edges | None, needs: tuple[Reduction, ...] | None) -> bool:
    """Whether weft reduces rows [E, ...] faster than torch, as measured from 1,000 rows to 2.3e6.

    Args:
        src: the rows.
        groups: their groups; None if they are not known yet.
        needs: the reductions; None for a softmax of the rows.
    """
    if isinstance(src, EdgeTensor):
        return True
    width = src.shape[1:].numel()
    if needs == ("sum",):
        enough = width >= 16 and src.numel() >= 1 << 22
        return bool(enough and (groups is None or groups.is_sorted))
    slow_in_torch = needs is None or "max" in needs or "min" in needs
    return bool(width >= 4 and src.numel() >= 1 << (16 if slow_in_torch else 19))


def groups_of(src: Any, index: Any, size: Any, dim: int = 0) -> Edges | None:
    """The rows of `src` as edges into `size` groups; None for arguments that weft does not take.

    Args:
        src: [E, ...].
        index: the group of each row, int64 [E].
        size: number of groups; by default as many as the index names.
        dim: the dimension of the rows.
    """
    if type(src) not in (Tensor, nn.Parameter, EdgeTensor) or not src.ndim:
        return None
    if dim not in (0, -src.ndim):
        return None
    if not has_loop(src) or not 0 < src.shape[1:].numel() <= MOST_FEATURES:
        return None
    if type(index) is not Tensor or index.shape != src.shape[:1] or not index.is_cpu:
        return None
    running = running_edges()
    if running is not None and running.row_of(index) == running.receiver_row:
        return _of_receivers(running, size)
    if index.dtype != torch.int64 or index.is_inference() or isinstance(src, EdgeTensor):
        return None
    if not src.shape[0]:
        return None
    both = _doubled(index)
    low, high = ends_range(both)[:2]
    groups = high + 1 if size is None else size
    if not isinstance(groups, int) or low < 0 or high >= groups:
        return None
    return Edges(both, 1, {"i": groups, "j": groups}, torch.is_grad_enabled())


def _of_receivers(running: Edges, size: Any) -> Edges | None:
    """The edges of the running call, grouped by `size` receivers."""
    low, high = ends_range(running.edge_index)[2 * running.receiver_row :][:2]
    if not isinstance(size, int) or low < 0 or high >= size:
        return None
    return running if running.sizes.setdefault("i", size) == size else None


def _doubled(index: Tensor) -> Tensor:
    """The index as both rows of an edge_index, cached with the index or what it is a row of."""
    kept_with, key = index, "doubled"
    base = index._base
    if base is not None and base.ndim == 2 and not base.is_inference():
        for row in range(min(base.shape[0], 2)):
            if base[row].is_set_to(index):
                kept_with, key = base, f"doubled row {row}"
    found: Tensor = remembered(kept_with, key, lambda: plain(index).expand(2, -1))
    return found


def scatter(src: Any, index: Any, dim: int = 0, dim_size: Any = None, reduce: str = "sum") -> Any:
    """As torch_geometric's."""
    kind: Any = {"add": "sum", "mean": "sum"}.get(reduce, reduce)
    known = kind in ("sum", "max", "min") and isinstance(src, Tensor) and gains(src, None, (kind,))
    edges = groups_of(src, index, dim_size, dim) if known else None
    if edges is None or not gains(src, edges, (kind,)):
        return utils.scatter(_real(src), index, dim, dim_size, reduce)
    (out,) = reduced(src, edges, (kind,))
    return out if reduce != "mean" else out / _counts(out, edges)


def _real(src: Any) -> Any:
    return values_of(src) if isinstance(src, EdgeTensor) else src


def _counts(out: Tensor, edges: Edges) -> Tensor:
    """The rows of each group, at least 1, in the shape of `out`."""
    counts = edges.walks().in_degrees.clamp(min=1).to(out.dtype)
    return counts.view(-1, *(1,) * (out.ndim - 1))


def segment(src: Any, ptr: Any, reduce: str = "sum") -> Any:
    """As torch_geometric's."""
    # Where several rows are the maximum, torch's gradient is another than that of scatter.
    index = index_of(ptr, src) if reduce in ("sum", "mean") else None
    if index is None:
        return utils.segment(src, ptr, reduce)
    return scatter(src, index, 0, ptr.shape[0] - 1, reduce)


def index_of(ptr: Any, src: Any) -> Tensor | None:
    """The group of each row from the groups' offsets, cached; None if that is not what they are."""
    if type(ptr) is not Tensor or not isinstance(src, Tensor) or not src.ndim:
        return None
    if ptr.ndim != 1 or ptr.dtype != torch.int64 or not ptr.is_cpu or ptr.is_inference():
        return None

    def make() -> Tensor | None:
        counts = plain(ptr).diff()
        if not counts.numel() or int(ptr[0]) != 0 or int(counts.min()) < 0:
            return None
        return torch.repeat_interleave(counts)

    found: Tensor | None = remembered(ptr, "index", make)
    return None if found is None or found.shape[0] != src.shape[0] else found


def softmax(
    src: Any, index: Any = None, ptr: Any = None, num_nodes: Any = None, dim: int = 0
) -> Any:
    """As torch_geometric's."""
    src = _real(src)
    known = index is not None and src.shape[1:].numel() <= _WIDEST_SOFTMAX
    if known and running_edges() is None:
        known = gains(src, None, None)
    edges = groups_of(src, index, num_nodes, dim) if known else None
    if edges is None:
        return utils.softmax(src, index, ptr, num_nodes, dim)
    note("sorted softmax")
    return edge_softmax(src.reshape(src.shape[0], -1), edges.walks()).reshape(src.shape)


FAST: dict[Any, Callable[..., Any]] = {
    utils.scatter: scatter,
    utils.segment: segment,
    utils.softmax: softmax,
}
"""Functions of torch_geometric, and what accelerated code calls in their place."""
