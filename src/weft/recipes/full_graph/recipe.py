"""The recipe for one big graph that several ranks share."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import DataError
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.recipe import DataOptions, Finished, PredictOptions, Recipe, Start

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from weft.graphs import GraphTable
    from weft.parallel.grid import Grid
    from weft.recipes.full_graph.candidates import FullGraphTask
    from weft.recipes.full_graph.session import TrainedFullGraph

_SHOWN = {"f1": "F1", "auc": "AUC", "mae": "MAE", "rmse": "RMSE", "r2": "R²"}
_OUTPUTS = {"classes": "classes", "multilabel": "labels", "regression": "numbers"}
# Elastic's own name for how often it has started its ranks again.
_RESTARTED = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, kw_only=True)
class FullGraphOptions(DataOptions):
    """Where the graph is read from, and how its ranks are started.

    Attributes:
        max_restarts: Start the ranks again at most this many times.
        memory: Prepare an edge list within this limit, such as 2GB: its edges are sorted on disk.
            It is for the preparation; what training needs, `weft plan full-graph` tells.
        prepare_only: Prepare the graph and stop; a run with the same settings then only maps it.
    """

    max_restarts: int = 3
    memory: str | None = None
    prepare_only: bool = False


class FullGraphRecipe(Recipe):
    """The classes, labels or numbers of nodes of one graph that several ranks share.

    The ranks are processes of their own, each with a part of the graph, so that this recipe starts
    its runs itself.
    """

    help = """
    Train a network on one big graph that several ranks share, each holding its part: gcn, sage,
    gin, gat, gatv2, appnp or sgc.

    The ranks are started here, on this machine, and started again from the last checkpoint where
    one is killed. Over several hosts they are started with torchrun, without --ranks; it restarts
    them itself (--max-restarts 3; with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, or they may meet the
    addresses of those before). Examples:
      weft train full-graph --data cora --ranks 4 --grid 2d
      weft train full-graph --data coauthor-physics --files physics.npz --ranks 4 --partition metis
      weft train full-graph --data cora --model gat --hidden 64 --layer.heads 8
      weft train full-graph --data edges.txt --features x.npy --labels y.npy --split 0.6 0.2 0.2
      weft train full-graph --data edges.npy --features x.npy --labels y.npy --ranks 4 --grid 2d
        --partition balanced --memory 2GB --prepare-only
      weft train full-graph --data big.weft --hidden 256 256 --clusters 200 --clusters-per-step 9
      weft train full-graph --data list.csv --columns src dst weight --features x.npy --labels y.npy
      torchrun --nproc-per-node 4 -m weft train full-graph --data cora --device cuda
      torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400
        -m weft train full-graph --data cora --grid 1.5d
    """
    plan_help = ""
    config_type = FullGraphConfig
    kind = "full graph"
    counts = "epochs"
    source = FullGraphOptions
    common = (
        *("data", "features", "labels", "split", "model", "hidden", "ranks", "grid", "partition"),
        *("learning_rate", "epochs"),
    )
    predicts_with = ("out", "ranks", "features", "data_dir", "quiet")

    def plan_command(self) -> type[Any]:
        """`weft plan full-graph`, by formulas or measured."""
        from weft.recipes.full_graph.estimates import PlanFullGraph

        return PlanFullGraph

    def plan_task(self, data: FullGraphOptions, config: FullGraphConfig) -> FullGraphTask:
        """Ranks, threads, grids, what travels and the order of the nodes."""
        from weft.recipes.full_graph.candidates import FullGraphTask

        if config.clusters is not None:
            raise DataError(
                f"--clusters {config.clusters} cannot be combined with --plan; leave out one of "
                f"them"
            )
        return FullGraphTask(config, files=data.files, data_dir=data.data_dir)

    def read(
        self, config: FullGraphConfig, source: FullGraphOptions, *, progress: bool
    ) -> FullGraphOptions:
        """Nothing yet: the graph is cut for the ranks of each way to train."""
        return source

    def run(self, asked: FullGraphConfig, start: Start) -> Finished:
        """Prepare the graph, start the ranks or join those of torchrun, and train."""
        from weft.parallel.device import own_device
        from weft.parallel.grid import grid_of
        from weft.parallel.world import joined_replicas
        from weft.recipes.full_graph.training import (
            PREPARING,
            first_of_host,
            open_run,
            train_full_graph,
        )
        from weft.recipes.output import way_on
        from weft.training.config import FitResult
        from weft.training.hardware import peak_memory
        from weft.training.launch import RankError, is_a_rank, lost_ranks_named

        source, folder, console, plan = start.source, start.folder, start.console, start.plan
        assert isinstance(source, FullGraphOptions)
        if source.max_restarts < 0:
            raise DataError(f"--max-restarts is {source.max_restarts}; it must be at least 0")
        config = plan.settle(
            asked,
            lambda: self.plan_task(source, asked),
            console,
            data_dir=source.data_dir,
            quiet=start.quiet,
        )
        if config.grid != "auto":
            grid_of(config.grid, config.num_ranks, config.replication)
        device = own_device(config.device, ranks=None if is_a_rank() else config.num_ranks)
        resume = start.resume
        if resume and not (folder / "config.json").exists() and _is_first():
            console.print(f"There is no run in {folder} to resume; a new one starts.")
        tell = None if start.quiet else _teller(console)
        joined: AbstractContextManager[object] = nullcontext()
        if is_a_rank():
            joined = joined_replicas(max(config.wait, PREPARING), tell=tell)
            resume = resume or int(os.environ.get(_RESTARTED, "0")) > 0
        with lost_ranks_named(), joined:
            table, clusters, grid = first_of_host(lambda: _prepared(config, start), tell)
            if _is_first():
                _describe(table, grid, config, console, on_gpus=device.type == "cuda")
            if source.prepare_only:
                return Finished(
                    result=FitResult(epochs=0, steps=0, stopped="prepared"),
                    show=lambda: console.print(
                        f"prepared: {table.path}\n"
                        f"This process held at most {peak_memory() / 1e6:,.0f} MB.",
                        soft_wrap=True,
                        highlight=False,
                    ),
                    is_first=_is_first(),
                )
            if plan.plan is not None and not is_a_rank():
                with open_run(table, config, folder, resume=resume) as run:
                    plan.keep(run)
                resume = True
            try:
                trained = train_full_graph(
                    table,
                    config,
                    grid,
                    clusters=clusters,
                    folder=folder,
                    resume=resume,
                    init_from=start.init_from,
                    quiet=start.quiet,
                    max_restarts=source.max_restarts,
                    loggers=start.loggers,
                    tell=_teller(console),
                )
            except RankError as error:
                raise RankError(f"{error}. {way_on(folder)}") from None
        return Finished(
            result=trained.result,
            show=lambda: _show(trained, table, config, folder, console),
            is_first=_is_first(),
        )

    def predict(
        self, run: Path, file: Path | None, options: PredictOptions, console: Console
    ) -> None:
        """Predict every node of the run's graph, or of the one in a file."""
        from weft.recipes.full_graph.prediction import predict_nodes
        from weft.recipes.output import prediction_file, print_predictions

        features, ranks = options.features, options.ranks
        out = prediction_file(options.out, file or run, (".csv",), "classes of nodes")
        if features is not None and file is None:
            raise DataError(
                f"--features {features} goes with an edge list: weft predict {run} FILE"
            )
        if ranks is not None and ranks < 1:
            raise DataError(f"--ranks is {ranks}; it must be at least 1")
        found = predict_nodes(
            run,
            out,
            data=None if file is None else str(file),
            features=None if features is None else str(features),
            ranks=ranks,
            data_dir=options.data_dir,
            tell=None if options.quiet else _teller(console),
        )
        if found is None:
            return
        names = [name for name in found.dtype.names or () if name][:9]
        rows = [
            tuple(str(v) if isinstance(v, int) else f"{v:.4f}" for v in row[: len(names)])
            for row in found[:10].tolist()
        ]
        print_predictions(tuple(names), rows, len(found), out, console)


def _prepared(config: FullGraphConfig, start: Start) -> tuple[GraphTable, GraphTable | None, Grid]:
    """The graph, the same in clusters if it is trained so, and the grid."""
    from weft.recipes.full_graph.data import full_graph_clusters, full_graph_table
    from weft.recipes.full_graph.streaming import size_in_bytes

    assert isinstance(start.source, FullGraphOptions)
    limit = start.source.memory
    progress = not start.quiet and _is_first()

    def tell(stage: str) -> None:
        if progress:
            start.console.print(f"preparing: {stage}", soft_wrap=True, highlight=False)

    options: dict[str, Any] = {
        "files": start.source.files,
        "data_dir": start.source.data_dir,
        "progress": progress,
        "tell": tell,
        "memory": None if limit is None else size_in_bytes(limit),
    }
    table, grid = full_graph_table(config, **options)
    return table, full_graph_clusters(config, **options), grid


def _teller(console: Console) -> Callable[[str], object]:
    return lambda text: console.print(text, soft_wrap=True, highlight=False)


def _is_first() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def _describe(
    table: GraphTable, grid: Grid, config: FullGraphConfig, console: Console, *, on_gpus: bool
) -> None:
    from weft.parallel.grid import grids_for

    partition = table.metadata["partition"]
    why = "as asked"
    if config.grid == "auto":
        names = [_name(each) for each in grids_for(grid.ranks)]
        why = (
            "the only one that fits"
            if len(names) == 1
            else f"the fastest of {', '.join(names)} by the cost model (`weft plan full-graph`)"
            + ("" if config.counted else " of a GCN")
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
        f"{table.metadata['classes']} {_OUTPUTS[table.metadata.get('target', 'classes')]}\n"
        f"grid: {_name(grid)}, {grid.shape}, {ranks}: {why}\n"
        f"partition: {partition['how']}, {shares}",
        soft_wrap=True,
        highlight=False,
    )


def _name(grid: Grid) -> str:
    return f"1.5d (replication {grid.layers})" if grid.replicated else grid.name


def _score(name: str, value: float) -> str:
    return f"{value:.1%}" if name in ("accuracy", "f1") else f"{value:.4f}"


def _show(
    trained: TrainedFullGraph,
    table: GraphTable,
    config: FullGraphConfig,
    folder: Path,
    console: Console,
) -> None:
    from weft.recipes.output import print_scores, where

    result, scores, counts = trained.result, trained.scores, table.metadata["counts"]
    metrics = [name.removeprefix("train_") for name in scores if name.startswith("train_")]
    # The loss last, where it has always been.
    metrics = [*(name for name in metrics if name != "loss"), *metrics[:1]]
    rows = [
        (part, f"{count:,}", *(_score(name, scores[f"{part}_{name}"]) for name in metrics))
        for part, count in counts.items()
        if count
    ]
    headings: tuple[str, ...] = ("part", "nodes", *(_SHOWN.get(name, name) for name in metrics))
    print_scores(f"{config.data}: {result.stopped}", headings, rows, console)
    if "reads_error" in scores:
        console.print(
            f"Reading features as bfloat16 changes an output by at most "
            f"{scores['reads_error']:.2%} of the largest.",
            highlight=False,
        )
    cost = trained.communication
    if cost is not None and cost.bytes:
        sizes = {**cost.bytes, "in all": sum(cost.bytes.values())}
        headings = ("collective", "MB received by a rank, at most")
        received = [(kind, f"{number / 1e6:.3f}") for kind, number in sizes.items()]
        print_scores("messages of an epoch", headings, received, console)
    if cost is not None:
        by_model = ""
        if cost.predicted is not None:
            by_model = f"; {cost.predicted / 1e6:.1f} MB by the cost model, without libraries"
        console.print(
            f"An epoch took a rank up to {1e3 * cost.seconds['compute']:.1f} ms of its own work "
            f"and {1e3 * cost.seconds['communication']:.1f} ms of messages and waiting.\n"
            f"At most {cost.peak / 1e6:.1f} MB of memory a rank for its part of the graph and the "
            f"training{by_model}.",
            soft_wrap=True,
            highlight=False,
        )
    best = (
        f"the weights are those of epoch {result.best_epoch}, the best on the validation nodes"
        if result.best_epoch and counts["validation"]
        else "the weights are those of the lowest loss"
    )
    console.print(
        f"{result.epochs} epochs in {result.seconds:.1f} s; {best}.\n"
        + where(folder, f"weft predict {folder}"),
        soft_wrap=True,
    )


FULL_GRAPH = FullGraphRecipe("full-graph")
