"""torch_geometric's relational convolution and a GRU cell: its typed gated network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import nn
from torch_geometric.nn import RGCNConv


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """Rounds of messages over the edges of case["arrays"], forward and backward, and Adam."""
    torch.manual_seed(0)
    arrays = np.load(case["arrays"])
    ends = torch.from_numpy(np.stack([arrays["senders"], arrays["receivers"]])).long()
    types, hidden = torch.from_numpy(arrays["types"]).long(), case["hidden"]
    start = torch.randn(int(arrays["nodes"]), hidden)
    layer = RGCNConv(hidden, hidden, case["types"], aggr="add", root_weight=False, bias=False)
    cell = nn.GRUCell(hidden, hidden)
    optimizer = torch.optim.Adam([*layer.parameters(), *cell.parameters()], lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        h = start
        for _ in range(case["rounds_of_messages"]):
            h = cell(layer(h, ends, types), h)
        h.square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    versions = {"torch_geometric": torch_geometric.__version__, "torch": torch.__version__}
    return step, versions
