"""`weft md RUN FILE`: molecular dynamics and relaxation with a trained potential."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from weft.errors import DataError
from weft.integrations.md.config import MDConfig

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Md:
    """Move the atoms of every structure in a file with a trained potential.

    Lengths are in Å, energies in eV, times in fs. All structures of a file move at once,
    independently of each other and each with its own trajectory; npt and --relax-cell process them
    one after the other. Velocities are those of the file, or drawn for the temperature. A page with
    temperature, energy drift and distances is written beside the trajectory. Ctrl-C ends the run
    early and keeps what was computed. Examples:
      weft md runs/molecules-water water.extxyz --temperature 300 --steps 20000
      weft md runs/molecules-water water.extxyz --ensemble nve --dtype float64
      weft md runs/crystals-si si.cif --ensemble npt --temperature 600 --pressure 1000
      weft md runs/crystals-si si.cif --ensemble relax --relax-cell --dtype float64
      weft md runs/crystals-si si-relax.extxyz --index -1        (from the last frame)
      weft md runs/molecules-water many.extxyz --out many.traj   (many-0.traj, many-1.traj, ...)

    Attributes:
        run: The folder of a run of `weft train molecules` or `crystals` whose readout is a sum.
        file: The structures: a file that ASE reads (extxyz, CIF, traj, an ASE database).
        index: Take only this structure of the file, counted from 0; -1 for the last one, such as
            the last frame of a trajectory.
        out: Write the trajectory here, .extxyz or .traj; by default FILE-ENSEMBLE.extxyz here.
        quiet: Show no progress.
    """

    COMMON: ClassVar[tuple[str, ...]] = (
        *("run", "file", "ensemble", "temperature", "pressure", "steps", "timestep"),
        *("relax_cell", "dtype", "every", "index", "out"),
    )

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    config: MDConfig = field(default_factory=MDConfig)
    index: int | None = None
    out: Path | None = None
    quiet: bool = False

    def __call__(self, console: Console) -> int:
        """Simulate; 2 where the atoms fly apart."""
        if not self.file.exists():
            raise DataError(f"{self.file} is not there")
        try:
            import ase  # noqa: F401
        except ImportError:
            raise DataError(
                "moving atoms needs ASE, which is not installed: pip install 'weft[chem]'"
            ) from None
        from weft.integrations.md.simulation import simulate
        from weft.training import prepare_process

        prepare_process()
        return simulate(
            self.run,
            self.file,
            self.config,
            console=console,
            index=self.index,
            out=self.out,
            quiet=self.quiet,
        )


COMMAND = Md
