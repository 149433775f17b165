"""Molecules and crystals of a few atoms with values that can be learned, for several tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from weft.batching import BatchingConfig
from weft.graphs import Column, GraphTable, table_from_columns
from weft.recipes.structures.config import StructuresConfig
from weft.recipes.structures.data import neighbour_table
from weft.sources import atoms_table

ENERGY = {1: -13.0, 6: -1030.0, 8: -2040.0}


def positions(rng: np.random.Generator, count: int, *, room: float = 3.0) -> Any:
    """`count` places in a cube, at least 0.9 Å apart."""
    found: list[Any] = []
    while len(found) < count:
        place = rng.uniform(0, room, 3)
        if all(np.linalg.norm(place - other) > 0.9 for other in found):
            found.append(place)
    return np.array(found)


def springs(pos: Any) -> tuple[float, Any]:
    """Energy, eV, and forces, eV/Å, of a repulsion exp(-d) between all atoms."""
    vectors = pos[:, None] - pos[None]
    d = np.linalg.norm(vectors, axis=-1) + np.eye(len(pos)) * 1e9
    pairs = 3.0 * np.exp(-d)
    return float(pairs.sum() / 2), (pairs[..., None] * vectors / d[..., None]).sum(axis=1)


def molecules(count: int = 40, *, largest: int = 6, seed: int = 0) -> list[Any]:
    """Atoms with a calculated energy (per-element values and a repulsion) and forces."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        size = int(rng.integers(1, largest + 1))
        atoms = Atoms(numbers=rng.choice(list(ENERGY), size), positions=positions(rng, size))
        energy, forces = springs(atoms.positions)
        energy += sum(ENERGY[z] for z in atoms.numbers)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        made.append(atoms)
    return made


def metals(count: int = 16, *, seed: int = 0) -> list[Any]:
    """Cells of copper and gold with energies, forces and stresses of ASE's EMT."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        atoms = bulk("Cu", cubic=True, a=3.7 + 0.3 * rng.random())
        atoms.numbers = rng.choice([29, 79], len(atoms))
        atoms.rattle(0.1, rng=rng)
        atoms.calc = EMT()
        results = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        atoms.calc = SinglePointCalculator(atoms, stress=atoms.get_stress(), **results)
        made.append(atoms)
    return made


def crystals(count: int = 12, *, seed: int = 0) -> list[dict[str, Any]]:
    """Crystals as the JSON lines have them, with a `gap`, eV, that follows from the cell."""
    rng = np.random.default_rng(seed)
    return [
        {
            "dataset": "made",
            "id": f"c{number}",
            "lattice": np.diag([edge] * 3).tolist(),
            "z": [11, 17],
            "frac": [[0, 0, 0], [0.5, 0.5, 0.5]],
            "targets": {"gap": 1.0 + edge},
        }
        for number, edge in enumerate(rng.uniform(3, 5, count))
    ]


def write_crystals(path: Path, made: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(crystal) + "\n" for crystal in made), encoding="utf-8")
    return path


def config(**options: Any) -> StructuresConfig:
    """A network small enough for a test."""
    given = {
        "data": "made",
        "target": "energy",
        "hidden": 16,
        "layers": 2,
        "split": (0.7, 0.2, 0.1),
        "batching": BatchingConfig(policy="dynamic", batch_size=8),
        "learning_rate": 5e-3,
        "epochs": 2,
    }
    return StructuresConfig(**{**given, **options})


def table_of(
    folder: Path, made: list[Any], asked: StructuresConfig, *, missing: Any = "nan"
) -> GraphTable:
    """The table that training reads, through a file."""
    write(folder / "made.extxyz", made)
    table = atoms_table(
        folder / "made.weft",
        folder / "made.extxyz",
        targets=asked.targets,
        missing=missing,
        progress=False,
    )
    return neighbour_table(table, asked.settled().neighbours, data_dir=folder, progress=False)


def plain_table(numbers: list[list[int]], target: Any, *, seed: int = 0) -> GraphTable:
    """A table in memory with these atomic numbers, positions in float64 and `energy`."""
    rng = np.random.default_rng(seed)
    sizes = np.array([len(z) for z in numbers])
    return table_from_columns(
        {
            "z": Column(level="node", dtype="uint8"),
            "pos": Column(level="node", dtype="float64", shape=(3,), unit="Å"),
            "energy": Column(level="graph", dtype="float64", missing=True, unit="eV"),
        },
        num_nodes=sizes,
        columns={
            "z": np.concatenate([np.array(z, dtype=np.uint8) for z in numbers]),
            "pos": np.concatenate([positions(rng, n) for n in sizes if n]),
            "energy": np.asarray(target, dtype=np.float64),
        },
    )
