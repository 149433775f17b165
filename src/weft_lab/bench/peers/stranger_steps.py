"""Models of torch_geometric's users, as they write them, with and without `weft.accelerate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import Tensor, nn
from torch_geometric import nn as layers
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import degree, to_torch_csr_tensor

_VERSIONS = {"torch_geometric": torch_geometric.__version__, "torch": torch.__version__}
# Heads of attention, and types of edges.
_HEADS, _TYPES = 4, 20


class _Own(MessagePassing):  # type: ignore[misc]
    """Linear([x_i, x_j, e]) -> ReLU -> sum."""

    def __init__(self, width: int, attributes: int) -> None:
        super().__init__(aggr="add")
        self.linear = nn.Linear(2 * width + attributes, width)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Any:
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Any:
        return self.linear(torch.cat([x_i, x_j, edge_attr], dim=-1)).relu()


class _Perceptron(_Own):
    """A message of two layers."""

    def __init__(self, width: int, attributes: int) -> None:
        super().__init__(width, attributes)
        self.second = nn.Linear(width, width)

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Any:
        return self.second(super().message(x_i, x_j, edge_attr))


class _Gate(_Own):
    """A gate of both ends and the edge."""

    def __init__(self, width: int, attributes: int) -> None:
        super().__init__(width, attributes)
        self.value = nn.Linear(width, width)

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Any:
        gate = self.linear(torch.cat([x_i, x_j, edge_attr], dim=-1)).sigmoid()
        return gate * self.value(x_j)


class _Stack(nn.Module):
    """Some layers of one kind with ReLU between them."""

    def __init__(self, made: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(made)

    def forward(self, x: Tensor, *graph: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *graph).relu()
        return x


def _layer(kind: str, width: int, attributes: int, edge_index: Tensor) -> Any:
    own = {"own": _Own, "perceptron": _Perceptron, "gate": _Gate}
    plain = {"gcn": "GCNConv", "sage": "SAGEConv", "graph": "GraphConv"}
    attention = {"gat": "GATConv", "gatv2": "GATv2Conv", "transformer": "TransformerConv"}
    if kind in own:
        return own[kind](width, attributes)
    if kind in plain:
        return getattr(layers, plain[kind])(width, width)
    if kind in attention:
        return getattr(layers, attention[kind])(width, width // _HEADS, heads=_HEADS)
    if kind == "pna":
        counts = torch.bincount(degree(edge_index[1]).long())
        scalers = ["identity", "amplification", "attenuation"]
        return layers.PNAConv(width, width, ["mean", "max", "min", "std"], scalers, counts)
    if kind in ("gin", "gine"):
        network = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        if kind == "gin":
            return layers.GINConv(network)
        return layers.GINEConv(network, edge_dim=attributes)
    if kind == "nn":
        return layers.NNConv(width, width, nn.Linear(attributes, width * width))
    if kind == "rgcn":
        return layers.RGCNConv(width, width, _TYPES)
    assert kind == "gated"
    return layers.GatedGraphConv(width, 4)


def _schnet(case: dict[str, Any], arrays: dict[str, Tensor]) -> tuple[nn.Module, list[Tensor]]:
    """torch_geometric's SchNet on all pairs of atoms, and its elements, places and molecules."""
    edge_index, molecule = arrays["edge_index"], arrays["molecule"]

    def pairs(pos: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        # Every batch has edges of its own.
        return edge_index.clone(), (pos[edge_index[0]] - pos[edge_index[1]]).norm(dim=-1)

    elements = torch.tensor([1, 6, 7, 8, 9])[torch.randint(0, 5, molecule.shape)]
    places = 1.7 * torch.randn(len(molecule), 3)
    width = case["width"]
    network = layers.SchNet(width, width, case["layers"], interaction_graph=pairs)
    return network, [elements, places, molecule]


def model(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """A training step, or inference, of case["layers"] layers of case["kind"] on a graph."""
    torch.manual_seed(0)
    arrays = {name: torch.from_numpy(a) for name, a in np.load(case["arrays"]).items()}
    edge_index, width = arrays["edge_index"], case["width"]
    x = torch.randn(int(arrays["nodes"]), width)
    attributes = torch.randn(edge_index.shape[1], case["attributes"])
    network: Any = None
    graph = [edge_index]
    if case["kind"] == "schnet":
        network, (x, *graph) = _schnet(case, arrays)
    else:
        count = range(case["layers"])
        made = [_layer(case["kind"], width, case["attributes"], edge_index) for _ in count]
        network = _Stack(made)
    if case["way"] == "csr":
        size = (x.shape[0], x.shape[0])
        graph = [to_torch_csr_tensor(edge_index.flip(0), size=size)]
    if case["kind"] in ("own", "perceptron", "gate", "gine", "nn"):
        graph.append(attributes)
    if case["kind"] == "rgcn":
        graph.append(torch.randint(0, _TYPES, (edge_index.shape[1],)))
    if case["way"] == "accelerated":
        import weft

        weft.accelerate(network, report=None)
    if case["way"] == "compiled":
        network = torch.compile(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)

    def given() -> list[Tensor]:
        # Sorted edges are kept with a tensor, which a new batch does not have.
        return [each.clone() for each in (x, *graph)] if case["new_batches"] else [x, *graph]

    def train() -> None:
        optimizer.zero_grad()
        network(*given()).square().mean().backward()
        optimizer.step()

    def infer() -> None:
        with torch.no_grad():
            network(*given())

    return (train if case["training"] else infer), _VERSIONS


class _Molecules(InMemoryDataset):  # type: ignore[misc]
    """Random graphs with the sizes and attributes of torch_geometric's QM9."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._data, self.slices = self.collate([self._graph(number) for number in range(count)])

    @staticmethod
    def _graph(number: int) -> Data:
        nodes = int(torch.randint(10, 26, ()))
        bonds = torch.randint(nodes, (2, nodes))
        return Data(
            x=torch.randn(nodes, 11),
            edge_index=torch.cat([bonds, bonds.flip(0)], dim=1),
            edge_attr=torch.randn(2 * nodes, 4),
            y=torch.randn(1, 19),
            pos=torch.randn(nodes, 3),
            z=torch.randint(1, 10, (nodes,)),
            smiles="C" * nodes,
            name=f"gdb_{number}",
            idx=torch.tensor([number]),
        )


def loader(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """An epoch of case["batches"] shuffled batches of case["size"] molecules."""
    torch.manual_seed(0)
    dataset = _Molecules(case["batches"] * case["size"])
    batches: Any = DataLoader(dataset, case["size"], shuffle=True)
    if case["way"] == "accelerated":
        import weft

        batches = weft.loader(dataset, policy="unpadded", batch_size=case["size"])

    def epoch() -> None:
        for _ in batches:
            pass

    return epoch, _VERSIONS
