"""QM9: what its table holds, in which units, whichever files it is read from.

QM9 (Ramakrishnan, Dral, Rupp, von Lilienfeld, Sci. Data 1, 140022, 2014; CC0) has the B3LYP
geometries and properties of small molecules of H, C, N, O and F. The files give energies in
Hartree; the table gives every energy in eV, and leaves the other properties in the paper's units:
rotational constants in GHz, the dipole moment in Debye, the polarizability in Bohr³, the spatial
extent in Bohr², the heat capacity in cal/(mol K).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.graphs import Array, Column, GraphTable, table_from_columns

HARTREE = 27.211386245988
"""One Hartree in eV (CODATA 2018)."""

QM9_ELEMENTS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
"""Atomic numbers of the elements in QM9."""


class Target(NamedTuple):
    """A property of a molecule: its column in the CSV files, the table's unit, the factor to it."""

    csv_column: str
    unit: str
    factor: float
    doc: str


# The order is that of the second line of the official xyz files.
QM9_TARGETS = {
    "rot_a": Target("RotA_GHz", "GHz", 1.0, "rotational constant A"),
    "rot_b": Target("RotB_GHz", "GHz", 1.0, "rotational constant B"),
    "rot_c": Target("RotC_GHz", "GHz", 1.0, "rotational constant C"),
    "mu": Target("Dipole_debye", "D", 1.0, "dipole moment"),
    "alpha": Target("Polarizability_bohr3", "Bohr³", 1.0, "isotropic polarizability"),
    "homo": Target("HOMO_au", "eV", HARTREE, "energy of the highest occupied orbital"),
    "lumo": Target("LUMO_au", "eV", HARTREE, "energy of the lowest unoccupied orbital"),
    "gap": Target("HOMO_LUMO_gap_au", "eV", HARTREE, "lumo - homo"),
    "r2": Target("R2_bohr2", "Bohr²", 1.0, "electronic spatial extent"),
    "zpve": Target("ZPVE_au", "eV", HARTREE, "zero-point vibrational energy"),
    "u0": Target("InternalEnergy_0K_au", "eV", HARTREE, "internal energy at 0 K"),
    "u": Target("InternalEnergy_298K_au", "eV", HARTREE, "internal energy at 298.15 K"),
    "h": Target("Enthalphy_298K_au", "eV", HARTREE, "enthalpy at 298.15 K"),
    "g": Target("GibbsFreeEnergy_298K_au", "eV", HARTREE, "free energy at 298.15 K"),
    "cv": Target(
        "Heatcapacity_Cv_cal_mol_K", "cal/(mol K)", 1.0, "heat capacity at 298.15 K, constant V"
    ),
}
"""The 15 properties by the name of their column in the table."""

QM9_SCHEMA = {
    "z": Column(level="node", dtype="uint8", doc="atomic number"),
    "pos": Column(level="node", dtype="float32", shape=(3,), unit="Å", doc="position"),
    "charge": Column(level="node", dtype="float32", unit="e", doc="Mulliken charge"),
    "index": Column(level="graph", dtype="int32", doc="number of the molecule in dsgdb9nsd"),
    **{
        name: Column(level="graph", dtype="float64", unit=target.unit, doc=target.doc)
        for name, target in QM9_TARGETS.items()
    },
    "smiles": Column(level="ragged", dtype="uint8", doc="SMILES as in GDB-17, UTF-8"),
}
"""The columns of every QM9 table. There are no edges: a model's cutoff decides them."""

_REFERENCES_HARTREE = {
    "u0": (-0.500273, -37.846772, -54.583861, -75.064579, -99.718730),
    "u": (-0.498857, -37.845355, -54.582445, -75.063163, -99.717314),
    "h": (-0.497912, -37.844411, -54.581501, -75.062219, -99.716370),
    "g": (-0.510927, -37.861317, -54.598897, -75.079532, -99.733544),
}
ATOM_REFERENCES = {
    name: dict(zip(QM9_ELEMENTS, (HARTREE * value for value in values), strict=True))
    for name, values in _REFERENCES_HARTREE.items()
}
"""Energies of the free atoms in eV, by target and element (the data set's atomref.txt).

A molecule's atomization energy is its energy less those of its atoms. `zpve` of an atom is 0.
"""


@dataclass(frozen=True, kw_only=True)
class Molecule:
    """One molecule of n atoms in the files' units.

    Attributes:
        index: its number in dsgdb9nsd.
        smiles: its SMILES.
        elements: n symbols.
        positions: 3n coordinates in Å, atom by atom.
        charges: n Mulliken charges in e.
        targets: 15 properties, in the order of QM9_TARGETS.
    """

    index: int
    smiles: str
    elements: Sequence[str]
    positions: Sequence[float]
    charges: Sequence[float]
    targets: Sequence[float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Molecules:
    """m molecules of N atoms in all, as columns in the files' units.

    Attributes:
        num_atoms: int [m].
        z: uint8 [N].
        pos: float64 [N, 3] in Å.
        charge: float64 [N] in e.
        index: int [m].
        targets: float64 [m, 15], in the order of QM9_TARGETS.
        smiles: m texts.
    """

    num_atoms: Array
    z: Array
    pos: Array
    charge: Array
    index: Array
    targets: Array
    smiles: Sequence[str]

    def table(self, *, first: int, metadata: dict[str, Any] | None = None) -> GraphTable:
        """The molecules as a table with QM9_SCHEMA; `first` is the number of the first one."""
        texts = [text.encode() for text in self.smiles]
        return table_from_columns(
            QM9_SCHEMA,
            num_nodes=self.num_atoms,
            columns={
                "z": self.z,
                "pos": self.pos,
                "charge": self.charge,
                "index": self.index,
                "smiles": np.frombuffer(b"".join(texts), dtype=np.uint8),
                **{
                    name: self.targets[:, i] * target.factor
                    for i, (name, target) in enumerate(QM9_TARGETS.items())
                },
            },
            ragged_rows={"smiles": np.array([len(text) for text in texts], dtype=np.int64)},
            metadata=metadata,
            first=first,
        )


def molecules_of(molecules: Sequence[Molecule]) -> Molecules:
    """Molecules one by one as columns."""

    def numbers(name: str) -> Array:
        return np.array([x for m in molecules for x in getattr(m, name)], dtype=np.float64)

    return Molecules(
        num_atoms=np.array([len(m.elements) for m in molecules], dtype=np.int64),
        z=np.array([QM9_ELEMENTS[e] for m in molecules for e in m.elements], dtype=np.uint8),
        pos=numbers("positions").reshape(-1, 3),
        charge=numbers("charges"),
        index=np.array([m.index for m in molecules], dtype=np.int64),
        targets=numbers("targets").reshape(-1, len(QM9_TARGETS)),
        smiles=[m.smiles for m in molecules],
    )
