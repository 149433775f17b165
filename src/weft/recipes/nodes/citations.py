"""Recipe: a graph convolutional network that tells the topic of a paper from who cites it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import DataError
from weft.graphs import GraphBatch, GraphTable, assemble, gcn_weights, table_from_graphs
from weft.models import GCN, GCNConfig
from weft.sources import row_normalise
from weft.training.checkpoint import load_weights
from weft.training.config import FitConfig, FitResult
from weft.training.loop import fit
from weft.training.randomness import seed_everything
from weft.training.run import Run
from weft.training.schedules import ScheduleConfig, make_scheduler

CitationSet = Literal["cora", "citeseer", "pubmed", "cora-package"]


@dataclass(frozen=True, kw_only=True)
class CitationsConfig:
    """Two-layer GCN on a citation graph, with the settings of Kipf and Welling (2017).

    Attributes:
        data: the citation graph; cora, citeseer and pubmed have the public split, cora-package
            comes with the extra `data` and has a random one like it.
        model: shape of the network.
        learning_rate: of Adam.
        schedule: how the learning rate moves; a step is an epoch here.
        weight_decay: on the first layer's weights.
        epochs: full-batch steps.
        patience: stop after this many epochs without a better validation accuracy.
        checkpoint_every: steps from one checkpoint to the next; 0 for every 30 seconds.
        seed: of the weights and of dropout.
    """

    data: CitationSet = "cora"
    model: GCNConfig = field(default_factory=GCNConfig)
    learning_rate: float = 0.01
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    weight_decay: float = 5e-4
    epochs: int = 200
    patience: int | None = None
    checkpoint_every: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        self.fit_config(quiet=True)
        for name in ("learning_rate", "weight_decay", "seed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if self.schedule.warmup > self.epochs:
            raise ValueError(
                f"schedule.warmup is {self.schedule.warmup}; it must be at most epochs, "
                f"{self.epochs}"
            )

    def fit_config(self, *, quiet: bool) -> FitConfig:
        """What the training loop is asked to do."""
        return FitConfig(
            epochs=self.epochs,
            monitor="validation_accuracy",
            mode="max",
            patience=self.patience,
            checkpoint_every=self.checkpoint_every,
            quiet=quiet,
        )


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
