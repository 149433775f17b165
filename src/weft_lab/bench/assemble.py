"""Benchmark: assembling a batch of 128 molecules of QM9, against torch_geometric and jraph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.progress import Progress

from weft.graphs import Column, GraphTable, table_from_columns, write_table
from weft.sources import FullyConnected, load, with_neighbours
from weft_lab.bench.result import BenchResult
from weft_lab.bench.runner import Entry, run_case

# The published budget of dynamic batching for QM9 at 128 graphs.
_BUDGET = {"nodes": 2304, "edges": 39936, "graphs": 128}

_ENTRIES = {
    "weft": Entry(script="weft_assemble", peer=False, settings={"budget": None}),
    "weft, padded": Entry(script="weft_assemble", peer=False, settings={"budget": _BUDGET}),
    "torch_geometric DataLoader": Entry(script="torch_geometric_assemble", against=("weft",)),
    "jraph dynamically_batch": Entry(
        script="jraph_assemble", settings={"budget": _BUDGET}, against=("weft, padded",)
    ),
}


@dataclass(frozen=True, kw_only=True)
class AssembleBench:
    """One shuffled batch: atoms, positions, all pairs as edges, a target.

    Attributes:
        size: graphs a batch.
        molecules: how many of QM9 take part, drawn at random.
        rounds: times each contender gets its turn.
        steps: batches a turn.
        data_dir: the data folder.
    """

    size: int = 128
    molecules: int = 20_000
    rounds: int = 10
    steps: int = 20
    data_dir: Path | None = None


def bench_assemble(config: AssembleBench, progress: Progress) -> BenchResult:
    """Run it on molecules of QM9 with every pair of atoms an edge (mean 314 a molecule)."""
    qm9 = load("qm9", data_dir=config.data_dir)
    if not 1 <= config.size <= min(config.molecules, len(qm9)):
        raise ValueError(
            f"size is {config.size}; a batch needs at least 1 molecule and at most the "
            f"{min(config.molecules, len(qm9))} that take part"
        )
    some = np.random.default_rng(0).choice(len(qm9), min(config.molecules, len(qm9)), replace=False)
    table = fully_connected(qm9.select(some), target="u0")
    with TemporaryDirectory(prefix="weft-bench-") as name:
        folder = Path(name)
        names = ("z", "pos", "y", "senders", "receivers")
        arrays: dict[str, Any] = {name: table.columns[name] for name in names}
        arrays |= {"node_offsets": table.node_offsets, "edge_offsets": table.edge_offsets}
        np.savez(folder / "graphs.npz", **arrays)
        write_table(folder / "graphs.weft", [table])
        case = run_case(
            "qm9",
            f"a batch of {config.size} molecules; padded: dynamic batching to "
            f"{_BUDGET['nodes']} nodes, {_BUDGET['edges']} edges, {_BUDGET['graphs']} graphs",
            _ENTRIES,
            {
                "arrays": str(folder / "graphs.npz"),
                "table": str(folder / "graphs.weft"),
                "size": config.size,
            },
            rounds=config.rounds,
            steps=config.steps,
            warmup=10,
            progress=progress,
        )
    return BenchResult(name="assemble", cases=[case])


def fully_connected(table: GraphTable, target: str) -> GraphTable:
    """A table of z, pos and one target, with an edge for every ordered pair of atoms."""
    atoms = table_from_columns(
        {
            "z": table.schema["z"],
            "pos": table.schema["pos"],
            "y": Column(level="graph", dtype="float32", unit=table.schema[target].unit),
        },
        num_nodes=table.num_nodes,
        columns={
            "z": table.columns["z"],
            "pos": table.columns["pos"],
            "y": table.columns[target].astype(np.float32),
        },
    )
    return with_neighbours(atoms, FullyConnected(), progress=False)
