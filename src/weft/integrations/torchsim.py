"""Trained potentials as models of TorchSim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError
from weft.integrations.md.config import Precision
from weft.integrations.potential import Potential, load_potential
from weft.sources.verlet_list import Fixed, VerletList

try:
    from torch_sim.models.interface import ModelInterface
    from torch_sim.state import SimState
except ImportError as error:
    raise DataError("a model of TorchSim needs it: pip install 'weft[torchsim]'") from error


def torchsim_model(
    run: str | Path | Sequence[str | Path],
    *,
    dtype: Precision = "float32",
    skin: float = 0.5,
    device: torch.device | str | None = None,
    compute_stress: bool = True,
) -> TorchSimModel:
    """A model of TorchSim from a run of `weft train molecules` or `crystals`.

        model = weft.integrations.torchsim.torchsim_model("runs/silicon")
        state = torch_sim.integrate(atoms, model, integrator=..., n_steps=1000, ...)

    Args:
        run: the folder of the run, or those of several, whose mean is taken.
        dtype: to compute in; the state should have the same.
        skin: how far beyond the cutoff neighbours are kept, Å.
        device: where to compute.
        compute_stress: whether the stress is computed too, which costs some time.

    Raises:
        DataError: no such run, or its target is not an energy in eV.
        ValueError: the model has no sound forces.
    """
    potential = load_potential(run, dtype=dtype, device=device)
    return TorchSimModel(potential, skin=skin, compute_stress=compute_stress)


class TorchSimModel(ModelInterface):  # type: ignore[misc]
    """Energies, forces and stress of the systems of a state, in one batch.

    Args:
        potential: the model or models.
        skin: of the neighbour list, Å.
        compute_stress: whether the stress is computed.
    """

    def __init__(
        self, potential: Potential, *, skin: float = 0.5, compute_stress: bool = True
    ) -> None:
        super().__init__()
        self.potential, self.skin = potential, skin
        self._device = torch.device(potential.device or "cpu")
        self._dtype = potential.dtype
        self._compute_forces, self._compute_stress = True, compute_stress
        self._neighbours: VerletList | None = None

    def forward(self, state: Any, **kwargs: Any) -> dict[str, Tensor]:
        """`energy` [S], `forces` [N, 3], `energies` [N] and, if it is computed, `stress` [S, 3, 3].

        Args:
            state: a SimState, or a dictionary of its fields.
            kwargs: nothing that is used.

        Raises:
            DataError: an element that the model has not seen, or a position that is not finite.
        """
        if isinstance(state, dict):
            state = SimState(**{"masses": torch.ones_like(state["positions"][:, 0]), **state})
        # TorchSim's cells have a vector in each column.
        cell = state.cell.mT.detach().cpu().double().numpy()
        # One for all systems, or one for each direction.
        pbc = np.broadcast_to(torch.as_tensor(state.pbc).cpu().numpy(), (len(cell), 3))
        fixed = Fixed(
            z=state.atomic_numbers.cpu().numpy().copy(),
            num_atoms=np.bincount(state.system_idx.cpu().numpy(), minlength=len(cell)),
            pbc=pbc.copy(),
        )
        if self._neighbours is None or not self._neighbours.fixed.same(fixed):
            self._neighbours = self.potential.neighbours(fixed, skin=self.skin, name="the state")
        pos = state.positions.detach().cpu().double().numpy()
        found = self.potential(self._neighbours.batch(pos, cell), stress=self.compute_stress)
        values = {"energy": found.energy, "forces": found.forces, "energies": found.energies}
        if found.stress is not None:
            values["stress"] = found.stress
        return {name: value.to(self.device, self.dtype) for name, value in values.items()}
