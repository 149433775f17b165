"""What weft knows of an edge_index: its range and its edges by receiver and by sender.

It is found once and kept with the tensor, for as long as the tensor lives and is not changed in
place (torch counts the changes; one through `.data` or a numpy array goes unseen).
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
    """What `make` gives, found once for a tensor as it is, and for another one beside it.

    What was found with another tensor beside is forgotten.
    """
    if tensor.is_inference() or (beside is not None and beside.is_inference()):
        # Nobody counts the changes of these.
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
    """The tensor itself, without what a subclass such as EdgeIndex makes of it."""
    # Detached, so that what is kept does not keep the tensor that it is kept with.
    return edge_index.detach().as_subclass(Tensor)


def ends_range(edge_index: Tensor) -> tuple[int, int, int, int]:
    """Least and largest number of edge_index[0], then of edge_index[1]."""

    def make() -> tuple[int, int, int, int]:
        if not edge_index.shape[1]:
            return 0, -1, 0, -1
        low, high = torch.aminmax(plain(edge_index), dim=1)
        return int(low[0]), int(high[0]), int(low[1]), int(high[1])

    found: tuple[int, int, int, int] = remembered(edge_index, "range", make)
    return found


def walks_of(edge_index: Tensor, receiver_row: int, senders: int, receivers: int) -> EdgeWalks:
    """How loops walk the edges; their numbers must be in range.

    Args:
        edge_index: int [2, E].
        receiver_row: 1, or 0 where messages flow from target to source.
        senders: M.
        receivers: N.
    """

    def make() -> EdgeWalks:
        rows = plain(edge_index)
        return EdgeWalks(
            rows[1 - receiver_row].to(torch.int64, copy=True),
            rows[receiver_row].to(torch.int64, copy=True),
            senders,
            receivers,
        )

    found: EdgeWalks = remembered(edge_index, ("walks", receiver_row, senders, receivers), make)
    return found
