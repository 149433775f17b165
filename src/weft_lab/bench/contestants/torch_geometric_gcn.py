"""torch_geometric's GCNConv, the same model and epoch, as its users run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_torch_csr_tensor


class _Model(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int, cached: bool) -> None:
        super().__init__()
        self.first = GCNConv(features, hidden, cached=cached)
        self.second = GCNConv(hidden, classes, cached=cached)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.first(x, adjacency).relu()
        x = functional.dropout(x, 0.5, self.training)
        out: Tensor = self.second(x, adjacency)
        return out


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One epoch; case["csr"] takes its CSR adjacency, case["cached"] its cached normalisation."""
    torch.manual_seed(0)
    arrays = np.load(case["arrays"])
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    train = torch.from_numpy(arrays["train"])
    edge_index = torch.from_numpy(np.stack([arrays["senders"], arrays["receivers"]])).long()
    adjacency = edge_index
    if case["csr"]:
        n = x.shape[0]
        # torch_geometric multiplies by the transposed adjacency; this graph is undirected.
        adjacency = to_torch_csr_tensor(edge_index, size=(n, n))
    model = _Model(x.shape[1], case["hidden"], case["classes"], case["cached"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x, adjacency)[train], y[train]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    versions = {"torch_geometric": torch_geometric.__version__, "torch": torch.__version__}
    return step, versions
