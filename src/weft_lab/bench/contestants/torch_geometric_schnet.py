"""torch_geometric's own SchNet behind its DataLoader, as its users run it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn.models import SchNet


def prepare(case: dict[str, Any]) -> tuple[Callable[[], dict[str, float]], dict[str, str]]:
    """A batch of case["size"] graphs and an update a step; case["flush"] flushes denormals."""
    torch.set_flush_denormal(case["flush"])
    torch.manual_seed(0)
    arrays = {name: torch.from_numpy(a) for name, a in np.load(case["arrays"]).items()}
    nodes, edges = arrays["node_offsets"].tolist(), arrays["edge_offsets"].tolist()
    edge_index = torch.stack([arrays["senders"], arrays["receivers"]]).long()
    graphs = [
        Data(
            z=arrays["z"][nodes[i] : nodes[i + 1]].long(),
            pos=arrays["pos"][nodes[i] : nodes[i + 1]],
            edge_index=edge_index[:, edges[i] : edges[i + 1]].contiguous(),
            y=arrays["y"][i : i + 1],
        )
        for i in range(len(nodes) - 1)
    ]
    loader = DataLoader(graphs, batch_size=case["size"], shuffle=True, drop_last=True)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    source = batches()
    current: Any = None

    def pairs(pos: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        """All pairs of the batch at hand: its own search would need another package."""
        sender, receiver = current.edge_index
        return current.edge_index, (pos[sender] - pos[receiver]).norm(dim=-1)

    model = SchNet(
        hidden_channels=64,
        num_filters=64,
        num_interactions=3,
        num_gaussians=150,
        cutoff=15.0,
        interaction_graph=pairs,
        readout="mean",
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> dict[str, float]:
        nonlocal current
        start = time.perf_counter()
        current = next(source)
        batching = time.perf_counter() - start
        optimizer.zero_grad()
        energies = model(current.z, current.pos, current.batch)[:, 0]
        functional.mse_loss(energies, current.y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {"graphs": current.num_graphs, "batching": batching}

    versions = {"torch_geometric": torch_geometric.__version__, "torch": torch.__version__}
    return step, versions
