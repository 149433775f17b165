"""Energies in few operators equal those of the layers one by one, which hooks ask for."""

from __future__ import annotations

import pytest
import torch

from weft.kernels import mpeu_interaction, painn_energy
from weft.models import MPEU, MPEUConfig, PaiNN, PaiNNConfig

SIZES = {"layers": 3, "cutoff": 4.0, "readout": "sum"}
MODELS = {
    "painn": lambda: PaiNN(PaiNNConfig(hidden=8, **SIZES)),
    "mpeu": lambda: MPEU(MPEUConfig(hidden=8, aggregation="sum", **SIZES)),
    "mpeu of one layer": lambda: MPEU(MPEUConfig(hidden=8, layers=1)),
}
FUSED = {"painn": (painn_energy, "_Energies"), "mpeu": (mpeu_interaction, "_EdgeMessages")}


def made(name):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def gradients(model, energies, *, twice):
    """Of a loss, or of the squares of its gradients."""
    weights = list(model.parameters())
    first = torch.autograd.grad(energies.square().sum(), weights, create_graph=twice)
    if not twice:
        return first
    return torch.autograd.grad(sum(part.square().sum() for part in first), weights)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("name", list(MODELS))
def test_a_hook_is_called_and_changes_nothing(atoms_batch, name, paired, twice):
    model, batch = made(name), atoms_batch(periodic=True, padded=True, paired=paired)
    real = batch.graph_mask
    fused = model(batch)[real]
    found = gradients(model, fused, twice=twice)
    calls = []
    layer = model.mixings[0].context[1] if name == "painn" else model.first.edge
    layer.register_forward_hook(lambda *_: calls.append(1))
    plain = model(batch)[real]
    assert calls
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(found, gradients(model, plain, twice=twice))


@pytest.mark.parametrize("name", list(FUSED))
def test_only_energies_take_the_fused_way(atoms_batch, name, monkeypatch):
    module, function = FUSED[name]
    monkeypatch.delattr(module, function)
    model, batch = made(name), atoms_batch()
    with pytest.raises(NameError, match=function):
        model(batch)
    pos = batch.nodes["pos"].clone().requires_grad_()
    moved = batch.replace(nodes={**batch.nodes, "pos": pos})
    assert model(moved).requires_grad


@pytest.mark.parametrize("name", list(FUSED))
def test_threads_change_no_energy(atoms_batch, name):
    model, batch = made(name).float(), atoms_batch(40)
    batch = batch.replace(nodes={**batch.nodes, "pos": batch.nodes["pos"].float()})
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            energies = model(batch)
            results.append((energies, gradients(model, energies, twice=False)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])
