"""`weft train nodes`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from weft.cli.plan_option import PlanOption
from weft.cli.show import interrupted, print_config
from weft.cli.train_links import costs_sentences, weights_sentence
from weft.errors import DataError
from weft.graphs.checksums import graph_checksums
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.nodes.training import TrainedNodes, prepare_nodes, train_nodes
from weft.recipes.recipe_data import read_labelled_graph
from weft.recipes.sparse_candidates import NodesRecipe
from weft.recipes.structures.data import file_name_of
from weft.training import Run, prepare_process


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Train a network to tell the class of a node.

    A GCN on features, or a feed-forward network on embeddings of walks. An edge list of your own
    has the lines src dst time: its walks follow the times. Examples:
      weft train nodes --data cora --sparsify rigl --sparsity 0.9
      weft train nodes --data patent --files FOLDER --model fnn
      weft train nodes --data my_edges.txt --labels my_labels.txt --model fnn
      weft train nodes --data cora --model fnn --hidden 1024 1024 --sparsify rigl --form sparse

    Attributes:
        labels: for an edge list of your own: a file with the lines node label.
        run_dir: folder for metrics, checkpoints and weights; by default runs/nodes-DATA.
        resume: go on with the run in that folder, where and as it stopped.
        init_from: start from the weights of this run folder or file, nothing else of it.
        files: files or folders to build the data set from, instead of downloaded ones.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        plan: a plan of `weft plan`, or auto: the one kept for this data, model and machine, or a
            new one, found by measuring first.
        threads: to compute with; by default the plan's, or one for each core.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[NodesConfig, tyro.conf.arg(name="")] = field(default_factory=NodesConfig)
    labels: Path | None = None
    run_dir: Path | None = None
    resume: bool = False
    init_from: Path | None = None
    files: tuple[Path, ...] = ()
    data_dir: Path | None = None
    plan: str | None = None
    threads: int | None = None
    quiet: bool = False
    print_config: bool = False

    def __call__(self, console: Console) -> int:
        """Train, then print what came out and where it is."""
        config = self.config
        folder = self.run_dir or Path("runs") / f"nodes-{file_name_of(config.data)}"
        option = PlanOption("nodes", self.plan, self.threads, folder=folder, resume=self.resume)
        if self.print_config:
            return print_config(option.applied(config).settled(), console)
        if self.init_from and not self.init_from.exists():
            raise DataError(f"--init-from {self.init_from} does not exist")
        prepare_process()
        graph = read_labelled_graph(
            config.data,
            labels=self.labels,
            files=self.files,
            data_dir=self.data_dir,
            progress=not self.quiet,
        )
        prepared = prepare_nodes(graph, config)
        settled = option.settle(
            prepared.config,
            lambda: NodesRecipe(prepared),
            console,
            data_dir=self.data_dir,
            quiet=self.quiet,
        )
        prepared = replace(prepared, config=settled)
        with Run.create(
            folder, prepared.config, data=graph_checksums(graph), resume=self.resume
        ) as run:
            option.keep(run)
            if self.resume and not run.resumed:
                console.print(f"There is no run in {folder} to resume; a new one starts.")
            trained = train_nodes(
                prepared, run=run, init_from=self.init_from, quiet=self.quiet, measure_step=True
            )
            if trained.result.stopped.startswith("interrupted"):
                return interrupted(trained.result, folder, console)
            run.summarise(
                accuracy={name: asdict(score) for name, score in trained.scores.items()},
                counts=trained.counts,
                embedding_seconds=prepared.seconds,
                guess=trained.guess,
                step_costs=None if trained.costs is None else asdict(trained.costs),
            )
        _show(trained, prepared.config, folder, console)
        return 0


def _show(trained: TrainedNodes, config: NodesConfig, folder: Path, console: Console) -> None:
    result, counts = trained.result, trained.counts
    summary = Table(title=f"{config.data}: {result.stopped}", title_justify="left")
    for heading in ("part", "nodes", "accuracy"):
        summary.add_column(heading, justify="left" if heading == "part" else "right")
    for part, score in trained.scores.items():
        shown = f"{score.value:.1%} ({score.low:.1%} to {score.high:.1%})"
        summary.add_row(part, f"{counts[part]:,}", shown)
    console.print(summary)
    console.print(
        "Intervals are of 95%, over the choice of nodes; whoever always names the commonest class "
        f"is right for {trained.guess:.1%} of the test.\n"
        f"{weights_sentence(counts, config.sparsify)}\n"
        f"{costs_sentences(trained.costs, config, linear=config.model == 'fnn')}"
        f"{counts['classes']} classes, {result.epochs} epochs in {result.seconds:.1f} s; the "
        f"weights are those of epoch {result.best_epoch}, the best on the validation nodes.\n"
        f"Everything is in {folder} (tensorboard --logdir {folder}).",
        soft_wrap=True,
    )
