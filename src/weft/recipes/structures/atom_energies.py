"""Energies of isolated atoms: given, or those of single atoms among the structures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.files import read_object
from weft.graphs import Array, GraphTable
from weft.models.target_scale import TargetScale
from weft.recipes.structures.config import StructuresConfig
from weft.sources.atoms import ATOMIC_NUMBERS, ISOLATED

SYMBOLS = {number: symbol for symbol, number in ATOMIC_NUMBERS.items()}
"""Symbols of the elements by atomic number."""
_WORD = "isolated"
# eV. Two isolated atoms of an element differ by no more.
_SAME = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class AtomEnergies:
    """What is known of isolated atoms.

    Attributes:
        energies: by atomic number, in the target's unit.
        isolated: bool [g], the structures that are isolated atoms and not trained on.
    """

    energies: dict[int, float]
    isolated: Array


def atom_energies(table: GraphTable, config: StructuresConfig) -> AtomEnergies:
    """Energies of isolated atoms as `config` gives them, else of the table's isolated atoms.

    Raises:
        DataError: an isolated atom has company, two of an element differ, an energy that is given
            cannot be read, or there are no isolated atoms where they are requested.
    """
    isolated = np.zeros(len(table), dtype=bool)
    if not config.references or config.readout != "sum" or config.vector:
        return AtomEnergies(energies={}, isolated=isolated)
    if config.atom_energies == (_WORD,):
        isolated = (table.num_nodes == 1) & (table.num_edges == 0)
        if not isolated.any():
            raise DataError("atom_energies is 'isolated', and no structure is a single atom")
    elif ISOLATED in table.schema:
        isolated = np.asarray(table.column(ISOLATED)) == 1
    if config.atom_energies and config.atom_energies != (_WORD,):
        return AtomEnergies(energies=parsed_energies(config.atom_energies), isolated=isolated)
    energies: dict[int, float] = {}
    values = np.asarray(table.column(config.target), dtype=np.float64)
    for graph in np.flatnonzero(isolated).tolist():
        atoms = int(table.num_nodes[graph])
        if atoms != 1:
            raise DataError(
                f"structure {graph} has config_type=IsolatedAtom and {atoms} atoms; it must be one"
            )
        z, energy = int(table.column("z")[table.node_offsets[graph]]), float(values[graph])
        if math.isnan(energy):
            continue
        if abs(energies.setdefault(z, energy) - energy) > _SAME:
            raise DataError(
                f"structure {graph}: an isolated {SYMBOLS[z]} has {config.target} {energy:g}, and "
                f"one before it {energies[z]:g}; keep one, or give the energies with "
                "--atom-energies"
            )
    return AtomEnergies(energies=energies, isolated=isolated)


def parsed_energies(words: Iterable[str]) -> dict[int, float]:
    """Energies by atomic number from words such as `H=-13.6` and names of JSON files.

    Raises:
        DataError: no such element or file, or no number.
    """
    pairs: list[tuple[str, str, Any]] = []
    for word in words:
        name, sign, value = word.partition("=")
        if sign:
            pairs.append((word, name, value))
        elif word == _WORD:
            raise DataError(
                f"--atom-energies {word} cannot be combined with other energies; leave them out"
            )
        elif not Path(word).is_file():
            raise DataError(
                f"--atom-energies {word}: neither ELEMENT=ENERGY, such as H=-13.6, nor a JSON file"
            )
        else:
            pairs += [
                (f"{word}: {key}", key, value) for key, value in read_object(Path(word)).items()
            ]
    energies = {}
    for where, symbol, number in pairs:
        z = int(symbol) if symbol.isdecimal() and len(symbol) < 4 else ATOMIC_NUMBERS.get(symbol, 0)
        if z not in SYMBOLS:
            raise DataError(f"--atom-energies {where}: '{symbol}' is not an element")
        try:
            energies[z] = float(number)
        except (TypeError, ValueError):
            energies[z] = math.nan
        if not math.isfinite(energies[z]):
            raise DataError(f"--atom-energies {where}: {number!r} is not an energy")
    return energies


def add_binding_energy(scale: TargetScale, table: GraphTable, graphs: Array, target: str) -> None:
    """Add to the references what an atom's energy is on average below that of an isolated one.

    Atoms in molecules and crystals are bound by some eV, all by about as much; a network that had
    to learn that first would need many steps for it.

    Args:
        scale: whose references are energies of isolated atoms.
        table: the structures.
        graphs: int [t], those for training.
        target: the energy.
    """
    values = np.asarray(table.column(target), dtype=np.float64)
    left = scale.standardise(table, values)[graphs].sum(dtype=np.float64) * float(scale.std)
    scale.references[1:] += left / float(table.num_nodes[graphs].sum())


def energies_sentence(
    found: AtomEnergies, references: Array, elements: Iterable[int], unit: str
) -> str:
    """The energies of isolated atoms in words, and what was learned beside them."""
    binding = next(float(references[z]) - energy for z, energy in found.energies.items())

    def listed(numbers: Iterable[int]) -> str:
        return ", ".join(f"{SYMBOLS[z]} {references[z] - binding:.6g}" for z in sorted(numbers))

    said = f"Energies of isolated atoms{f' [{unit}]' if unit else ''}: {listed(found.energies)}"
    if rest := set(elements) - found.energies.keys():
        said += f"; by least squares: {listed(rest)}"
    said += f"; an atom in a structure has {binding:+.4g} on average"
    if found.isolated.any():
        said += f". {int(found.isolated.sum())} isolated atoms are not trained on"
    return f"{said}."
