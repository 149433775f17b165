"""weft's gated graph network over one form of the adjacency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import weft
from weft.graphs import assemble, open_table
from weft.layout import LayoutConfig, adjacency_of
from weft.models import GatedGraph
from weft.training import prepare_process


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """Rounds over all graphs of case["table"] in the form case["form"], forward, backward, Adam."""
    prepare_process()
    torch.manual_seed(0)
    table = open_table(case["table"])
    batch = assemble(table, range(len(table)))
    config = LayoutConfig(form=case["form"], hidden=case["hidden"])
    adjacency = adjacency_of(batch, case["types"], config)
    start = torch.randn(batch.num_nodes, case["hidden"])
    layer = GatedGraph(case["hidden"], case["types"], case["rounds_of_messages"])
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        layer(start, adjacency).square().mean().backward()
        optimizer.step()

    return step, {"weft": weft.__version__, "torch": torch.__version__}
