"""MACE with its small model's shape, untrained, behind its own loader."""
# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

# e3nn looks for it in this order.
from mace import data, modules, tools
from mace.tools import torch_geometric

# isort: split
from e3nn import o3


def forces(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """Energies and forces of a batch, and with case["training"] an update, a step."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    arrays = dict(np.load(case["arrays"]))
    elements = tools.AtomicNumberTable(sorted(set(arrays["z"].tolist())))
    loader = torch_geometric.dataloader.DataLoader(
        dataset=_structures(arrays, elements, case["cutoff"]),
        batch_size=case["size"],
        shuffle=True,
        drop_last=True,
    )
    model = modules.ScaleShiftMACE(
        r_max=case["cutoff"],
        num_bessel=8,
        num_polynomial_cutoff=5,
        max_ell=3,
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticInteractionBlock"],
        num_interactions=2,
        num_elements=len(elements),
        hidden_irreps=o3.Irreps("128x0e"),
        MLP_irreps=o3.Irreps("16x0e"),
        gate=torch.nn.functional.silu,
        atomic_energies=np.zeros(len(elements)),
        avg_num_neighbors=20.0,
        atomic_numbers=elements.zs,
        correlation=3,
        atomic_inter_scale=1.0,
        atomic_inter_shift=0.0,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    source = batches()

    def step() -> None:
        batch = next(source)
        found = model(batch.to_dict(), training=case["training"])
        if not case["training"]:
            return
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(found["energy"], batch.energy)
        loss = loss + torch.nn.functional.mse_loss(found["forces"], batch.forces)
        loss.backward()
        optimizer.step()

    return step, {"mace-torch": version("mace-torch"), "torch": torch.__version__}


def _structures(arrays: dict[str, Any], elements: Any, cutoff: float) -> list[Any]:
    """What its data set gives for each structure; MACE finds the neighbours itself, beforehand."""
    offsets = arrays["node_offsets"].tolist()
    found = []
    for i in range(len(offsets) - 1):
        atoms = slice(offsets[i], offsets[i + 1])
        periodic = bool(arrays["cell"][i].any())
        configuration = data.Configuration(
            atomic_numbers=arrays["z"][atoms].astype(int),
            positions=arrays["pos"][atoms].astype(float),
            properties={"energy": float(arrays["y"][i]), "forces": arrays["forces"][atoms]},
            property_weights={"energy": 1.0, "forces": 1.0},
            cell=arrays["cell"][i].astype(float) if periodic else None,
            pbc=(periodic,) * 3,
        )
        found.append(data.AtomicData.from_config(configuration, z_table=elements, cutoff=cutoff))
    return found
