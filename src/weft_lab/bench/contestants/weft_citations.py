"""weft: one training of `weft train citations` a step, with the next seed; gives the accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

import weft
from weft.graphs import open_table
from weft.recipes.nodes.citations import citation_batch, train_citations
from weft.recipes.nodes.config import CitationsConfig
from weft.training import prepare_process


def prepare(case: dict[str, Any]) -> tuple[Callable[[], float], dict[str, str]]:
    """A step trains on the table case["table"] and returns the test accuracy in %."""
    prepare_process()
    batch = citation_batch(open_table(case["table"]))
    seeds = itertools.count()

    def step() -> float:
        config = CitationsConfig(data=case["data"], seed=next(seeds))
        return 100 * train_citations(batch, config, quiet=True)[2]["test_accuracy"]

    return step, {"weft": weft.__version__, "torch": torch.__version__}
