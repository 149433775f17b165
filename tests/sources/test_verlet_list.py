"""Neighbour lists with a skin, against ASE's own search at every step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.neighborlist import neighbor_list
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.checked_indices import right_pairs, right_range, right_segments
from weft.errors import DataError
from weft.sources.verlet_list import Fixed, VerletList


def list_of(structures: list[Atoms], cutoff: float = 3.0, **options) -> VerletList:
    fixed = Fixed(
        z=np.concatenate([atoms.numbers for atoms in structures]),
        num_atoms=np.array([len(atoms) for atoms in structures]),
        pbc=np.array([atoms.pbc for atoms in structures]),
    )
    return VerletList(fixed, cutoff=cutoff, **options)


def batch_of(found: VerletList, structures: list[Atoms]):
    pos = np.concatenate([atoms.positions for atoms in structures])
    return found.batch(pos, np.array([atoms.cell.array for atoms in structures]))


def check(batch, structures: list[Atoms], cutoff: float) -> None:
    """The same edges as ASE finds, and tables that fit them."""
    base, expected = 0, []
    for atoms in structures:
        i, j, vector = neighbor_list("ijD", atoms, cutoff)
        expected.append(np.column_stack([base + i, base + j, np.round(vector, 6)]) + 0.0)
        base += len(atoms)
    pos, s, r = batch.nodes["pos"], batch.senders.long(), batch.receivers.long()
    vectors = pos[s] - pos[r] + batch.edges.get("shift", torch.zeros(1, 3))
    rows = np.column_stack([r, s, np.round(vectors.numpy(), 6)]) + 0.0
    assert sorted(rows.tolist()) == sorted(np.concatenate(expected).tolist())
    edges = batch.num_edges
    right_segments(batch.in_offsets, None, batch.receivers, edges)
    right_segments(batch.out_offsets, batch.out_order, batch.senders, edges)
    right_range(batch.senders, batch.num_nodes)
    right_pairs(*batch.pairs.values(), edges)
    forward, backward = (batch.pairs[name].long() for name in ("forward", "backward"))
    assert torch.equal(vectors[forward], -vectors[backward])


def structures_of(rng: np.random.Generator) -> list[Atoms]:
    cell = 3.5 * np.eye(3) + rng.uniform(-0.4, 0.4, (3, 3))
    crystal = Atoms("H5", rng.uniform(0, 1, (5, 3)) @ cell, cell=cell, pbc=True)
    slab = Atoms("H6", rng.uniform(0, 4, (6, 3)), cell=[4, 4, 0], pbc=[True, True, False])
    gas = Atoms("H7", rng.uniform(0, 5, (7, 3)) + 100.0)
    crystal.positions += [40.0, -80.0, 3.0]
    return [crystal, slab, gas]


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=15)
def test_it_is_a_fresh_list_while_atoms_and_cells_move(seed, skin):
    rng = np.random.default_rng(seed)
    structures = structures_of(rng)
    found = list_of(structures, skin=skin)
    for _ in range(8):
        check(batch_of(found, structures), structures, 3.0)
        for atoms in structures:
            atoms.positions += rng.normal(0, 0.04, atoms.positions.shape)
        strain = np.eye(3) + rng.normal(0, 0.01, (3, 3))
        structures[0].set_cell(structures[0].cell @ strain, scale_atoms=True)
    assert found.builds == 8 or skin


def test_it_is_made_again_only_when_needed():
    atoms = bulk("Si", cubic=True)
    found = list_of([atoms], skin=0.5)
    for moved, builds in ((0.0, 1), (0.24, 1), (0.26, 2), (0.45, 2), (0.52, 3)):
        atoms.positions[0, 0] = moved
        batch_of(found, [atoms])
        assert found.builds == builds
    # A strain of 2 % brings atoms at 3.5 Å to 3.43 Å, one of 20 % to 2.8 Å.
    for factor, builds in ((0.98, 3), (0.8, 4), (1.1, 4)):
        atoms.set_cell(bulk("Si", cubic=True).cell * factor, scale_atoms=True)
        check(batch_of(found, [atoms]), [atoms], 3.0)
        assert found.builds == builds
    assert found.seconds > 0


def test_places_of_single_precision_are_near_the_origin():
    atoms = Atoms("H2", [[1e5, 0, 0], [1e5 + 0.74, 0, 0]])
    batch = batch_of(list_of([atoms], dtype=torch.float32), [atoms])
    assert batch.nodes["pos"].dtype == torch.float32
    assert float(batch.nodes["pos"][:, 0].diff()) == pytest.approx(0.74, abs=1e-6)


def test_what_cannot_be():
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, np.nan]])
    with pytest.raises(DataError, match=r"atom 1 is at .* not finite"):
        batch_of(list_of([atoms]), [atoms])
    atoms.positions[1] = 0.0
    with pytest.raises(DataError, match="atoms 0 and 1 are in one place"):
        batch_of(list_of([atoms]), [atoms])
    atoms = Atoms("H", cell=[[1, 0, 0], [2, 0, 0], [0, 0, 1]], pbc=True)
    with pytest.raises(DataError, match="has no volume there"):
        batch_of(list_of([atoms]), [atoms])
    with pytest.raises(ValueError, match="skin is -1 Å"):
        list_of([atoms], skin=-1)


def test_a_cell_that_comes_back():
    rng = np.random.default_rng(1)
    wraps = np.zeros((40, 3))
    wraps[:20] = 3
    inside = rng.uniform(0, 10, (40, 3))
    atoms = Atoms("H40", inside + 10 * wraps, cell=[10, 10, 10], pbc=True)
    found = list_of([atoms], skin=1.0)
    batch_of(found, [atoms])
    larger = atoms.copy()
    larger.set_cell(atoms.cell * 1.04, scale_atoms=True)
    batch_of(found, [larger])
    # The first cell again, and half of the atoms elsewhere.
    moved = atoms.copy()
    moved.positions = inside + 10.4 * wraps
    check(batch_of(found, [moved]), [moved], 3.0)


def test_a_list_that_could_not_be_made_is_not_used():
    atoms = Atoms("H8", np.random.default_rng(0).uniform(0, 6, (8, 3)), cell=[6, 6, 6], pbc=True)
    found = list_of([atoms])
    batch_of(found, [atoms])
    bad = atoms.copy()
    bad.positions += 2.0 * np.arange(8)[:, None] / 8
    bad.positions[1] = bad.positions[0]
    with pytest.raises(DataError):
        batch_of(found, [bad])
    bad.positions[1] += 0.2
    check(batch_of(found, [bad]), [bad], 3.0)
