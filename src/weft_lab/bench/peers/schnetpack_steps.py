"""SchNetPack's PaiNN behind its AtomsLoader, with neighbour lists in memory."""
# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import dataloader

# SchNetPack 2.1.1 imports a name that newer releases of torch no longer have there.
if not hasattr(dataloader, "T_co"):
    dataloader.T_co = TypeVar("T_co", covariant=True)  # type: ignore[attr-defined]

from schnetpack import properties
from schnetpack.atomistic import Atomwise, Forces, PairwiseDistances
from schnetpack.data import AtomsLoader
from schnetpack.model import NeuralNetworkPotential
from schnetpack.nn import CosineCutoff, GaussianRBF
from schnetpack.representation import PaiNN, SchNet


def _molecules(path: str) -> list[dict[str, Any]]:
    """What its data set gives for each molecule after the cached neighbour list and casts."""
    arrays = {name: torch.from_numpy(a) for name, a in np.load(path).items()}
    nodes, edges = arrays["node_offsets"].tolist(), arrays["edge_offsets"].tolist()
    shifts, forces = arrays.get("shift"), arrays.get("forces")
    molecules = []
    for i in range(len(nodes) - 1):
        senders = arrays["senders"][edges[i] : edges[i + 1]].long()
        molecules.append(
            {
                properties.idx: torch.tensor([i]),
                properties.n_atoms: torch.tensor([nodes[i + 1] - nodes[i]]),
                properties.Z: arrays["z"][nodes[i] : nodes[i + 1]].long(),
                properties.R: arrays["pos"][nodes[i] : nodes[i + 1]],
                properties.cell: torch.zeros(1, 3, 3),
                properties.pbc: torch.zeros(3, dtype=torch.bool),
                properties.idx_i: arrays["receivers"][edges[i] : edges[i + 1]].long(),
                properties.idx_j: senders,
                properties.offsets: torch.zeros(len(senders), 3)
                if shifts is None
                else shifts[edges[i] : edges[i + 1]],
                properties.energy: arrays["y"][i : i + 1],
            }
        )
        if forces is not None:
            molecules[-1][properties.forces] = forces[nodes[i] : nodes[i + 1]]
    return molecules


def painn(case: dict[str, Any]) -> tuple[Callable[[], dict[str, float]], dict[str, str]]:
    """A batch of case["size"] molecules and an update a step, case["hidden"] features wide."""
    torch.set_flush_denormal(case["flush"])
    torch.manual_seed(0)
    molecules: Any = _molecules(case["arrays"])
    loader = AtomsLoader(molecules, batch_size=case["size"], shuffle=True, drop_last=True)

    source = _endless(loader)
    cutoff, hidden = case["cutoff"], case["hidden"]
    model = NeuralNetworkPotential(
        representation=PaiNN(
            n_atom_basis=hidden,
            n_interactions=3,
            radial_basis=GaussianRBF(n_rbf=20, cutoff=cutoff),
            cutoff_fn=CosineCutoff(cutoff),
        ),
        input_modules=[PairwiseDistances()],
        output_modules=[Atomwise(n_in=hidden, output_key=properties.energy)],
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> dict[str, float]:
        start = time.perf_counter()
        batch = next(source)
        batching = time.perf_counter() - start
        target = batch[properties.energy]
        optimizer.zero_grad()
        loss = functional.mse_loss(model(batch)[properties.energy], target)
        loss.backward()
        optimizer.step()
        return {"graphs": len(target), "batching": batching}

    return step, {"schnetpack": version("schnetpack"), "torch": torch.__version__}


def forces(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """Energies and forces of a batch, and with case["training"] an update, a step."""
    torch.manual_seed(0)
    molecules: Any = _molecules(case["arrays"])
    loader = AtomsLoader(molecules, batch_size=case["size"], shuffle=True, drop_last=True)
    hidden, cutoff = case["hidden"], case["cutoff"]
    make = PaiNN if case["model"] == "painn" else SchNet
    model = NeuralNetworkPotential(
        representation=make(
            n_atom_basis=hidden,
            n_interactions=3,
            radial_basis=GaussianRBF(n_rbf=20, cutoff=cutoff),
            cutoff_fn=CosineCutoff(cutoff),
        ),
        input_modules=[PairwiseDistances()],
        output_modules=[
            Atomwise(n_in=hidden, output_key=properties.energy),
            Forces(energy_key=properties.energy, force_key=properties.forces),
        ],
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    model.train(case["training"])
    source = _endless(loader)

    def step() -> None:
        batch = next(source)
        # The model writes its results into the batch.
        target, pull = batch[properties.energy], batch[properties.forces]
        if not case["training"]:
            model(batch)
            return
        optimizer.zero_grad()
        found = model(batch)
        loss = functional.mse_loss(found[properties.energy], target)
        loss = loss + functional.mse_loss(found[properties.forces], pull)
        loss.backward()
        optimizer.step()

    return step, {"schnetpack": version("schnetpack"), "torch": torch.__version__}


def _endless(loader: Any) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader
