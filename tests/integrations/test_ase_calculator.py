"""`weft.calculator`: what ASE's own differences of the energy give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from potentials import NETWORKS, potential

import weft
from stand_in_device import DEVICE, Elsewhere
from weft.errors import DataError
from weft.integrations.ase_calculator import WeftCalculator
from weft.recipes.structures.prediction import load_structures, predict_file


def crystal() -> Atoms:
    """Silicon in its primitive cell: the cutoff is longer than the cell."""
    atoms = bulk("Si")
    atoms.rattle(0.1, seed=1)
    return atoms


@pytest.mark.parametrize("name", list(NETWORKS))
def test_forces_and_stress_are_differences_of_the_energy(name):
    atoms = crystal()
    atoms.calc = WeftCalculator(potential(name))
    energy, forces = atoms.get_potential_energy(), atoms.get_forces()
    assert abs(forces).max() > 1e-4
    np.testing.assert_allclose(forces, calculate_numerical_forces(atoms, 1e-4), atol=1e-8)
    stress = atoms.get_stress()
    np.testing.assert_allclose(stress, calculate_numerical_stress(atoms, 1e-5), atol=1e-9)
    assert atoms.get_potential_energies().sum() == pytest.approx(energy, abs=1e-12)
    assert atoms.get_potential_energy(force_consistent=True) == energy
    twice = atoms.repeat((1, 2, 1))
    twice.calc = atoms.calc
    assert twice.get_potential_energy() == pytest.approx(2 * energy, abs=1e-10)
    np.testing.assert_allclose(twice.get_stress(), stress, atol=1e-12)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_another_device_gives_the_same(name):
    atoms = crystal()
    atoms.calc = WeftCalculator(potential(name))
    expected = atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
    with Elsewhere():
        atoms.calc = WeftCalculator(potential(name, device=DEVICE))
        found = atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9)


def test_a_device_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="device is cuda, but torch finds no GPUs here; choose"):
        weft.calculator(tmp_path, device="cuda")


def test_a_molecule_anywhere():
    atoms = molecule("CH3CH2OH")
    atoms.calc = WeftCalculator(potential("painn"))
    forces = atoms.get_forces()
    np.testing.assert_allclose(forces, calculate_numerical_forces(atoms, 1e-4), atol=1e-8)
    moved = atoms.copy()
    moved.positions += [1e4, -2e4, 3.0]
    moved.calc = WeftCalculator(potential("painn", dtype="float32"))
    np.testing.assert_allclose(moved.get_forces(), forces, atol=1e-5)
    assert moved.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=1e-5)
    with pytest.raises(PropertyNotImplementedError, match="periodic in three directions"):
        atoms.get_stress()
    # Nothing of what failed is left behind.
    np.testing.assert_array_equal(atoms.get_forces(), forces)


def test_the_list_is_kept_and_follows_every_change():
    atoms = crystal()
    atoms.calc = WeftCalculator(potential("painn"), skin=0.6)
    rng = np.random.default_rng(0)

    def check() -> None:
        fresh = atoms.copy()
        fresh.calc = WeftCalculator(potential("painn"), skin=0.0)
        np.testing.assert_allclose(atoms.get_forces(), fresh.get_forces(), atol=1e-12)
        np.testing.assert_allclose(atoms.get_stress(), fresh.get_stress(), atol=1e-12)

    for step in range(12):
        atoms.positions += rng.normal(0, 0.03, (2, 3))
        atoms.set_cell(atoms.cell @ (np.eye(3) + rng.normal(0, 0.004, (3, 3))), scale_atoms=True)
        if step == 6:
            atoms.positions += 3 * atoms.cell[0]
        check()
    assert atoms.calc.neighbours.builds < 10
    atoms.pbc[2] = False
    atoms.get_forces()
    atoms.pbc[2] = True
    atoms.numbers[0] = 6
    check()
    del atoms[1]
    check()


def test_stress_comes_with_the_forces_once_it_was_asked_for():
    atoms = crystal()
    atoms.calc = WeftCalculator(potential("schnet"))
    atoms.get_forces()
    assert "stress" not in atoms.calc.results
    atoms.get_stress()
    atoms.positions[0] += 0.01
    atoms.get_forces()
    assert "stress" in atoms.calc.results


def test_the_mean_and_the_spread_of_several():
    atoms = crystal()
    parts = []
    for seed in range(3):
        atoms.calc = WeftCalculator(potential("painn", seed=seed))
        parts.append((atoms.get_potential_energy(), atoms.get_forces()))
    several = potential("painn")
    several.models = [potential("painn", seed=seed).models[0] for seed in range(3)]
    atoms.calc = WeftCalculator(several)
    energies, forces = map(np.array, zip(*parts, strict=True))
    assert atoms.get_potential_energy() == pytest.approx(energies.mean(), abs=1e-12)
    np.testing.assert_allclose(atoms.get_forces(), forces.mean(0), atol=1e-12)
    assert atoms.calc.results["energy_spread"] == pytest.approx(energies.std())
    np.testing.assert_allclose(atoms.calc.results["forces_spread"], forces.std(0), atol=1e-12)


def test_a_run(weft_run, tmp_path):
    found = predict_file(
        load_structures(weft_run), tmp_path / "mols.extxyz", forces=True, progress=False
    )
    from ase.io import read

    # Called under inference_mode, which records no derivatives, it gives forces all the same.
    for atoms, energy, forces in zip(
        read(tmp_path / "mols.extxyz", ":4"), found.values, found.forces, strict=False
    ):
        atoms.calc = weft.calculator(weft_run)
        with torch.inference_mode():
            assert atoms.get_potential_energy() == pytest.approx(energy, rel=1e-6)
        np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-4)
    atoms.calc = weft.calculator([weft_run, str(weft_run)], dtype="float64")
    np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-4)
    assert not atoms.calc.results["forces_spread"].any()


def test_what_cannot_be(weft_run):
    with pytest.raises(DataError, match="holds no run"):
        weft.calculator("nowhere")
    with pytest.raises(ValueError, match="no run is named"):
        weft.calculator([])
    with pytest.raises(ValueError, match="dtype is 'float16'; choose from float32, float64"):
        weft.calculator(weft_run, dtype="float16")
    gold = Atoms("HAu", [[0, 0, 0], [0, 0, 2]])
    gold.calc = weft.calculator(weft_run)
    with pytest.raises(DataError, match=r"atom 1 is Au, an element that .* \(H, C, O\)"):
        gold.get_forces()
    config = weft_run / "config.json"
    config.write_text(config.read_text().replace('"sum"', '"mean"'))
    with pytest.raises(ValueError, match="cannot move atoms: readout is 'mean'"):
        weft.calculator(weft_run)
