"""Benchmark: training on molecules of QM9, the next batch and the update, against the peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from rich.progress import Progress

from weft.graphs import Array, Column, GraphTable, table_from_columns
from weft.sources import ATOM_REFERENCES, Cutoff, FullyConnected, load, with_neighbours
from weft.sources.qm9 import QM9_ELEMENTS
from weft_lab.bench.result import BenchResult, CaseResult
from weft_lab.bench.runner import Entry, run_case

CaseName = Literal["schnet-32", "schnet-128", "mpeu-32", "mpeu-128", "painn-64", "painn-128"]

# The published budgets of dynamic batching for QM9, by graphs a batch.
_BUDGETS = {
    32: {"nodes": 576, "edges": 9984, "graphs": 32},
    128: {"nodes": 2304, "edges": 39936, "graphs": 128},
}
_CUTOFF = 5.0


def _weft(policy: str) -> Entry:
    return Entry(script="weft_molecules", peer=False, settings={"policy": policy})


def _peer(script: str, *, against: str, **settings: Any) -> Entry:
    return Entry(script=script, settings=settings, against=(against,))


# Each peer stands against the one of ours that batches as it does.
_OURS = {"weft": _weft("unpadded"), "weft, dynamic": _weft("dynamic")}
_JAX = {"JAX, jraph dynamically_batch": _peer("jax_molecules", against="weft, dynamic")}
_TORCH_GEOMETRIC = {
    "torch_geometric": _peer("torch_geometric_schnet", flush=False, against="weft"),
    "torch_geometric, denormals flushed": _peer(
        "torch_geometric_schnet", flush=True, against="weft"
    ),
}
_SCHNETPACK = {
    "SchNetPack": _peer("schnetpack_painn", flush=False, against="weft"),
    "SchNetPack, denormals flushed": _peer("schnetpack_painn", flush=True, against="weft"),
}


@dataclass(frozen=True, kw_only=True)
class _Case:
    what: str
    model: str
    size: int
    entries: Mapping[str, Entry]
    hidden: int = 64
    cutoff: float | None = None


def _whole(model: str, name: str, size: int, peers: Mapping[str, Entry]) -> _Case:
    what = f"{name}, {size} molecules a batch, all pairs of atoms"
    return _Case(what=what, model=model, size=size, entries=_OURS | dict(peers))


def _painn(hidden: int) -> _Case:
    return _Case(
        what=f"PaiNN, {hidden} features, 32 molecules a batch, cutoff {_CUTOFF:g} Å",
        model="painn",
        size=32,
        hidden=hidden,
        cutoff=_CUTOFF,
        entries={"weft": _OURS["weft"], **_SCHNETPACK},
    )


_CASES: dict[CaseName, _Case] = {
    "schnet-32": _whole("schnet", "SchNet", 32, _TORCH_GEOMETRIC | _JAX),
    "schnet-128": _whole("schnet", "SchNet", 128, _TORCH_GEOMETRIC | _JAX),
    "mpeu-32": _whole("mpeu", "MPEU", 32, _JAX),
    "mpeu-128": _whole("mpeu", "MPEU", 128, _JAX),
    "painn-64": _painn(64),
    "painn-128": _painn(128),
}


@dataclass(frozen=True, kw_only=True)
class MoleculesBench:
    """One training step on QM9's U0: the next shuffled batch, forward, backward, Adam.

    Attributes:
        cases: which to run: model and molecules a batch, or for PaiNN (32 a batch) features.
        molecules: how many of QM9 take part, drawn at random.
        rounds: times each contender gets its turn.
        steps: training steps a turn.
        data_dir: the data folder.
    """

    cases: tuple[CaseName, ...] = tuple(_CASES)
    molecules: int = 20_000
    rounds: int = 10
    steps: int = 20
    data_dir: Path | None = None


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
    some = np.random.default_rng(0).choice(len(qm9), count, replace=False)
    table = labelled(qm9.select(some))
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        stored = {
            cutoff: _store(Path(folder), table, cutoff)
            for cutoff in {_CASES[name].cutoff for name in config.cases}
        }
        cases = [_run(name, stored[_CASES[name].cutoff], config, progress) for name in config.cases]
    return BenchResult(name="molecules", cases=cases)


def _run(
    name: CaseName, stored: Mapping[str, str], config: MoleculesBench, progress: Progress
) -> CaseResult:
    case = _CASES[name]
    return run_case(
        name,
        f"batch and update, {case.what}",
        case.entries,
        {
            **stored,
            "model": case.model,
            "size": case.size,
            "budget": _BUDGETS[case.size],
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
    return table_from_columns(
        {
            "z": qm9.schema["z"],
            "pos": qm9.schema["pos"],
            "y": Column(level="graph", dtype="float32", doc="standardised atomization energy"),
        },
        num_nodes=qm9.num_nodes,
        columns={"z": qm9.columns["z"], "pos": qm9.columns["pos"], "y": y.astype(np.float32)},
    )


def _store(folder: Path, table: GraphTable, cutoff: float | None) -> dict[str, str]:
    """The same molecules and neighbours for all: a table for weft, plain arrays for the peers."""
    rule = FullyConnected() if cutoff is None else Cutoff(radius=cutoff)
    name = "all-pairs" if cutoff is None else "cutoff"
    stored = with_neighbours(table, rule, path=folder / f"{name}.weft", progress=False)
    columns = ("z", "pos", "y", "senders", "receivers")
    arrays: dict[str, Any] = {column: stored.columns[column] for column in columns}
    arrays |= {"node_offsets": stored.node_offsets, "edge_offsets": stored.edge_offsets}
    np.savez(folder / f"{name}.npz", **arrays)
    return {"arrays": str(folder / f"{name}.npz"), "table": str(stored.path)}
