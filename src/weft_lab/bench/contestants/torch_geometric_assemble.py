"""torch_geometric: a list of Data objects behind its DataLoader, as its users run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One shuffled batch of case["size"] graphs a step."""
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

    def step() -> None:
        next(source)

    versions = {"torch_geometric": torch_geometric.__version__, "torch": torch.__version__}
    return step, versions
