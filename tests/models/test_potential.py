"""Forces to learn from, taken forwards, against differentiating twice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from weft.graphs import Column, assemble, table_from_columns
from weft.models import (
    PaiNN,
    PaiNNConfig,
    SchNet,
    SchNetConfig,
    energy_and_forces,
    properties,
    properties_of,
)
from weft.models.potential import has_fast_forces
from weft.sources import Cutoff, with_neighbours
from weft.training.free_cores import products_keep_bits


def schnet(**options):
    return SchNet(SchNetConfig(**{"hidden": 8, "filters": 6, "readout": "sum", **options}))


MODELS = {
    "schnet": lambda: schnet(cutoff=4.0, aggregation="sum"),
    "schnet, biases": lambda: schnet(cutoff=4.0, aggregation="sum", bias=True, layers=2),
    "schnet, no envelope": lambda: schnet(readout="mean", activate_filter=False),
    "schnet, one layer": lambda: schnet(cutoff=4.0, aggregation="sum", layers=1),
    "schnet, wide filters": lambda: schnet(filters=131, cutoff=4.0, aggregation="sum", layers=2),
    "painn": lambda: PaiNN(PaiNNConfig(hidden=8, cutoff=4.0)),
    "painn, one layer": lambda: PaiNN(PaiNNConfig(hidden=6, layers=1, cutoff=4.0, readout="mean")),
}


def learned_from(model, batch, monkeypatch, *, stress, fast):
    """Energy, forces and stress, and gradients of a loss of them in all weights."""
    with monkeypatch.context() as patched:
        if not fast:
            patched.setattr(properties, "has_fast_forces", lambda *_: False)
        found = properties_of(model, batch, stress=stress, training=True)
    parts = [t for t in (found.energy, found.forces, found.stress) if t is not None]
    generator = torch.Generator().manual_seed(1)
    mask = batch.graph_mask
    weights = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in parts]
    weights[0] = weights[0] * mask
    loss = sum((part * weight).sum() for part, weight in zip(parts, weights, strict=True))
    return [
        found.energy[mask].detach(),
        *(t.detach() for t in parts[1:]),
        *torch.autograd.grad(loss, list(model.parameters())),
    ]


@pytest.mark.parametrize(
    ("periodic", "padded", "paired"),
    [(False, False, True), (True, True, True), (True, False, False)],
)
@pytest.mark.parametrize("name", list(MODELS))
def test_the_same_as_differentiating_twice(
    atoms_batch, monkeypatch, name, periodic, padded, paired
):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    batch = atoms_batch(4, periodic=periodic, padded=padded, paired=paired)
    if periodic:
        edges = {name: value.double() for name, value in batch.edges.items()}
        batch = batch.replace(edges=edges)
    assert has_fast_forces(model, batch)
    given = {"stress": periodic}
    ours = learned_from(model, batch, monkeypatch, fast=True, **given)
    plain = learned_from(model, batch, monkeypatch, fast=False, **given)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.fixture(scope="module")
def large_batch():
    """Enough pairs that the filters are interpolated in float32."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.arange(5)] * 3), axis=-1).reshape(-1, 3) * 1.6
    pos = (np.concatenate([grid, grid]) + rng.normal(0, 0.15, (250, 3))).astype(np.float32)
    schema = {
        "z": Column(level="node", dtype="uint8"),
        "pos": Column(level="node", dtype="float32", shape=(3,), unit="Å"),
    }
    columns = {"z": rng.choice(np.array([1, 6, 8], dtype=np.uint8), 250), "pos": pos}
    table = table_from_columns(schema, num_nodes=np.array([125, 125]), columns=columns)
    return assemble(with_neighbours(table, Cutoff(radius=4.0), progress=False), range(2), None)


@pytest.mark.parametrize("name", ["schnet", "painn"])
def test_interpolated_filters_are_right_to_float32(large_batch, monkeypatch, name):
    torch.manual_seed(0)
    model = MODELS[name]()
    ours = learned_from(model, large_batch, monkeypatch, fast=True, stress=False)
    double = model.double()
    exact_batch = large_batch.replace(
        nodes={**large_batch.nodes, "pos": large_batch.nodes["pos"].double()}
    )
    exact = learned_from(double, exact_batch, monkeypatch, fast=False, stress=False)
    # The loss draws its weights in another dtype, so only what does not depend on it is compared.
    for one, other in zip(ours[:2], exact[:2], strict=True):
        scale = float(other.abs().max())
        assert float((one.double() - other).abs().max()) < 1e-5 * scale


@pytest.mark.parametrize("name", ["schnet", "painn"])
def test_gradients_of_interpolated_filters(large_batch, name):
    torch.manual_seed(0)
    model = MODELS[name]()
    exact = MODELS[name]().double()
    exact.load_state_dict(model.state_dict())
    target = torch.randn(large_batch.num_nodes, 3, dtype=torch.float64)
    gradients = []
    for network in (model, exact):
        dtype = next(network.parameters()).dtype
        pos = large_batch.nodes["pos"].to(dtype)
        batch = large_batch.replace(nodes={**large_batch.nodes, "pos": pos})
        forces = properties_of(network, batch, training=True).forces
        assert forces is not None
        loss = (forces.double() - target).square().sum()
        gradients.append(torch.autograd.grad(loss, list(network.parameters())))
    for one, other in zip(*gradients, strict=True):
        assert float((one.double() - other).abs().max()) <= 1e-4 * float(other.abs().max())


def test_weights_that_are_frozen_get_no_gradient(atoms_batch):
    model = MODELS["painn"]().double()
    model.readout.requires_grad_(False)
    batch = atoms_batch(2)
    found = properties_of(model, batch, training=True)
    assert found.forces is not None
    (found.forces.square().sum() + found.energy.sum()).backward()
    assert all(weight.grad is None for weight in model.readout.parameters())
    assert all(weight.grad is not None for weight in model.mixings.parameters())


def test_layers_that_share_weights(atoms_batch, monkeypatch):
    torch.manual_seed(0)
    model = MODELS["schnet"]().double()
    model.interactions[2] = model.interactions[0]
    batch = atoms_batch(3)
    assert has_fast_forces(model, batch)
    ours = learned_from(model, batch, monkeypatch, stress=False, fast=True)
    plain = learned_from(model, batch, monkeypatch, stress=False, fast=False)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_weights_changed_before_the_way_back(atoms_batch):
    model, batch = MODELS["schnet"]().double(), atoms_batch(2)
    forces = properties_of(model, batch, training=True).forces
    assert forces is not None
    with torch.no_grad():
        model.interactions[0].out.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        forces.square().sum().backward()


def test_a_graph_can_be_used_twice(atoms_batch):
    model, batch = MODELS["schnet"]().double(), atoms_batch(2)
    forces = properties_of(model, batch, training=True).forces
    assert forces is not None
    weights = list(model.parameters())
    loss = forces.square().sum()
    once = torch.autograd.grad(loss, weights, retain_graph=True)
    again = torch.autograd.grad(loss, weights)
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))


@pytest.mark.parametrize("name", ["schnet", "painn"])
def test_atoms_without_neighbours(atoms_batch, name):
    model = MODELS[name]().double()
    batch = atoms_batch(1, seed=3)
    alone = dataclasses.replace(
        batch,
        senders=batch.senders[:0],
        receivers=batch.receivers[:0],
        in_offsets=torch.zeros_like(batch.in_offsets),
        out_offsets=torch.zeros_like(batch.out_offsets),
        out_order=batch.out_order[:0],
        edge_mask=batch.edge_mask[:0],
        pairs={key: value[:0] for key, value in batch.pairs.items()},
    )
    found = properties_of(model, alone, training=True)
    assert found.forces is not None
    assert not found.forces.any()
    found.energy.sum().backward()
    assert model.elements.embedding.weight.grad.abs().sum() > 0


CHANGES = {
    "forward hook": lambda m: m.interactions[0].register_forward_hook(lambda *_: None),
    "backward hook": lambda m: m.interactions[0].out.register_full_backward_pre_hook(
        lambda *_: None
    ),
    "hook on a weight": lambda m: m.interactions[0].out.weight.register_hook(lambda g: g * 0.5),
    "parametrization": lambda m: torch.nn.utils.parametrizations.weight_norm(m.interactions[0].out),
    "bias of the message": lambda m: setattr(m.interactions[0], "message", torch.nn.Linear(8, 6)),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_hook_or_another_layer_is_honoured(atoms_batch, name):
    batch, model = atoms_batch(2), MODELS["schnet"]()
    assert has_fast_forces(model, batch)
    CHANGES[name](model)
    assert not has_fast_forces(model, batch)


@pytest.mark.parametrize(
    "layer", [torch.nn.Tanh(), torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.5))]
)
def test_another_activation_is_honoured(atoms_batch, layer):
    batch, model = atoms_batch(2), MODELS["painn"]().double()
    model.readout[1] = layer
    assert not has_fast_forces(model, batch)


def test_a_second_derivative_is_refused(atoms_batch):
    model, batch = MODELS["painn"]().double(), atoms_batch(2)
    forces = properties_of(model, batch, training=True).forces
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        torch.autograd.grad(forces.square().sum(), list(model.parameters()), create_graph=True)


@pytest.mark.parametrize("name", ["schnet", "painn"])
def test_threads_change_no_bit(large_batch, name):
    torch.manual_seed(0)
    kind = {"schnet": lambda: schnet(hidden=64, filters=64, cutoff=4.0, aggregation="sum")}
    model = kind.get(name, lambda: PaiNN(PaiNNConfig(hidden=64, cutoff=4.0)))()
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            energy, forces = energy_and_forces(model, large_batch, training=True)
            loss = energy.sum() + forces.square().sum()
            found.append([energy, forces, *torch.autograd.grad(loss, list(model.parameters()))])
    finally:
        torch.set_num_threads(before)
    # On some processors torch's products round by the number of threads, by a bit or a few.
    slack = 0.0 if products_keep_bits() else 5e-6
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert float((a - b).detach().abs().max()) <= slack * float(a.detach().abs().max())
