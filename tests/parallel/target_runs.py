"""What a rank does in the tests of targets on grids; imported by the ranks' processes."""

from __future__ import annotations

import torch
from grid_examples import model_of

from weft.graphs import open_table
from weft.parallel.method import Method
from weft.parallel.network import GridNetwork
from weft.parallel.shard import GraphShard, predicted_own_bytes
from weft.parallel.targets import target_of
from weft.parallel.world import joined


def losses_and_scores(cases):
    """For each (table, grid, replication, weights): loss, gradients, scores, nodes, predictions."""
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
                }
            )
    return found
