"""`weft train programs`."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from weft.cli.plan_option import PlanOption, notes
from weft.cli.show import interrupted, print_config
from weft.errors import DataError
from weft.graphs.checksums import table_checksums
from weft.parallel.world import joined_replicas
from weft.recipes.programs.candidates import ProgramsRecipe
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.data import read_programs
from weft.recipes.programs.supergraph_choice import settled_in
from weft.recipes.programs.training import (
    TrainedPrograms,
    prepare_programs,
    train_prepared_programs,
)
from weft.recipes.structures.data import file_name_of, some_of
from weft.training import prepare_process
from weft.training.ranks import shared_run


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Train a gated graph network to tell which variable belongs where in a program.

    By default it reads the standard library of this Python. Examples:
      weft train programs --limit 20000
      weft train programs --data my_project/ --epochs 20
      torchrun --nproc-per-node 2 -m weft train programs --supergraphs-per-step 4

    Attributes:
        run_dir: folder for metrics, checkpoints and weights; by default runs/programs-DATA.
        resume: go on with the run in that folder, where and as it stopped.
        init_from: start from the weights of this run folder or file, nothing else of it.
        files: files or folders to build the data set from.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        plan: a plan of `weft plan`, or auto: the one kept for this data, model and machine, or a
            new one, found by measuring first.
        threads: to compute with; by default the plan's, or one for each core.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[ProgramsConfig, tyro.conf.arg(name="")] = field(
        default_factory=ProgramsConfig
    )
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
        folder = self.run_dir or Path("runs") / f"programs-{file_name_of(config.data)}"
        option = PlanOption(
            "programs",
            self.plan,
            self.threads,
            folder=folder,
            resume=self.resume,
            ranks=int(os.environ.get("WORLD_SIZE", "1")),
        )
        if self.print_config:
            return print_config(option.applied(config), console)
        if self.init_from and not self.init_from.exists():
            raise DataError(f"--init-from {self.init_from} does not exist")
        prepare_process()
        with joined_replicas() as world:
            # The first builds the table, and the others find it in the cache.
            with world.in_turn():
                table = read_programs(
                    config.data,
                    files=self.files,
                    data_dir=self.data_dir,
                    progress=not self.quiet and world.rank == 0,
                )
                table = some_of(table, config.limit, config.split_seed)
                config = option.settle(
                    config,
                    lambda: ProgramsRecipe(table, self.config),
                    console if world.rank == 0 else notes(quiet=True),
                    data_dir=self.data_dir,
                    quiet=self.quiet or world.rank > 0,
                )
                if self.resume:
                    config = settled_in(folder, config)
                prepared = prepare_programs(table, config, world=world)
            config = prepared.config
            data = table_checksums(table)
            with shared_run(folder, config, world, data=data, resume=self.resume) as run:
                option.keep(run)
                if self.resume and not run.resumed and world.rank == 0:
                    console.print(f"There is no run in {folder} to resume; a new one starts.")
                trained = train_prepared_programs(
                    prepared, run=run, init_from=self.init_from, world=world, quiet=self.quiet
                )
                if trained.result.stopped.startswith("interrupted"):
                    return interrupted(trained.result, folder, console, show=world.rank == 0)
                run.summarise(
                    **trained.scores,
                    counts=trained.counts,
                    baselines={part: vars(b) for part, b in trained.baselines.items()},
                    fill=asdict(prepared.sampler.statistics()),
                    batching_share=trained.batching_share,
                    outside_share=trained.outside_share,
                    compilation=trained.compilation.report(),
                )
        if world.rank == 0:
            _show(trained, config, folder, console)
        return 0


def _show(trained: TrainedPrograms, config: ProgramsConfig, folder: Path, console: Console) -> None:
    result, counts = trained.result, trained.counts
    summary = Table(title=f"{config.data}: {result.stopped}", title_justify="left")
    headings = ("part", "samples", "accuracy", "random", "most recent use", "loss")
    for heading in headings:
        summary.add_column(heading, justify="left" if heading == "part" else "right")
    for part, base in trained.baselines.items():
        summary.add_row(
            part,
            f"{counts[part]:,}",
            f"{trained.scores[f'{part}_accuracy']:.1%}",
            f"{base.random:.1%}",
            f"{base.recent:.1%}",
            f"{trained.scores[f'{part}_loss']:.4f}",
        )
    console.print(summary)
    if counts["train"] > counts["validation"]:
        console.print(
            f"The accuracy on training samples is that of {counts['validation']:,} drawn of them."
        )
    if counts["skipped"]:
        console.print(
            f"{counts['skipped']:,} samples larger than a supergraph of {config.nodes:,} nodes "
            "were left out of training.",
            soft_wrap=True,
        )
    if trained.outside_share:
        fate = "left out" if trained.layout.outside == "drop" else "multiplied as sparse ones"
        console.print(
            f"{trained.outside_share:.2%} of the edges were outside the blocks of "
            f"{trained.layout.block} and {fate} in training.",
            soft_wrap=True,
        )
    compiled = trained.compilation
    if compiled.mode != "eager":
        times = "once" if compiled.compilations == 1 else f"{compiled.compilations} times"
        console.print(f"Compiled {times}, {compiled.seconds:.1f} s of the time below.")
    best = (
        f"the weights are those of epoch {result.best_epoch}, the best on the validation files"
        if result.best_epoch
        else "nothing was trained"
    )
    console.print(
        f"{result.epochs} epochs in {result.seconds:.1f} s, {result.graphs_per_second:,.0f} "
        f"samples a second on average, {trained.batching_share:.1%} of the time spent waiting for "
        f"supergraphs; {best}.\n"
        f"Everything is in {folder} (tensorboard --logdir {folder}). Next:\n"
        f"  weft predict {folder} FILE.py",
        soft_wrap=True,
    )
