"""Memory of this process."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path


def held_memory() -> float:
    """Bytes of its own that this process holds now, without pages of files."""
    return process_memory("RssAnon")


def peak_memory() -> float:
    """The most bytes that this process has held so far, pages of files included."""
    # What the system counts for a process includes what it was before it loaded Python.
    return process_memory("VmHWM")


def trim_memory() -> None:
    """Give back to the system what is freed, where the C library can."""
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)


def process_memory(name: str) -> float:
    """A field of this process's status, bytes; its peak where the system has no such file."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(most if sys.platform == "darwin" else most * 1024)
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
