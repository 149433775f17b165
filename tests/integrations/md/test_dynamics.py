"""Moving structures: beside ASE's integrators, and by the laws that they keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, fcc111, molecule
from ase.md.verlet import VelocityVerlet
from potentials import potential

from weft.integrations.ase_calculator import WeftCalculator
from weft.integrations.md.config import MDConfig
from weft.integrations.md.dynamics import BatchMoves, CellMoves, System
from weft.integrations.potential import Answer
from weft.sources.verlet_list import VerletList


def structures() -> list[Atoms]:
    slab = fcc111("Fe", (2, 2, 2), a=3.6, vacuum=5.0)
    slab.pbc = [True, True, False]
    found = [molecule("CH3CH2OH"), bulk("Si", cubic=True), slab]
    for seed, atoms in enumerate(found):
        atoms.rattle(0.05, seed=seed)
    return found


def moves(found: list[Atoms], name: str = "painn", kind=BatchMoves, **options):
    return kind(System(found), potential(name), MDConfig(**options))


def test_nve_is_velocity_verlet_of_each_structure():
    found = structures()
    for seed, atoms in enumerate(found):
        velocity = np.random.default_rng(seed).normal(0, 0.02, atoms.positions.shape)
        momenta = velocity * atoms.get_masses()[:, None]
        atoms.set_momenta(momenta - momenta.mean(axis=0))
    batch = moves(found, ensemble="nve", timestep=1.0)
    for atoms in found:
        atoms.calc = WeftCalculator(potential("painn"), skin=0.0)
    for _ in range(15):
        assert batch.advance()
        for atoms in found:
            VelocityVerlet(atoms, 1.0 * units.fs).run(1)
        pos = np.concatenate([atoms.positions for atoms in found])
        np.testing.assert_allclose(batch.state.pos, pos, atol=1e-9)
        energy = [atoms.get_total_energy() for atoms in found]
        np.testing.assert_allclose(batch.state.conserved, energy, atol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "limit", "steps"), [("float64", 1e-5, 300), ("float32", 1e-3, 100)]
)
def test_nve_keeps_the_energy(dtype, limit, steps):
    system = System([structures()[1]])
    batch = BatchMoves(system, potential("schnet", dtype=dtype), MDConfig(ensemble="nve"))
    first = batch.state.conserved
    for _ in range(steps):
        batch.advance()
    assert abs(batch.state.conserved - first).max() / 8 < limit
    assert batch.lists()[0].builds < 20


def test_a_structure_moves_alone_as_beside_others():
    found = structures()
    together, alone = moves(found, temperature=500.0), moves(found[:1], temperature=500.0)
    assert together.system.temperature(together.state.velocity) == pytest.approx([500.0] * 3)
    for _ in range(10):
        together.advance()
        alone.advance()
    np.testing.assert_allclose(together.state.pos[:9], alone.state.pos, atol=1e-9)
    momenta = together.system.sums(together.system.masses * together.state.velocity)
    assert abs(momenta).max() < 1e-10
    # Without friction it is nve, to rounding.
    calm = moves(found[:1], friction=0.0)
    nve = moves(found[:1], ensemble="nve")
    for _ in range(5):
        calm.advance()
        nve.advance()
    np.testing.assert_array_equal(calm.state.pos, nve.state.pos)


class Springs:
    """Atoms on springs, each far from the others: every value of a canonical ensemble is known."""

    cutoff = 1.0

    def __init__(self, stiffness: float) -> None:
        self.stiffness, self.first = stiffness, None

    def neighbours(self, fixed, *, skin):
        return VerletList(fixed, cutoff=1.0, skin=skin)

    def __call__(self, batch):
        pos = batch.nodes["pos"]
        self.first = pos if self.first is None else self.first
        stretch = pos - self.first
        energies = 0.5 * self.stiffness * stretch.square().sum(1)
        energy = torch.zeros(batch.num_graphs, dtype=torch.float64)
        energy.index_add_(0, batch.node_graph.long(), energies)
        return Answer(
            energy=energy, energies=energies, forces=-self.stiffness * stretch, stress=None
        )


def test_nvt_has_the_temperature_in_motion_and_in_springs():
    atoms = Atoms("C300", np.arange(900.0).reshape(300, 3) * 50)
    config = MDConfig(temperature=400.0, timestep=2.0, friction=0.02)
    batch = BatchMoves(System([atoms]), Springs(5.0), config)
    # The list is never made again, which would move the origin.
    batch._list.skin = 1e3
    motion, springs = [], []
    for step in range(1500):
        batch.advance()
        if step > 300:
            motion.append(batch.system.temperature(batch.state.velocity)[0])
            springs.append(2 * batch.state.energy[0] / (900 * units.kB))
    assert np.mean(motion) == pytest.approx(400.0, rel=0.02)
    assert np.mean(springs) == pytest.approx(400.0, rel=0.02)
    # What the thermostat has given is known, so that the rest is kept.
    assert abs(batch.state.conserved[0] - 1.5 * 299 * units.kB * 400) / 300 < 1e-3


def test_relax_comes_to_rest():
    found = structures()[:2]
    batch = moves(found, "schnet", ensemble="relax", fmax=0.01)
    before = batch.state.energy
    steps = sum(1 for _ in iter(batch.advance, False))
    assert 1 < steps < 400
    assert (batch.state.energy < before).all()
    assert (batch.largest_force() <= 0.01).all()
    assert batch.relaxed().all()
    # Those that rest do not move on.
    pos = batch.state.pos
    assert not batch.advance()
    np.testing.assert_array_equal(batch.state.pos, pos)


def test_the_cell_relaxes_to_the_pressure():
    atoms = structures()[1]
    cell = moves([atoms], "schnet", CellMoves, ensemble="relax", relax_cell=True, pressure=5e3)
    before = cell.state.energy
    for _ in range(300):
        if not cell.advance():
            break
    assert cell.relaxed().all()
    stress = cell._atoms[0].get_stress()
    np.testing.assert_allclose(stress, [-5e3 * units.bar] * 3 + [0] * 3, atol=3e-4)
    assert cell.state.energy != before


def test_npt_moves_the_cell_and_keeps_what_it_conserves():
    found = [structures()[1], bulk("Si", cubic=True).repeat((1, 1, 2))]
    npt = moves(found, "schnet", CellMoves, ensemble="npt", pressure=1e4)
    first = npt.state
    for _ in range(60):
        assert npt.advance()
    change = abs(npt.state.conserved - first.conserved) / npt.system.num_atoms
    assert change.max() < 1e-4
    assert abs(np.linalg.det(npt.state.cell) / np.linalg.det(first.cell) - 1).max() > 1e-6
    assert all(found.builds < 10 for found in npt.lists())
    assert [len(batch.node_graph) for batch in npt.batches()] == [8, 16]


def test_one_structure_flies_apart_and_the_others_go_on():
    found = structures()[:2]
    batch = moves(found, ensemble="nve")
    usual = batch.potential

    def breaks(graphs):
        answer = usual(graphs)
        answer.forces[12] = np.nan
        return answer

    batch.advance()
    before = batch.state
    batch.potential = breaks
    breaks.cutoff = 4.0
    for _ in range(3):
        assert batch.advance()
    assert batch.failures == {1: "its atom 3 has a force that is not a number"}
    np.testing.assert_array_equal(batch.state.pos[9:], before.pos[9:])
    assert np.isfinite(batch.state.forces).all()
    assert abs(batch.state.pos[:9] - before.pos[:9]).max() > 0
    hot = moves(found, ensemble="nve", temperature=1e7)
    hot.advance()
    assert "moves by more than 0.5 Å in a step" in hot.failures[0]
    hot.advance()
    assert not hot.advance()


def test_what_cannot_be():
    for wrong, message in (
        ({"ensemble": "nvp"}, "ensemble is 'nvp'; choose from nve, nvt, npt, relax"),
        ({"timestep": 0.0}, "timestep is 0.0 fs"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"ensemble": "npt", "friction": 0.0}, "npt needs both above 0"),
        ({"relax_cell": True}, "--relax-cell is for --ensemble relax, not for nvt"),
    ):
        with pytest.raises(ValueError, match=message):
            MDConfig(**wrong)
