"""What a worker's process does: trains at the planner's pace, and says how it ended."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from weft.planning.candidate import set_threads
from weft.planning.worker_client import PaceAddress, pace_at
from weft.training.numerics import prepare_process


def run_worker(pipe: Connection[Any, Any], address: PaceAddress) -> None:
    """Take work and settings from `pipe`, train, and say there what stopped it.

    The answer is `outcome, sentence`, of which one is empty.
    """
    if hasattr(os, "setsid"):
        # Ctrl-C in a terminal is for the planner, which ends its workers.
        os.setsid()
    threading.Thread(target=_end_with_planner, daemon=True).start()
    _be_quiet()
    try:
        work, settings = pipe.recv()
        set_threads(settings)
        prepare_process()
        with pace_at(address):
            work.train(settings)
        answer = "failed", "the training came to its end, which it should not"
    except Exception as error:
        traceback.print_exc()
        answer = ("out of memory", "") if _is_memory(error) else ("failed", _sentence(error))
    with suppress(OSError):
        pipe.send(answer)


def _end_with_planner() -> None:
    planner = multiprocessing.parent_process()
    if planner is not None:
        planner.join()
        os._exit(1)


def _be_quiet() -> None:
    """Nothing that a candidate prints or warns of belongs on the planner's screen."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _is_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # torch's allocator on the CPU, and a rank of a group that the system has ended.
    return "can't allocate memory" in str(error) or "killed by SIGKILL" in str(error)


def _sentence(error: Exception) -> str:
    """An error's own words where it is meant for people, else with its kind."""
    lines = str(error).strip().splitlines()
    words = lines[0] if lines else ""
    if isinstance(error, ValueError) and words:
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
