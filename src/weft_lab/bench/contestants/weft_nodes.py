"""weft: one training of `weft train nodes` a step, with the next seed; gives the accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

import weft
from weft.graphs import open_table
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.nodes.training import prepare_nodes, train_nodes
from weft.training import prepare_process


def prepare(case: dict[str, Any]) -> tuple[Callable[[], float], dict[str, str]]:
    """A step trains a GCN on the graph case["table"] and returns the test accuracy in %."""
    prepare_process()
    graph = open_table(case["table"])[0]
    seeds = itertools.count()

    def step() -> float:
        config = NodesConfig(
            sparsify=case["sparsify"],
            sparsity=case["sparsity"],
            epochs=case["epochs"],
            seed=next(seeds),
        )
        return 100 * train_nodes(prepare_nodes(graph, config), quiet=True).scores["test"].value

    return step, {"weft": weft.__version__, "torch": torch.__version__}
