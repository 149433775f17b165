"""Benchmarks of potentials: training steps on forces, forces alone, molecular dynamics."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.progress import Progress

from weft.graphs import Array, Column, GraphTable, table_from_columns
from weft.sources import Cutoff, with_neighbours
from weft_lab.bench.result import BenchResult, CaseResult
from weft_lab.bench.runner import Candidate, ours, run_case
from weft_lab.bench_settings import ForcesBench, ForcesModel, ForcesTask, MDBench, Structures

_CUTOFF = 5.0
_COUNT = {"molecules": 256, "cells": 64}
_SIZE = {"molecules": 32, "cells": 8}
_WORDS = {"training": "energies, forces and an update", "forces": "energies and forces"}


def bench_forces(config: ForcesBench, progress: Progress) -> BenchResult:
    """Run the cases; a sample is a batch."""
    cases = []
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        for structures in config.structures:
            table = molecules() if structures == "molecules" else cells()
            stored = _store(Path(folder), structures, table)
            cases += [
                _run(model, structures, task, stored, config, progress)
                for model in config.models
                for task in config.tasks
            ]
    return BenchResult(name="forces", cases=cases)


def bench_md(config: MDBench, progress: Progress) -> BenchResult:
    """Steps of molecular dynamics with each library's calculator and neighbour lists."""
    candidates = {
        "weft": Candidate(script="dynamics_steps:weft", peer=False),
        "SchNetPack": Candidate(script="dynamics_steps:schnetpack", settings={"skin": 0.5}),
        "SchNetPack, new lists": Candidate(
            script="dynamics_steps:schnetpack", settings={"skin": 0.0}
        ),
    }
    cases = []
    for atoms in config.atoms:
        repeats = round((atoms / 8) ** (1 / 3))
        if 8 * repeats**3 != atoms:
            raise ValueError(
                f"atoms is {atoms}; a cubic cell of silicon holds 8 n³: choose 64, 216, 512 ..."
            )
        cases.append(
            run_case(
                f"{atoms}-atoms",
                f"a step of velocity Verlet, PaiNN with 64 features, {atoms} atoms of silicon, "
                f"cutoff {_CUTOFF:g} Å; batching: neighbour lists",
                candidates,
                {"repeats": repeats, "cutoff": _CUTOFF},
                rounds=config.rounds,
                steps=config.steps,
                warmup=5,
                progress=progress,
            )
        )
    return BenchResult(name="md", cases=cases)


def _run(
    model: ForcesModel,
    structures: Structures,
    task: ForcesTask,
    stored: dict[str, Any],
    config: ForcesBench,
    progress: Progress,
) -> CaseResult:
    name, _, width = model.partition("-")
    size = _SIZE[structures]
    candidates = {
        "weft": ours("forces"),
        "SchNetPack": Candidate(script="schnetpack_steps:forces", against=("weft",)),
    }
    if name == "schnet":
        script = "torch_geometric_steps:forces"
        candidates["torch_geometric"] = Candidate(script=script, against=("weft",))
    if model == "painn-64":
        candidates["MACE, small"] = Candidate(script="mace_steps:forces", against=("weft",))
    return run_case(
        f"{model}-{structures}-{task}",
        f"{_WORDS[task]}, {model}, {size} {structures} of {stored['atoms']} atoms, "
        f"{stored['edges']:.0f} edges a batch, cutoff {_CUTOFF:g} Å",
        candidates,
        {
            **stored,
            "model": name,
            "hidden": int(width),
            "size": size,
            "cutoff": _CUTOFF,
            "training": task == "training",
        },
        rounds=config.rounds,
        steps=config.steps,
        warmup=3,
        progress=progress,
    )


def molecules(count: int = _COUNT["molecules"], seed: int = 0) -> GraphTable:
    """Random chains of 13 heavy atoms with 14 hydrogens, of the size and shape of 3BPA."""
    rng = np.random.default_rng(seed)
    pos, z = [], []
    for _ in range(count):
        heavy = _chain(rng, 13, 1.42)
        hydrogens: list[Array] = []
        while len(hydrogens) < 14:
            place = heavy[rng.integers(13)] + 1.09 * _direction(rng)
            others = np.concatenate([heavy, np.reshape(hydrogens, (-1, 3))])
            if np.sort(np.linalg.norm(others - place, axis=1))[1] > 1.5:
                hydrogens.append(place)
        pos.append(np.concatenate([heavy, hydrogens]))
        z.append(np.concatenate([rng.choice([6, 6, 6, 7, 8], 13), np.ones(14, dtype=int)]))
    return _table(rng, np.stack(pos), np.stack(z))


def cells(count: int = _COUNT["cells"], seed: int = 0) -> GraphTable:
    """Diamond cells of 64 atoms of silicon and carbon, 10.86 Å wide, each atom displaced."""
    rng = np.random.default_rng(seed)
    width = 10.86
    corners = np.array([[0, 0, 0], [0, 2, 2], [2, 0, 2], [2, 2, 0]]) / 4
    basis = np.concatenate([corners, corners + 0.25])
    blocks = np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), axis=-1).reshape(-1, 1, 3)
    ideal = ((basis + blocks).reshape(-1, 3) / 2) * width
    pos = ideal + rng.normal(0, 0.1, (count, 64, 3))
    return _table(rng, pos, rng.choice([6, 14], (count, 64)), cell=np.eye(3) * width)


def _chain(rng: np.random.Generator, count: int, bond: float) -> Array:
    """Places of a chain that does not come near itself."""
    places = [np.zeros(3)]
    while len(places) < count:
        place = places[-1] + bond * _direction(rng)
        if len(places) < 2 or np.linalg.norm(np.array(places[:-1]) - place, axis=1).min() > 2.2:
            places.append(place)
    return np.array(places)


def _direction(rng: np.random.Generator) -> Array:
    vector = rng.normal(size=3)
    found: Array = vector / np.linalg.norm(vector)
    return found


def _table(rng: np.random.Generator, pos: Array, z: Array, cell: Array | None = None) -> GraphTable:
    """Structures [count, atoms] with random energies and forces: the time does not see them."""
    count, atoms = z.shape
    schema = {
        "z": Column(level="node", dtype="uint8"),
        "pos": Column(level="node", dtype="float32", shape=(3,), unit="Å"),
        "forces": Column(level="node", dtype="float32", shape=(3,), unit="eV/Å"),
        "y": Column(level="graph", dtype="float32", unit="eV"),
    }
    columns: dict[str, Array] = {
        "z": z.reshape(-1).astype(np.uint8),
        "pos": pos.reshape(-1, 3).astype(np.float32),
        "forces": rng.normal(size=(count * atoms, 3)).astype(np.float32),
        "y": rng.normal(size=(count,)).astype(np.float32),
    }
    if cell is not None:
        schema["cell"] = Column(level="graph", dtype="float32", shape=(3, 3), unit="Å")
        schema["pbc"] = Column(level="graph", dtype="bool", shape=(3,))
        columns["cell"] = np.tile(cell.astype(np.float32), (count, 1, 1))
        columns["pbc"] = np.ones((count, 3), dtype=bool)
    return table_from_columns(schema, num_nodes=np.full(count, atoms), columns=columns)


def _store(folder: Path, name: str, table: GraphTable) -> dict[str, Any]:
    """The same structures and neighbours for all: a table for weft, plain arrays for the peers."""
    path = folder / f"{name}.weft"
    stored = with_neighbours(table, Cutoff(radius=_CUTOFF), path=path, progress=False)
    arrays: dict[str, Any] = {
        column: stored.columns[column]
        for column in ("z", "pos", "forces", "y", "senders", "receivers")
    }
    shift = stored.columns.get("shift", np.zeros((stored.total_edges, 3), dtype=np.float32))
    cell = stored.columns.get("cell", np.zeros((len(stored), 3, 3), dtype=np.float32))
    arrays |= {"node_offsets": stored.node_offsets, "edge_offsets": stored.edge_offsets}
    np.savez(folder / f"{name}.npz", shift=shift, cell=cell, **arrays)
    return {
        "arrays": str(folder / f"{name}.npz"),
        "table": str(stored.path),
        "atoms": int(stored.num_nodes[0]),
        "edges": _SIZE[name] * stored.total_edges / len(stored),
    }
