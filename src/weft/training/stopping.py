"""When to stop: no better for too long, or asked to by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

__all__ = ["StopRequest", "is_better", "stop_on_signals"]


def is_better(value: float, best: float | None, mode: str) -> bool:
    """Whether `value` beats `best` (None: nothing yet); a draw does not."""
    if best is None:
        return True
    return value < best if mode == "min" else value > best


@dataclass
class StopRequest:
    """What has been asked for while `stop_on_signals` listens.

    Attributes:
        signal: name of the signal that came, such as SIGTERM, or None.
    """

    signal: str | None = None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; a second one raises KeyboardInterrupt.

    Only the main thread may set handlers, so in any other nothing is caught. The handlers that
    were there come back at the end.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.signal is not None:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number).name

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            # None: it was set outside Python, where it cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
