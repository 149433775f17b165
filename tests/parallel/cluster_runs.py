"""What a rank does in the tests of clusters; imported by the ranks' processes."""

from __future__ import annotations

import torch
from grid_examples import model_of

from weft.graphs import open_table
from weft.models.config import GraphNetworkConfig
from weft.parallel.clusters import ClusterSteps
from weft.parallel.graph_network import GraphNetwork
from weft.parallel.method import Method
from weft.parallel.module_network import network_of
from weft.parallel.shard import GraphShard
from weft.parallel.targets import target_of
from weft.parallel.world import joined


def an_epoch(whole, clusters, kind, weights=()):
    """Clusters, loss, nodes and gradients of each step of an epoch, without any update.

    Buffers after it, too; `kind` is gcn, or norm for a module with batch norms.
    """
    with joined("1d") as world:
        shard = GraphShard.open(open_table(whole), world, Method(), torch.float64)
        model = model_of("gcn", shard.features, (6,), shard.classes).double()
        if kind == "norm":
            config = GraphNetworkConfig(hidden=(6,), dropout=0.0, norm="batch")
            model = GraphNetwork(shard.features, shard.classes, config).double()
        target = network_of(
            model, shard, lambda rows: target_of(rows, rows.classes, weights)
        ).target
        steps = ClusterSteps(
            open_table(clusters),
            model,
            target,
            world,
            per_step=2,
            normalisation="symmetric",
            seed=4,
        )
        found = []
        for number in range(len(steps)):
            loss, nodes = steps.step(3, number, 0)
            gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            own = steps.own(3, number)
            found.append({"own": own, "loss": loss, "nodes": nodes, "gradients": gradients})
        return found, [buffer.clone() for buffer in model.buffers()]
