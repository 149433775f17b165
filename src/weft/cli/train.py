"""`weft train RECIPE`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from weft.cli.plan_option import PlanOption
from weft.cli.show import interrupted, print_config
from weft.cli.train_full_graph import FullGraph
from weft.cli.train_links import Links
from weft.cli.train_nodes import Nodes
from weft.cli.train_programs import Programs
from weft.errors import DataError
from weft.graphs.checksums import table_checksums
from weft.recipes.nodes.citation_candidates import CitationsRecipe
from weft.recipes.nodes.citations import citation_batch, train_citations
from weft.recipes.nodes.config import CitationsConfig
from weft.recipes.recipe_data import read_structures
from weft.recipes.structures.candidates import StructuresRecipe
from weft.recipes.structures.config import BEFORE, NeighbourConfig, StructuresConfig
from weft.recipes.structures.data import file_name_of
from weft.recipes.structures.training import Trained, prepare_structures, train_prepared
from weft.sources import load
from weft.training import Run, prepare_process
from weft.training.run import recorded_config


@dataclass(frozen=True, kw_only=True)
class Citations:
    """Train a two-layer GCN to tell a paper's topic on Cora, CiteSeer or PubMed.

    Attributes:
        run_dir: folder for metrics, checkpoints and weights; by default runs/citations-DATA.
        resume: go on with the run in that folder, where and as it stopped.
        init_from: start from the weights of this run folder or file, nothing else of it.
        files: folder with the Planetoid files ind.*, instead of cached or downloaded ones.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        plan: a plan of `weft plan`, or auto: the one kept for this data, model and machine, or a
            new one, found by measuring first.
        threads: to compute with; by default the plan's, or one for each core.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[CitationsConfig, tyro.conf.arg(name="")] = field(
        default_factory=CitationsConfig
    )
    run_dir: Path | None = None
    resume: bool = False
    init_from: Path | None = None
    files: Path | None = None
    data_dir: Path | None = None
    plan: str | None = None
    threads: int | None = None
    quiet: bool = False
    print_config: bool = False

    def __call__(self, console: Console) -> int:
        """Train, then print what came out and where it is."""
        config = self.config
        folder = self.run_dir or Path("runs") / f"citations-{config.data}"
        option = PlanOption("citations", self.plan, self.threads, folder=folder, resume=self.resume)
        if self.print_config:
            return print_config(option.applied(config), console)
        if self.init_from and not self.init_from.exists():
            raise DataError(f"--init-from {self.init_from} does not exist")
        prepare_process()
        table = load(config.data, files=[self.files] if self.files else [], data_dir=self.data_dir)
        batch = citation_batch(table)
        config = option.settle(
            config,
            lambda: CitationsRecipe(table, self.config),
            console,
            data_dir=self.data_dir,
            quiet=self.quiet,
        )
        with Run.create(folder, config, data=table_checksums(table), resume=self.resume) as run:
            option.keep(run)
            if self.resume and not run.resumed:
                console.print(f"There is no run in {folder} to resume; a new one starts.")
            _, result, scores = train_citations(
                batch, config, run=run, init_from=self.init_from, quiet=self.quiet
            )
            if result.stopped.startswith("interrupted"):
                return interrupted(result, folder, console)
            run.summarise(**scores)
        summary = Table(title=f"{config.data}: {result.stopped}", title_justify="left")
        for heading in ("part", "accuracy", "loss"):
            summary.add_column(heading, justify="left" if heading == "part" else "right")
        for part in ("train", "validation", "test"):
            accuracy, loss = scores[f"{part}_accuracy"], scores[f"{part}_loss"]
            summary.add_row(part, f"{accuracy:.1%}", f"{loss:.4f}")
        console.print(summary)
        console.print(
            f"{result.epochs} epochs in {result.seconds:.1f} s; the weights are those of epoch "
            f"{result.best_epoch}, the best on the validation papers.\n"
            f"Everything is in {folder} (tensorboard --logdir {folder}).",
            soft_wrap=True,
        )
        return 0


def crystals_config() -> StructuresConfig:
    """What the recipe for crystals does by default."""
    return StructuresConfig(
        data="mp-matminer",
        target="formation_energy_per_atom",
        references=False,
        neighbours=NeighbourConfig(nearest=24, cutoff=6.0),
    )


@dataclass(frozen=True, kw_only=True)
class _Structures:
    """Options of the recipes for structures.

    Attributes:
        run_dir: folder for metrics, checkpoints and weights; by default runs/RECIPE-DATA-TARGET.
        resume: go on with the run in that folder, where and as it stopped.
        init_from: start from the weights of this run folder or file, nothing else of it.
        files: files or folders to build the data set from, instead of cached or downloaded ones.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        plan: a plan of `weft plan`, or auto: the one kept for this data, model and machine, or a
            new one, found by measuring first.
        threads: to compute with; by default the plan's, or one for each core.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    run_dir: Path | None = None
    resume: bool = False
    init_from: Path | None = None
    files: tuple[Path, ...] = ()
    data_dir: Path | None = None
    plan: str | None = None
    threads: int | None = None
    quiet: bool = False
    print_config: bool = False

    def _train(self, recipe: str, asked: StructuresConfig, console: Console) -> int:
        name = f"{recipe}-{file_name_of(asked.data)}-{asked.target}"
        folder = self.run_dir or Path("runs") / name
        earlier = recorded_config(folder) if self.resume else None
        asked = asked.settled(recipe, earlier)
        option = PlanOption(recipe, self.plan, self.threads, folder=folder, resume=self.resume)
        if self.print_config:
            return print_config(option.applied(asked), console)
        if self.init_from and not self.init_from.exists():
            raise DataError(f"--init-from {self.init_from} does not exist")
        if earlier is None:
            asked.check_forces()
        prepare_process()
        table = read_structures(
            asked, files=self.files, data_dir=self.data_dir, progress=not self.quiet
        )
        unit = table.schema[asked.target].unit
        if recipe == "molecules" and "pbc" in table.schema and not self.quiet:
            periodic = int(table.column("pbc").any(axis=1).sum())
            if periodic:
                console.print(
                    f"{periodic:,} of {len(table):,} structures are periodic, so neighbours are "
                    "found among their images; `weft train crystals` has the settings for such "
                    "data.",
                    soft_wrap=True,
                )
        config = option.settle(
            asked,
            lambda: StructuresRecipe(recipe, table, asked),
            console,
            data_dir=self.data_dir,
            quiet=self.quiet,
        )
        prepared = prepare_structures(table, config, resumed=earlier is not None)
        data = table_checksums(table, ["z", "pos", "cell", "pbc", *config.targets])
        with Run.create(folder, config, data=data, resume=self.resume, before=BEFORE) as run:
            option.keep(run)
            if self.resume and not run.resumed:
                console.print(f"There is no run in {folder} to resume; a new one starts.")
            trained = train_prepared(prepared, run=run, init_from=self.init_from, quiet=self.quiet)
            if trained.result.stopped.startswith("interrupted"):
                return interrupted(trained.result, folder, console)
            run.summarise(
                **trained.scores,
                counts=trained.counts,
                unit=unit,
                fill=asdict(prepared.sampler.statistics()),
                batching_share=trained.batching_share,
                compilation=trained.compilation.report(),
            )
        _show(trained, config, unit, folder, console)
        return 0


@dataclass(frozen=True, kw_only=True)
class Molecules(_Structures):
    """Train SchNet, MPEU or PaiNN on a property of molecules: QM9, or your own extxyz or ASE files.

    Lengths are in Å, energies in eV, forces in eV/Å. Examples:
      weft train molecules --target gap --no-references
      weft train molecules --data water.extxyz --target energy --forces forces --model painn
    """

    config: Annotated[StructuresConfig, tyro.conf.arg(name="")] = field(
        default_factory=StructuresConfig
    )

    def __call__(self, console: Console) -> int:
        """Train, then print what came out and where it is."""
        return self._train("molecules", self.config, console)


@dataclass(frozen=True, kw_only=True)
class Crystals(_Structures):
    """Train SchNet, MPEU or PaiNN on a property of crystals, neighbours over periodic images.

    Lengths are in Å, energies in eV. Examples:
      weft train crystals --files crystals.jsonl.gz --target formation_energy_per_atom
      weft train crystals --data my.jsonl --target band_gap --neighbours.kind cutoff
      weft train crystals --data my_cifs/ --target energy   (my_cifs/id_prop.csv: id,energy)
    """

    config: Annotated[StructuresConfig, tyro.conf.arg(name="")] = field(
        default_factory=crystals_config
    )

    def __call__(self, console: Console) -> int:
        """Train, then print what came out and where it is."""
        return self._train("crystals", self.config, console)


def _show(
    trained: Trained,
    config: StructuresConfig,
    unit: str,
    folder: Path,
    console: Console,
) -> None:
    result = trained.result
    in_unit = f" [{unit}]" if unit else ""
    summary = Table(title=f"{config.target}{in_unit}: {result.stopped}", title_justify="left")
    headings = {"part": "", "structures": "", "MAE": in_unit, "RMSE": in_unit}
    if config.forces:
        headings |= {"force MAE": " [eV/Å]", "force RMSE": " [eV/Å]"}
    for heading, note in headings.items():
        summary.add_column(heading + note, justify="left" if heading == "part" else "right")
    for part in ("validation", "test"):
        if f"{part}_mae" not in trained.scores:
            continue
        names = ["mae", "rmse", *(["force_mae", "force_rmse"] if config.forces else [])]
        errors = [f"{trained.scores[f'{part}_{name}']:.4g}" for name in names]
        summary.add_row(part, f"{trained.counts[part]:,}", *errors)
    console.print(summary)
    dropped = trained.counts["dropped"]
    if dropped:
        console.print(
            f"{dropped:,} structures without {' or '.join(config.targets)} were left out.",
            soft_wrap=True,
        )
    skipped = trained.counts["skipped"]
    if skipped:
        console.print(f"{skipped:,} structures larger than a batch were skipped in training.")
    compiled = trained.compilation
    if compiled.mode != "eager":
        console.print(
            f"Compiled {compiled.compilations} times, {compiled.seconds:.1f} s of the time below; "
            "`weft study batching` measures from how many steps on that pays.",
            soft_wrap=True,
        )
    console.print(
        f"{trained.counts['train']:,} structures for training, {result.epochs} epochs in "
        f"{result.seconds:.1f} s, {result.graphs_per_second:,.0f} structures a second on average, "
        f"{trained.batching_share:.1%} of the time spent waiting for batches; the weights are "
        f"those of epoch {result.best_epoch}, the best by {config.monitor}.\n"
        f"Everything is in {folder} (tensorboard --logdir {folder}). Next:\n"
        f"  weft predict {folder} FILE.extxyz",
        soft_wrap=True,
    )


COMMANDS = {
    "molecules": Molecules,
    "crystals": Crystals,
    "programs": Programs,
    "citations": Citations,
    "full-graph": FullGraph,
    "links": Links,
    "nodes": Nodes,
}
