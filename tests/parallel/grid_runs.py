"""What a rank does in the tests of networks on grids; imported by the ranks' processes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from grid_examples import descend, model_of

from weft.graphs import open_table
from weft.parallel.method import Method
from weft.parallel.network import GridNetwork
from weft.parallel.shard import GraphShard
from weft.parallel.world import joined


@dataclass(frozen=True, kw_only=True)
class Case:
    """A grid, a graph and a network on it."""

    table: str
    grid: str
    replication: int | None = None
    method: Method = field(default_factory=Method)
    model: str = "gcn"
    hidden: tuple[int, ...] = (6,)
    dropout: float = 0.0
    input_dropout: float = 0.0
    dtype: torch.dtype = torch.float64


def train(case):
    """Train it a few steps, and answer with everything that can be compared."""
    with joined(case.grid, case.replication) as world:
        shard = GraphShard.open(open_table(case.table), world, case.method, case.dtype)
        widths = (shard.features, case.hidden, shard.classes)
        model = model_of(case.model, *widths, case.dropout, case.input_dropout).to(case.dtype)
        network = GridNetwork(model, shard)
        setup = list(world.recorder.events)
        world.recorder.clear()
        epoch = []

        def step():
            loss = network.step(seed=len(epoch))
            epoch.append(list(world.recorder.events))
            world.recorder.clear()
            return loss

        result = descend(model, step)
        model.eval()
        evaluation = network.evaluate()
        ids, probabilities = network.predict()
        return {
            **result,
            "rank": world.rank,
            "setup": setup,
            "events": epoch,
            "evaluation": evaluation,
            "ids": ids,
            "probabilities": probabilities,
        }


def train_all(cases):
    """Train each of them in turn."""
    return [train(case) for case in cases]
