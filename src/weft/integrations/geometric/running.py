"""How the code of a layer runs in this thread: on which edges, and what stands in its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch_geometric.nn import aggr

if TYPE_CHECKING:
    from weft.integrations.geometric.lazy_edges import Edges


class Seen:
    """A module as its own code sees it while some of its attributes are others."""

    def __init__(self, module: Any, **others: Any) -> None:
        self._module = module
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def has_hooks(module: Any) -> bool:
    """Whether more than its class's forward runs when the module is called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


_HOOKS = tuple(
    f"_{place}_forward_{kind}"
    for place in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for kind in ("pre_hooks", "hooks")
)


def reader_of_messages(layer: Any) -> str | None:
    """Who reads the messages of a layer, so that they must be made; None if nobody does."""
    if any(getattr(layer, name) for name in _HOOKS):
        return "a hook reads its messages"
    if layer.explain or layer.decomposed_layers != 1:
        return "it is being explained or decomposed"
    return None


_OWN_METHODS = ("message", "aggregate", "update", "propagate", "edge_update", "edge_updater")


def plain_reduction(layer: Any) -> str | None:
    """`sum` or `mean` if a layer does no more with its messages than that; None otherwise."""
    module = layer.aggr_module
    kind = {aggr.SumAggregation: "sum", aggr.MeanAggregation: "mean"}.get(type(module))
    if kind is None or has_hooks(module):
        return None
    for name in _OWN_METHODS:
        there = getattr(layer.__dict__.get(name), "__func__", layer.__dict__.get(name))
        if there is not None and not there.__module__.startswith("weft."):
            # A method that was set on this layer alone.
            return None
    return kind


class _Running(threading.local):
    """The layers whose messages are being computed in this thread, innermost last; and notes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Edges | None]] = []
        self.notes: dict[str, int] | None = None


_running = _Running()


@contextmanager
def running(layer: Any, edges: Edges | None) -> Iterator[None]:
    """Context in which a layer's messages are computed."""
    _running.calls.append((layer, edges))
    try:
        yield
    finally:
        _running.calls.pop()


def running_edges(layer: Any = None) -> Edges | None:
    """The edges of the innermost call, if it is of this layer (of any, if None)."""
    if not _running.calls:
        return None
    own, edges = _running.calls[-1]
    return edges if layer is None or own is layer else None


@contextmanager
def noted() -> Iterator[dict[str, int]]:
    """Context that collects what `note` records in this thread, and how often."""
    before, _running.notes = _running.notes, {}
    try:
        yield _running.notes
    finally:
        _running.notes = before


def note(text: str) -> None:
    """Say how a part of a layer is computed."""
    if _running.notes is not None:
        _running.notes[text] = _running.notes.get(text, 0) + 1


def number_of_notes() -> int:
    """How often `note` has been called in this context."""
    return sum((_running.notes or {}).values())


AS_IT_IS = "as it is"
"""The note of a call that weft does not take."""
