"""A cache of facts about an edge_index: its range, and its edges sorted by receiver and by sender.

Each fact is computed once and kept until the tensor is freed or changed in place. torch counts
in-place changes; a change through `.data` or a numpy array is not noticed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from weft.kernels.fused_messages import EdgeWalks

_kept: Any = WeakIdKeyDictionary()
_lock = threading.Lock()


def remembered(
    tensor: Tensor, key: Any, make: Callable[[], Any], *, beside: Tensor | None = None
) -> Any:
    """The result of `make`, cached with a tensor, or with a pair of tensors.

    Of all pairs with the same first tensor and key, only the latest is kept.
    """
    if tensor.is_inference() or (beside is not None and beside.is_inference()):
        # torch does not count changes of inference tensors.
        return make()
    key = (key, beside is None)
    with _lock:
        version, facts = _kept.get(tensor, (None, {}))
        if version == tensor._version and key in facts:
            other, count, value = facts[key]
            if beside is None or (other() is beside and count == beside._version):
                return value
    value = make()
    mark = (None, 0) if beside is None else (weakref.ref(beside), beside._version)
    with _lock:
        before, facts = _kept.get(tensor, (None, {}))
        if before != tensor._version:
            facts = {}
        facts[key] = (*mark, value)
        _kept[tensor] = (tensor._version, facts)
    return value


def plain(edge_index: Tensor) -> Tensor:
    """A detached alias as a plain Tensor."""
    # A cached view of the tensor itself would keep it alive for ever.
    return edge_index.detach().as_subclass(Tensor)


def ends_range(edge_index: Tensor) -> tuple[int, int, int, int]:
    """Smallest and largest node of edge_index[0], then of edge_index[1]."""

    def make() -> tuple[int, int, int, int]:
        if not edge_index.shape[1]:
            return 0, -1, 0, -1
        low, high = torch.aminmax(plain(edge_index), dim=1)
        return int(low[0]), int(high[0]), int(low[1]), int(high[1])

    found: tuple[int, int, int, int] = remembered(edge_index, "range", make)
    return found


def walks_of(edge_index: Tensor, receiver_row: int, senders: int, receivers: int) -> EdgeWalks:
    """The edges sorted both ways, cached; every node must be in range.

    Args:
        edge_index: int [2, E].
        receiver_row: 1, or 0 where messages flow from target to source.
        senders: M.
        receivers: N.
    """

    def make() -> EdgeWalks:
        rows = plain(edge_index)
        into = rows[receiver_row].to(torch.int64, copy=True)
        # Both rows of an index that groups rows are the same.
        same = edge_index.stride(0) == 0
        out = into if same else rows[1 - receiver_row].to(torch.int64, copy=True)
        return EdgeWalks(out, into, senders, receivers)

    found: EdgeWalks = remembered(edge_index, ("walks", receiver_row, senders, receivers), make)
    return found
