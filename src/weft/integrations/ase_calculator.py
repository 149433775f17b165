"""Trained potentials as calculators of ASE."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from weft.errors import DataError
from weft.graphs import Array
from weft.integrations.md.config import Precision
from weft.integrations.potential import Potential, load_potential
from weft.sources.verlet_list import Fixed, VerletList

try:
    from ase.calculators.calculator import (
        Calculator,
        PropertyNotImplementedError,
        all_changes,
    )
    from ase.stress import full_3x3_to_voigt_6_stress
except ImportError as error:
    raise DataError("a calculator needs ASE: pip install 'weft[chem]'") from error


def calculator(
    run: str | Path | Sequence[str | Path],
    *,
    dtype: Precision = "float32",
    skin: float = 0.5,
    device: torch.device | str | None = None,
) -> WeftCalculator:
    """A calculator of ASE from a run of `weft train molecules` or `crystals`.

        atoms.calc = weft.calculator("runs/water")
        atoms.get_potential_energy(), atoms.get_forces()

    Args:
        run: the folder of the run; or those of several, whose mean is taken: `results` then has
            `energy_spread` and `forces_spread`, the standard deviations.
        dtype: float32 is faster, float64 for relaxations and vibrations.
        skin: how far beyond the cutoff neighbours are kept, Å, so that they are searched again only
            when an atom has moved by half of it.
        device: where to compute, such as `cuda`.

    Raises:
        DataError: no such run, or its target is not an energy in eV.
        ValueError: the model has no sound forces; the message says why and what to do.
    """
    return WeftCalculator(load_potential(run, dtype=dtype, device=device), skin=skin)


class WeftCalculator(Calculator):  # type: ignore[misc]
    """Energy, forces, stress (of what is periodic in three directions) and energies of the atoms.

    Args:
        potential: the model or models.
        skin: of the neighbour list, Å.

    Attributes:
        neighbours: the neighbour list of the atoms seen last; None before.
    """

    implemented_properties: ClassVar[list[str]] = [
        *("energy", "free_energy", "energies", "forces", "stress")
    ]

    def __init__(self, potential: Potential, *, skin: float = 0.5) -> None:
        super().__init__()
        self.potential, self.skin = potential, skin
        self.neighbours: VerletList | None = None
        self._stress_wanted = False

    def check_state(self, atoms: Any, tol: float = 0.0) -> list[str]:
        """What has changed since the last calculation, of all that matters to this one."""
        if self.atoms is None:
            return list(all_changes)
        # ASE's own comparison takes longer than the neighbour list of a step.
        names = ("positions", "numbers", "cell", "pbc")
        return [n for n in names if not np.array_equal(getattr(atoms, n), getattr(self.atoms, n))]

    def calculate(
        self,
        atoms: Any = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Fill `results`.

        Raises:
            DataError: an element that the model has not seen, two atoms in one place, or a
                position that is not finite.
            PropertyNotImplementedError: the stress of what is not periodic in three directions.
        """
        super().calculate(atoms, properties, system_changes)
        whole = bool(self.atoms.pbc.all())
        if "stress" in properties and not whole:
            raise PropertyNotImplementedError(
                f"stress is a derivative in the cell, and pbc is {self.atoms.pbc.tolist()}: there "
                "is one only of what is periodic in three directions"
            )
        # Who asks once, as a barostat does, asks in every step: then it comes with the forces.
        self._stress_wanted |= "stress" in properties
        fixed = Fixed(
            z=self.atoms.numbers,
            num_atoms=np.array([len(self.atoms)]),
            pbc=self.atoms.pbc[None].copy(),
        )
        if self.neighbours is None or not self.neighbours.fixed.same(fixed):
            self.neighbours = self.potential.neighbours(fixed, skin=self.skin)
        batch = self.neighbours.batch(self.atoms.positions, self.atoms.cell.array[None])
        found = self.potential(batch, stress=self._stress_wanted and whole)
        energy = float(found.energy)
        self.results: dict[str, float | Array] = {
            "energy": energy,
            "free_energy": energy,
            "energies": found.energies.numpy(),
            "forces": found.forces.numpy(),
        }
        if found.stress is not None:
            self.results["stress"] = full_3x3_to_voigt_6_stress(found.stress[0].numpy())
        if found.energy_spread is not None and found.forces_spread is not None:
            self.results["energy_spread"] = float(found.energy_spread)
            self.results["forces_spread"] = found.forces_spread.numpy()
