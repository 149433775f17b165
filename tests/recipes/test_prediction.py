"""A run that was trained, loaded again and applied to new structures."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.io import read, write
from small_structures import config, molecules, plain_table, table_of

from weft.batching import BatchingConfig, GraphLoader, evaluation_sampler
from weft.errors import DataError
from weft.graphs import Budget
from weft.recipes.structures.config import NeighbourConfig, StructuresConfig
from weft.recipes.structures.prediction import (
    TrainedStructures,
    from_json,
    load_structures,
    predict_file,
    predict_table,
    write_predictions,
)
from weft.recipes.structures.training import train_structures
from weft.recipes.table_training import Trained
from weft.training import Run


def train(folder: Path, asked: StructuresConfig, made: list[Any] | None = None) -> Trained:
    table = table_of(folder, molecules(24) if made is None else made, asked)
    with Run.create(folder / "run", asked, tensorboard=False) as run:
        return train_structures(table, asked, run=run, quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run of SchNet and its data, made.extxyz."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, config(epochs=1, neighbours=NeighbourConfig(kind="complete")))
    return folder


@pytest.fixture
def network(folder: Path) -> TrainedStructures:
    return load_structures(folder / "run")


def predicted(network: TrainedStructures, file: Path, **options: Any) -> Any:
    return predict_file(network, file, progress=False, **options)


@pytest.mark.parametrize("model", ["schnet", "mpeu", "painn"])
def test_a_loaded_run_gives_what_the_model_in_memory_gave(tmp_path: Path, model: Any) -> None:
    asked = config(model=model, epochs=1)
    done = train(tmp_path, asked)
    network = load_structures(tmp_path / "run")
    assert network.config == asked.settled()
    assert (network.unit, network.elements) == ("eV", (1, 6, 8))
    found = predicted(network, tmp_path / "made.extxyz")
    assert (found.target, found.unit, found.forces) == ("energy", "eV", None)
    assert found.num_atoms.tolist() == [len(atoms) for atoms in molecules(24)]
    data = table_of_again(tmp_path, asked)
    sampler = evaluation_sampler(data.num_nodes, data.num_edges, asked.batching)
    with torch.no_grad():
        values = [done.model(b)[b.graph_mask].numpy() for b in GraphLoader(data, sampler)]
    assert found.values.tolist() == np.concatenate(values).tolist()


def table_of_again(folder: Path, asked: StructuresConfig) -> Any:
    (folder / "again").mkdir()
    return table_of(folder / "again", molecules(24), asked)


def test_predictions_do_not_depend_on_batches(folder: Path, network: TrainedStructures) -> None:
    file = folder / "made.extxyz"
    together = predicted(network, file, forces=True)
    for batching in (
        BatchingConfig(policy="unpadded", batch_size=1),
        BatchingConfig(policy="packed", batch_size=6),
        BatchingConfig(policy="static-2^n", batch_size=24),
        # Half of the molecules are larger, and have a batch alone.
        BatchingConfig(policy="dynamic", batch_size=4, budget=Budget(nodes=5, edges=12, graphs=4)),
    ):
        other = replace(network, config=replace(network.config, batching=batching))
        found = predicted(other, file, forces=True)
        assert np.abs(found.values - together.values).max() < 1e-5
        for mine, theirs in zip(found.forces, together.forces, strict=True):
            assert np.abs(mine - theirs).max() < 1e-5


def test_a_molecule_far_larger_than_those_of_the_training(
    tmp_path: Path, network: TrainedStructures
) -> None:
    place = np.random.default_rng(0).uniform(0, 0.2, (90, 3))
    large = Atoms("C90", positions=place + np.arange(90)[:, None] * [1.0, 0.5, 0])
    write(tmp_path / "new.extxyz", [Atoms("H"), large, Atoms("O")])
    asked = replace(
        network.config, batching=BatchingConfig(policy="dynamic", batch_size=4, paper="qm9")
    )
    found = predicted(replace(network, config=asked), tmp_path / "new.extxyz")
    assert found.num_atoms.tolist() == [1, 90, 1]
    assert np.isfinite(found.values).all()
    # Ninety references of carbon.
    assert found.values[1] == pytest.approx(90 * -1030, rel=0.01)


@pytest.mark.parametrize("model", ["schnet", "painn"])
def test_forces_are_the_slopes_of_the_energy(tmp_path: Path, model: Any) -> None:
    train(tmp_path, config(model=model, epochs=1, forces="forces", readout="sum"))
    network = load_structures(tmp_path / "run")
    network.model.double()
    z = [[6, 1, 8, 1]]
    start = np.asarray(plain_table(z, [0.0]).column("pos"))
    step = 1e-4
    moved = plain_table(z * 25, np.zeros(25))
    places = np.tile(start, (25, 1)).reshape(25, 4, 3)
    for number in range(12):
        places[1 + 2 * number, number // 3, number % 3] += step
        places[2 + 2 * number, number // 3, number % 3] -= step
    moved = replace(moved, columns={**moved.columns, "pos": places.reshape(-1, 3)})
    found = predict_table(network, moved, forces=True)
    assert found.forces is not None
    slopes = -(found.values[1::2] - found.values[2::2]) / (2 * step)
    assert np.abs(found.forces[0]).max() > 1e-3
    assert np.abs(slopes.reshape(4, 3) - found.forces[0]).max() < 1e-6
    assert np.abs(found.forces[0].sum(axis=0)).max() < 1e-9


def test_crystals_are_predicted_with_molecules(tmp_path: Path) -> None:
    made = molecules(12)
    for atoms in made[::2]:
        atoms.cell, atoms.pbc = [4, 4, 4], True
    train(tmp_path, config(epochs=1, neighbours=NeighbourConfig(kind="nearest", nearest=5)), made)
    network = load_structures(tmp_path / "run")
    write(tmp_path / "one.extxyz", made[3])
    write(tmp_path / "other.extxyz", made[4])
    both = predicted(network, tmp_path / "made.extxyz").values
    assert predicted(network, tmp_path / "one.extxyz").values[0] == pytest.approx(both[3])
    assert predicted(network, tmp_path / "other.extxyz").values[0] == pytest.approx(both[4])


def test_csv(folder: Path, network: TrainedStructures, tmp_path: Path) -> None:
    found = predicted(network, folder / "made.extxyz")
    write_predictions(tmp_path / "out.csv", folder / "made.extxyz", found)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["structure", "atoms", "energy [eV]"]
    assert [int(row[0]) for row in rows[1:]] == list(range(24))
    assert [int(row[1]) for row in rows[1:]] == found.num_atoms.tolist()
    # To the last bit: total energies are large, their differences small.
    assert [float(row[2]) for row in rows[1:]] == found.values.tolist()
    write_predictions(tmp_path / "bare.csv", folder / "made.extxyz", replace(found, unit=""))
    assert (tmp_path / "bare.csv").read_text().startswith("structure,atoms,energy\n0,")
    with pytest.raises(DataError, match=r"written as .csv, .extxyz or .xyz, not as out.txt"):
        write_predictions(tmp_path / "out.txt", folder / "made.extxyz", found)


def test_extxyz_keeps_what_the_file_holds(
    folder: Path, network: TrainedStructures, tmp_path: Path
) -> None:
    made = molecules(5)
    for number, atoms in enumerate(made):
        atoms.info["name"] = f"m{number}"
        atoms.arrays["tag"] = np.arange(len(atoms))
    file = tmp_path / "new.extxyz"
    write(file, made)
    found = predicted(network, file, forces=True)
    write_predictions(tmp_path / "out.xyz", file, found)
    back = read(tmp_path / "out.xyz", ":", format="extxyz")
    for number, (atoms, before) in enumerate(zip(back, made, strict=True)):
        assert atoms.info["predicted_energy"] == found.values[number]
        assert atoms.info["predicted_energy_unit"] == "eV"
        assert np.abs(atoms.arrays["predicted_forces"] - found.forces[number]).max() < 1e-7
        assert atoms.info["name"] == f"m{number}"
        assert atoms.arrays["tag"].tolist() == list(range(len(atoms)))
        # What was calculated is kept beside what is predicted.
        assert atoms.get_potential_energy() == pytest.approx(before.get_potential_energy())
        assert np.abs(atoms.positions - before.positions).max() < 1e-7


@pytest.mark.parametrize("suffix", ["cif", "db"])
def test_extxyz_of_other_files(tmp_path: Path, suffix: str) -> None:
    asked = config(epochs=1, neighbours=NeighbourConfig(kind="cutoff", cutoff=3.0))
    train(tmp_path, asked, molecules(12))
    file = tmp_path / f"new.{suffix}"
    write(file, Atoms("CO", [[0, 0, 0], [1.1, 0, 0]], cell=[4, 4, 4], pbc=True))
    found = predicted(load_structures(tmp_path / "run"), file)
    write_predictions(tmp_path / "out.extxyz", file, found)
    back = read(tmp_path / "out.extxyz")
    assert back.info["predicted_energy"] == found.values[0]
    assert back.get_chemical_formula() == "CO"
    assert back.pbc.all()


def test_an_unknown_element_is_named(tmp_path: Path, network: TrainedStructures) -> None:
    write(tmp_path / "new.extxyz", [Atoms("H"), Atoms("HCl", [[0, 0, 0], [0, 0, 1.3]]), Atoms("F")])
    with pytest.raises(
        DataError,
        match=r"new\.extxyz, structure 1: atom 1 is Cl, an element that the model has not been "
        r"trained on \(H, C, O\); 2 such atoms in all",
    ):
        predicted(network, tmp_path / "new.extxyz")


def test_an_element_of_other_structures_than_those_trained_on_is_unknown(tmp_path: Path) -> None:
    made = molecules(12)
    made[5] = Atoms("N", info={"other": 1.0})
    train(tmp_path, config(epochs=1), made)
    network = load_structures(tmp_path / "run")
    assert network.elements == (1, 6, 8)
    with pytest.raises(DataError, match="structure 5: atom 0 is N"):
        predicted(network, tmp_path / "made.extxyz")


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (
            Atoms("HH", [[0, 0, 0], [0, 0, 0]]),
            r"new\.extxyz: graph 1: atoms 0 and 1 are in one place",
        ),
        (Atoms("H", [[0, 0, np.nan]]), r"new\.extxyz, structure 1 .*atom 0 is at"),
        (Atoms("H", cell=[4, 4, 4], pbc=True), r"new\.extxyz: structure 1 is periodic"),
        (Atoms("H", cell=[4, 4, 0], pbc=True), r"new\.extxyz, structure 1 .*the cell"),
        (Atoms(), r"new\.extxyz, structure 1 has no atoms; remove it"),
    ],
)
def test_structures_that_cannot_be_predicted(
    tmp_path: Path, network: TrainedStructures, bad: Any, named: str
) -> None:
    write(tmp_path / "new.extxyz", [Atoms("H"), bad])
    with pytest.raises(DataError, match=named):
        predicted(network, tmp_path / "new.extxyz")


def test_one_atom(tmp_path: Path, network: TrainedStructures) -> None:
    write(tmp_path / "new.extxyz", Atoms("O"))
    found = predicted(network, tmp_path / "new.extxyz", forces=True)
    assert np.isfinite(found.values).all()
    assert found.forces is not None
    assert found.forces[0].tolist() == [[0.0, 0.0, 0.0]]


def test_files_that_are_none(tmp_path: Path, network: TrainedStructures) -> None:
    (tmp_path / "empty.extxyz").write_text("")
    with pytest.raises(DataError, match=r"empty\.extxyz"):
        predicted(network, tmp_path / "empty.extxyz")
    with pytest.raises(DataError, match=r"nothing\.extxyz is not there"):
        predicted(network, tmp_path / "nothing.extxyz")


def test_folders_that_hold_no_such_run(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere holds no run of `weft train molecules`"):
        load_structures(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"made\.extxyz holds no run"):
        load_structures(folder / "made.extxyz")
    with Run.create(tmp_path / "citations", {"data": "cora"}, tensorboard=False):
        pass
    with pytest.raises(DataError, match=r"citations holds no run .*model\.json"):
        load_structures(tmp_path / "citations")
    about = json.loads((folder / "run" / "model.json").read_text())
    asked = json.loads((folder / "run" / "config.json").read_text())
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for config_text, about_text in (
        ("{", json.dumps(about)),
        (json.dumps(asked), "{}"),
        (json.dumps({"config": {"model": "gemnet"}}), json.dumps(about)),
    ):
        (damaged / "config.json").write_text(config_text)
        (damaged / "model.json").write_text(about_text)
        with pytest.raises(DataError, match=r"the run in .*damaged cannot be read \("):
            load_structures(damaged)
    (damaged / "config.json").write_text(json.dumps(asked))
    with pytest.raises(DataError, match="no weights to take"):
        load_structures(damaged)


def test_a_configuration_comes_back_from_json() -> None:
    asked = config(
        batching=BatchingConfig(
            policy="dynamic", batch_size=4, budget=Budget(nodes=9, edges=9, graphs=3)
        ),
        neighbours=NeighbourConfig(kind="nearest", nearest=7),
        limit=9,
    )
    with_lists = json.loads(json.dumps(asdict(asked)))
    assert from_json(StructuresConfig, with_lists) == asked
