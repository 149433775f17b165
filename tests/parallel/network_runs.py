"""What a rank does in the tests of graphs that ranks share; imported by the ranks' processes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from grid_examples import descend

from weft.graphs import open_table
from weft.models.config import GraphNetworkConfig
from weft.parallel import DistributedGraph
from weft.parallel.graph_network import GraphNetwork
from weft.parallel.world import joined


@dataclass(frozen=True, kw_only=True)
class NetworkCase:
    """A graph and the shape of a network on it."""

    table: str
    config: GraphNetworkConfig


def network_of(features, classes, config):
    """The network in float64, the same in every process; no parameter is a round number."""
    torch.manual_seed(3)
    model = GraphNetwork(features, classes, config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def trained(graph, model):
    """Losses, gradients, weights and buffers after some steps, and logits with their nodes."""

    def step():
        model.zero_grad()
        loss = graph.cross_entropy(model(graph, graph.x))
        loss.backward()
        graph.sum_gradients(model.parameters())
        return loss.item()

    found = descend(model, step)
    model.eval()
    with torch.no_grad():
        logits = model(graph, graph.x)
    return {**found, "buffers": dict(model.named_buffers()), "ids": graph.ids, "logits": logits}


def train_networks(grids):
    """Train the cases of each grid, given by its name and replication, in turn.

    A sentence is the answer where a network is refused.
    """
    answers = {}
    for (name, replication), cases in grids.items():
        with joined(name, replication) as world:
            opened, found = {}, []
            for case in cases:
                if case.table not in opened:
                    table = open_table(case.table)
                    opened[case.table] = DistributedGraph.open(table, world, dtype=torch.float64)
                graph = opened[case.table]
                model = network_of(graph.features, graph.classes, case.config)
                try:
                    found.append(trained(graph, model))
                except ValueError as error:
                    found.append(str(error))
            answers[name, replication] = found
    return answers
