"""Settings of a simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from weft.errors import check_choices, check_least

Ensemble = Literal["nve", "nvt", "npt", "relax"]
Precision = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class MDConfig:
    """Settings of a simulation.

    Attributes:
        ensemble: nve keeps the energy (velocity Verlet), nvt the temperature (Langevin, BAOAB), npt
            the temperature and the pressure by the volume (Martyna-Tobias-Klein, the cell keeps
            its shape), relax moves the atoms to where the forces are 0 (FIRE).
        temperature: Temperature in K, also of the initial velocities unless the file has some.
        pressure: Pressure in bar, for npt and --relax-cell.
        steps: Number of steps; for relax, the maximum.
        timestep: Time step in fs.
        friction: Friction of nvt, in 1/fs; npt controls the temperature over a time of 1 / friction
            and the volume over ten times that.
        relax_cell: Relax the cell too.
        fmax: Relax until no force is larger than this, in eV/Å.
        dtype: Precision of the model; energies are added up in float64.
        seed: Seed of velocities and of the thermostat.
        every: Steps between the frames of the trajectory.
    """

    ensemble: Ensemble = "nvt"
    temperature: float = 300.0
    pressure: float = 1.0
    steps: int = 1000
    timestep: float = 0.5
    friction: float = 0.01
    relax_cell: bool = False
    fmax: float = 0.01
    dtype: Precision = "float32"
    seed: int = 0
    every: int = 10

    def __post_init__(self) -> None:
        check_choices(self, ensemble=Ensemble, dtype=Precision)
        check_least(self, temperature=0, friction=0, steps=1, every=1, seed=0)
        for name, unit in (("temperature", "K"), ("pressure", "bar"), ("friction", "1/fs")):
            if not math.isfinite(value := getattr(self, name)):
                raise ValueError(f"{name} is {value} {unit}; it must be finite")
        for name, unit in (("timestep", "fs"), ("fmax", "eV/Å")):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise ValueError(f"{name} is {value} {unit}; it must be above 0 and finite")
        if self.ensemble == "npt" and not (self.temperature > 0 and self.friction > 0):
            raise ValueError(
                f"temperature is {self.temperature} and friction {self.friction}; npt needs both "
                "above 0"
            )
        if self.relax_cell and self.ensemble != "relax":
            raise ValueError(f"--relax-cell is for --ensemble relax, not for {self.ensemble}")

    @property
    def needs_cell(self) -> bool:
        """Whether the cell changes, which needs structures that are periodic in all directions."""
        return self.ensemble == "npt" or self.relax_cell
