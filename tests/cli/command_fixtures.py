from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from weft.cli import main
from weft.graphs import Graph, write_table
from weft.sources import planted_partition, small_graphs


@dataclass(frozen=True)
class Said:
    """What a command gave back and printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def weft(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    """Run `weft WORDS` in this process, in an empty folder with a data folder of its own."""
    monkeypatch.setenv("WEFT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("WEFT_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Said:
        arguments = [str(word) for word in words]
        # The command that a run records, and offers to go on with, is the process's own.
        monkeypatch.setattr("sys.argv", ["weft", *arguments])
        try:
            code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return run


def is_one_sentence(said: Said) -> bool:
    """Whether a user's mistake was answered as it should be."""
    return (
        said.code == 2
        and said.err.startswith("weft: ")
        and said.err.count("\n") == 1
        and "Traceback" not in said.err + said.out
    )


@pytest.fixture
def mistake(weft: Callable[..., Said]) -> Callable[..., str]:
    """Run a command that must fail with exit code 2 and one sentence, which it gives."""

    def run(*words: object) -> str:
        said = weft(*words)
        assert is_one_sentence(said), said
        return said.err

    return run


def papers(nodes: int = 300) -> Graph:
    """A citation graph in small: words as 0 or 1, three topics, a split."""
    graph = planted_partition(nodes, 3, mean_degree=6, homophily=0.9, num_features=24, seed=1)
    return Graph(
        num_nodes=nodes,
        senders=graph.senders,
        receivers=graph.receivers,
        nodes={**graph.nodes, "x": (graph.nodes["x"] > 0).astype(np.float32)},
    )


@pytest.fixture
def small_cora(tmp_path: Path) -> Path:
    """A small graph in the cache under the name of Cora."""
    path = tmp_path / "data" / "cora.weft"
    path.parent.mkdir(exist_ok=True)
    write_table(path, [papers()])
    return path


def molecules(count: int = 24, seed: int = 0) -> list[Any]:
    """Chains of H, C and O with an energy, eV, and forces, eV/Å."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        size = int(rng.integers(1, 6))
        places = np.arange(size)[:, None] * [1.0, 0.6, 0.3] + rng.uniform(0, 0.3, (size, 3))
        atoms = Atoms(numbers=rng.choice([1, 6, 8], size), positions=places)
        energy = -100.0 * float(atoms.numbers.sum()) + rng.normal()
        forces = rng.normal(size=(size, 3))
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        made.append(atoms)
    return made


@pytest.fixture
def small_molecules(tmp_path: Path) -> Path:
    """A file with some."""
    write(tmp_path / "mols.extxyz", molecules())
    return tmp_path / "mols.extxyz"


@pytest.fixture
def small_qm9(tmp_path: Path) -> Path:
    """A few made-up molecules in the cache under the name of QM9."""
    path = tmp_path / "data" / "qm9.weft"
    path.parent.mkdir(exist_ok=True)
    none = np.zeros(0, dtype=np.int64)
    graphs = [
        Graph(
            num_nodes=graph.num_nodes,
            senders=none,
            receivers=none,
            nodes=graph.nodes,
            graph={"u0": np.float64(graph.graph["energy"])},
        )
        for graph in small_graphs(24)
    ]
    write_table(path, graphs)
    return path


@pytest.fixture
def weft_run(weft: Callable[..., Said], tmp_path: Path, small_molecules: Path) -> Path:
    """A run of PaiNN on energies and forces of small molecules."""
    said = weft(
        *("train", "molecules", "--data", small_molecules, "--target", "energy"),
        *("--forces", "forces", "--model", "painn", "--hidden", "8", "--layers", "1"),
        *("--epochs", "1", "--out", "run", "--quiet"),
    )
    assert said.code == 0, said.err
    return tmp_path / "run"
