"""The recipe for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.recipe import DataOptions, ExportOptions, PredictOptions, StandardRecipe

if TYPE_CHECKING:
    from rich.console import Console

    from weft.graphs import GraphTable
    from weft.models.exported_program import Exported
    from weft.parallel.world import World
    from weft.recipes.programs.candidates import ProgramsTask
    from weft.recipes.programs.training import PreparedPrograms
    from weft.recipes.table_training import Trained


def _print_detector(title: str, trained: Trained, console: Console) -> None:
    """Misuses found at one false alarm per 1,000 lines, and blanks filled in, beside chance."""
    from weft.recipes.output import print_scores

    def rows(*columns: str) -> list[tuple[str, ...]]:
        found = []
        for part, count in trained.counts.items():
            if f"{part}_found" in trained.scores:
                values = [trained.scores[f"{part}_{name}"] for name in columns]
                found.append((part, f"{count:,}", *(f"{value:.1%}" for value in values)))
        return found

    detected = []
    for part, count, found, repaired, *chance in rows(
        "found", "repaired", "found_by_chance", "repaired_by_chance"
    ):
        alarms = f"{trained.scores[f'{part}_false_alarms']:.2f}"
        detected.append((part, count, alarms, found, repaired, ", ".join(chance)))
    print_scores(
        f"{title}; misuses at 1 false alarm per 1,000 lines of the validation files",
        ("part", "versions", "false alarms", "found", "repaired", "by chance"),
        detected,
        console,
    )
    print_scores(
        "Which variable belongs into a blank",
        ("part", "versions", "all uses", "one of each", "random", "most recent use"),
        rows("all_uses", "sampled_uses", "random", "recent"),
        console,
    )


class ProgramsRecipe(StandardRecipe):
    """Which use of a variable is wrong in a program, and what belongs there."""

    help = """
    Train a gated graph network to find misused variables in programs, and what belongs there.

    By default it reads the standard library of this Python. Examples:
      weft train programs --limit 20000
      weft train programs --data python my_project/ other_project/
      torchrun --nproc-per-node 2 -m weft train programs --supergraphs-per-step 4
    """
    plan_help = """
    Measure the fastest way to train on programs: form of the edges, batching, threads, compiling.

    Takes the options of `weft train programs`. Examples:
      weft plan programs --limit 20000 --run-steps 5000
      weft plan programs --machine a100   (by a model of that machine, never timed)
    """
    config_type = ProgramsConfig
    kind = "programs"
    trains, counts = "Gated graph network", "samples"
    common = ("data", "target", "limit", "hidden", "steps", "learning_rate", "epochs")
    predicts_with = (
        *("out", "threshold", "false_alarms", "all", "format", "fail_over", "exclude", "baseline"),
        *("write_baseline", "changed_since", "inject", "quiet"),
    )
    shares_batches = True
    models_machines = True
    before: ClassVar[Mapping[str, Any]] = {"target": "slot"}
    renamed: ClassVar[Mapping[str, str]] = {
        "--bf16": "--precision=bf16",
        "--no-bf16": "--precision=float32",
    }

    def read(self, config: ProgramsConfig, source: DataOptions, *, progress: bool) -> GraphTable:
        """Samples of programs or versions of functions, or as many as requested."""
        from weft.recipes.programs.data import read_programs
        from weft.recipes.structures.data import some_of

        table = read_programs(
            config.sources,
            target=config.target,
            files=source.files,
            data_dir=source.data_dir,
            progress=progress,
        )
        return some_of(table, config.limit, config.split_seed)

    def as_now(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of an older run as it would be recorded today."""
        known = dict(recorded)
        if (bf16 := known.pop("bf16", None)) is not None:
            known["precision"] = "bf16" if bf16 else "float32"
        return super().as_now(known)

    def run_name(self, config: ProgramsConfig) -> str:
        """Of the run's folder, by default."""
        from weft.recipes.structures.data import file_name_of

        return f"{self.name}-{file_name_of(config.sources[0])}"

    def settled(
        self, config: ProgramsConfig, earlier: Mapping[str, Any] | None = None
    ) -> ProgramsConfig:
        """A run that was begun when there were slots alone goes on with them."""
        if earlier is not None and "target" not in earlier:
            return dataclasses.replace(config, **self.before)
        return config

    def plan_task(self, data: GraphTable, config: ProgramsConfig) -> ProgramsTask:
        """Form of the edges, batching, threads and compiling."""
        from weft.recipes.programs.candidates import ProgramsTask

        return ProgramsTask(data, config)

    def estimate(
        self,
        machine: str,
        config: ProgramsConfig,
        source: DataOptions,
        console: Console,
        *,
        quiet: bool,
    ) -> None:
        """Form, block and size of supergraphs by a roofline model, from the data's own counts."""
        from weft.layout.roofline import accelerator
        from weft.recipes.programs.modelled import show_modelled

        found = accelerator(machine)
        show_modelled(self.read(config, source, progress=not quiet), config, found, console)

    def prepare(
        self, data: GraphTable, config: ProgramsConfig, *, world: World, earlier: Path | None
    ) -> PreparedPrograms:
        """The split and the supergraphs; what an earlier session has measured is taken."""
        from weft.recipes.programs.supergraphs import settled_in
        from weft.recipes.programs.training import prepare_programs

        if earlier is not None:
            config = settled_in(earlier, config)
        return prepare_programs(data, config, world=world)

    def train(self, prepared: PreparedPrograms, **session: Any) -> Trained:
        """Train the network."""
        from weft.recipes.programs.training import train_prepared_programs

        return train_prepared_programs(prepared, **session)

    def summary(self, trained: Trained, prepared: PreparedPrograms) -> dict[str, Any]:
        """Accuracy beside the baselines, counts, how full supergraphs were, and compiling."""
        return {
            **trained.summary(prepared.sampler),
            "baselines": {part: vars(b) for part, b in prepared.baselines.items()},
            "outside_share": trained.outside_share,
        }

    def show(
        self, trained: Trained, prepared: PreparedPrograms, folder: Path, console: Console
    ) -> None:
        """Print the accuracy beside the baselines, what was left out, and where everything is."""
        from weft.recipes.output import print_scores, where

        result, counts, config = trained.result, trained.counts, prepared.config
        data, detects = " ".join(config.sources), "temperature" in trained.details
        if detects:
            _print_detector(f"{data}: {result.stopped}", trained, console)
        headings = ("part", "samples", "accuracy", "random", "most recent use", "loss")
        rows = [
            (
                part,
                f"{counts[part]:,}",
                f"{trained.scores[f'{part}_accuracy']:.1%}",
                f"{base.random:.1%}",
                f"{base.recent:.1%}",
                f"{trained.scores[f'{part}_loss']:.4f}",
            )
            for part, base in prepared.baselines.items()
        ]
        if rows:
            print_scores(f"{data}: {result.stopped}", headings, rows, console)
        said, compiled = "", trained.compilation
        if counts["train"] > counts["validation"]:
            few = f"{counts['validation']:,}"
            said += f"The accuracy on training samples is that of {few} drawn of them.\n"
        if counts["skipped"]:
            said += (
                f"{counts['skipped']:,} samples larger than a supergraph of {config.nodes:,} nodes "
                "were left out of training.\n"
            )
        if trained.outside_share:
            fate = "left out" if config.layout.outside == "drop" else "multiplied as sparse ones"
            said += (
                f"{trained.outside_share:.2%} of the edges were outside the blocks of "
                f"{config.layout.block} and {fate} in training.\n"
            )
        if compiled.mode != "eager":
            times = "once" if compiled.compilations == 1 else f"{compiled.compilations} times"
            said += f"Compiled {times}, {compiled.seconds:.1f} s of the time below.\n"
        best = (
            f"the weights are those of epoch {result.best_epoch}, the best on the validation files"
            if result.best_epoch
            else "nothing was trained"
        )
        console.print(
            f"{said}{result.epochs} epochs in {result.seconds:.1f} s, "
            f"{result.graphs_per_second:,.0f} samples a second on average, "
            f"{trained.batching_share:.1%} of the time spent waiting for supergraphs; {best}.\n"
            + where(folder, f"weft predict {folder} FILE.py"),
            soft_wrap=True,
        )

    def predict(
        self, run: Path, file: Path | None, options: PredictOptions, console: Console
    ) -> int:
        """Look at every use of a variable in a Python file or a folder of them."""
        from weft.errors import DataError
        from weft.recipes.programs.injection import show_injected
        from weft.recipes.programs.prediction import show_findings

        if file is None:
            raise DataError(f"name the file to predict: weft predict {run} FILE")
        if options.inject is not None:
            show_injected(run, file, options, console)
            return 0
        return show_findings(run, file, options, console)

    def export(self, run: Path, path: Path, options: ExportOptions) -> Exported:
        """Write the network in dense operators for supergraphs of one shape."""
        from weft.errors import DataError
        from weft.recipes.programs.dense_export import export_programs

        if options.layout is None:
            raise DataError(
                f"{run} is a run of `weft train programs`, whose sparse products no other runtime "
                "has; export it in dense blocks, with --layout banded"
            )
        if options.int8:
            raise DataError("8-bit weights are not for runs of programs; leave out --int8")
        return export_programs(run, path, block=options.block)


PROGRAMS = ProgramsRecipe("programs")
