"""Recipe: node classification on one graph that many ranks share, whole, in every step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from weft.errors import DataError
from weft.graphs import GraphTable, open_table
from weft.parallel.device import own_device
from weft.parallel.grid import Grid
from weft.parallel.meeting import check_in
from weft.parallel.world import World, joined
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import check_precision, check_target
from weft.recipes.full_graph.session import OLD_CHECKPOINTS, TrainedFullGraph, train_shared
from weft.training.checkpoint import CHECKPOINT, load_checkpoint
from weft.training.config import FitResult
from weft.training.launch import LaunchStopped, is_a_rank, launch
from weft.training.numerics import prepare_process
from weft.training.run import LOGS, Run

_Prepared = TypeVar("_Prepared")
PREPARING = timedelta(hours=2)
"""What ranks wait at most for the first of another host to prepare the graph."""


def train_full_graph(
    table: GraphTable,
    config: FullGraphConfig,
    grid: Grid,
    *,
    folder: Path,
    clusters: GraphTable | None = None,
    resume: bool = False,
    init_from: Path | None = None,
    quiet: bool = False,
    max_restarts: int = 3,
    tell: Callable[[str], object] = lambda text: None,
    loggers: Sequence[str] = ("tensorboard",),
) -> TrainedFullGraph:
    """Train with the ranks that `config` asks for, and keep everything in the run's folder.

    Several are started here, on this machine, and started again from the last checkpoint where
    one is killed; a script that does this has its own work under `if __name__ == "__main__":`.
    In a process that torchrun has started, this is one of the ranks.

    Args:
        table: the prepared graph, see `full_graph_table`; on disk, if there are several ranks.
        config: the recipe.
        grid: of the ranks.
        folder: of the run.
        clusters: the same graph in clusters, where `config` asks for them, see
            `full_graph_clusters`; on disk too.
        resume: go on with the run in that folder, on any number of ranks; the recipe must be the
            same.
        init_from: a run folder or file whose weights to start from.
        quiet: no progress.
        max_restarts: how often ranks are started again at most.
        tell: takes a sentence for the user about each restart.
        loggers: what metrics go to beside metrics.jsonl, see `Run.create`.

    Raises:
        DataError: the folder holds another run; a checkpoint is of another model or data; ranks
            have different data. The same on all ranks.
            A rank has failed for good (RankError), such as rank 0 where it cannot write a
            checkpoint: the others then wait for it until they are ended or their time is out.
            The table is damaged, has no node to train on, or a matrix of less than `config.dtype`.
    """
    if grid.ranks != config.num_ranks:
        raise ValueError(f"the grid {grid.shape} has {grid.ranks} ranks, not {config.num_ranks}")
    if not table.metadata["counts"]["train"]:
        raise DataError(f"{config.data} has no node to train on; mark some in a column 'train'")
    check_precision(table, config)
    check_target(table, config)
    if table.path is not None and not table.checked and os.environ.get("LOCAL_RANK", "0") == "0":
        # Ranks only compare what the manifest says. Rank 0 of each host checks the files.
        open_table(table.path, check=True)
    session: dict[str, Any] = {"folder": folder, "init_from": init_from, "quiet": quiet}
    session["loggers"] = loggers
    if is_a_rank() or grid.ranks == 1:
        return _train_rank(table, config, grid, clusters=clusters, resume=resume, **session)
    session["clusters"] = None if clusters is None else clusters.path
    if table.path is None or (clusters is not None and clusters.path is None):
        raise ValueError("the table is in memory; several ranks open it from a folder")
    # Before any rank is started: what is wrong with the folder is said at once.
    open_run(table, config, folder, resume=resume).close()
    try:
        answers = launch(
            _train_launched,
            (table.path, config, grid, session),
            ranks=grid.ranks,
            logs=folder / LOGS,
            max_restarts=max_restarts,
            again=lambda: _restart_point(folder, "epoch" if clusters is None else "step"),
            tell=tell,
        )
    except LaunchStopped as stop:
        epochs, steps = done_epochs(folder)
        result = FitResult(epochs=epochs, steps=steps, stopped=f"interrupted by {stop.signal}")
        return TrainedFullGraph(result=result, scores={}, communication=None)
    found: TrainedFullGraph = answers[0]
    return found


def open_run(
    table: GraphTable,
    config: FullGraphConfig,
    folder: Path,
    *,
    resume: bool,
    loggers: Sequence[str] = (),
) -> Run:
    """The run in `folder`, see `Run.create`."""
    return Run.create(
        folder,
        config.recipe(),
        data=table.metadata.get("contents"),
        resume=resume,
        tensorboard=False,
        loggers=loggers,
        recipe="full-graph",
    )


def _restart_point(folder: Path, unit: str) -> str:
    """From where ranks that are started again go on, for people."""
    try:
        return f"{unit} {done_epochs(folder)[1]}"
    except DataError:
        # The ranks will say that it is damaged; here it would hide why one has failed.
        return "the last checkpoint"


def done_epochs(folder: Path) -> tuple[int, int]:
    """Epochs that the last checkpoint of a run has trained and evaluated, and steps trained.

    Raises:
        DataError: it is damaged.
    """
    if (folder / CHECKPOINT).exists():
        progress = load_checkpoint(folder / CHECKPOINT, "progress")["progress"]
        return progress["epoch"], progress["step"]
    if not (folder / OLD_CHECKPOINTS).is_dir():
        return 0, 0
    from weft.recipes.full_graph.old_checkpoint import last_epoch

    epoch = last_epoch(folder / OLD_CHECKPOINTS)
    return epoch, epoch


def join(grid: Grid, config: FullGraphConfig) -> AbstractContextManager[World]:
    """The ranks of `grid`, this process among them, on the device that `config` asks for."""
    asked = config.on_grid(grid)
    device = own_device(config.device)
    return joined(asked.grid, asked.replication, device=device, timeout=config.wait)


def first_of_host(work: Callable[[], _Prepared], tell: Callable[[str], object] | None) -> _Prepared:
    """What `work` gives; the first rank of each host prepares it, the others find it prepared.

    All ranks together, after `joined_replicas`; outside of torchrun this is `work` itself. Rank 0
    `tell`s whom it waits for. A host whose ranks have the data already writes nothing.

    Raises:
        DataError: on every rank: the data of one of them cannot be prepared, and why.
    """
    if not is_a_rank():
        return work()
    found, said = None, ""
    try:
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            found = work()
    except (ValueError, OSError) as error:
        said = str(error)
        raise
    except BaseException:
        said = "it has failed; see its message"
        raise
    finally:
        check_in("prepare the graph", PREPARING, tell)
        heard = [""] * dist.get_world_size()
        dist.all_gather_object(heard, said)
    for rank, words in enumerate(heard):
        if words:
            raise DataError(f"rank {rank}: {words}")
    return found or work()


def _train_launched(
    path: Path, config: FullGraphConfig, grid: Grid, session: dict[str, Any]
) -> TrainedFullGraph:
    """One of the ranks that `launch` has started."""
    prepare_process()
    clusters = session["clusters"]
    if clusters is not None:
        session = {**session, "clusters": open_table(clusters, check=False)}
    # Whoever started the ranks has checked it: each reads its own part, and no more.
    return _train_rank(open_table(path, check=False), config, grid, resume=None, **session)


def _train_rank(
    table: GraphTable,
    config: FullGraphConfig,
    grid: Grid,
    *,
    folder: Path,
    clusters: GraphTable | None,
    resume: bool | None,
    init_from: Path | None,
    quiet: bool,
    loggers: Sequence[str],
) -> TrainedFullGraph:
    """Train as one of the ranks, or alone; `resume` is None where the launcher has begun the run.

    Rank 0 has the run's folder.
    """
    with join(grid, config) as world, ExitStack() as opened:
        runs: list[Run] = []

        def open_here() -> None:
            if resume is None:
                run = Run(folder, tensorboard=False, loggers=loggers)
            else:
                run = open_run(table, config, folder, resume=resume, loggers=loggers)
            runs.append(opened.enter_context(run))

        world.broadcast_from_rank0(open_here)
        run = runs[0] if runs else None
        return train_shared(
            table, world, config, clusters=clusters, run=run, init_from=init_from, quiet=quiet
        )
