"""weft: temporal walks from every node; gives the steps taken in a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import weft
from weft.graphs import open_table
from weft.walks import temporal_walks


def prepare(case: dict[str, Any]) -> tuple[Callable[[], float], dict[str, str]]:
    """A step walks over case["table"], from its edges as they are to the last node."""
    table = open_table(case["table"])

    def step() -> float:
        start = time.perf_counter()
        found = temporal_walks(table, walks=case["walks"], length=case["length"])
        seconds = time.perf_counter() - start
        # Where a walk begins, no step has been taken.
        return float((found[:, 1:] >= 0).sum()) / seconds

    return step, {"weft": weft.__version__}
