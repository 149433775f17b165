"""Which values of a user's file are an energy, its forces and its stress, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from weft.errors import DataError
from weft.sources.atoms import ISOLATED, Structure, files_of, read_structures
from weft.sources.progress_bar import progress_bar

# Structures that are looked at.
_LOOKED_AT = 100
_ENERGY = re.compile(r"^(|.+_)energy$", re.IGNORECASE)
# In data sets of potentials a reference calculation is often called so; plain names may then be of
# another method.
_FIRST = ("ref_", "", "dft_")
# Other quantities, though their names end as an energy's.
_OTHER = ("free_", "kinetic_")


@dataclass(frozen=True, kw_only=True)
class TargetNames:
    """Names of the values to learn from.

    Attributes:
        energy: of a structure.
        forces: None where there are none.
        stress: or virials; None where there are none.
    """

    energy: str
    forces: str | None
    stress: str | None

    def __str__(self) -> str:
        named = {"energy": self.energy, "forces": self.forces, "stress": self.stress}
        return "; ".join(f"{what}: {name}" for what, name in named.items() if name)


def guessed_targets(sources: Sequence[Path]) -> TargetNames:
    """The energy of the structures in `sources`, and the forces and stress that go with it.

    REF_energy comes before energy, and that before dft_energy; forces and stress have the same
    prefix. An energy counts where most of the structures have it, and they count where all of the
    first hundred do, but for isolated atoms; stresses where these have a cell, too.

    Raises:
        DataError: no energy, or several that could be meant; the message lists the values.
    """
    with progress_bar("structures", None, show=False) as move:
        looked_at = list(islice(read_structures(files_of(sources), move), _LOOKED_AT))
    looked_at = [s for s in looked_at if s.values.get(ISOLATED) != 1] or looked_at
    scalars = sorted({name for s in looked_at for name in s.values if _is_scalar(s, name)})
    scalars = [n for n in scalars if 2 * sum(n in s.values for s in looked_at) > len(looked_at)]
    found = {m[1]: name for name in scalars if (m := _ENERGY.match(name)) and m[1] not in _OTHER}
    chosen = [prefix for first in _FIRST for prefix in found if prefix.lower() == first]
    chosen = chosen or (list(found) if len(found) == 1 else [])
    if not chosen:
        names = sorted({name for s in looked_at for name in s.values} - {ISOLATED})
        why = f"{' and '.join(found.values())} could be meant" if found else "no energy was found"
        raise DataError(
            f"{sources[0]}: {why}; name the value to learn with --target (and --forces, "
            f"--stress) among {', '.join(names)}"
        )
    prefix = chosen[0]

    def all_have(stems: Sequence[str]) -> str | None:
        names = {name.lower(): name for s in looked_at for name in s.values}
        for wanted in (f"{prefix}{stem}".lower() for stem in stems):
            name = names.get(wanted)
            if name and all(name in s.values for s in looked_at):
                return name
        return None

    stress = all_have(("stress", "virials", "virial"))
    if not all(s.atoms.cell.rank == 3 for s in looked_at):
        stress = None
    return TargetNames(energy=found[prefix], forces=all_have(("forces", "force")), stress=stress)


def _is_scalar(structure: Structure, name: str) -> bool:
    value = structure.values[name]
    return name not in structure.per_atom and np.ndim(value) == 0 and not isinstance(value, str)
