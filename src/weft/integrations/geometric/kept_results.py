"""What does not change from one training step to the next, computed once and kept.

Full-graph training calls a layer with the same edges, the same edge weights and, in the first
layer, the same features at every step. The second call that sees such tensors keeps what it
computes from them; batches that are seen once keep nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.integrations.geometric.edge_cache import remembered
from weft.kernels.custom_op import array_of
from weft.kernels.fused_messages import EdgeWalks, SortedRows

_MOST_BYTES = 2**30
"""Larger results are not kept."""


def _owner(tensor: Tensor) -> Tensor:
    """The tensor itself, or the one that it is a reshaped view of: views are made at every call."""
    base = tensor._base
    return tensor if base is None or base.numel() != tensor.numel() else base


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def seen_before(tensor: Tensor, edge_index: Tensor, asker: str = "sum") -> bool:
    """Whether this asker had these two tensors before, as they are now; its latest pair is kept."""
    if tensor.requires_grad or tensor.is_inference() or edge_index.is_inference():
        return False
    calls: list[None] = remembered(
        _owner(tensor), ("calls", asker, _place(tensor)), list, beside=edge_index
    )
    if not calls:
        calls.append(None)
        return False
    return True


def sorted_rows(rows: Tensor, edges: EdgeWalks, edge_index: Tensor) -> SortedRows | None:
    """Constant rows of edges, [E, H, C], in the orders of both walks; None at their first call."""
    if edges.into[2] is None or not seen_before(rows, edge_index):
        return None
    found: SortedRows = remembered(
        _owner(rows),
        ("sorted", _place(rows)),
        lambda: SortedRows(array_of(rows), edges),
        beside=edge_index,
    )
    # The same edges in the other direction have other walks.
    return found if found.edges is edges else None


@dataclass(eq=False)
class _Result:
    """A result that is kept with the first of the tensors that it was computed from.

    Attributes:
        others: the other tensors, with their versions and places.
        value: the result.
        versions: of its tensors when they were computed.
        changed: somebody changed it in place, so that it is not kept any more.
    """

    others: list[tuple[Any, int, Any]]
    value: tuple[Tensor, ...] = ()
    versions: list[int] = field(default_factory=list)
    changed: bool = False


def kept(
    sources: Sequence[Tensor],
    edge_index: Tensor,
    key: tuple[Any, ...],
    make: Callable[[], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """The result of `make`, kept from the second call with the same constant sources on."""
    first, *others = sources
    if any(each.requires_grad or each.is_inference() for each in sources):
        return make()
    if torch.is_inference_mode_enabled() or not seen_before(first, edge_index):
        return make()
    marks = [(weakref.ref(_owner(t)), t._version, _place(t)) for t in others]
    entry: _Result = remembered(
        _owner(first), (key, _place(first)), lambda: _Result(marks), beside=edge_index
    )
    alike = all(
        old[0] is new[0] and old[1:] == new[1:]
        for old, new in zip(entry.others, marks, strict=True)
    )
    if not alike or entry.changed:
        return make()
    if not entry.value:
        value = make()
        if sum(t.nbytes for t in value) <= _MOST_BYTES:
            entry.value, entry.versions = value, [t._version for t in value]
        return value
    if entry.versions != [t._version for t in entry.value]:
        entry.value, entry.changed = (), True
        return make()
    return entry.value
