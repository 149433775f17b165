"""Small trainings that one process or several ranks run, for new processes to import."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from small_structures import config, metals, molecules, table_of
from temporal_graphs import circles, grouped
from torch import nn

from stand_in_device import DEVICE, Elsewhere
from weft.batching import BatchingConfig
from weft.errors import DataError
from weft.parallel.world import World, joined_replicas
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import prepare_links
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.nodes.training import prepare_nodes
from weft.recipes.planned_runs import PlanOption
from weft.recipes.recipe import DataOptions, Start, recipe_named
from weft.recipes.sparse_training import train_network
from weft.recipes.structures.training import train_structures
from weft.training import Run
from weft.training.ranks import shared_run
from weft.training.step import LossStep

# The name of the run's folder, the recipe, its options, the step in which a signal comes.
Case = tuple[str, str, dict[str, Any], int]

SMALL: dict[str, Any] = {"dim": 6, "hidden": (12,), "walks": 20, "epochs": 4}
# The last batch of an epoch has one graph: it is all that one of two ranks has.
BATCHES = BatchingConfig(policy="unpadded", batch_size=9)


def structures(folder: Path, run: Run, world: World, **options: Any) -> Any:
    asked = config(batching=BATCHES, epochs=3, checkpoint_every=2, **options)
    made = molecules() if asked.stress is None else metals(20)
    table = table_of(folder, made, asked)
    return train_structures(table, asked, run=run, world=world, quiet=True)


def links(run: Run, world: World, **options: Any) -> Any:
    prepared = prepare_links(circles(), LinksConfig(batch_size=101, **SMALL))
    prepared = replace(prepared, config=replace(prepared.config, **options))
    return train_network(prepared, run=run, world=world, quiet=True)


def nodes(run: Run, world: World, **options: Any) -> Any:
    asked = NodesConfig(model="fnn", batch_size=35, **SMALL, **options)
    return train_network(prepare_nodes(grouped(), asked), run=run, world=world, quiet=True)


@contextmanager
def stopped_at(step: int) -> Iterator[None]:
    """A signal comes to this process in its step number `step`."""
    take, steps = LossStep.take, []

    def counted(self: LossStep, model: nn.Module, batch: Any) -> Any:
        steps.append(None)
        if len(steps) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(self, model, batch)

    LossStep.take = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        LossStep.take = take  # type: ignore[method-assign]


def train_elsewhere(folder: Path, cases: list[Case]) -> list[dict[str, Any]]:
    """`train` on a device that is not the CPU."""
    with Elsewhere():
        return train(folder, cases, DEVICE)


def train(
    folder: Path, cases: list[Case], device: torch.device | None = None
) -> list[dict[str, Any]]:
    """What comes out of trainings, alone or as a rank that `launch` has started.

    Each case names a recipe and the folder of its run; the second rank gets a signal in step
    `stop`, if that is above 0.
    """
    ranks = joined_replicas(timedelta(seconds=300), device)
    with ranks as world, TemporaryDirectory() as own:
        # Only rank 0 has the folder of the run.
        runs = folder if world.rank == 0 else Path("/nowhere")
        found = []
        for number, (name, what, options, stop) in enumerate(cases):
            signalled = stopped_at(stop if world.rank == 1 else 0)
            shared = shared_run(runs / name, options, world, resume=True, tensorboard=False)
            with signalled, shared as run:
                if what == "structures":
                    data = Path(own, str(number))
                    data.mkdir()
                    trained = structures(data, run, world, **options)
                else:
                    trained = {"links": links, "nodes": nodes}[what](run, world, **options)
            found.append(
                {
                    "weights": [p.double().flatten().tolist() for p in trained.model.parameters()],
                    "metrics": trained.result.metrics,
                    "steps": trained.result.steps,
                    "stopped": trained.result.stopped,
                }
            )
        return found


def disagree(folder: Path) -> list[str]:
    """What `weft train links` says where ranks have other options, then where they have other data.

    Each rank reads the file edges.txt of a folder of its own.
    """
    said = []
    with joined_replicas(timedelta(seconds=300)) as world:
        os.chdir(folder / str(world.rank))
        for options in ({"seed": world.rank}, {}):
            asked = LinksConfig(data="edges.txt", **SMALL, **options)
            start = Start(
                folder=folder / "run",
                resume=False,
                init_from=None,
                source=DataOptions(),
                plan=PlanOption("links", None, None, folder=folder / "run", resume=False, ranks=2),
                quiet=True,
                console=Console(),
            )
            try:
                recipe_named("links").run(asked, start)
            except DataError as error:
                said.append(str(error))
    return said
