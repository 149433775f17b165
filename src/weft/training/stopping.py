"""Signals that ask a run to stop: they are noted, and the step under way is finished first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Names of the signals that ask a run to stop: Ctrl-C, a scheduler, a closed terminal."""


@dataclass
class StopRequest:
    """What has been requested while `stop_on_signals` listens.

    Attributes:
        signal: name of the signal that came, such as SIGTERM, or None.
    """

    signal: str | None = None


_latest = StopRequest()


@contextmanager
def stop_on_signals(*, patient: bool = False) -> Iterator[StopRequest]:
    """Turn the first of SIGNALS into a request; a second one raises KeyboardInterrupt.

    A second SIGHUP does not: a closing terminal may send it twice.

    Args:
        patient: none of them does. Of one Ctrl-C a rank hears from the terminal, and from its
            launcher too, which ends it for good if it takes too long.
    """
    global _latest
    request, heard, shown = StopRequest(), heard_signals(), terminals()
    _latest = request

    def note(number: int, frame: FrameType | None) -> None:
        leave_lost_terminal(shown)
        name = signal.Signals(number).name
        if request.signal is None:
            request.signal = name
        elif name != "SIGHUP" and not patient:
            raise KeyboardInterrupt

    with handlers_kept(heard) as may_set:
        for name in heard if may_set else ():
            signal.signal(getattr(signal, name), note)
        yield request


def was_asked_to_stop() -> bool:
    """Whether a signal has come while `stop_on_signals` listened last."""
    return _latest.signal is not None


@contextmanager
def handlers_kept(names: Iterable[str]) -> Iterator[bool]:
    """Put the handlers of these signals back at the end.

    It gives whether this thread may set any: only the main thread may.
    """
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield True
    finally:
        for number, handler in before.items():
            # None: it was set outside Python, where it cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def heard_signals() -> list[str]:
    """The signals to listen to here: SIGHUP only where nobody (nohup) has it ignored."""
    there = [name for name in SIGNALS if hasattr(signal, name)]
    if "SIGHUP" in there and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        there.remove("SIGHUP")
    return there


def terminals() -> list[int]:
    """Which of standard output and error are a terminal."""
    return [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]


def leave_lost_terminal(shown: list[int]) -> None:
    """Send what is printed to those of the descriptors `shown` whose terminal is gone nowhere.

    Each line would fail otherwise, and end what is still to be saved.
    """
    lost = [descriptor for descriptor in shown if not os.isatty(descriptor)]
    if lost:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor in lost:
                os.dup2(nowhere, descriptor)
            os.close(nowhere)
