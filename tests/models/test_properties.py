"""Forces and stress against finite differences of the energy."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from weft.errors import DataError
from weft.models import (
    MPEU,
    MPEUConfig,
    PaiNN,
    PaiNNConfig,
    SchNet,
    SchNetConfig,
    Standardised,
    TargetScale,
    properties_of,
)

MODELS = {
    "schnet": lambda: SchNet(
        SchNetConfig(hidden=8, filters=8, cutoff=4.0, aggregation="sum", readout="sum")
    ),
    "mpeu": lambda: MPEU(MPEUConfig(hidden=8, cutoff=4.0, aggregation="sum", readout="sum")),
    "painn": lambda: PaiNN(PaiNNConfig(hidden=8, cutoff=4.0, readout="sum")),
}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", list(MODELS))
def test_stress_is_the_change_of_the_energy_with_the_cell(atoms_batch, name, padded):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    batch = atoms_batch(3, periodic=True, padded=padded)
    found = properties_of(model, batch, stress=True)
    assert found.stress is not None
    assert found.stress.shape == (batch.num_graphs, 3, 3)
    assert not found.stress[~batch.graph_mask].any()
    cell = batch.graphs["cell"]
    volume = torch.linalg.det(cell).abs()[batch.graph_mask]
    step = 1e-5
    for row, column in ((0, 0), (1, 1), (0, 2)):
        energies = []
        for sign in (1, -1):
            stretch = torch.eye(3, dtype=torch.float64)
            stretch[row, column] += sign * step / 2
            stretch[column, row] += sign * step / 2
            moved = batch.replace(
                nodes={**batch.nodes, "pos": batch.nodes["pos"] @ stretch},
                edges={**batch.edges, "shift": batch.edges["shift"].double() @ stretch},
            )
            energies.append(model(moved).detach()[batch.graph_mask])
        expected = (energies[0] - energies[1]) / (2 * step) / volume
        actual = found.stress[batch.graph_mask][:, row, column]
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-9)


def test_forces_are_the_same_with_and_without_stress(atoms_batch):
    torch.manual_seed(0)
    model, batch = MODELS["painn"]().double(), atoms_batch(3, periodic=True)
    both, alone = properties_of(model, batch, stress=True), properties_of(model, batch)
    assert both.forces is not None
    assert alone.forces is not None
    assert alone.stress is None
    torch.testing.assert_close(both.forces, alone.forces, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(both.energy, alone.energy, rtol=1e-12, atol=0)
    only = properties_of(model, batch, forces=False, stress=True)
    assert only.forces is None
    torch.testing.assert_close(only.stress, both.stress, rtol=1e-10, atol=1e-14)


def test_a_loss_of_stress_trains_the_weights(atoms_batch):
    torch.manual_seed(0)
    model, batch = MODELS["schnet"]().double(), atoms_batch(2, periodic=True)

    def loss() -> torch.Tensor:
        stress = properties_of(model, batch, stress=True, training=True).stress
        assert stress is not None
        return stress.square().sum()

    weight = next(model.parameters())
    (gradient,) = torch.autograd.grad(loss(), weight)
    place = int(gradient.abs().argmax())
    step, values = 1e-5, []
    for sign in (1, -1):
        with torch.no_grad():
            weight.view(-1)[place] += sign * step
            values.append(float(loss()))
            weight.view(-1)[place] -= sign * step
    expected = (values[0] - values[1]) / (2 * step)
    assert float(gradient.view(-1)[place]) == pytest.approx(expected, rel=1e-4)


def test_a_structure_without_a_cell_has_no_stress(atoms_batch):
    with pytest.raises(DataError, match="the structures have none"):
        properties_of(MODELS["schnet"](), atoms_batch(2), stress=True)
    batch = atoms_batch(2, periodic=True)
    flat = dataclasses.replace(batch, graphs={"cell": torch.zeros(2, 3, 3)})
    found = properties_of(MODELS["schnet"]().double(), flat, stress=True)
    assert found.stress is not None
    assert not found.stress.any()


@pytest.mark.parametrize("name", list(MODELS))
def test_the_parts_of_the_atoms_add_up(atoms_batch, name):
    torch.manual_seed(0)
    references = torch.arange(119, dtype=torch.float64).numpy()
    model = Standardised(MODELS[name]().double(), TargetScale(-3.0, 2.0, references))
    batch = atoms_batch(3, periodic=True, padded=False)
    atoms = model.atomic_values(batch)
    assert atoms.shape == (batch.num_nodes,)
    sums = torch.zeros(batch.num_graphs, dtype=torch.float64)
    sums.index_add_(0, batch.node_graph.long(), atoms.detach())
    torch.testing.assert_close(sums, model(batch).detach(), rtol=1e-12, atol=1e-10)
