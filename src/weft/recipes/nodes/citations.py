"""Recipe: a graph convolutional network that tells the topic of a paper from who cites it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import DataError
from weft.graphs import GraphBatch, GraphTable, assemble, gcn_weights, table_from_graphs
from weft.models import GCN
from weft.recipes.nodes.config import CitationsConfig
from weft.sources import row_normalise
from weft.training.checkpoint import load_weights
from weft.training.config import FitResult
from weft.training.loop import fit
from weft.training.randomness import seed_everything
from weft.training.run import Run
from weft.training.schedules import make_scheduler


def citation_batch(table: GraphTable) -> GraphBatch:
    """The graph of a citation table, ready for a GCN: features sum to 1 a node, edges weighted.

    Raises:
        DataError: a column that is needed is not there, or the table is not one graph.
    """
    for name in ("x", "y", "train", "validation", "test"):
        table.column(name)
    if len(table) != 1:
        raise DataError(f"a citation table holds one graph, this one holds {len(table)}")
    graph = table[0]
    graph = replace(graph, nodes={**graph.nodes, "x": row_normalise(graph.nodes["x"])})
    return assemble(table_from_graphs([gcn_weights(graph)]), [0])


def train_citations(
    batch: GraphBatch,
    config: CitationsConfig,
    *,
    run: Run | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
) -> tuple[nn.Module, FitResult, dict[str, float]]:
    """Train on `batch` (see `citation_batch`); give the model with the best validation accuracy.

    Args:
        batch: the graph.
        config: the recipe.
        run: folder to log to and to resume from.
        init_from: a run folder or file whose weights to start from.
        quiet: no progress.

    Returns:
        The model, how the training went, and its loss and accuracy on each part of the split.
    """
    seed_everything(config.seed)
    y = batch.nodes["y"]
    parts = {name: batch.nodes[name] for name in ("train", "validation", "test")}
    model = GCN(batch.nodes["x"].shape[1], int(y.max()) + 1, config.model)
    if init_from is not None:
        load_weights(model, init_from)
    first, *others = model.layers
    groups: list[dict[str, Any]] = [
        {"params": list(first.parameters()), "weight_decay": config.weight_decay},
        {"params": [p for layer in others for p in layer.parameters()]},
    ]
    optimizer = torch.optim.Adam(groups, lr=config.learning_rate)

    def loss(model: nn.Module, batch: GraphBatch) -> Tensor:
        return functional.cross_entropy(model(batch)[parts["train"]], y[parts["train"]])

    @torch.no_grad()
    def measure(model: nn.Module, names: Sequence[str]) -> dict[str, float]:
        logits = model(batch)
        results = {}
        for name in names:
            mask = parts[name]
            right = logits[mask].argmax(1) == y[mask]
            results[f"{name}_accuracy"] = float(right.double().mean())
            results[f"{name}_loss"] = float(functional.cross_entropy(logits[mask], y[mask]))
        return results

    result = fit(
        model,
        optimizer,
        [batch],
        loss,
        config=config.fit_config(quiet=quiet),
        evaluate=lambda model: measure(model, ["validation"]),
        scheduler=make_scheduler(optimizer, config.schedule, max(1, config.epochs)),
        run=run,
    )
    model.eval()
    return model, result, measure(model, list(parts))
