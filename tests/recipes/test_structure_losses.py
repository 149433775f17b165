"""Losses and errors of energies, forces and stresses, and energies of isolated atoms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from small_structures import ENERGY, config, metals, molecules, table_of
from torch.nn import functional

from weft.batching import BatchingConfig
from weft.errors import DataError
from weft.graphs import GraphTable, assemble
from weft.models import properties_of
from weft.recipes.structures.atom_energies import energies_sentence, parsed_energies
from weft.recipes.structures.config import StructuresConfig, Swap
from weft.recipes.structures.data import labelled, read_structures, stress_matrices
from weft.recipes.structures.loss import StructureLoss
from weft.recipes.structures.prediction import load_structures, predict_file
from weft.recipes.structures.training import prepare_structures, train_prepared, train_structures
from weft.training import Run, read_metrics


def stressed(**options: Any) -> StructuresConfig:
    given: dict[str, Any] = {"forces": "forces", "stress": "stress", "model": "painn"}
    return config(**{**given, **options})


@pytest.fixture(scope="module")
def metal_table(tmp_path_factory: pytest.TempPathFactory) -> GraphTable:
    return table_of(tmp_path_factory.mktemp("metals"), metals(), stressed())


@pytest.mark.parametrize("name", ["mse", "mae", "huber"])
@pytest.mark.parametrize("per_atom", [False, True])
def test_a_loss_is_the_sum_of_torchs_own(metal_table: Any, name: Any, per_atom: bool) -> None:
    asked = stressed(
        loss=name, per_atom=per_atom, huber_delta=0.3, energy_weight=2.0, stress_weight=50.0
    )
    prepared = prepare_structures(metal_table, asked)
    asked, scale = prepared.config, prepared.scale
    std = float(scale.std)
    data = labelled(metal_table, "energy", scale, forces="forces", stress="stress")
    batch = assemble(data, [3, 1, 5])

    def network(batch: Any) -> Any:
        return batch.nodes["pos"].square().sum().expand(batch.num_graphs) * 1e-3

    terms = StructureLoss(asked, scale)(network, batch, 0)
    assert isinstance(terms, list)
    found = properties_of(network, batch, stress=True)
    torchs = {"mse": functional.mse_loss, "mae": functional.l1_loss}
    torchs["huber"] = lambda a, b: functional.huber_loss(a, b, delta=0.3 / std)
    atoms = batch.node_offsets.diff() if per_atom else 1
    label = torch.tensor(scale.standardise(metal_table, metal_table.column("energy")))[[3, 1, 5]]
    expected = [
        2.0 * torchs[name](found.energy / atoms, label / atoms),
        torchs[name](found.forces, batch.nodes["(forces)"] / std),
        50.0 * torchs[name](found.stress, batch.graphs["(stress)"] / std),
    ]
    for term, value in zip(terms, expected, strict=True):
        assert float(term.value.detach()) == pytest.approx(float(value), rel=1e-5)


def test_stresses_are_learned_and_measured(tmp_path: Path, metal_table: Any) -> None:
    asked = stressed(epochs=8, stress_weight=1000.0)
    with Run.create(tmp_path / "run", asked, tensorboard=False) as run:
        done = train_structures(metal_table, asked, run=run, quiet=True)
    lines = [m for m in read_metrics(tmp_path / "run") if "validation_stress_mae" in m]
    assert lines[-1]["validation_stress_mae"] < 0.8 * lines[0]["validation_stress_mae"]
    assert {"test_stress_rmse", "test_mae_per_atom", "test_force_mae"} <= done.scores.keys()
    by_element = done.details["force_mae_by_element"]["test"]
    assert by_element.keys() == {"Cu", "Au"}
    trivial = done.details["trivial"]["test"]
    test = prepare_structures(metal_table, asked).split["test"]
    stresses = stress_matrices(metal_table, "stress")[test]
    assert trivial["stress_mae"] == pytest.approx(np.abs(stresses).mean(), rel=1e-6)
    rows = np.isin(np.repeat(np.arange(len(metal_table)), metal_table.num_nodes), test)
    forces = np.abs(metal_table.column("forces")[rows])
    assert trivial["force_mae"] == pytest.approx(forces.mean(), rel=1e-6)
    copper = metal_table.column("z")[rows] == 29
    assert by_element["Cu"]["trivial"] == pytest.approx(forces[copper].mean(), rel=1e-6)


def test_the_validation_loss_is_that_of_training_with_the_last_weights(metal_table: Any) -> None:
    for swap in (None, Swap(epoch=1, energy_weight=5.0)):
        asked = stressed(
            loss="huber",
            per_atom=True,
            swap=swap,
            epochs=1,
            learning_rate=0.0,
            batching=BatchingConfig(policy="dynamic", batch_size=64),
        )
        prepared = prepare_structures(metal_table, asked)
        same = {**prepared.split, "validation": prepared.split["train"]}
        found = train_prepared(replace(prepared, split=same), quiet=True).result.metrics
        assert found["validation_loss"] == pytest.approx(found["train_loss"], rel=1e-4)


def test_the_energy_counts_more_late_in_training(tmp_path: Path) -> None:
    asked = config(
        epochs=3,
        learning_rate=0.0,
        swap=Swap(epoch=3, energy_weight=7.0),
        batching=BatchingConfig(policy="dynamic", batch_size=64),
    )
    table = table_of(tmp_path, molecules(20), asked)
    with Run.create(tmp_path / "run", asked, tensorboard=False) as run:
        train_structures(table, asked, run=run, quiet=True)
    losses = [m["train_loss"] for m in read_metrics(tmp_path / "run") if "train_loss" in m]
    assert losses[2] == pytest.approx(7 * losses[0]) == pytest.approx(7 * losses[1])


def test_stresses_in_any_form_are_the_same(tmp_path: Path) -> None:
    made = metals(4)
    for atoms in made:
        matrix = atoms.get_stress(voigt=False)
        atoms.info |= {"nine": matrix.flatten(), "virials": -matrix.flatten() * atoms.get_volume()}
        atoms.arrays["wrong"] = np.ones((len(atoms), 6))
    names = ["stress", "nine", "virials", "wrong"]
    asked = stressed()
    write(tmp_path / "made.extxyz", made)
    from weft.sources import atoms_table

    table = atoms_table(tmp_path / "t", tmp_path / "made.extxyz", targets=names, progress=False)
    expected = np.array([atoms.get_stress(voigt=False) for atoms in made])
    for name in names[:3]:
        np.testing.assert_allclose(stress_matrices(table, name), expected, atol=1e-7)
    with pytest.raises(DataError, match=r"'wrong' is a node column of shape \[6\]; a stress is 6"):
        stress_matrices(table, "wrong")
    made[2].calc.results["stress"] = made[2].get_stress()
    made[2].cell, made[2].pbc = None, False
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="'stress': structure 2 has no cell with a volume"):
        prepare_structures(table_of(tmp_path / "b", made, asked), asked)


def read(folder: Path, made: list[Any], asked: StructuresConfig) -> GraphTable:
    """The table as `weft train` reads it from a file."""
    write(folder / "made.extxyz", made)
    asked = replace(asked, data=str(folder / "made.extxyz"))
    return read_structures(asked, data_dir=folder, progress=False)


def isolated(z: int, energy: float, **info: Any) -> Any:
    atoms = Atoms([z], info=info)
    atoms.calc = SinglePointCalculator(atoms, energy=energy)
    return atoms


def test_energies_of_isolated_atoms_are_the_references(tmp_path: Path) -> None:
    made = [atoms for atoms in molecules(30) if len(atoms) > 1]
    alone = [isolated(z, energy - 1, config_type="IsolatedAtom") for z, energy in ENERGY.items()]
    asked = config(epochs=1)
    prepared = prepare_structures(read(tmp_path, [*alone, *made], asked), asked)
    references = prepared.scale.references
    # Their differences; the mean energy of an atom in a molecule is common to all.
    shift = float(references[1]) - (ENERGY[1] - 1)
    for z, energy in ENERGY.items():
        assert float(references[z]) == pytest.approx(energy - 1 + shift, abs=1e-9)
    left = prepared.scale.standardise(prepared.table, prepared.table.column("energy"))
    assert abs(left[prepared.split["train"]].sum()) < 1e-3
    parts = np.concatenate(list(prepared.split.values()))
    assert sorted(parts.tolist()) == list(range(3, 3 + len(made)))
    done = train_prepared(prepared, quiet=True)
    assert done.counts["dropped"] == 0
    # The others are learned beside those that are known.
    (tmp_path / "b").mkdir()
    table = read(tmp_path / "b", [*alone[1:], *made], asked)
    prepared = prepare_structures(table, replace(asked, atom_energies=("C=-1000", "8=-2000")))
    references = prepared.scale.references
    assert float(references[8] - references[6]) == pytest.approx(-1000)
    assert prepared.atoms.isolated.sum() == 2
    said = energies_sentence(prepared.atoms, references.numpy(), ENERGY, "eV")
    assert said.startswith(
        "Energies of isolated atoms [eV]: C -1000, O -2000; by least squares: H -"
    )


def test_single_atoms_are_references_where_asked_for(tmp_path: Path) -> None:
    made = molecules(40)
    asked = config(atom_energies=("isolated",))
    prepared = prepare_structures(read(tmp_path, made, asked), asked)
    assert prepared.atoms.isolated.tolist() == [len(atoms) == 1 for atoms in made]
    assert prepared.atoms.energies == {1: ENERGY[1], 6: ENERGY[6]}
    other = replace(asked, atom_energies=())
    assert prepare_structures(prepared.table, other).atoms.energies == {}


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ([isolated(1, -1.0), isolated(1, -2.0)], "an isolated H has energy -2, and one before it"),
        (
            [Atoms("HH", [[0, 0, 0], [0, 0, 1]])],
            "structure 0 has config_type=IsolatedAtom and 2 atoms",
        ),
    ],
)
def test_isolated_atoms_that_cannot_be(tmp_path: Path, made: list[Any], named: str) -> None:
    for atoms in made:
        atoms.info["config_type"] = "IsolatedAtom"
    asked = config()
    with pytest.raises(DataError, match=named):
        prepare_structures(read(tmp_path, [*made, *molecules(3)], asked), asked)


def test_energies_of_atoms_that_are_given(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(json.dumps({"H": -13.5, "8": -2040}))
    assert parsed_energies([str(tmp_path / "e.json"), "C=-1.5"]) == {1: -13.5, 8: -2040.0, 6: -1.5}
    for word, named in (
        ("Q=1", "'Q' is not an element"),
        ("H=x", "'x' is not an energy"),
        ("H=nan", "is not an energy"),
        ("H", "neither ELEMENT=ENERGY"),
    ):
        with pytest.raises(DataError, match=named):
            parsed_energies([word])


def test_bad_options_are_named() -> None:
    for options, named in (
        ({"loss": "l2"}, "loss is 'l2'; choose from mse, huber, mae"),
        ({"huber_delta": 0.0}, "huber_delta is 0.0; it must be above 0"),
        ({"stress": "stress", "readout": "mean"}, "stress is 'stress' and readout is 'mean'"),
        ({"atom_energies": ("H=1",), "references": False}, "references are turned off"),
        ({"energy_weight": -1.0}, "energy_weight is -1.0; it must be at least 0"),
    ):
        with pytest.raises(ValueError, match=named):
            config(**options).check_forces()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epoch is 0; it must be at least 1"):
        Swap(epoch=0, energy_weight=1.0)


def test_a_run_is_fine_tuned_on_elements_that_it_did_not_have(tmp_path: Path) -> None:
    made = molecules(60)
    (tmp_path / "b").mkdir()
    first = [atoms for atoms in made if 8 not in atoms.numbers]
    asked = config(epochs=2)
    with Run.create(tmp_path / "run", asked, tensorboard=False) as run:
        before = train_structures(read(tmp_path, first, asked), asked, run=run, quiet=True)
    second = replace(asked, epochs=0, seed=3)
    # Without hydrogen, which the network still knows afterwards.
    others = [atoms for atoms in made if 1 not in atoms.numbers]
    table = read(tmp_path / "b", others, second)
    with Run.create(tmp_path / "tuned", second, tensorboard=False) as run:
        after = train_structures(table, second, run=run, init_from=tmp_path / "run", quiet=True)
    about = json.loads((tmp_path / "tuned" / "model.json").read_text())
    assert about["elements"] == about["trained_elements"] == [1, 6, 8]
    ours, theirs = after.model.state_dict(), before.model.state_dict()
    rows = "network.elements.embedding.weight"
    assert torch.equal(ours[rows][:2], theirs[rows])
    assert not torch.equal(ours[rows][2], theirs[rows][1])
    for name in theirs.keys() - {rows, "scale.references"}:
        assert torch.equal(ours[name], theirs[name]), name
    with Run.create(tmp_path / "tuned", second, tensorboard=False, resume=True) as run:
        again = train_structures(table, second, run=run, quiet=True)
    assert torch.equal(again.model.state_dict()[rows], ours[rows])
    references = ours["scale.references"]
    assert torch.equal(references[[1, 6]], theirs["scale.references"][[1, 6]])
    assert float(references[8]) == pytest.approx(ENERGY[8], abs=20)


def test_dipoles_are_learned_by_painn(tmp_path: Path) -> None:
    made = [atoms for atoms in molecules(60) if len(atoms) > 1]
    for atoms in made:
        charges = np.where(atoms.numbers == 1, 0.3, -0.2)
        charges -= charges.mean()
        atoms.calc.results["dipole"] = charges @ atoms.positions
    asked = config(target="dipole", model="painn", epochs=8)
    table = read(tmp_path, made, asked)
    prepared = prepare_structures(table, asked)
    with Run.create(tmp_path / "run", prepared.config, tensorboard=False) as run:
        done = train_prepared(prepared, run=run, quiet=True)
    found = predict_file(
        load_structures(tmp_path / "run"), tmp_path / "made.extxyz", progress=False
    )
    assert found.headings[2:] == tuple(f"dipole [e Å], {axis}" for axis in "xyz")
    given = np.array([atoms.calc.results["dipole"] for atoms in made])
    test = prepared.split["test"]
    errors = np.abs(found.values - given)[test]
    assert errors.mean() == pytest.approx(done.scores["test_mae"], rel=1e-4)
    assert done.scores["test_mae"] < 0.7 * done.details["trivial"]["test"]["mae"]
    assert "test_mae_per_atom" not in done.scores
    with pytest.raises(DataError, match="'dipole' is a vector, and model is 'schnet'"):
        prepare_structures(table, replace(asked, model="schnet"))
    with pytest.raises(ValueError, match="forces is 'forces' and the target is a vector"):
        replace(asked, forces="forces", vector=True).check_forces()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"swap": Swap(epoch=5, energy_weight=2.0), "epochs": 4}, "swap is at epoch 5"),
        ({"atom_energies": ("H=1",), "readout": "mean"}, "readout is 'mean'"),
        ({"atom_energies": ("H=1",), "references": False}, "add --references"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        StructuresConfig(**options)
