"""Small graphs with everything that is awkward, and plain dense training on them."""

from __future__ import annotations

import numpy as np
import torch

from weft.graphs import Graph
from weft.models import GCN, GCNConfig, GraphSAGE, SAGEConfig

STEPS = 5
RATE = 0.5


def graph_of(nodes=53, edges=300, features=5, classes=4, *, directed=True, seed=0):
    """Uneven, directed and weighted; some nodes have no edge, and training nodes sit together."""
    rng = np.random.default_rng(seed)
    senders = rng.integers(nodes - nodes // 4, size=edges)
    receivers = rng.integers(nodes - nodes // 5, size=edges)
    weight = rng.uniform(0.5, 2, size=edges)
    if not directed:
        senders, receivers = (
            np.concatenate([senders, receivers]),
            np.concatenate([receivers, senders]),
        )
        weight = np.concatenate([weight, weight])
    part = np.arange(nodes)
    return Graph(
        num_nodes=nodes,
        senders=senders,
        receivers=receivers,
        nodes={
            "x": rng.standard_normal((nodes, features)),
            "y": rng.integers(classes, size=nodes),
            # Only the first nodes train, so that most ranks have none.
            "train": part < max(2, nodes // 5),
            "validation": (part >= nodes // 5) & (part < nodes // 2),
            "test": part >= nodes // 2,
        },
        edges={"weight": weight},
    )


def model_of(name, features, hidden, classes, dropout=0.0, input_dropout=0.0):
    torch.manual_seed(1)
    kind, config = {"gcn": (GCN, GCNConfig), "sage": (GraphSAGE, SAGEConfig)}[name]
    settings = config(hidden=hidden, dropout=dropout, input_dropout=input_dropout)
    model = kind(features, classes, settings).double()
    with torch.no_grad():
        for layer in model.layers:
            layer.bias.normal_()
    return model


def dense_training(model, matrix, x, y, train):
    """Loss, first gradients and weights after some steps of plain gradient descent."""
    sage = isinstance(model, GraphSAGE)

    def forward():
        h = x
        for number, layer in enumerate(model.layers):
            h = h.relu() if number else h
            if sage:
                h = (matrix @ h) @ layer.neighbours + h @ layer.own + layer.bias
            else:
                h = (matrix @ h) @ layer.weight + layer.bias
        return h

    def step():
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward()[train], y[train])
        loss.backward()
        return loss.item()

    return {**descend(model, step), "logits": forward().detach()}


def descend(model, step):
    """Losses, first gradients and final weights; `step` gives a loss and leaves gradients."""
    losses, gradients = [], None
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        losses.append(step())
        if gradients is None:
            gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    return {
        "losses": losses,
        "gradients": gradients,
        "weights": [p.detach().clone() for p in model.parameters()],
    }
