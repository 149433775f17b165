"""torch_geometric: its own models, layers and DataLoader, as its users run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, RGCNConv
from torch_geometric.nn.models import SchNet
from torch_geometric.utils import to_torch_csr_tensor

_VERSIONS = {"torch_geometric": torch_geometric.__version__, "torch": torch.__version__}


def _shuffled(case: dict[str, Any]) -> Iterator[Any]:
    """Endless batches of case["size"] graphs from a list of Data objects behind its DataLoader."""
    arrays = {name: torch.from_numpy(a) for name, a in np.load(case["arrays"]).items()}
    nodes, edges = arrays["node_offsets"].tolist(), arrays["edge_offsets"].tolist()
    edge_index = torch.stack([arrays["senders"], arrays["receivers"]]).long()
    graphs = [
        Data(
            z=arrays["z"][nodes[i] : nodes[i + 1]].long(),
            pos=arrays["pos"][nodes[i] : nodes[i + 1]],
            edge_index=edge_index[:, edges[i] : edges[i + 1]].contiguous(),
            y=arrays["y"][i : i + 1],
            **({} if "forces" not in arrays else _of_forces(arrays, nodes, edges, i)),
        )
        for i in range(len(nodes) - 1)
    ]
    loader = DataLoader(graphs, batch_size=case["size"], shuffle=True, drop_last=True)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    return batches()


def _of_forces(
    arrays: dict[str, Tensor], nodes: list[int], edges: list[int], i: int
) -> dict[str, Tensor]:
    return {
        "forces": arrays["forces"][nodes[i] : nodes[i + 1]],
        "shift": arrays["shift"][edges[i] : edges[i + 1]],
    }


def batches(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One shuffled batch of case["size"] graphs a step."""
    torch.manual_seed(0)
    source = _shuffled(case)

    def step() -> None:
        next(source)

    return step, _VERSIONS


def schnet(case: dict[str, Any]) -> tuple[Callable[[], dict[str, float]], dict[str, str]]:
    """A batch of case["size"] graphs and an update a step; case["flush"] flushes denormals."""
    torch.set_flush_denormal(case["flush"])
    torch.manual_seed(0)
    source = _shuffled(case)
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

    return step, _VERSIONS


def forces(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """Energies and forces by autograd, and with case["training"] an update, a step."""
    torch.manual_seed(0)
    source = _shuffled(case)
    current: Any = None

    def pairs(pos: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        """The neighbours of the batch at hand: its own search would need another package."""
        sender, receiver = current.edge_index
        return current.edge_index, (pos[sender] - pos[receiver] + current.shift).norm(dim=-1)

    model = SchNet(
        hidden_channels=case["hidden"],
        num_filters=case["hidden"],
        num_interactions=3,
        num_gaussians=20,
        cutoff=case["cutoff"],
        interaction_graph=pairs,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        nonlocal current
        current = next(source)
        pos = current.pos.requires_grad_()
        energies = model(current.z, pos, current.batch)[:, 0]
        training = case["training"]
        (gradient,) = torch.autograd.grad(energies.sum(), pos, create_graph=training)
        if training:
            loss = functional.mse_loss(energies, current.y)
            loss = loss + functional.mse_loss(-gradient, current.forces)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return step, _VERSIONS


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


def gcn(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
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

    return step, _VERSIONS


class _GAT(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int, heads: int) -> None:
        super().__init__()
        self.first = GATConv(features, hidden // heads, heads=heads)
        self.second = GATConv(hidden, classes, heads=heads, concat=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(self.first(x, edge_index).relu(), 0.5, self.training)
        out: Tensor = self.second(x, edge_index)
        return out


def gat(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One epoch of a GAT."""
    torch.manual_seed(0)
    arrays = {name: torch.from_numpy(a) for name, a in np.load(case["arrays"]).items()}
    x, y, train = arrays["x"], arrays["y"], arrays["train"]
    edge_index = torch.stack([arrays["senders"], arrays["receivers"]]).long()
    model = _GAT(x.shape[1], case["hidden"], case["classes"], case["heads"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x, edge_index)[train], y[train]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, _VERSIONS


def rgcn(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
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

    return step, _VERSIONS
