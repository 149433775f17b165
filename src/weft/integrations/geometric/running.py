"""The layer whose messages are being computed in this thread: its edges, and what is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.integrations.geometric.lazy_edges import Edges


class _Running(threading.local):
    """The layers whose messages are being computed in this thread, innermost last; and notes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Edges | None]] = []
        self.notes: dict[str, None] | None = None


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
def noted() -> Iterator[dict[str, None]]:
    """Context that collects what `note` is told in this thread, each once, in order."""
    before, _running.notes = _running.notes, {}
    try:
        yield _running.notes
    finally:
        _running.notes = before


def note(text: str) -> None:
    """Say how a part of a layer is computed."""
    if _running.notes is not None:
        _running.notes[text] = None
