"""The edges of the layer whose messages are being computed in this thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft.integrations.geometric.lazy_edges import Edges


class _Running(threading.local):
    """The layers whose messages are being computed in this thread, innermost last."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Edges | None]] = []


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
