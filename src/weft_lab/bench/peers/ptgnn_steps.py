"""ptgnn's gated message passing, as its own models apply it: one layer, several times."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from ptgnn.neuralmodels.gnn.messagepassing import GatedMessagePassingLayer


def gated(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """Rounds of messages over the edges of case["arrays"], forward and backward, and Adam."""
    torch.manual_seed(0)
    arrays = np.load(case["arrays"])
    ends = torch.from_numpy(np.stack([arrays["senders"], arrays["receivers"]])).long()
    types, nodes = torch.from_numpy(arrays["types"]).long(), int(arrays["nodes"])
    lists = [tuple(ends[:, types == kind]) for kind in range(case["types"])]
    nothing = [torch.zeros(len(senders), 0) for senders, _ in lists]
    start, graph = torch.randn(nodes, case["hidden"]), torch.zeros(nodes, dtype=torch.long)
    layer = GatedMessagePassingLayer(
        state_dimension=case["hidden"],
        message_dimension=case["hidden"],
        num_edge_types=case["types"],
        message_aggregation_function="sum",
    )
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        h = start
        for _ in range(case["rounds_of_messages"]):
            h = layer(h, lists, graph, {}, {}, nothing)
        h.square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, {"ptgnn": version("ptgnn"), "torch": torch.__version__}
