"""What a rank does in the tests of targets on grids; imported by the ranks' processes."""

from __future__ import annotations

import torch
from grid_examples import model_of

from weft.graphs import open_table
from weft.models.config import GraphNetworkConfig
from weft.parallel.graph_network import GraphNetwork
from weft.parallel.method import Method
from weft.parallel.module_network import ModuleNetwork
from weft.parallel.network import GridNetwork
from weft.parallel.shard import GraphShard, predicted_own_bytes
from weft.parallel.targets import predictions_of, target_of
from weft.parallel.world import joined


def losses_and_scores(cases):
    """For each (table, grid, replication, weights): loss, gradients, scores, nodes, predictions.

    Of a GridNetwork, and under `module` of a ModuleNetwork with the same weights.
    """
    found = []
    for path, grid, replication, weights in cases:
        with joined(grid, replication) as world:
            shard = GraphShard.open(open_table(path), world, Method(), torch.float64)
            model = model_of("gcn", shard.features, (6,), shard.classes, 0.0, 0.0).double()
            network = GridNetwork(model, shard, target_of(shard, shard.classes, weights))
            world.recorder.clear()
            loss = network.step(seed=0)
            received = {kind: each.bytes for kind, each in world.recorder.totals().items()}
            widths = (shard.features, 6, shard.classes)
            formulas = predicted_own_bytes(shard, widths, model="gcn", input_dropout=False)
            model.eval()
            ids, predictions = network.predict()
            found.append(
                {
                    "loss": loss,
                    "gradients": [p.grad.clone() for p in model.parameters()],
                    "scores": network.evaluate(),
                    "ids": ids,
                    "predictions": predictions,
                    "unpredicted": {k: v for k, v in received.items() if v != formulas.get(k, 0)},
                    "module": of_module(model, shard, weights),
                }
            )
    return found


def of_module(model, shard, weights):
    """The same of a module that reads the shared graph."""
    config = GraphNetworkConfig(hidden=(6,), dropout=0.0)
    module = GraphNetwork(shard.features, shard.classes, config).double()
    module.load_state_dict(model.state_dict())
    network = ModuleNetwork(module, shard, lambda own: target_of(own, own.classes, weights))
    loss = network.step(seed=0)
    ids, outputs = network.outputs()
    about = shard.table.metadata
    return {
        "loss": loss,
        "gradients": [p.grad.clone() for p in module.parameters()],
        "scores": network.evaluate(),
        "ids": ids,
        "predictions": predictions_of(
            outputs, about.get("target", "classes"), about.get("target_scale")
        ),
    }
