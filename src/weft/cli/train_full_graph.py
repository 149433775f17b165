"""`weft train full-graph`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import tyro
from rich.console import Console
from rich.table import Table

from weft.cli.plan_option import PlanOption
from weft.cli.show import interrupted, print_config
from weft.errors import DataError
from weft.graphs import GraphTable
from weft.parallel.device import own_device
from weft.parallel.grid import Grid, grid_of, grids_for
from weft.parallel.world import process_group
from weft.recipes.full_graph.candidates import FullGraphRecipe
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import full_graph_table
from weft.recipes.full_graph.session import TrainedFullGraph
from weft.recipes.full_graph.training import train_full_graph
from weft.recipes.structures.data import file_name_of
from weft.training import Run, prepare_process
from weft.training.launch import RankError, is_a_rank, lost_ranks_named

# What ranks wait at most for the first of their host to prepare the graph.
_PREPARING = timedelta(hours=2)
# Elastic's own name for how often it has started its ranks again.
_RESTARTED = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, kw_only=True)
class FullGraph:
    """Train a GCN or GraphSAGE on one big graph that several ranks share, each holding its part.

    The ranks are started here, on this machine, and started again from the last checkpoint where
    one is killed. Over several hosts they are started with torchrun, without --ranks; it restarts
    them itself (--max-restarts 3; with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, or they may meet the
    addresses of those before). Examples:
      weft train full-graph --data cora --ranks 4 --grid 2d
      weft train full-graph --data coauthor-physics --files physics.npz --ranks 4 --partition metis
      weft train full-graph --data edges.txt --features x.npy --labels y.npy --split 0.6 0.2 0.2
      weft train full-graph --data list.csv --columns src dst weight --features x.npy --labels y.npy
      torchrun --nproc-per-node 4 -m weft train full-graph --data cora --device cuda
      torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400
        -m weft train full-graph --data cora --grid 1.5d

    Attributes:
        run_dir: folder for metrics, checkpoints, logs and weights; by default
            runs/full-graph-DATA. With torchrun, rank 0's host alone needs it.
        resume: go on with the run in that folder; the ranks and the grid may be others.
        init_from: start from the weights of this run folder or file, nothing else of it.
        files: files to build the data set of that name from, instead of cached ones.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder. It keeps
            the partitioned graph, for every rank to read its part of.
        max_restarts: how often the ranks are started again at most.
        plan: a plan of `weft plan full-graph --measure`, or auto: the one kept for this data, model
            and machine, or a new one, found by measuring first.
        threads: of a run on one rank; by default the plan's, or one for each core.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[FullGraphConfig, tyro.conf.arg(name="")] = field(
        default_factory=FullGraphConfig
    )
    run_dir: Path | None = None
    resume: bool = False
    init_from: Path | None = None
    files: tuple[Path, ...] = ()
    data_dir: Path | None = None
    max_restarts: int = 3
    plan: str | None = None
    threads: int | None = None
    quiet: bool = False
    print_config: bool = False

    def __call__(self, console: Console) -> int:
        """Train, then print what came out and where it is."""
        folder = self.run_dir or Path("runs") / f"full-graph-{file_name_of(self.config.data)}"
        option = PlanOption(
            "full-graph",
            self.plan,
            self.threads,
            folder=folder,
            resume=self.resume,
            ranks=int(os.environ.get("WORLD_SIZE", "1")),
        )
        if self.print_config:
            return print_config(option.applied(self.config), console)
        # Of several hosts, rank 0's alone needs it, and says so if it has none.
        if self.init_from and not is_a_rank() and not self.init_from.exists():
            raise DataError(f"--init-from {self.init_from} does not exist")
        if self.max_restarts < 0:
            raise DataError(f"--max-restarts is {self.max_restarts}; it must be at least 0")
        config = option.settle(
            self.config, self._recipe, console, data_dir=self.data_dir, quiet=self.quiet
        )
        if config.grid != "auto":
            grid_of(config.grid, config.num_ranks, config.replication)
        device = own_device(config.device, ranks=None if is_a_rank() else config.num_ranks)
        prepare_process()
        resume = self.resume
        if resume and not (folder / "config.json").exists() and _is_first():
            console.print(f"There is no run in {folder} to resume; a new one starts.")
        joined: AbstractContextManager[object] = nullcontext()
        if is_a_rank():
            joined = process_group(timeout=max(config.wait, _PREPARING))
            resume = resume or int(os.environ.get(_RESTARTED, "0")) > 0
        with lost_ranks_named(), joined:
            table, grid = _first_of_host(lambda: self._data(config, console))
            if _is_first():
                _describe(table, grid, config, console, on_gpus=device.type == "cuda")
            if option.plan is not None and not is_a_rank():
                data = table.metadata.get("contents")
                with Run.create(folder, config.recipe(), data=data, resume=resume) as run:
                    option.keep(run)
                resume = True
            try:
                trained = train_full_graph(
                    table,
                    config,
                    grid,
                    folder=folder,
                    resume=resume,
                    init_from=self.init_from,
                    quiet=self.quiet,
                    max_restarts=self.max_restarts,
                    tell=lambda text: console.print(text, soft_wrap=True, highlight=False),
                )
            except RankError as error:
                if (folder / "last.pt").exists():
                    raise RankError(f"{error}; go on with: {_again()}") from None
                raise
        if trained.result.stopped.startswith("interrupted"):
            return interrupted(trained.result, folder, console, show=_is_first())
        if _is_first():
            _show(trained, config, folder, console)
        return 0

    def _recipe(self) -> FullGraphRecipe:
        return FullGraphRecipe(self.config, files=self.files, data_dir=self.data_dir)

    def _data(self, config: FullGraphConfig, console: Console) -> tuple[GraphTable, Grid]:
        def tell(stage: str) -> None:
            if not self.quiet and _is_first():
                console.print(f"preparing: {stage}", soft_wrap=True, highlight=False)

        return full_graph_table(
            config,
            files=self.files,
            data_dir=self.data_dir,
            progress=not self.quiet and _is_first(),
            tell=tell,
        )


def _is_first() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def _again() -> str:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return shlex.join(["weft", *words, "--resume"])


def _first_of_host(
    work: Callable[[], tuple[GraphTable, Grid]],
) -> tuple[GraphTable, Grid]:
    """What `work` gives; the first rank of each host prepares it, the others find it prepared."""
    if not is_a_rank():
        return work()
    failed = torch.zeros(1)
    mistake: Exception | None = None
    found = None
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        try:
            found = work()
        except (ValueError, OSError) as error:
            mistake = error
            failed += 1
    dist.all_reduce(failed)
    if mistake is not None:
        raise mistake
    if failed.item():
        raise DataError(
            f"rank {dist.get_rank()} stops because another has no data; see its message"
        )
    return found or work()


def _describe(
    table: GraphTable, grid: Grid, config: FullGraphConfig, console: Console, *, on_gpus: bool
) -> None:
    partition = table.metadata["partition"]
    why = "as asked"
    if config.grid == "auto":
        names = [_name(each) for each in grids_for(grid.ranks)]
        why = (
            "the only one that fits"
            if len(names) == 1
            else f"the fastest of {', '.join(names)} by the cost model (`weft plan full-graph`)"
        )
    ranks = "1 rank" if grid.ranks == 1 else f"{grid.ranks} ranks"
    if on_gpus:
        ranks += ", each on a GPU" if grid.ranks > 1 else ", on a GPU"
    blocks = int(partition["blocks"])
    cut = partition["cut_edges"] / max(1, table.total_edges)
    shares = (
        f"{blocks} blocks, {cut:.1%} of the edges between them; the largest has "
        f"{partition['imbalance_nodes']:.2f} times the mean of the nodes and "
        f"{partition['imbalance_edges']:.2f} times that of the edges"
        if blocks > 1
        else "1 block"
    )
    console.print(
        f"{config.data}: {table.total_nodes:,} nodes, {table.total_edges:,} entries of the "
        f"{table.metadata['normalisation']} matrix, {table.column('x').shape[1]:,} features, "
        f"{table.metadata['classes']} classes\n"
        f"grid: {_name(grid)}, {grid.shape}, {ranks}: {why}\n"
        f"partition: {partition['how']}, {shares}",
        soft_wrap=True,
        highlight=False,
    )


def _name(grid: Grid) -> str:
    return f"1.5d (replication {grid.layers})" if grid.replicated else grid.name


def _show(
    trained: TrainedFullGraph, config: FullGraphConfig, folder: Path, console: Console
) -> None:
    result, scores = trained.result, trained.scores
    summary = Table(title=f"{config.data}: {result.stopped}", title_justify="left")
    for heading in ("part", "nodes", "accuracy", "loss"):
        summary.add_column(heading, justify="left" if heading == "part" else "right")
    for part, count in trained.counts.items():
        if count:
            accuracy, loss = scores[f"{part}_accuracy"], scores[f"{part}_loss"]
            summary.add_row(part, f"{count:,}", f"{accuracy:.1%}", f"{loss:.4f}")
    console.print(summary)
    cost = trained.communication
    if cost is not None and cost.bytes:
        received = Table(title="messages of an epoch", title_justify="left")
        received.add_column("collective")
        received.add_column("MB received by a rank, at most", justify="right")
        for kind, number in cost.bytes.items():
            received.add_row(kind, f"{number / 1e6:.3f}")
        received.add_row("in all", f"{sum(cost.bytes.values()) / 1e6:.3f}")
        console.print(received)
    if cost is not None:
        console.print(
            f"An epoch took a rank up to {1e3 * cost.seconds['compute']:.1f} ms of its own work "
            f"and {1e3 * cost.seconds['communication']:.1f} ms of messages and waiting.\n"
            f"At most {cost.peak / 1e6:.1f} MB of memory a rank for its part of the graph and the "
            f"training; {cost.predicted / 1e6:.1f} MB by the cost model, without libraries.",
            soft_wrap=True,
            highlight=False,
        )
    best = (
        f"the weights are those of epoch {result.best_epoch}, the best on the validation nodes"
        if result.best_epoch and trained.counts["validation"]
        else "the weights are those of the lowest loss"
    )
    console.print(
        f"{result.epochs} epochs in {result.seconds:.1f} s; {best}.\n"
        f"Everything is in {folder} (tensorboard --logdir {folder}). Next:\n"
        f"  weft predict {folder}",
        soft_wrap=True,
    )
