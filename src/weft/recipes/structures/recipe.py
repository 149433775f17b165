"""The recipes for molecules and crystals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.recipes.recipe import (
    DataOptions,
    ExportOptions,
    PredictOptions,
    StandardRecipe,
    member_folders,
)
from weft.recipes.structures.config import BEFORE, StructuresConfig

if TYPE_CHECKING:
    from rich.console import Console

    from weft.graphs import GraphTable
    from weft.models.exported_program import Exported
    from weft.parallel.world import World
    from weft.recipes.structures.candidates import StructuresTask
    from weft.recipes.structures.training import Prepared
    from weft.recipes.table_training import Trained


class MoleculesRecipe(StandardRecipe):
    """One value a structure, and forces, from positions."""

    help = """
    Train SchNet, MPEU or PaiNN on a property of molecules: QM9, or your own extxyz or ASE files.

    Lengths are in Å, energies in eV, forces in eV/Å. Examples:
      weft train molecules --target gap --no-references
      weft train molecules --data water.extxyz --model painn    (the energy and forces in it)
      weft train molecules --data water.extxyz --target energy --forces forces --model painn
    """
    plan_help = """
    Measure the fastest way to train on molecules: batching, threads, compile modes.

    Each way trains for a few seconds; only its time and memory are kept. Takes the options of
     `weft train molecules`. Examples:
      weft plan molecules --data qm9 --batching.batch-size 128 --run-steps 20000
      weft plan molecules --data water.extxyz --target energy --forces forces --model painn
    """
    config_type = StructuresConfig
    kind = "molecules"
    counts = "structures"
    common = ("data", "target", "forces", "model", "hidden", "layers", "learning_rate", "epochs")
    predicts_with = ("out", "forces", "stress", "quiet")
    before = BEFORE
    shares_batches = True
    trains_ensembles = True

    def completed(self, config: StructuresConfig, console: Console | None) -> StructuresConfig:
        """The configuration with the energy, forces and stress of a user's files found by name."""
        config = config.settled_target()
        paths = [Path(name) for name in config.sources]
        if config.target or not all(path.exists() for path in paths):
            return config
        from weft.recipes.structures.data import reader_of
        from weft.recipes.structures.target_names import guessed_targets

        if reader_of(paths[0]) != "atoms":
            return config
        found = guessed_targets(paths)
        if console is not None:
            console.print(f"Learning from {paths[0]}: {found}.", soft_wrap=True)
        return replace(
            config,
            target=found.energy,
            forces=config.forces or found.forces,
            stress=config.stress or found.stress,
        )

    def run_name(self, config: StructuresConfig) -> str:
        """Of the run's folder, by default."""
        from weft.recipes.structures.data import file_name_of

        return f"{self.name}-{file_name_of(config.sources[0])}-{config.target}"

    def settled(
        self, config: StructuresConfig, earlier: Mapping[str, Any] | None = None
    ) -> StructuresConfig:
        """The configuration with readout, neighbours, envelope and monitor decided."""
        return config.settled(self.name, earlier)

    def check(self, config: StructuresConfig) -> None:
        """Raise ValueError where forces are requested of a model that has no sound ones."""
        config.check_forces()

    def read(self, config: StructuresConfig, source: DataOptions, *, progress: bool) -> GraphTable:
        """Structures with their neighbours."""
        from weft.recipes.structures.data import read_structures

        return read_structures(
            config, files=source.files, data_dir=source.data_dir, progress=progress
        )

    def plan_task(self, data: GraphTable, config: StructuresConfig) -> StructuresTask:
        """Batching, threads and compile modes."""
        from weft.recipes.structures.candidates import StructuresTask

        return StructuresTask(self.name, data, config)

    def note(self, prepared: Prepared, console: Console, *, quiet: bool = False) -> None:
        """Say what is worth knowing of periodic structures, isolated atoms and given parts."""
        from weft.models.target_scale import element_counts
        from weft.recipes.output import notes
        from weft.recipes.structures.atom_energies import energies_sentence
        from weft.recipes.structures.data import shared_structures, usable_structures

        data, config = prepared.table, prepared.config
        periodic = int(data.column("pbc").any(axis=1).sum()) if "pbc" in data.schema else 0
        said = []
        if periodic and self.kind == "molecules":
            said.append(
                f"{periodic:,} of {len(data):,} structures are periodic, so neighbours are found "
                "among their images; `weft train crystals` has the settings for such data."
            )
        if prepared.atoms.energies:
            references = prepared.scale.references.numpy()
            elements = element_counts(data)[0].tolist()
            said.append(energies_sentence(prepared.atoms, references, elements, _unit(prepared)))
        if config.validation_file or config.test_file:
            counts = ", ".join(f"{len(ids):,} for {part}" for part, ids in prepared.split.items())
            said.append(f"Structures: {counts}.")
            for (first, second), count in shared_structures(data, prepared.split).items():
                notes().print(
                    f"weft: {count:,} structures for {second} are also among those for {first}, "
                    f"so the errors on them say little; remove them from one of the files.",
                    soft_wrap=True,
                )
        lacking = int((~usable_structures(data, config.targets) & ~prepared.atoms.isolated).sum())
        if lacking:
            said.append(
                f"{lacking:,} of {len(data):,} structures lack {' or '.join(config.targets)} and "
                "are left out."
            )
        for sentence in said:
            if not quiet:
                console.print(sentence, soft_wrap=True)

    def prepare(
        self, data: GraphTable, config: StructuresConfig, *, world: World, earlier: Path | None
    ) -> Prepared:
        """The split, the scale of the target and the batches."""
        from weft.recipes.structures.training import prepare_structures
        from weft.training.run import CONFIG

        resumed = earlier is not None and (earlier / CONFIG).exists()
        return prepare_structures(data, config, resumed=resumed)

    def checksums(self, data: GraphTable, config: StructuresConfig) -> dict[str, str]:
        """Of atoms, positions, cells and what is learned."""
        from weft.graphs.checksums import table_checksums

        return table_checksums(data, ["z", "pos", "cell", "pbc", *config.targets])

    def train(self, prepared: Prepared, **session: Any) -> Trained:
        """Train the network."""
        from weft.recipes.structures.training import train_prepared

        return train_prepared(prepared, **session)

    def summary(self, trained: Trained, prepared: Prepared) -> dict[str, Any]:
        """Errors, counts, how full batches were, and compiling."""
        return {**trained.summary(prepared.sampler), "unit": _unit(prepared)}

    def show(self, trained: Trained, prepared: Prepared, folder: Path, console: Console) -> None:
        """Print the errors, what was left out, and where everything is."""
        import numpy as np

        from weft.recipes.output import print_scores, where
        from weft.recipes.structures.data import usable_structures
        from weft.recipes.structures.score_table import score_table

        result, config = trained.result, prepared.config
        unit = _unit(prepared)
        headings, rows = score_table(trained, unit)
        in_unit = f" [{unit}]" if unit else ""
        print_scores(f"{config.target}{in_unit}: {result.stopped}", headings, rows, console)
        counts, compiled = trained.counts, trained.compilation
        said = "trivial: the atoms' own values or the mean for the target, no forces, no stress.\n"
        if counts["dropped"]:
            wanted = " or ".join(config.targets)
            first = int(np.argmin(usable_structures(prepared.table, config.targets)))
            said += (
                f"{counts['dropped']:,} structures without {wanted} were left out. The first of "
                f"them is structure {first}, counted from 0.\n"
            )
        if counts["skipped"]:
            said += (
                f"{counts['skipped']:,} structures larger than a batch were skipped in training.\n"
            )
        if compiled.mode != "eager":
            said += (
                f"Compiled {compiled.compilations} times, {compiled.seconds:.1f} s of the time "
                "below; `weft study batching` measures from how many steps on that pays.\n"
            )
        console.print(
            f"{said}{counts['train']:,} structures for training, {result.epochs} epochs in "
            f"{result.seconds:.1f} s, {result.graphs_per_second:,.0f} structures a second on "
            f"average, {trained.batching_share:.1%} of the time spent waiting for batches; the "
            f"weights are those of epoch {result.best_epoch}, the best by {config.monitor}.\n"
            + where(folder, f"weft predict {folder} FILE.extxyz"),
            soft_wrap=True,
        )

    def mean_of(self, members: Sequence[Trained], console: Console) -> Trained:
        """Mean errors of the networks; how far they are apart is printed."""
        from weft.recipes.structures.score_table import mean_errors

        for part in ("validation", "test"):
            values = [
                each.scores[f"{part}_mae"] for each in members if f"{part}_mae" in each.scores
            ]
            if values:
                console.print(
                    f"Mean of {len(values)} networks; their {part} MAE goes from {min(values):.4g} "
                    f"to {max(values):.4g}.",
                    soft_wrap=True,
                )
        return mean_errors(members)

    def predict(
        self, run: Path, file: Path | None, options: PredictOptions, console: Console
    ) -> None:
        """Predict the structures of a file: values with their units, and forces."""
        from weft.errors import DataError
        from weft.recipes.output import print_predictions
        from weft.recipes.structures.prediction import (
            load_structures,
            output_file,
            predict_file,
            write_predictions,
        )

        if file is None:
            raise DataError(f"name the file to predict: weft predict {run} FILE")
        forces, stress = options.forces, options.stress
        out = output_file(options.out, file, extxyz=forces or stress)
        folders = member_folders(run)
        for folder in folders if len(folders) > 1 else []:
            if not (folder / "summary.json").is_file():
                raise DataError(
                    f"{folder} has not finished, so the mean and the spread would be those of "
                    f"unlike networks: resume it with `weft train` and --resume, or name a member"
                )
        members = [load_structures(folder) for folder in folders]
        if (forces or stress) and (reason := members[0].config.why_no_forces()):
            console.print(f"Do not rely on these forces: {reason}.", soft_wrap=True)
        found = predict_file(
            members, file, forces=forces, stress=stress, progress=not options.quiet
        )
        write_predictions(out, file, found)
        rows = [tuple(map(_shown, row)) for row in found.rows(10)]
        print_predictions(found.headings, rows, len(found.values), out, console)

    def export(self, run: Path, path: Path, options: ExportOptions) -> Exported:
        """Write the potential of a run: energies, forces and stress."""
        from weft.recipes.structures.export import export_structures

        stress = options.stress or (options.forces and self.name == "crystals")
        return export_structures(run, path, forces=options.forces, stress=stress, int8=options.int8)


class CrystalsRecipe(MoleculesRecipe):
    """The same with the settings for periodic structures."""

    help = """
    Train SchNet, MPEU or PaiNN on a property of crystals, neighbours over periodic images.

    Lengths are in Å, energies in eV. Examples:
      weft train crystals --files crystals.jsonl.gz --target formation_energy_per_atom
      weft train crystals --data my.jsonl --target band_gap --neighbours.kind cutoff
      weft train crystals --data my_cifs/ --target energy   (my_cifs/id_prop.csv: id,energy)
    """
    plan_help = """
    Measure the fastest way to train on crystals: batching, threads, compile modes.

    Takes the options of `weft train crystals`. Example:
      weft plan crystals --files crystals.jsonl.gz --run-steps 20000
    """
    kind = "crystals"

    def completed(self, config: StructuresConfig, console: Console | None) -> StructuresConfig:
        """See MoleculesRecipe; an energy that was found is one of the whole structure."""
        found = super().completed(config, console)
        named = config.settled_target().target
        return found if found.target == named else replace(found, references=True)

    def default(self) -> StructuresConfig:
        """The configuration that a newcomer gets."""
        plain = StructuresConfig()
        return replace(
            plain,
            data="mp-matminer",
            references=False,
            neighbours=replace(plain.neighbours, nearest=24, cutoff=6.0),
        )


def _unit(prepared: Prepared) -> str:
    from weft.recipes.structures.training import unit_of

    return unit_of(prepared.table, prepared.config)


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


MOLECULES = MoleculesRecipe("molecules")
CRYSTALS = CrystalsRecipe("crystals")
