"""weft's potentials in TorchSim: its own checks, and ASE's dynamics beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.md.verlet import VelocityVerlet
from potentials import potential

from weft.errors import DataError
from weft.integrations.ase_calculator import WeftCalculator

ts = pytest.importorskip("torch_sim")

from torch_sim.models.interface import validate_model_outputs  # noqa: E402

from weft.integrations.torchsim import TorchSimModel, torchsim_model  # noqa: E402


def test_torchsim_accepts_it():
    model = TorchSimModel(potential("painn"))
    validate_model_outputs(model, torch.device("cpu"), torch.float64)


def test_values_are_the_calculators():
    structures = [bulk("Si", cubic=True), bulk("Si").repeat(2)]
    for seed, atoms in enumerate(structures):
        atoms.rattle(0.1, seed=seed)
    model = TorchSimModel(potential("schnet"))
    found = model(ts.io.atoms_to_state(structures, "cpu", torch.float64))
    for number, atoms in enumerate(structures):
        atoms.calc = WeftCalculator(potential("schnet"))
        assert float(found["energy"][number]) == pytest.approx(atoms.get_potential_energy())
        stress = found["stress"][number].numpy()
        np.testing.assert_allclose(stress, atoms.get_stress(voigt=False), atol=1e-10)
    forces = np.concatenate([atoms.get_forces() for atoms in structures])
    np.testing.assert_allclose(found["forces"].numpy(), forces, atol=1e-10)


def test_it_moves_molecules_as_ase_does():
    atoms = molecule("CH3OH")
    atoms.set_velocities(np.random.default_rng(0).normal(0, 0.01, (6, 3)))
    model = TorchSimModel(potential("painn"), compute_stress=False)
    state = ts.io.atoms_to_state([atoms], "cpu", torch.float64)
    assert "stress" not in model(state)
    step = torch.tensor(0.5 * units.fs, dtype=torch.float64)
    start, advance = ts.integrators.nve(model, dt=step, kT=torch.tensor(0.0))
    md = start(state)
    md.momenta = torch.tensor(atoms.get_momenta())
    for _ in range(10):
        md = advance(md)
    atoms.calc = WeftCalculator(potential("painn"))
    VelocityVerlet(atoms, 0.5 * units.fs).run(10)
    np.testing.assert_allclose(md.positions.numpy(), atoms.positions, atol=1e-8)


def test_an_element_that_it_has_not_seen(weft_run):
    model = torchsim_model(weft_run)
    with pytest.raises(DataError, match="the state, structure 0: atom 0 is Au"):
        model(ts.io.atoms_to_state([Atoms("Au")], "cpu", torch.float32))
