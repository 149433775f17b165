"""A torch_geometric user's model, loss and data, in a module that workers can import by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool


class GeometricNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = GCNConv(3, width), GCNConv(width, width)
        self.end = nn.Linear(width, 1)

    def forward(self, batch: Any) -> Tensor:
        h = self.first(batch.x, batch.edge_index).relu()
        h = self.second(h, batch.edge_index).relu()
        pooled: Tensor = global_add_pool(self.end(h), batch.batch, size=batch.num_graphs)
        return pooled[:, 0]


def geometric_loss(model: nn.Module, batch: Any) -> Tensor:
    error: Tensor = (model(batch) - batch.y)[batch.graph_mask]
    return error.square().mean()


class Doubled(Subset[Data]):
    """Each graph with its nodes twice."""

    def __getitem__(self, index: Any) -> Any:
        graph = super().__getitem__(index).clone()
        graph.x = graph.x.repeat(2, 1)
        return graph

    def __getitems__(self, indices: list[int]) -> list[Data]:
        return [self[index] for index in indices]


def molecules(count: int) -> list[Data]:
    found = []
    for nodes in torch.randint(3, 9, (count,), generator=torch.Generator().manual_seed(0)).tolist():
        ends = torch.arange(nodes)
        edges = torch.stack([torch.cat([ends, ends.roll(1)]), torch.cat([ends.roll(1), ends])])
        x = torch.linspace(0, 1, 3 * nodes).view(nodes, 3)
        found.append(Data(x=x, edge_index=edges, y=x.sum().view(1), name=f"ring {nodes}"))
    return found
