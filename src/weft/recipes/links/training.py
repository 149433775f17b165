"""Recipe: which nodes of a temporal graph are joined next, from embeddings of walks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.graphs import Array
from weft.models import FNN
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.data import LinkSplit, split_links, walk_embedding
from weft.sources import EdgeList
from weft.sparsify import Masks
from weft.training.batches import RowBatches
from weft.training.config import FitResult
from weft.training.loop import fit
from weft.training.randomness import seed_everything
from weft.training.ranks import load_on_all
from weft.training.run import Run
from weft.training.saved_inputs import keep_inputs
from weft.training.schedules import make_scheduler
from weft.training.scores import Score, average_precision, bootstrap, roc_auc
from weft.training.sparse_form import load_dense
from weft.training.sparse_step import SparseStep, StepCosts

if TYPE_CHECKING:
    from weft.parallel.world import World

KIND = "links"

# Pairs at a time where no gradient is needed, and at most where a fixed sample is.
_ROWS = 2**16


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedLinks:
    """A temporal graph made ready for a recipe.

    Attributes:
        config: the recipe.
        split: pairs to learn from, to choose by and to test on.
        embedding: float32 [n, dim].
        seconds: that walks and embeddings took.
    """

    config: LinksConfig
    split: LinkSplit
    embedding: Array
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedLinks:
    """What `train_links` gives.

    Attributes:
        model: gives a logit [b, 1] for concatenated embeddings [b, 2 dim].
        result: how the training went.
        scores: `auc` and `ap` of the test pairs with intervals.
        counts: edges in each part, nodes, weights and those that are active.
        repeated: see `LinkSplit`.
        costs: of a training step of a sparse model, if they were asked for; not of several ranks.
        masks: those after the last step, not of the best epoch; None where the model is dense, or
            has sparse layers alone.
    """

    model: FNN
    result: FitResult
    scores: dict[str, Score]
    counts: dict[str, int]
    repeated: float
    costs: StepCosts | None = None
    masks: Masks | None = None


def prepare_links(edges: EdgeList, config: LinksConfig) -> PreparedLinks:
    """Split a temporal graph and embed its nodes.

    Raises:
        DataError: the graph has too few edges, too few pairs that are none, or gensim is missing.
    """
    split = split_links(
        edges,
        validation=config.validation,
        test=config.test,
        compat=config.compat,
        seed=config.seed,
    )
    began = time.perf_counter()
    embedding = walk_embedding(
        split.known,
        dim=config.dim,
        walks=config.walks,
        length=config.length,
        keep=config.keep,
        seed=config.seed,
    )
    seconds = time.perf_counter() - began
    return PreparedLinks(config=config, split=split, embedding=embedding, seconds=seconds)


def make_fnn(config: LinksConfig) -> FNN:
    """The network, which gives a logit [b, 1] for concatenated embeddings [b, 2 dim]."""
    return FNN((2 * config.dim, *config.hidden, 1), config.model)


def train_links(
    prepared: PreparedLinks,
    *,
    run: Run | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
    measure_step: bool = False,
    world: World | None = None,
) -> TrainedLinks:
    """Train; the model ends with the weights of the best validation AUC.

    Args:
        prepared: the graph and the recipe.
        run: folder to log to and to resume from; `weft predict` finds embeddings and names there.
        init_from: a run folder or file whose weights to start from.
        quiet: no progress.
        measure_step: count and time a step of a sparse training afterwards, unless ranks share it.
        world: ranks that share every batch; they give the same losses as one process.
    """
    config, split = prepared.config, prepared.split
    seed_everything(config.seed)
    embedding = torch.from_numpy(prepared.embedding)
    model = make_fnn(config)
    if init_from is not None:
        load_on_all(model, lambda: load_dense(model, init_from), world)
    if run is not None:
        keep_inputs(run.folder, KIND, split.known.ids, {"embedding": embedding})
    nodes, labels = torch.from_numpy(split.train.nodes), torch.from_numpy(split.train.labels)
    batches = RowBatches(nodes, labels, batch_size=config.batch_size, seed=config.seed, world=world)
    steps = config.epochs * len(batches)

    def optimizer_for(model: nn.Module) -> tuple[Optimizer, LRScheduler]:
        optimizer = torch.optim.SGD(
            model.parameters(), lr=config.learning_rate, momentum=config.momentum
        )
        return optimizer, make_scheduler(optimizer, config.schedule, steps)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        pairs, labels = batch
        logits = model(embedding[pairs].flatten(1))[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))

    def evaluate(model: nn.Module) -> dict[str, float]:
        labels = split.validation.labels
        logits = link_logits(model, embedding, split.validation.nodes)
        return {
            "validation_auc": roc_auc(logits, labels),
            "validation_ap": average_precision(logits, labels),
        }

    # Edges come first among the pairs; a sample must have both kinds.
    some = torch.from_numpy(
        np.random.default_rng(config.seed).permutation(len(nodes))[: min(_ROWS, len(nodes))]
    )
    step = SparseStep(
        model,
        optimizer_for,
        batches,
        loss,
        config=config,
        epochs=config.epochs,
        steps=steps,
        sample=(nodes[some], labels[some]),
        ones=lambda: model(embedding.new_ones(1, 2 * config.dim)),
        run=run,
        quiet=quiet,
        seed=config.seed,
        world=world,
    )
    result = fit(
        model,
        step.optimizer,
        batches,
        step,
        config=step.fit_config(checkpoint_every=config.checkpoint_every),
        evaluate=step.selecting(evaluate, "validation_auc"),
        scheduler=step.scheduler,
        run=run,
    )
    example = embedding.new_ones(config.batch_size, 2 * config.dim)
    costs = step.costs(result, example) if measure_step else None
    model.eval()
    return TrainedLinks(
        model=model,
        result=result,
        scores=bootstrap(link_logits(model, embedding, split.test.nodes), split.test.labels),
        counts={
            "nodes": len(embedding),
            "train": len(split.train.labels) // 2,
            "validation": len(split.validation.labels) // 2,
            "test": len(split.test.labels) // 2,
            **step.counts(result),
        },
        repeated=split.repeated,
        costs=costs,
        masks=step.masks,
    )


@torch.no_grad()
def link_logits(model: nn.Module, embedding: Tensor, pairs: Array) -> Array:
    """Logits float32 [m] of pairs of nodes int64 [m, 2]."""
    parts = torch.split(torch.from_numpy(pairs), _ROWS)
    found: Array = torch.cat([model(embedding[part].flatten(1))[:, 0] for part in parts]).numpy()
    return found
