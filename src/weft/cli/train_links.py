"""`weft train links`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from weft.cli.plan_option import PlanOption
from weft.cli.show import interrupted, print_config
from weft.errors import DataError
from weft.graphs.checksums import checksum
from weft.recipes.links.data import temporal_edges
from weft.recipes.links.training import LinksConfig, TrainedLinks, prepare_links, train_links
from weft.recipes.sparse_candidates import LinksRecipe
from weft.recipes.structures.data import file_name_of
from weft.training import Run, prepare_process
from weft.training.sparse_step import StepCosts
from weft.training.sparsifiers import SparsityConfig

# A sparse step must be slower by this much for advice against it.
_NOTABLE = 0.05


@dataclass(frozen=True, kw_only=True)
class Links:
    """Train a network to tell which nodes of a temporal graph are joined next.

    Reads embeddings of temporal walks. Edges are split by time, and embeddings are made of the
    training edges alone. Examples:
      weft train links --data CollegeMsg
      weft train links --data my_edges.txt --sparsify rigl --sparsity 0.906
      weft train links --data my_edges.txt --hidden 1024 1024 --sparsify rigl --form sparse
      weft train links --data my_edges.txt --keep 0.262   (sparse embeddings)

    Attributes:
        run_dir: folder for metrics, checkpoints and weights; by default runs/links-DATA.
        resume: go on with the run in that folder, where and as it stopped.
        init_from: start from the weights of this run folder or file, nothing else of it.
        files: files to build a data set of the catalogue from, instead of downloaded ones.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        plan: a plan of `weft plan`, or auto: the one kept for this data, model and machine, or a
            new one, found by measuring first.
        threads: to compute with; by default the plan's, or one for each core.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[LinksConfig, tyro.conf.arg(name="")] = field(default_factory=LinksConfig)
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
        folder = self.run_dir or Path("runs") / f"links-{file_name_of(config.data)}"
        option = PlanOption("links", self.plan, self.threads, folder=folder, resume=self.resume)
        if self.print_config:
            return print_config(option.applied(config), console)
        if self.init_from and not self.init_from.exists():
            raise DataError(f"--init-from {self.init_from} does not exist")
        prepare_process()
        edges = temporal_edges(
            config.data, files=self.files, data_dir=self.data_dir, progress=not self.quiet
        )
        assert edges.time is not None
        prepared = prepare_links(edges, config)
        config = option.settle(
            config,
            lambda: LinksRecipe(prepared),
            console,
            data_dir=self.data_dir,
            quiet=self.quiet,
        )
        prepared = replace(prepared, config=config)
        data = {
            "edges": checksum(np.stack([edges.senders, edges.receivers])),
            "times": checksum(edges.time),
            "names": checksum(edges.ids),
        }
        with Run.create(folder, config, data=data, resume=self.resume) as run:
            option.keep(run)
            if self.resume and not run.resumed:
                console.print(f"There is no run in {folder} to resume; a new one starts.")
            trained = train_links(
                prepared, run=run, init_from=self.init_from, quiet=self.quiet, measure_step=True
            )
            if trained.result.stopped.startswith("interrupted"):
                return interrupted(trained.result, folder, console)
            run.summarise(
                test={name: asdict(score) for name, score in trained.scores.items()},
                counts=trained.counts,
                repeated=trained.repeated,
                embedding_seconds=prepared.seconds,
                step_costs=None if trained.costs is None else asdict(trained.costs),
            )
        _show(trained, config, folder, console)
        return 0


def weights_sentence(counts: dict[str, int], how: str) -> str:
    """How many weights there are, and how many of them are left."""
    size, active = counts["weights"], counts["active"]
    if how == "none":
        return f"{size:,} weights, dense."
    return f"{active:,} of {size:,} weights are active ({1 - active / size:.1%} sparse, by {how})."


def costs_sentences(costs: StepCosts | None, config: SparsityConfig, *, linear: bool) -> str:
    """FLOPs and time of a training step, each against its own kind; and what to do about it.

    Args:
        costs: if they were measured.
        config: how the model became sparse.
        linear: whether its layers have a sparse form.
    """
    if costs is None:
        return ""
    left = "" if config.may_be_sparse else " with the weights that are left"
    form = "masks on all weights" if config.form == "dense" else "only the weights that are there"
    said = f"FLOPs of a training step{left}: {costs.flops:.1%} of dense; time of a step ({form}): "
    if not costs.is_certain:
        low, high = min(costs.ratios), max(costs.ratios)
        return (
            f"{said}from {low:.0%} to {high:.0%} of the same step dense: the machine is busy with "
            "something else.\n"
        )
    said += (
        f"{costs.time:.0%} of the same step dense ({1e3 * costs.seconds:.3g} of "
        f"{1e3 * costs.dense_seconds:.3g} ms, timed side by side afterwards)."
    )
    if config.form == "sparse" and costs.time > 1 + _NOTABLE:
        said += (
            " The network is too small, or not sparse enough, for --form sparse to pay: leave it "
            "out, or take wider layers (--hidden)."
        )
    elif config.form == "dense" and config.may_be_sparse and linear:
        said += " Masks save no time; --form sparse does where layers are wide and sparse enough."
    return f"{said}\n"


def _show(trained: TrainedLinks, config: LinksConfig, folder: Path, console: Console) -> None:
    result, counts = trained.result, trained.counts
    summary = Table(title=f"{config.data}: {result.stopped}", title_justify="left")
    for heading in ("part", "edges", "AUC", "average precision"):
        summary.add_column(heading, justify="left" if heading == "part" else "right")
    summary.add_row(
        "validation",
        f"{counts['validation']:,}",
        f"{result.best_metrics['validation_auc']:.4f}",
        f"{result.best_metrics['validation_ap']:.4f}",
    )
    summary.add_row(
        "test", f"{counts['test']:,}", str(trained.scores["auc"]), str(trained.scores["ap"])
    )
    console.print(summary)
    if config.compat:
        console.print(
            "With --compat the embeddings have seen the test's edges: these scores are too good, "
            "and to be compared with the paper's only.",
            soft_wrap=True,
        )
    console.print(
        f"Intervals are of 95%, over the choice of test pairs; {trained.repeated:.1%} of the "
        "test's edges join two nodes that an edge of training joins too.\n"
        f"{weights_sentence(counts, config.sparsify)}\n"
        f"{costs_sentences(trained.costs, config, linear=True)}"
        f"{counts['train']:,} edges for training, {result.epochs} epochs in {result.seconds:.1f} "
        f"s; the weights are those of epoch {result.best_epoch}, the best on the validation "
        f"edges.\nEverything is in {folder} (tensorboard --logdir {folder}).",
        soft_wrap=True,
    )
