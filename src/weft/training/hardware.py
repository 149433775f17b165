"""The machine that a program runs on, in a few words."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def cores() -> int:
    """Those of the processor that this process may use."""
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
