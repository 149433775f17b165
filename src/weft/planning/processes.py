"""Other processes: how much memory a tree of them holds, and its end."""

from __future__ import annotations

import math
import os
import signal
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_FILE_PAGES = ("active_file ", "inactive_file ")


def descendants(pid: int) -> list[int]:
    """Children of a process, theirs and so on; none where the system does not tell."""
    found: list[int] = []
    # Without a look at all processes of the machine, which would disturb what is being timed.
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += [int(word) for word in (thread / "children").read_text().split()]
    return found + [each for child in found for each in descendants(child)]


def peak_of_all(pid: int) -> float:
    """The most bytes that a process and its descendants have held, each for itself; 0: unknown.

    Pages of files, the libraries above all, are counted once: processes share them.
    """
    found = [_status(each) for each in (pid, *descendants(pid))]
    files = [each.get("RssFile", 0.0) for each in found]
    return sum(each.get("VmHWM", 0.0) for each in found) - sum(files) + max(files)


def kill_all(pids: list[int]) -> None:
    """End processes at once, those that are still there."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def available_memory() -> float:
    """Bytes that new processes can have before the system, or this container, runs out."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        free = []
    if not free and hasattr(os, "sysconf"):
        free = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    with suppress(OSError, ValueError):
        limit = float((_CGROUP / "memory.max").read_text())
        used = float((_CGROUP / "memory.current").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        # Files that were read stay in memory until somebody needs it.
        kept = [float(line.split()[1]) for line in lines if line.startswith(_FILE_PAGES)]
        free.append(max(0.0, limit - used + sum(kept)))
    return min(free, default=math.inf)


def _status(pid: int) -> dict[str, float]:
    """Sizes in a process's status, bytes; none where there is no such process, or system."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {each[0].rstrip(":"): 1024.0 * int(each[1]) for each in words}


def hush_tracker() -> None:
    """Have the semaphores of processes that are killed cleared without a word.

    A process of Python's own does that when the program ends, and would warn of each on the screen.
    """
    name, before = "PYTHONWARNINGS", os.environ.get("PYTHONWARNINGS")
    os.environ[name] = "ignore::UserWarning:multiprocessing.resource_tracker"
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
