"""Networks that may be sparse, on one graph: one training for all of them, and its planning."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.graphs import Array
from weft.planning.candidate import Candidate, applied
from weft.planning.task import ENDLESS, PlanTask, content_of_arrays, thread_counts
from weft.sparsify import Masks
from weft.training.batches import RowBatches
from weft.training.config import FitResult, SparsityConfig
from weft.training.loop import fit
from weft.training.randomness import seed_everything
from weft.training.ranks import gpu_of, load_on_all
from weft.training.run import Run
from weft.training.schedules import make_scheduler
from weft.training.scores import Score
from weft.training.sparse_form import load_dense
from weft.training.sparse_step import SparseStep, StepCosts, check_form

if TYPE_CHECKING:
    from weft.parallel.world import World


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedNetwork:
    """What `train_network` gives.

    Attributes:
        model: the network, with the weights of the best epoch.
        result: how the training went.
        scores: on the test data, or on each part, with intervals.
        counts: of each part of the data, of weights, and of those that are active.
        facts: what else is known of the data and the scores, by name.
        costs: of a training step of a sparse model, if they were requested; not of several ranks.
        masks: those after the last step, not of the best epoch; None where the model is dense, or
            has sparse layers alone.
    """

    model: nn.Module
    result: FitResult
    scores: dict[str, Score]
    counts: dict[str, int]
    facts: dict[str, Any]
    costs: StepCosts | None = None
    masks: Masks | None = None


Measurements = tuple[dict[str, Score], dict[str, int], dict[str, Any]]
"""The scores, counts and facts of a `TrainedNetwork`; weights are not counted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedNetwork(ABC):
    """A graph made ready, and how a network learns from it.

    Attributes:
        config: the recipe, settled.
        seconds: that walks and embeddings took.
    """

    config: Any
    seconds: float

    units: ClassVar[str]
    """What a step is counted in."""
    score: ClassVar[str]
    """The metric of `evaluate` that decides which weights are best."""

    @property
    def linear(self) -> bool:
        """Whether the layers of the network have a sparse form."""
        return True

    @abstractmethod
    def network(self) -> nn.Module:
        """The network, with new weights."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """Of the network."""

    @abstractmethod
    def rows(self) -> tuple[Tensor, ...]:
        """What is learned from, [m, ...] each; a batch is some rows of each."""

    def batches(self, world: World | None = None) -> Any:
        """The batches of an epoch, of which there is a number."""
        config = self.config
        return RowBatches(*self.rows(), batch_size=config.batch_size, seed=config.seed, world=world)

    def sample(self) -> tuple[Tensor, ...]:
        """A fixed batch for what needs a loss outside the training steps."""
        return self.rows()

    @abstractmethod
    def example(self, rows: int) -> Any:
        """So many inputs of the network, all ones; a graph has as many as it has nodes."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Of a batch."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics of the validation data."""

    @abstractmethod
    def measured(self, model: nn.Module) -> Measurements:
        """What a trained network reaches on all parts of the data."""

    @abstractmethod
    def keep(self, folder: Path) -> None:
        """Write what predictions need beside the weights to a run's folder."""

    @abstractmethod
    def content(self) -> dict[str, Array]:
        """Arrays that tell this data from other data."""

    @abstractmethod
    def on(self, device: torch.device) -> PreparedNetwork:
        """The same with what the network reads on another device."""

    @abstractmethod
    def hardly_validated(self) -> PreparedNetwork:
        """The same with as little validation data as a score needs."""

    def check_ranks(self, world: World | None) -> None:
        """Raise ValueError where several ranks cannot share this training."""
        check_form(self.config, world)

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end with these settings, and hardly evaluate: work for the planner."""
        config = applied(self.config, {**settings, "epochs": ENDLESS, "patience": None})
        train_network(dataclasses.replace(self.hardly_validated(), config=config), quiet=True)


def train_network(
    prepared: PreparedNetwork,
    *,
    run: Run | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
    measure_step: bool = False,
    world: World | None = None,
) -> TrainedNetwork:
    """Train; the model ends with the weights of the best validation score.

    Args:
        prepared: the graph and the recipe.
        run: folder to log to and to resume from; `weft predict` finds the network's inputs there.
        init_from: a run folder or file whose weights to start from.
        quiet: no progress.
        measure_step: count and time a step of a sparse training afterwards, unless ranks share it.
        world: ranks that share every batch; they give the same losses as one process.

    Raises:
        ValueError: several ranks are to train a gcn, which takes all nodes in every step, or
            sparse layers.
    """
    prepared.check_ranks(world)
    config = prepared.config
    seed_everything(config.seed)
    model = prepared.network()
    if init_from is not None:
        load_on_all(model, lambda: load_dense(model, init_from), world)
    if run is not None:
        prepared.keep(run.folder)
    if (device := gpu_of(world)) is not None:
        model.to(device)
        prepared = prepared.on(device)
    batches = prepared.batches(world)
    steps = config.epochs * len(batches)

    def optimizer_for(model: nn.Module) -> tuple[Optimizer, LRScheduler]:
        optimizer = prepared.optimizer(model)
        return optimizer, make_scheduler(optimizer, config.schedule, max(1, steps), "max")

    step = SparseStep(
        model,
        optimizer_for,
        batches,
        prepared.loss,
        config=config,
        epochs=config.epochs,
        steps=steps,
        sample=prepared.sample(),
        ones=lambda: model(prepared.example(1)),
        run=run,
        quiet=quiet,
        seed=config.seed,
        world=world,
        precision=config.precision,
    )
    result = fit(
        model,
        step.optimizer,
        batches,
        step,
        config=step.fit_config(
            checkpoint_every=config.checkpoint_every,
            patience=config.patience,
            clip_norm=config.clip_norm,
            ema=config.ema,
            counts=prepared.units,
        ),
        evaluate=step.selecting(prepared.evaluate, prepared.score),
        scheduler=step.scheduler,
        run=run,
    )
    costs = step.costs(result, prepared.example(config.batch_size)) if measure_step else None
    model.eval()
    scores, counts, facts = prepared.measured(model)
    return TrainedNetwork(
        model=model,
        result=result,
        scores=scores,
        counts=counts | step.counts(result),
        facts=facts,
        costs=costs,
        masks=step.masks,
    )


class SparseTask(PlanTask):
    """The form of the layers of a network that may be sparse, and threads."""

    config: SparsityConfig
    planned = ("form",)
    idle = (
        *("data", "walks", "length", "learning_rate", "momentum", "weight_decay", "schedule"),
        *("clip_norm", "ema"),
        *("epochs", "patience", "checkpoint_every", "seed", "death", "rho"),
        *("test", "validation", "compat", "negatives", "input_dropout"),
    )

    def __init__(self, name: str, prepared: PreparedNetwork) -> None:
        config = prepared.config
        self._linear, self._rows = prepared.linear, len(prepared.rows()[0])
        self._epoch_steps = len(prepared.batches())
        self._run_steps: int = config.epochs * self._epoch_steps
        # Masks change as often as in the run that is planned.
        every = config.update_every or max(1, self._run_steps // 20)
        asked = dataclasses.replace(config, update_every=every)
        work = dataclasses.replace(prepared, config=asked)
        super().__init__(name, config, work, content_of_arrays(prepared.content()))

    @property
    def steps(self) -> int:
        """Of the run that is requested, with the trainings that look for a lottery ticket."""
        rounds = 1 + self.config.rounds if self.config.sparsify == "lottery" else 1
        return rounds * self._run_steps

    @property
    def step_units(self) -> float:
        """Rows in a step, the mean."""
        return self._rows / self._epoch_steps

    def waves(self) -> list[list[Candidate]]:
        """Both forms with every number of threads."""
        forms = ["dense"]
        if self.config.may_be_sparse and self._linear:
            forms.append("sparse")
        elif self.config.sparsify != "none":
            sparse = Candidate({"form": "sparse", "threads": thread_counts()[0]})
            why = "needs all weights for a part of the training"
            if not self._linear:
                why = "a gcn has no layers of that form"
            self.note(sparse, f"not tried: {why}")
        return [
            [
                Candidate({"form": form, "threads": threads})
                for threads in thread_counts()
                for form in forms
            ]
        ]
