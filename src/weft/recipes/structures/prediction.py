"""A trained run of the recipe `structures`, loaded again and applied to new structures."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from weft.batching import GraphLoader, evaluation_sampler
from weft.errors import DataError
from weft.files import read_object, write_atomically
from weft.graphs import Array, GraphTable, open_table
from weft.models import properties_of
from weft.models.target_scale import Standardised, TargetScale
from weft.recipes.output import prediction_file
from weft.recipes.recipe import ABOUT, from_json
from weft.recipes.structures.atom_energies import SYMBOLS
from weft.recipes.structures.config import BEFORE, StructuresConfig
from weft.recipes.structures.data import (
    check_energy,
    check_periodicity,
    check_volumes,
    reader_of,
)
from weft.recipes.structures.training import make_network
from weft.sources import atoms_table, cif_csv_table, crystals_table, with_neighbours
from weft.training.checkpoint import load_weights
from weft.training.run import CONFIG


@dataclass(frozen=True, kw_only=True)
class TrainedStructures:
    """A trained network with what it was made for.

    Attributes:
        model: gives the target in its unit.
        config: of the training.
        elements: atomic numbers of the structures that it was trained on.
        unit: of the target; empty if the data did not say.
    """

    model: Standardised
    config: StructuresConfig
    elements: tuple[int, ...]
    unit: str


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a network, or the mean of an ensemble's, says about the structures of a file.

    Attributes:
        target: name of the value.
        unit: its unit.
        values: float64 [g], of a vector [g, 3].
        num_atoms: int64 [g].
        forces: float64 [n, 3] of each structure, eV/Å; None if not requested.
        stress: float64 [g, 3, 3], eV/Å³; None if not requested.
        spread: the standard deviation of each of these over the networks of an ensemble, by the
            names of the attributes; empty for one network.
    """

    target: str
    unit: str
    values: Array
    num_atoms: Array
    forces: list[Array] | None
    stress: Array | None = None
    spread: Mapping[str, Any] = field(default_factory=dict)

    @property
    def heading(self) -> str:
        """The name of the value, with its unit if it has one."""
        return f"{self.target} [{self.unit}]" if self.unit else self.target

    @property
    def headings(self) -> tuple[str, ...]:
        """Of the columns of `rows`."""
        names = [self.heading, *([f"spread of {self.heading}"] if self.spread else [])]
        if self.values.ndim > 1:
            names = [f"{name}, {axis}" for name in names for axis in "xyz"]
        return ("structure", "atoms", *names)

    def rows(self, most: int | None = None) -> list[tuple[float, ...]]:
        """Number, atoms, value and spread of the structures, or of the first ones."""
        columns = [self.values, *([self.spread["values"]] if self.spread else [])]
        numbers = np.concatenate([c.reshape(len(c), -1) for c in columns], axis=1)[:most]
        atoms = self.num_atoms[:most].tolist()
        return [
            (i, n, *row) for i, (n, row) in enumerate(zip(atoms, numbers.tolist(), strict=True))
        ]


def ensemble_predictions(members: Sequence[Predictions]) -> Predictions:
    """The mean of what several networks say, and their standard deviation."""
    if len(members) == 1:
        return members[0]
    means: dict[str, Any] = {}
    spread: dict[str, Any] = {}
    for name in ("values", "stress"):
        if getattr(members[0], name) is not None:
            stacked = np.stack([getattr(each, name) for each in members])
            means[name], spread[name] = stacked.mean(0), stacked.std(0)
    if members[0].forces is not None:
        by_structure = zip(*(each.forces or [] for each in members), strict=True)
        stacks = [np.stack(parts) for parts in by_structure]
        means["forces"] = [each.mean(0) for each in stacks]
        spread["forces"] = [each.std(0) for each in stacks]
    return replace(members[0], **means, spread=spread)


def load_structures(run: Path) -> TrainedStructures:
    """The best weights of the run in the folder `run`.

    Raises:
        DataError: no such run, or one of another recipe.
    """
    for name in (CONFIG, ABOUT):
        if not (run / name).is_file():
            raise DataError(
                f"{run} holds no run of `weft train molecules`, `crystals` or `programs` (no "
                f"{run / name})"
            )
    try:
        asked = read_object(run / CONFIG, {"config": dict})["config"]
        about = read_object(
            run / ABOUT, {"elements": list, "unit": object, "trained_elements": list}
        )
        config = from_json(StructuresConfig, {**BEFORE, **asked}).settled()
        known, unit = tuple(about["elements"]), str(about["unit"])
        elements = tuple(about["trained_elements"])
        if not all(isinstance(number, int) for number in (*known, *elements)):
            raise ValueError(f"{run / ABOUT}: its elements are not atomic numbers")
    except (ValueError, TypeError) as error:
        raise DataError(f"the run in {run} cannot be read ({error})") from None
    model = Standardised(make_network(config, known), TargetScale())
    load_weights(model, run)
    model.eval()
    return TrainedStructures(model=model, config=config, elements=elements, unit=unit)


def predict_file(
    trained: TrainedStructures | Sequence[TrainedStructures],
    file: Path,
    *,
    forces: bool = False,
    stress: bool = False,
    progress: bool = True,
) -> Predictions:
    """Predict every structure of `file`, which is what the recipe can be trained on.

    Args:
        trained: a network, or those of an ensemble, whose mean and spread are given.
        file: the structures.
        forces: predict the forces, too.
        stress: predict the stress, too.
        progress: show progress bars.

    Raises:
        DataError: the file cannot be read, or an atom is of an element that the network has not
            seen (the message names structure and atom), or the target has no forces.
    """
    members = [trained] if isinstance(trained, TrainedStructures) else list(trained)
    if forces or stress:
        check_energy(members[0].config.target, members[0].unit)
        if members[0].config.vector:
            raise DataError(
                f"'{members[0].config.target}' is a vector, of which forces and stress are no "
                "derivatives; leave out --forces and --stress"
            )
    with TemporaryDirectory(prefix="weft-predict-") as name:
        folder = Path(name) / "structures.weft"
        reader = reader_of(file)
        if reader == "crystals":
            crystals_table(folder, file, progress=progress)
        elif reader == "cif-csv":
            cif_csv_table(folder, [file], progress=progress)
        else:
            atoms_table(folder, file, progress=progress)
        predict = partial(
            predict_table, name=str(file), forces=forces, stress=stress, progress=progress
        )
        return ensemble_predictions([predict(each, open_table(folder)) for each in members])


def predict_table(
    trained: TrainedStructures,
    table: GraphTable,
    *,
    name: str = "the table",
    forces: bool = False,
    stress: bool = False,
    progress: bool = False,
) -> Predictions:
    """Predict every structure of a table with `z`, `pos` and, if periodic, `cell` and `pbc`."""
    check_elements(trained.elements, np.asarray(table.column("z")), table.num_nodes, name)
    config = trained.config
    if stress:
        check_volumes(table, np.ones(len(table), dtype=bool), name)
    try:
        check_periodicity(table, config.neighbours)
        data = with_neighbours(table, config.neighbours.rule(), progress=progress)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    sampler = evaluation_sampler(data.num_nodes, data.num_edges, config.batching)
    found: dict[str, Any] = {"stress": np.empty((len(data), 3, 3)) if stress else None}
    predicted: dict[int, Array] = {}
    # A structure that is larger than a batch comes out of its turn, alone.
    for planned, batch in zip(sampler.plan(), GraphLoader(data, sampler), strict=True):
        real = len(planned.graphs)
        given = properties_of(trained.model, batch, forces=forces, stress=stress)
        if given.forces is not None:
            ends = batch.node_offsets[1 : real + 1].tolist()
            parts = np.split(given.forces.double().numpy(), ends)[:real]
            predicted |= zip(planned.graphs.tolist(), parts, strict=True)
        if given.stress is not None:
            found["stress"][planned.graphs] = given.stress[:real].double().numpy()
        values = found.setdefault("values", np.empty((len(data), *given.energy.shape[1:])))
        values[planned.graphs] = given.energy[:real].numpy()
    found.setdefault("values", np.empty(0))
    return Predictions(
        target=config.target,
        unit=trained.unit,
        num_atoms=table.num_nodes,
        forces=[predicted[graph] for graph in range(len(data))] if forces else None,
        **found,
    )


def check_elements(elements: Sequence[int], z: Array, num_atoms: Array, name: str) -> None:
    """Raise DataError where a structure has no atoms, or one of none of the `elements`.

    Args:
        elements: atomic numbers that a model was trained on.
        z: int [N], atomic numbers of all structures.
        num_atoms: int [S], atoms of each.
        name: where they are from, for messages.
    """
    empty = np.flatnonzero(num_atoms == 0)
    if len(empty):
        raise DataError(f"{name}, structure {empty[0]} has no atoms; remove it")
    unknown = np.flatnonzero(~np.isin(z, elements))
    if len(unknown):
        atom, stops = int(unknown[0]), np.cumsum(num_atoms)
        graph = int(np.searchsorted(stops, atom, side="right"))
        known = ", ".join(SYMBOLS[number] for number in elements)
        raise DataError(
            f"{name}, structure {graph}: atom {atom - int(stops[graph] - num_atoms[graph])} is "
            f"{SYMBOLS.get(int(z[atom]), 'no element')}, an element that the model has not been "
            f"trained on ({known}); {len(unknown)} such atoms in all: remove their structures, or "
            "train on data that has the element"
        )


def output_file(out: Path | None, file: Path, *, extxyz: bool) -> Path:
    """The file to write predictions of `file` to, see `prediction_file`.

    Raises:
        DataError: they cannot be written there.
    """
    if out is None:
        out = Path(f"{file.resolve().stem}-predicted{'.extxyz' if extxyz else '.csv'}")
    out = prediction_file(out, file, (".csv", ".extxyz", ".xyz"), "predictions")
    if extxyz and out.suffix == ".csv":
        raise DataError(f"forces and stresses are written as .extxyz, not as {out.name}")
    if out.suffix != ".csv" and reader_of(file) != "atoms":
        raise DataError(
            f"{out.name} would hold what {file} holds, which ASE does not read; write .csv"
        )
    return out


def write_predictions(path: Path, file: Path, found: Predictions) -> None:
    """Write CSV, or extxyz with the structures of `file` where the name says so; atomically.

    The CSV has a line a structure: its number in `file` from 0, its atoms, the value with its unit
    in the heading. The extxyz has the value as `predicted_TARGET`, forces as `predicted_forces` and
    the stress as `predicted_stress` (9 numbers) beside what `file` holds; of an ensemble the same
    with `_spread`.
    """
    output_file(path, file, extxyz=found.forces is not None or found.stress is not None)
    text = _csv(found) if path.suffix == ".csv" else _extxyz(file, found)
    write_atomically(path, lambda out: out.write(text.encode()))


def _csv(found: Predictions) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(found.headings)
    writer.writerows(found.rows())
    return out.getvalue()


def _extxyz(file: Path, found: Predictions) -> str:
    from ase.io import write

    from weft.sources.atoms import files_of, read_structures
    from weft.sources.progress_bar import progress_bar

    out = io.StringIO()
    with progress_bar("structures", None, show=False) as move:
        for number, structure in enumerate(read_structures(files_of([file]), move)):
            atoms = structure.atoms
            given = {"values": found.values, "forces": found.forces, "stress": found.stress}
            for end, values in (("", given), ("_spread", found.spread)):
                for kind, each in values.items():
                    if each is None:
                        continue
                    value, where = each[number], atoms.info
                    name = f"predicted_{found.target if kind == 'values' else kind}{end}"
                    if kind == "forces":
                        where = atoms.arrays
                    if kind == "stress":
                        value = value.reshape(-1)
                    where[name] = value if np.ndim(value) else float(value)
            if found.unit:
                atoms.info[f"predicted_{found.target}_unit"] = found.unit
            write(out, atoms, format="extxyz")
    return out.getvalue()
