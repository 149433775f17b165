"""Dipole moments: they turn with a molecule, do not move with it, and add up."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from weft.graphs import Column, GraphTable, assemble, table_from_columns
from weft.models import DipolePaiNN, PaiNNConfig
from weft.sources import Cutoff, with_neighbours

RNG = np.random.default_rng(0)
SIZES = np.array([5, 1, 7])
Z = RNG.choice([1, 6, 8], SIZES.sum())
POS = np.concatenate([np.arange(n)[:, None] + RNG.random((n, 3)) for n in SIZES])


def table(pos: np.ndarray, sizes: np.ndarray = SIZES) -> GraphTable:
    found = table_from_columns(
        {
            "z": Column(level="node", dtype="uint8"),
            "pos": Column(level="node", dtype="float64", shape=(3,), unit="Å"),
        },
        num_nodes=sizes,
        columns={"z": Z.astype(np.uint8), "pos": pos},
    )
    return with_neighbours(found, Cutoff(radius=4.0), progress=False)


def dipoles(pos: np.ndarray, sizes: np.ndarray = SIZES) -> torch.Tensor:
    torch.manual_seed(1)
    model = DipolePaiNN(PaiNNConfig(hidden=16, layers=2, cutoff=4.0)).double()
    return model(assemble(table(pos, sizes), range(len(sizes)))).detach()


def test_a_dipole_turns_with_the_molecule_and_stays_where_it_moves() -> None:
    turn = Rotation.random(random_state=3).as_matrix()
    before = dipoles(POS)
    assert before.abs().max() > 0.01
    assert before[1].abs().max() < 1e-9
    moved = dipoles(POS @ turn.T + [3.0, -2.0, 9.0])
    torch.testing.assert_close(moved, before @ torch.tensor(turn).T, rtol=1e-9, atol=1e-9)


def test_gradients_are_finite_where_an_atom_has_no_neighbours() -> None:
    torch.manual_seed(1)
    model = DipolePaiNN(PaiNNConfig(hidden=8, layers=1, cutoff=4.0)).double()
    batch = assemble(table(POS), [0, 1, 2])
    model(batch).square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
