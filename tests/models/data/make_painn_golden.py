"""Writes painn_schnetpack.npz: a tiny SchNetPack PaiNN, molecules, and what it makes of them.

Needs schnetpack 2.1.1 (`make peers`): python tests/models/data/make_painn_golden.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import dataloader

# SchNetPack 2.1.1 imports a name that newer releases of torch no longer have there.
if not hasattr(dataloader, "T_co"):
    dataloader.T_co = TypeVar("T_co", covariant=True)

CUTOFF = 3.0
# Water, methanol (bent out of symmetry) and a lone helium atom; Å.
MOLECULES: list[tuple[list[int], list[list[float]]]] = [
    ([8, 1, 1], [[0.0, 0.0, 0.12], [0.0, 0.76, -0.47], [0.05, -0.75, -0.48]]),
    (
        [6, 8, 1, 1, 1, 1],
        [
            [-0.05, 0.66, 0.02],
            [-0.05, -0.76, 0.0],
            [-1.09, 0.99, 0.1],
            [0.44, 1.08, 0.89],
            [0.48, 1.07, -0.85],
            [0.86, -1.06, 0.07],
        ],
    ),
    ([2], [[0.3, 0.2, 0.1]]),
]


def peer(hidden: int, layers: int, **options: Any) -> torch.nn.Module:
    """SchNetPack's model for energies, with biases that are not 0."""
    from schnetpack.atomistic import Atomwise, PairwiseDistances
    from schnetpack.model import NeuralNetworkPotential
    from schnetpack.nn import CosineCutoff, GaussianRBF
    from schnetpack.representation import PaiNN

    torch.manual_seed(0)
    model = NeuralNetworkPotential(
        representation=PaiNN(
            n_atom_basis=hidden,
            n_interactions=layers,
            radial_basis=GaussianRBF(n_rbf=6, cutoff=CUTOFF),
            cutoff_fn=CosineCutoff(CUTOFF),
            **options,
        ),
        input_modules=[PairwiseDistances()],
        output_modules=[Atomwise(n_in=hidden, output_key="energy")],
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model


def peer_answers(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Energies, forces and features of MOLECULES."""
    z, pos, receivers, senders, graph = [], [], [], [], []
    for number, (elements, places) in enumerate(MOLECULES):
        where = torch.tensor(places)
        near = (torch.cdist(where, where) < CUTOFF) & ~torch.eye(len(where), dtype=torch.bool)
        i, j = near.nonzero(as_tuple=True)
        receivers.append(i + len(z))
        senders.append(j + len(z))
        z += elements
        pos.append(where)
        graph += [number] * len(elements)
    r = torch.cat(pos).requires_grad_()
    inputs = {
        "_atomic_numbers": torch.tensor(z),
        "_positions": r,
        "_idx_i": torch.cat(receivers),
        "_idx_j": torch.cat(senders),
        "_offsets": torch.zeros(len(torch.cat(senders)), 3),
        "_idx_m": torch.tensor(graph),
        "_n_atoms": torch.tensor([len(elements) for elements, _ in MOLECULES]),
    }
    for module in model.input_modules:
        inputs = module(inputs)
    inputs = model.representation(inputs)
    energy = model.output_modules[0](inputs)["energy"]
    (gradient,) = torch.autograd.grad(energy.sum(), r)
    answers = {
        "energy": energy,
        "forces": -gradient,
        "q": inputs["scalar_representation"],
        "mu": inputs["vector_representation"],
    }
    return {name: value.detach().numpy() for name, value in answers.items()}


if __name__ == "__main__":
    model = peer(hidden=8, layers=2)
    state = {f"state/{name}": value.numpy() for name, value in model.state_dict().items()}
    target = Path(__file__).with_name("painn_schnetpack.npz")
    np.savez_compressed(target, **state, **peer_answers(model))
