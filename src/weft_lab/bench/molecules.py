"""Benchmarks on molecules of QM9: the next batch alone, and a training step, beside the peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.progress import Progress

from weft.graphs import Array, Column, GraphTable, table_from_columns
from weft.sources import ATOM_REFERENCES, Cutoff, FullyConnected, load, with_neighbours
from weft.sources.qm9 import QM9_ELEMENTS
from weft_lab.bench.result import BenchResult, CaseResult
from weft_lab.bench.runner import Candidate, ours, run_case
from weft_lab.bench_settings import AssembleBench, MoleculesBench, MoleculesCase

# The published budgets of dynamic batching for QM9, by graphs a batch.
_BUDGETS = {
    32: {"nodes": 576, "edges": 9984, "graphs": 32},
    128: {"nodes": 2304, "edges": 39936, "graphs": 128},
}
_BUDGET = _BUDGETS[128]
_CUTOFF = 5.0


def _peer(script: str, *, against: str, **settings: Any) -> Candidate:
    return Candidate(script=script, settings=settings, against=(against,))


# Each peer stands against the one of ours that batches as it does.
_ASSEMBLE = {
    "weft": ours("batches", budget=None),
    "weft, padded": ours("batches", budget=_BUDGET),
    "torch_geometric DataLoader": _peer("torch_geometric_steps:batches", against="weft"),
    "jraph dynamically_batch": _peer("jax_steps:batches", against="weft, padded", budget=_BUDGET),
}
_OURS = {
    "weft": ours("molecules", policy="unpadded"),
    "weft, dynamic": ours("molecules", policy="dynamic"),
}
_JAX = {"JAX, jraph dynamically_batch": _peer("jax_steps:molecules", against="weft, dynamic")}


def _both(name: str, script: str) -> dict[str, Candidate]:
    """A peer as its users run it, and with denormals flushed, as weft does."""
    return {
        name: _peer(script, flush=False, against="weft"),
        f"{name}, denormals flushed": _peer(script, flush=True, against="weft"),
    }


_TORCH_GEOMETRIC = _both("torch_geometric", "torch_geometric_steps:schnet")
_SCHNETPACK = _both("SchNetPack", "schnetpack_steps:painn")


@dataclass(frozen=True)
class _Case:
    """What is trained, and who trains it.

    Attributes:
        what: the model in words.
        model: its name.
        size: molecules in a batch.
        candidates: by name.
        hidden: features.
        cutoff: in Å; None joins all pairs of atoms.
    """

    what: str
    model: str
    size: int
    candidates: Mapping[str, Candidate]
    hidden: int = 64
    cutoff: float | None = None


_SCHNET, _MPEU = _OURS | _TORCH_GEOMETRIC | _JAX, _OURS | _JAX
_PAINN = {"weft": _OURS["weft"], **_SCHNETPACK}
# How much of a step the second core takes off stands in the ratio.
_ONE_THREAD = {
    "one thread of weft": replace(
        ours("molecules", policy="unpadded", threads=1), against=("weft",)
    )
}
_CASES: dict[MoleculesCase, _Case] = {
    "schnet-1": _Case("SchNet", "schnet", 1, {"weft": _OURS["weft"], **_ONE_THREAD}),
    "schnet-32": _Case("SchNet", "schnet", 32, _SCHNET),
    "schnet-128": _Case("SchNet", "schnet", 128, _SCHNET | _ONE_THREAD),
    "mpeu-32": _Case("MPEU", "mpeu", 32, _MPEU),
    "mpeu-128": _Case("MPEU", "mpeu", 128, _MPEU),
    "painn-64": _Case("PaiNN, 64 features", "painn", 32, _PAINN, 64, _CUTOFF),
    "painn-128": _Case("PaiNN, 128 features", "painn", 32, _PAINN, 128, _CUTOFF),
}


def bench_assemble(config: AssembleBench, progress: Progress) -> BenchResult:
    """Batches of molecules with every pair of atoms an edge (mean 314 a molecule)."""
    qm9 = load("qm9", data_dir=config.data_dir)
    count = min(config.molecules, len(qm9))
    if not 1 <= config.size <= count:
        raise ValueError(
            f"size is {config.size}; a batch needs at least 1 molecule and at most the "
            f"{count} that take part"
        )
    some = _some(qm9, count)
    table = with_target(some, some.columns["u0"], unit=qm9.schema["u0"].unit)
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        case = run_case(
            "qm9",
            f"a batch of {config.size} molecules; padded: dynamic batching to "
            f"{_BUDGET['nodes']} nodes, {_BUDGET['edges']} edges, {_BUDGET['graphs']} graphs",
            _ASSEMBLE,
            {**store_molecules(Path(folder), table, None), "size": config.size},
            rounds=config.rounds,
            steps=config.steps,
            warmup=10,
            progress=progress,
        )
    return BenchResult(name="assemble", cases=[case])


def bench_molecules(config: MoleculesBench, progress: Progress) -> BenchResult:
    """Run the cases; samples are seconds per molecule, since padded batches hold fewer."""
    if not config.cases:
        raise ValueError(f"there are no cases to run; choose from {', '.join(_CASES)}")
    qm9 = load("qm9", data_dir=config.data_dir)
    count, largest = min(config.molecules, len(qm9)), max(_CASES[c].size for c in config.cases)
    if count < largest:
        raise ValueError(
            f"molecules is {config.molecules} and QM9 has {len(qm9)}; the batches of these cases "
            f"need at least {largest}"
        )
    table = labelled(_some(qm9, count))
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        stored = {
            cutoff: store_molecules(Path(folder), table, cutoff)
            for cutoff in {_CASES[name].cutoff for name in config.cases}
        }
        cases = [_run(name, stored[_CASES[name].cutoff], config, progress) for name in config.cases]
    return BenchResult(name="molecules", cases=cases)


def _run(
    name: MoleculesCase, stored: Mapping[str, str], config: MoleculesBench, progress: Progress
) -> CaseResult:
    case = _CASES[name]
    pairs = "all pairs of atoms" if case.cutoff is None else f"cutoff {case.cutoff:g} Å"
    return run_case(
        name,
        f"batch and update, {case.what}, {case.size} molecules a batch, {pairs}",
        case.candidates,
        {
            **stored,
            "model": case.model,
            "size": case.size,
            "budget": _BUDGETS.get(case.size),
            "hidden": case.hidden,
            "cutoff": case.cutoff,
        },
        rounds=config.rounds,
        steps=config.steps,
        warmup=5,
        unit="s/graph",
        progress=progress,
    )


def labelled(qm9: GraphTable) -> GraphTable:
    """Atoms and the label `y`: U0 less the free atoms' energies, with mean 0 and deviation 1."""
    reference = np.zeros(256)
    for element, energy in ATOM_REFERENCES["u0"].items():
        reference[QM9_ELEMENTS[element]] = energy
    sums = np.concatenate([[0.0], np.cumsum(reference[qm9.columns["z"]])])
    energies: Array = qm9.columns["u0"] - np.diff(sums[qm9.node_offsets])
    y = (energies - energies.mean()) / energies.std()
    return with_target(qm9, y, doc="standardised atomization energy")


def _some(qm9: GraphTable, count: int) -> GraphTable:
    return qm9.select(np.random.default_rng(0).choice(len(qm9), count, replace=False))


def with_target(qm9: GraphTable, y: Array, *, unit: str = "", doc: str = "") -> GraphTable:
    """A table of z, pos and the target `y`, and nothing else."""
    atoms = {name: qm9.columns[name] for name in ("z", "pos")}
    return table_from_columns(
        {
            **{name: qm9.schema[name] for name in atoms},
            "y": Column(level="graph", dtype="float32", unit=unit, doc=doc),
        },
        num_nodes=qm9.num_nodes,
        columns={**atoms, "y": y.astype(np.float32)},
    )


def store_molecules(folder: Path, table: GraphTable, cutoff: float | None) -> dict[str, str]:
    """The same molecules and neighbours for all: a table for weft, plain arrays for the peers."""
    rule = FullyConnected() if cutoff is None else Cutoff(radius=cutoff)
    name = "all-pairs" if cutoff is None else "cutoff"
    stored = with_neighbours(table, rule, path=folder / f"{name}.weft", progress=False)
    columns = ("z", "pos", "y", "senders", "receivers")
    arrays: dict[str, Any] = {column: stored.columns[column] for column in columns}
    arrays |= {"node_offsets": stored.node_offsets, "edge_offsets": stored.edge_offsets}
    np.savez(folder / f"{name}.npz", **arrays)
    return {"arrays": str(folder / f"{name}.npz"), "table": str(stored.path)}
