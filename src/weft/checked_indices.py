"""Checks indices before a compiled loop uses them, once per tensor.

The loops read and write wherever their indices point. A check looks at every number when it first
meets a tensor; after that it costs a microsecond, until the tensor is changed in place (torch
counts the changes). What weft makes itself is trusted and never looked at. A change that torch does
not count, through `.data` or through a numpy array that shares the memory, goes unseen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.runtime import compiled

Check = Callable[..., None]
_WHOLE = (torch.int32, torch.int64)

# By check, numbers and identities of the tensors: a reference to each tensor that is not None, and
# what would tell a change.
_known: dict[tuple[Any, ...], list[tuple[Any, int, int, int]]] = {}


def once(check: Check, tensors: tuple[Tensor | None, ...], *numbers: int) -> None:
    """Call check(*tensors, *numbers) unless it passed before for these tensors as they are."""
    key = (check, numbers, *map(id, tensors))
    if not _holds(key):
        check(*tensors, *numbers)
        _remember(key, tensors)


def trust(check: Check, tensors: tuple[Tensor | None, ...], *numbers: int) -> None:
    """Remember that check(*tensors, *numbers) would pass: for what was made right."""
    _remember((check, numbers, *map(id, tensors)), tensors)


def is_known(check: Check, tensors: tuple[Tensor | None, ...], *numbers: int) -> bool:
    """True if check(*tensors, *numbers) has passed before, or the tensors are trusted."""
    return _holds((check, numbers, *map(id, tensors)))


def _holds(key: tuple[Any, ...]) -> bool:
    marks = _known.get(key)
    if marks is None:
        return False
    for reference, version, place, count in marks:
        tensor = reference()
        # The number of a tensor that is gone may be another's now: only the reference tells.
        if tensor is None or tensor._version != version:
            return False
        if tensor.numel() != count or (place and tensor.data_ptr() != place):
            return False
    return True


def _remember(key: tuple[Any, ...], tensors: tuple[Tensor | None, ...]) -> None:
    given = [t for t in tensors if t is not None]
    if any(t.is_inference() for t in given):
        # Nobody counts the changes of these.
        return

    def forget(_: Any) -> None:
        _known.pop(key, None)

    _known[key] = [
        (weakref.ref(t, forget), t._version, t.data_ptr() if t.is_cpu else 0, t.numel())
        for t in given
    ]


def check_segments(
    entries: int, offsets: Tensor, order: Tensor | None, index: Tensor | None
) -> None:
    """Refuse a CSR view that does not fit: every entry is in one segment, the one that it names.

    Args:
        entries: E.
        offsets: int [N + 1], ascending from 0 to E.
        order: int [E], each of the entries once; None for 0, 1, 2, ...
        index: int [E], the segment of each entry; order[offsets[r]:offsets[r + 1]] are those of r.
    """
    once(right_segments, (offsets, order, index), entries)


def check_range(index: Tensor, limit: int) -> None:
    """Refuse an index [E] with a number outside of 0 to limit - 1."""
    once(right_range, (index,), limit)


def check_pairs(edges: int, forward: Tensor, backward: Tensor, of_edge: Tensor) -> None:
    """Refuse pairs of which an edge is in none or two; see GraphBatch.pairs.

    Args:
        edges: E.
        forward: int [P].
        backward: int [P].
        of_edge: int [E].
    """
    once(right_pairs, (forward, backward, of_edge), edges)


def check_transposes(
    offsets: Tensor, columns: Tensor, offsets_t: Tensor, columns_t: Tensor
) -> None:
    """Refuse two CSR matrices that are not each other's transpose, each column's rows ascending.

    Args:
        offsets: int [R + 1].
        columns: int [K], in 0..M-1.
        offsets_t: int [M + 1].
        columns_t: int [K], in 0..R-1.
    """
    own = (offsets, columns, offsets_t, columns_t)
    swapped = (offsets_t, columns_t, offsets, columns)
    # Which of the two is called the transpose makes no difference to a loop.
    if not (is_known(right_transposes, own) or is_known(right_transposes, swapped)):
        once(right_transposes, own)


def require_integers(*tensors: Tensor | None) -> None:
    """Refuse what is not a vector of int32 or int64."""
    for tensor in tensors:
        if tensor is not None and (tensor.ndim != 1 or tensor.dtype not in _WHOLE):
            raise ValueError(
                f"indices must be vectors of int32 or int64, got {tensor.dtype} of shape "
                f"{list(tensor.shape)}; convert them with .long()"
            )


def right_segments(
    offsets: Tensor, order: Tensor | None, index: Tensor | None, entries: int
) -> None:
    """The check behind `check_segments`, made for tensors that are new."""
    require_integers(offsets, order, index)
    _offsets(offsets, entries)
    for name, tensor in (("order", order), ("index", index)):
        if tensor is not None and tensor.shape[0] != entries:
            raise ValueError(
                f"the {name} beside CSR offsets has {tensor.shape[0]} numbers but there are "
                f"{entries} rows"
            )
    if offsets.is_cpu:
        fault = _segments_fault(_array(offsets), _array(order), _array(index), entries)
    else:
        fault = _fault_there(offsets, order, index, entries)
    if fault < 0:
        return
    entry = fault if order is None else int(order[fault])
    if not 0 <= entry < entries:
        raise ValueError(
            f"order[{fault}] is {entry}, outside of 0 to {entries - 1}; it must hold each row once"
        )
    segment = int(torch.searchsorted(offsets, fault, right=True)) - 1
    if index is not None and int(index[entry]) != segment:
        raise ValueError(
            f"index[{entry}] is {int(index[entry])}, but the CSR offsets and order put row {entry} "
            f"into segment {segment} of {offsets.shape[0] - 1}; an edge that is moved changes "
            "senders or receivers, both offsets and out_order: weft.graphs.assemble makes them all"
        )
    raise ValueError(f"order has row {entry} twice; it must hold each of {entries} rows once")


def _offsets(offsets: Tensor, entries: int) -> None:
    """Refuse offsets that do not rise from 0 to the number of entries."""
    if not offsets.numel():
        raise ValueError("CSR offsets are empty; N segments need N + 1 of them")
    last = int(offsets[-1])
    if last != entries:
        raise ValueError(
            f"CSR offsets end at {last} but there are {entries} rows; the shape of the offsets is "
            f"{list(offsets.shape)}"
        )
    if offsets.is_cpu:
        fault = int(_offsets_fault(_array(offsets)))
    else:
        wrong = torch.cat([offsets[:1] != 0, offsets.diff() < 0])
        fault = int(wrong.to(torch.int32).argmax()) if bool(wrong.any()) else -1
    if fault == 0:
        raise ValueError(f"CSR offsets begin at {int(offsets[0])}; they must begin at 0")
    if fault > 0:
        raise ValueError(
            f"CSR offsets fall from {int(offsets[fault - 1])} to {int(offsets[fault])} at position "
            f"{fault}; they must rise from 0 to {entries}, the number of rows"
        )


def _fault_there(offsets: Tensor, order: Tensor | None, index: Tensor | None, entries: int) -> int:
    """`_segments_fault` on a device other than the CPU: one answer to wait for."""
    wrong = offsets.new_zeros(entries, dtype=torch.bool)
    if order is not None:
        wrong = (order < 0) | (order >= entries)
        inside = order.clamp(0, max(entries - 1, 0)).long()
        first = offsets.new_zeros(entries, dtype=torch.int64)
        first.scatter_(0, inside, torch.arange(entries, device=offsets.device))
        # Of two positions with one row, at most one is the row's.
        wrong |= first.index_select(0, inside) != torch.arange(entries, device=offsets.device)
    if index is not None:
        segment = torch.repeat_interleave(offsets.diff().long(), output_size=entries)
        named = index if order is None else index.index_select(0, inside)
        wrong |= named != segment
    return int(wrong.to(torch.int32).argmax()) if bool(wrong.any()) else -1


def right_range(index: Tensor, limit: int) -> None:
    """The check behind `check_range`, made for a tensor that is new."""
    require_integers(index)
    if index.is_cpu:
        wrong = bool(_out_of_range(_array(index), limit))
    else:
        wrong = bool(((index < 0) | (index >= limit)).any())
    if wrong:
        place = int(((index < 0) | (index >= limit)).to(torch.int32).argmax())
        raise ValueError(
            f"the index at position {place} is {int(index[place])}; there are {limit} rows, "
            "counted from 0"
        )


def right_pairs(forward: Tensor, backward: Tensor, of_edge: Tensor, edges: int) -> None:
    """The check behind `check_pairs`, made for tensors that are new."""
    require_integers(forward, backward, of_edge)
    if of_edge.shape[0] != edges or forward.shape != backward.shape:
        raise ValueError(
            f"of_edge has {of_edge.shape[0]} entries for {edges} edges, forward has "
            f"{forward.shape[0]} and backward {backward.shape[0]}: one per edge and one per pair "
            "are needed"
        )
    for ends, limit in ((forward, edges), (backward, edges), (of_edge, forward.shape[0])):
        right_range(ends, limit)
    if forward.is_cpu:
        fault = int(_pairs_fault(*map(_array, (forward, backward, of_edge))))
    else:
        numbers = torch.arange(forward.shape[0], device=forward.device)
        wrong = (of_edge[forward.long()] != numbers) | (of_edge[backward.long()] != numbers)
        # As many places in pairs as there are edges, and every pair's edges say that they are its.
        places = forward.shape[0] + int((forward != backward).sum())
        fault = int(wrong.to(torch.int32).argmax()) if bool(wrong.any()) else -1
        fault = 0 if fault < 0 and places != edges else fault
    if fault >= 0:
        raise ValueError(
            f"pair {fault} is made of the edges {int(forward[fault])} and {int(backward[fault])}, "
            "but of_edge says otherwise; every edge must be in one pair"
        )


def right_transposes(
    offsets: Tensor, columns: Tensor, offsets_t: Tensor, columns_t: Tensor
) -> None:
    """The check behind `check_transposes`, made for tensors that are new."""
    require_integers(offsets, columns, offsets_t, columns_t)
    _offsets(offsets, columns.shape[0])
    _offsets(offsets_t, columns_t.shape[0])
    right_range(columns, offsets_t.shape[0] - 1)
    right_range(columns_t, offsets.shape[0] - 1)
    if columns.shape != columns_t.shape:
        raise ValueError(
            f"a matrix has {columns.shape[0]} entries and its transpose {columns_t.shape[0]}"
        )
    if offsets.is_cpu:
        fault = int(_transposes_fault(*map(_array, (offsets, columns, offsets_t, columns_t))))
    else:
        rows = torch.repeat_interleave(offsets.diff().long(), output_size=columns.shape[0])
        order = torch.argsort(columns, stable=True)
        into = torch.repeat_interleave(offsets_t.diff().long(), output_size=columns.shape[0])
        wrong = (rows[order] != columns_t) | (columns[order] != into)
        fault = int(order[wrong.to(torch.int32).argmax()]) if bool(wrong.any()) else -1
    if fault >= 0:
        raise ValueError(
            f"entry {fault} of a matrix, in column {int(columns[fault])}, is not in its transpose, "
            "whose columns' rows must ascend; TypedEdges.of makes both"
        )


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().contiguous().numpy()


@compiled()
def _offsets_fault(offsets: Any) -> int:
    """The first position where offsets do not rise from 0, or -1."""
    if offsets[0] != 0:
        return 0
    for row in range(1, offsets.shape[0]):
        if offsets[row] < offsets[row - 1]:
            return row
    return -1


@compiled()
def _segments_fault(offsets: Any, order: Any, index: Any, entries: int) -> int:
    """The first position whose entry is out of range, met before or of another segment, or -1."""
    if order is None and index is None:
        return -1
    seen = np.zeros(0 if order is None else entries, dtype=np.bool_)
    for row in range(offsets.shape[0] - 1):
        for k in range(offsets[row], offsets[row + 1]):
            entry = np.int64(k)
            if order is not None:
                entry = np.int64(order[k])
                if entry < 0 or entry >= entries or seen[entry]:
                    return k
                seen[entry] = True
            if index is not None and index[entry] != row:
                return k
    return -1


@compiled()
def _out_of_range(index: Any, limit: int) -> bool:
    # Without a way out: the compiler then uses vectors.
    wrong = False
    for value in index:
        wrong |= (value < 0) | (value >= limit)
    return wrong


@compiled()
def _pairs_fault(forward: Any, backward: Any, of_edge: Any) -> int:
    """The first pair that an edge of its own does not name, or that names too few, or -1."""
    places = 0
    for pair in range(forward.shape[0]):
        one, other = forward[pair], backward[pair]
        if of_edge[one] != pair or of_edge[other] != pair:
            return pair
        places += 1 if one == other else 2
    # Each pair's edges are its own: as many places as edges means that none was left out.
    return -1 if places == of_edge.shape[0] else 0


@compiled()
def _transposes_fault(offsets: Any, columns: Any, offsets_t: Any, columns_t: Any) -> int:
    """The first entry that the transpose does not have in its place, or -1."""
    place = np.empty(offsets_t.shape[0] - 1, dtype=np.int64)
    place[:] = offsets_t[:-1]
    for row in range(offsets.shape[0] - 1):
        for k in range(offsets[row], offsets[row + 1]):
            column = columns[k]
            at = place[column]
            if at >= offsets_t[column + 1] or columns_t[at] != row:
                return k
            place[column] = at + 1
    return -1
