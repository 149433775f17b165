"""weft: SchNet, MPEU and PaiNN over batches gathered from a table on disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import weft
from weft.batching import BatchingConfig, GraphLoader, GraphSampler, graph_sizes
from weft.graphs import Budget, GraphBatch, open_table
from weft.models import MPEU, MPEUConfig, PaiNN, PaiNNConfig, SchNet, SchNetConfig
from weft.training import prepare_process


def _model(case: dict[str, Any]) -> nn.Module:
    if case["model"] == "schnet":
        return SchNet(SchNetConfig())
    if case["model"] == "mpeu":
        return MPEU(MPEUConfig())
    return PaiNN(PaiNNConfig(hidden=case["hidden"], cutoff=case["cutoff"]))


def prepare(case: dict[str, Any]) -> tuple[Callable[[], dict[str, float]], dict[str, str]]:
    """A batch by case["policy"] and an update of case["model"] a step."""
    prepare_process()
    torch.manual_seed(0)
    table = open_table(case["table"])
    budget = Budget(**case["budget"]) if case["policy"] == "dynamic" else None
    config = BatchingConfig(policy=case["policy"], batch_size=case["size"], budget=budget)
    loader = GraphLoader(table, GraphSampler(*graph_sizes(table), config))
    model = _model(case)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def batches() -> Iterator[GraphBatch]:
        for epoch in itertools.count():
            loader.set_epoch(epoch)
            yield from loader

    source = batches()

    def step() -> dict[str, float]:
        before, waited = loader.seconds, loader.waiting_seconds
        batch = next(source)
        optimizer.zero_grad()
        error = (model(batch) - batch.graphs["y"]) * batch.graph_mask
        graphs = batch.num_real_graphs
        (error.square().sum() / graphs).backward()
        optimizer.step()
        # All the work of batching, also what a thread did during the update; what the step lost
        # to it is the wait.
        return {
            "graphs": graphs,
            "batching": loader.seconds - before,
            "waiting": loader.waiting_seconds - waited,
        }

    return step, {"weft": weft.__version__, "torch": torch.__version__}
