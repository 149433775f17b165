"""Training on a table of many graphs, and its plan: what molecules, crystals and programs share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from weft.batching import GraphLoader, GraphSampler
from weft.files import json_text, write_atomically
from weft.graphs import GraphTable
from weft.parallel.world import World, joined_replicas
from weft.planning.candidate import PROCESSES, applied
from weft.planning.task import ENDLESS
from weft.planning.worker_client import PaceAddress, pace_address, pace_at
from weft.recipes.recipe import ABOUT
from weft.training.checkpoint import load_weights
from weft.training.compilation import Compilation
from weft.training.config import FitResult, ScheduleConfig
from weft.training.launch import launch
from weft.training.loop import fit
from weft.training.numerics import prepare_process
from weft.training.optimizers import make_optimizer
from weft.training.ranks import load_on_all
from weft.training.run import Run
from weft.training.schedules import make_scheduler
from weft.training.step import Step


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training on batches of graphs gives.

    Attributes:
        model: with the best weights.
        result: how the training went.
        scores: by part and metric, such as `test_mae`.
        counts: graphs in each part, and those that were left out, by why.
        compilation: what was compiled, when it was.
        batching_share: of this session's time that was spent waiting for training batches.
        outside_share: of this session's edges that were outside the blocks of a banded layout.
        details: more for the summary, JSON values.
    """

    model: Any
    result: FitResult
    scores: dict[str, float]
    counts: dict[str, int]
    compilation: Compilation
    batching_share: float
    outside_share: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    def summary(self, sampler: GraphSampler) -> dict[str, Any]:
        """Of the training with this sampler's batches, as JSON values."""
        return {
            **self.scores,
            **self.details,
            "counts": self.counts,
            "fill": asdict(sampler.statistics()),
            "batching_share": self.batching_share,
            "compilation": self.compilation.report(),
        }


def describe_run(run: Run, about: Mapping[str, Any]) -> None:
    """Write what the network was made for, beside the config in the run's folder."""
    text = json_text(about, indent=2) + "\n"
    write_atomically(run.folder / ABOUT, lambda file: file.write(text.encode()))


def start_from(model: nn.Module, init_from: Path | None, world: World | None) -> None:
    """Give the model the weights of a run folder or file, if there is one; rank 0's counts."""
    if init_from is not None:
        load_on_all(model, lambda: load_weights(model, init_from), world)


def planned_steps(config: Any, epoch_steps: int) -> int:
    """Steps of the run that `config` asks for, where an epoch has so many."""
    steps: int = config.epochs * epoch_steps
    return steps if config.max_steps is None else min(steps, config.max_steps)


def train_on_table(
    model: nn.Module,
    train: GraphLoader,
    step: Step,
    *,
    config: Any,
    schedule: ScheduleConfig,
    parts: Iterable[str],
    measure: Callable[[str], Mapping[str, float]],
    counts: dict[str, int],
    compilation: Compilation,
    run: Run | None,
    quiet: bool,
    world: World | None,
    yields: bool = True,
) -> Trained:
    """Train by `config`; then `measure` each of the `parts` with the best weights.

    One of the parts is called validation. Where not `yields`, the threads stay as many. The other
    arguments are as of a recipe's own function.
    """
    optimizer = make_optimizer(config, model.parameters(), rate=config.learning_rate, fused=True)
    steps = planned_steps(config, len(train))
    how = config.fit_config(quiet=quiet or (world is not None and world.rank > 0))
    how = replace(how, yield_cores=how.yield_cores and yields)

    def scores(part: str) -> dict[str, float]:
        return {f"{part}_{name}": value for name, value in measure(part).items()}

    began = time.perf_counter()
    result = fit(
        model,
        optimizer,
        train,
        step,
        config=how,
        evaluate=lambda _: scores("validation"),
        scheduler=make_scheduler(optimizer, schedule, max(1, steps), how.mode),
        run=run,
    )
    seconds = time.perf_counter() - began
    model.eval()
    found: dict[str, float] = {}
    if not result.stopped.startswith("interrupted"):
        for part in parts:
            found |= scores(part)
    return Trained(
        model=model,
        result=result,
        scores=found,
        counts=counts,
        compilation=compilation,
        batching_share=train.waiting_seconds / seconds,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TableWork:
    """Training on a table, for the planner; a table on disk travels as its path.

    Attributes:
        table: the graphs.
        config: what the candidates' settings are put into.
        units: what a step is counted in.
        prepare: gives what is trained on, with its `split`, for a table and a configuration.
        train_prepared: trains on it.
    """

    table: GraphTable
    config: Any
    units: str
    prepare: Callable[[GraphTable, Any], Any]
    train_prepared: Callable[..., object]

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end, and evaluate as little as can be; several ranks are started here."""
        ranks = int(settings.get(PROCESSES, 1))
        if ranks == 1:
            self.train_alone(settings)
            return
        with TemporaryDirectory(prefix="weft-plan-") as logs:
            launch(_train_rank, (self, settings, pace_address()), ranks=ranks, logs=Path(logs))

    def train_alone(self, settings: Mapping[str, Any], world: World | None = None) -> None:
        """The same in this process, which may be one of several ranks."""
        config = replace(
            applied(self.config, settings), epochs=ENDLESS, max_steps=None, patience=None
        )
        prepared = self.prepare(self.table, config)
        few = {"validation": prepared.split["validation"][:1], "test": prepared.split["test"][:0]}
        few_evaluated = replace(prepared, split={**prepared.split, **few})
        self.train_prepared(few_evaluated, quiet=True, world=world)


def _train_rank(work: TableWork, settings: Mapping[str, Any], address: PaceAddress) -> None:
    """One of the ranks; the first learns when to step, and the others wait for it."""
    prepare_process()
    # The other ranks wait for the first while other candidates have their turns.
    with pace_at(address), joined_replicas(timeout=timedelta(hours=1)) as world:
        work.train_alone(settings, world)
