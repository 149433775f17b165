"""Trained potentials as a simulation needs them: energies, forces and stress of moving atoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from weft.errors import DataError
from weft.graphs import GraphBatch
from weft.integrations.md.config import Precision
from weft.models import Standardised, properties_of
from weft.parallel.device import checked_device
from weft.recipes.recipe import member_folders
from weft.recipes.structures.prediction import check_elements, load_structures
from weft.sources.verlet_list import Fixed, VerletList

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a potential says of a batch; of several models the mean.

    Attributes:
        energy: float64 [S], eV.
        energies: float64 [N], eV, each atom's part.
        forces: float64 [N, 3], eV/Å.
        stress: float64 [S, 3, 3], eV/Å³; None if not requested.
        energy_spread: float64 [S], standard deviation over the models; None of one model.
        forces_spread: float64 [N, 3], the same of the forces.
    """

    energy: Tensor
    energies: Tensor
    forces: Tensor
    stress: Tensor | None
    energy_spread: Tensor | None = None
    forces_spread: Tensor | None = None


class Potential:
    """One trained model, or several whose mean is taken.

    Args:
        models: that add up their atoms; in evaluation mode, their weights are not learned.
        cutoff: beyond which atoms do not see each other, Å.
        elements: atomic numbers that all of them were trained on.
        dtype: to compute in; energies are added up in float64.
        device: to compute on.

    Raises:
        ValueError: there is no such device.
    """

    def __init__(
        self,
        models: Sequence[Standardised],
        *,
        cutoff: float,
        elements: Sequence[int],
        dtype: Precision = "float32",
        device: torch.device | str | None = None,
    ) -> None:
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}; choose from {', '.join(_DTYPES)}")
        self.cutoff, self.elements = cutoff, tuple(elements)
        self.dtype, self.device = _DTYPES[dtype], None if device is None else checked_device(device)
        self.models = list(models)
        for model in self.models:
            model.network.to(self.dtype)
            model.to(self.device).eval().requires_grad_(False)

    def neighbours(self, fixed: Fixed, *, skin: float, name: str = "the structure") -> VerletList:
        """The neighbour list for these structures; `name` is theirs in messages.

        Raises:
            DataError: there are no atoms, or one of an element that the model has not seen.
        """
        check_elements(self.elements, fixed.z, fixed.num_atoms, name)
        return VerletList(
            fixed, cutoff=self.cutoff, skin=skin, dtype=self.dtype, device=self.device
        )

    def __call__(self, batch: GraphBatch, *, stress: bool = False) -> Answer:
        """Energies and forces of the structures; with `stress`, of periodic ones, that too."""
        found = [properties_of(model, batch, stress=stress, atoms=True) for model in self.models]
        energy, energy_spread = _mean([each.energy for each in found])
        forces, forces_spread = _mean([each.forces for each in found])
        return Answer(
            energy=energy,
            energies=_mean([each.atomic for each in found])[0],
            forces=forces,
            stress=_mean([each.stress for each in found])[0] if stress else None,
            energy_spread=energy_spread,
            forces_spread=forces_spread,
        )


def _mean(values: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """The mean in float64 on the CPU, and the standard deviation of more than one."""
    given = [value.double().cpu() for value in values if value is not None]
    assert len(given) == len(values)
    if len(given) == 1:
        return given[0], None
    all_of_them = torch.stack(given)
    return all_of_them.mean(0), all_of_them.std(0, correction=0)


def load_potential(
    runs: str | Path | Sequence[str | Path],
    *,
    dtype: Precision = "float32",
    device: torch.device | str | None = None,
) -> Potential:
    """The potential of a run of `weft train molecules` or `crystals`, or the mean of several.

    A run that was trained with --seeds is the mean of its members.

    Raises:
        DataError: no such run, or its target is not an energy in eV.
        ValueError: its forces would not be the gradient of a sound energy; the message says why.
            Or there is no such device.
    """
    # Before anything is read.
    device = None if device is None else checked_device(device)
    named = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    folders = [folder for run in named for folder in member_folders(run)]
    if not folders:
        raise ValueError("no run is named; give the folder of one, or a list of them")
    trained = [load_structures(folder) for folder in folders]
    for folder, each in zip(folders, trained, strict=True):
        if reason := each.config.why_no_forces():
            raise ValueError(f"{folder} cannot move atoms: {reason}")
        if each.unit not in ("", "eV"):
            raise DataError(
                f"{folder} predicts '{each.config.target}' in {each.unit}; forces are the gradient "
                "of an energy in eV: train on one"
            )
    return Potential(
        [each.model for each in trained],
        cutoff=max(each.config.neighbours.cutoff for each in trained),
        elements=sorted(set.intersection(*(set(each.elements) for each in trained))),
        dtype=dtype,
        device=device,
    )
