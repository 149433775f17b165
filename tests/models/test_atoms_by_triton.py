"""SchNet and PaiNN by Triton kernels: energies, forces and what is learned from them."""

from __future__ import annotations

import pytest
import torch

from weft.kernels.backends import use_backend
from weft.kernels.triton.launch import recording
from weft.models import PaiNN, PaiNNConfig, SchNet, SchNetConfig, properties_of

MODELS = {
    "schnet": lambda: SchNet(SchNetConfig(hidden=4, filters=6, layers=2, centres=9, cutoff=4.0)),
    "painn": lambda: PaiNN(PaiNNConfig(hidden=4, layers=2, radial=5, cutoff=4.0)),
}
EVERY = {"row_sums", "gathered", "gaussians", "gaussian_gradients"}
KERNELS = {
    "schnet": {"pair_products", "softplus_values", "softplus_gradients"},
    "painn": {
        "painn_messages", "painn_to_senders", "painn_to_filters", "painn_to_directions",
        "painn_invariants", "painn_invariants_backward", "painn_update", "painn_update_backward",
    },
}  # fmt: skip


def learned(model, batch, backend):
    """Energies, forces and stress, and gradients of a loss of them in all weights."""
    launched = set()
    with use_backend(backend), recording(lambda launch: launched.add(launch.kernel)):
        found = properties_of(model, batch, stress="shift" in batch.edges, training=True)
        parts = [t for t in (found.energy, found.forces, found.stress) if t is not None]
        parts[0] = parts[0][batch.graph_mask]
        loss = sum(part.sin().sum() for part in parts)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
    return [*parts, *gradients], launched


@pytest.mark.parametrize(
    ("name", "periodic", "paired"),
    [("schnet", False, True), ("schnet", True, False), ("painn", True, True)],
)
def test_training_with_forces_is_that_of_plain_torch(atoms_batch, name, periodic, paired):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    batch = atoms_batch(2, largest=3, periodic=periodic, padded=True, paired=paired)
    if periodic:
        edges = {name: value.double() for name, value in batch.edges.items()}
        batch = batch.replace(edges=edges)
    plain, nothing = learned(model, batch, "plain")
    found, launched = learned(model, batch, "triton")
    assert nothing == set()
    assert launched >= EVERY | KERNELS[name]
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
