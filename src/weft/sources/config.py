"""Options of the readers and of neighbour graphs, readable without compiled loops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

EdgeColumn = Literal["src", "dst", "time", "weight"]
"""What a token of a line may be."""


@dataclass(frozen=True, kw_only=True)
class FullyConnected:
    """Every ordered pair of a molecule's atoms is an edge; not for periodic structures."""


@dataclass(frozen=True, kw_only=True)
class Cutoff:
    """Every pair of atoms, or of their periodic images, nearer than `radius` is an edge.

    Attributes:
        radius: in Å.
    """

    radius: float

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise ValueError(f"radius is {self.radius} Å; a cutoff is above 0 and finite")


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The `k` nearest atoms of each atom, periodic images among them, send an edge to it.

    A molecule of k atoms or fewer has every pair. Ties (to 1e-5 Å) go to the lower sender, then
    to the lower image.

    Attributes:
        k: edges that enter an atom.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k is {self.k}; an atom needs at least 1 neighbour")


Neighbours = FullyConnected | Cutoff | Nearest
