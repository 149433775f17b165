"""The machine that a program runs on, in a few words, and the memory of this process."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys
from pathlib import Path
from typing import Any


def cores() -> int:
    """How many cores of the processor this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hardware() -> dict[str, Any]:
    """Processor, the cores that this process may use, and memory where the system tells."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found: dict[str, Any] = {"cpu": names[0] if names else model, "cores": cores()}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        found["memory_gib"] = round(pages / 2**30, 1)
    return found


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
    """A field of this process's status, bytes.

    Where the system has no such file it is the peak, and 0 where Python does not tell that either
    (Windows).
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        try:
            import resource
        except ImportError:
            return 0.0
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(most if sys.platform == "darwin" else most * 1024)
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
