"""Small models, ours and a stranger's, each with a function that gives its loss."""

import warnings
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from weft.graphs import (
    Column,
    Graph,
    assemble,
    gcn_weights,
    symmetrised,
    table_from_columns,
    table_from_graphs,
)
from weft.models import GCN, GCNConfig, GraphSAGE, SchNet, SchNetConfig
from weft.sources import FullyConnected, with_neighbours

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


def fnn(widths=(6, 12, 9, 3), *, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    layers = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batches(model, *, rows=16, seed=0):
    """A function that gives the loss on the next of endless random batches."""
    generator = torch.Generator().manual_seed(seed)
    first, *_, last = [module for module in model.modules() if isinstance(module, nn.Linear)]

    def loss():
        x = torch.randn(rows, first.in_features, generator=generator, dtype=torch.float64)
        y = torch.randint(last.out_features, (rows,), generator=generator)
        return nn.functional.cross_entropy(model(x.to(first.weight.dtype)), y)

    return loss


def train(optimizer, loss, steps, *, micro_batches=1, after=None):
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            value = loss() / micro_batches
            value.backward()
        optimizer.step()
        values.append(value.item())
        if after is not None:
            after()
    return values


def geometric(kind):
    """A torch_geometric model and its loss."""
    # Its import uses what torch has deprecated.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_geometric.nn as pyg

    torch.manual_seed(0)
    options = {"heads": 2} if kind == "GAT" else {}
    model = getattr(pyg, kind)(6, 8, num_layers=2, out_channels=4, **options).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    edges = torch.randint(20, (2, 60), generator=generator)
    y = torch.randint(4, (20,), generator=generator)
    return model, lambda: nn.functional.cross_entropy(model(x, edges), y)


def ours(kind):
    """One of weft's models and its loss."""
    torch.manual_seed(0)
    if kind == "SchNet":
        model = SchNet(
            SchNetConfig(hidden=8, filters=6, layers=2, centres=20, spacing=0.25)
        ).double()
        batch = _molecules()
        return model, lambda: model(batch).square().mean()
    rng = np.random.default_rng(0)
    ends = rng.integers(20, size=(2, 50))
    ends = ends[:, ends[0] != ends[1]]
    x = rng.standard_normal((20, 6)).astype(np.float32)
    graph = symmetrised(Graph(num_nodes=20, senders=ends[0], receivers=ends[1], nodes={"x": x}))
    batch = assemble(table_from_graphs([gcn_weights(graph)]), [0])
    model = (
        GCN(6, 4, GCNConfig(hidden=(8,), dropout=0.0, input_dropout=0.0))
        if kind == "GCN"
        else GraphSAGE(6, 4)
    )
    model.eval()
    y = torch.from_numpy(rng.integers(4, size=20))
    return model, lambda: nn.functional.cross_entropy(model(batch), y)


def _molecules():
    rng = np.random.default_rng(0)
    sizes = np.array([4, 5, 3])
    schema = {
        "z": Column(level="node", dtype="uint8"),
        "pos": Column(level="node", dtype="float64", shape=(3,), unit="Å"),
    }
    columns = {
        "z": rng.choice(np.array([1, 6, 8]), sizes.sum()).astype(np.uint8),
        "pos": rng.uniform(0, 4, (sizes.sum(), 3)),
    }
    table = table_from_columns(schema, num_nodes=sizes, columns=columns)
    return assemble(with_neighbours(table, FullyConnected(), progress=False), range(3))
