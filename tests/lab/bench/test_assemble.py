"""The benchmark of assembling, on molecules that the test makes."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from weft.graphs import Graph, GraphTable, open_table, table_from_graphs
from weft.sources import QM9_TARGETS, load
from weft_lab.bench.molecules import bench_assemble, store_molecules, with_target
from weft_lab.bench_settings import AssembleBench

pytestmark = pytest.mark.usefixtures("in_this_process")

MOLECULES = 12


def small_qm9(folder: Path) -> GraphTable:
    """QM9's CSV with random molecules, as a table in the data folder `folder`."""
    rng = np.random.default_rng(0)
    files = folder.with_name("csv")
    files.mkdir()
    with (files / "qm9_part1.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        first = ("XYZ_file", "Index", "SMILES", "InChi", "N_atoms", "Stoichiometry", "Elements")
        targets = [target.csv_column for target in QM9_TARGETS.values()]
        writer.writerow([*first, "XYZ_Ang", "Mulliken_pop", "Harmonic_Freq_cmi", *targets])
        for i in range(1, MOLECULES + 1):
            size = int(rng.integers(2, 9))
            elements = "[" + ",".join(f"'{e}'" for e in rng.choice(list("CHNOF"), size)) + "]"
            places = (
                "[" + ",".join(f"[{x:.4f},{-x:.4f},{i}.0]" for x in rng.normal(size=size)) + "]"
            )
            charges = "[" + ",".join("0.1" for _ in range(size)) + "]"
            name = f"dsgdb9nsd_{i:06d}.xyz"
            row = [name, i, "C", "InChI=1S/x", size, "[1]", elements, places, charges, "[1.0]"]
            writer.writerow([*row, *(f"{value:.4f}" for value in rng.normal(size=15))])
    return load("qm9", files=[files], data_dir=folder, progress=False)


def test_small(tmp_path: Path) -> None:
    data = tmp_path / "data"
    small_qm9(data)
    config = AssembleBench(size=4, molecules=10, rounds=2, steps=3, data_dir=data)
    (case,) = bench_assemble(config, Progress(disable=True)).cases
    assert case.case == "qm9"
    assert "a batch of 4 molecules" in case.what
    installed = {
        "torch_geometric DataLoader": "torch_geometric",
        "jraph dynamically_batch": "jraph",
    }
    assert list(case.candidates) == ["weft", "weft, padded", *installed]
    for name, candidate in case.candidates.items():
        if find_spec(installed.get(name, "weft")):
            assert candidate.absent == "", name
            assert len(candidate.samples) == 6
        else:
            assert candidate.absent == f"No module named '{installed[name]}'"


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_batch_that_cannot_be_filled(tmp_path: Path, size: int) -> None:
    small_qm9(tmp_path / "data")
    config = AssembleBench(size=size, molecules=10, data_dir=tmp_path / "data")
    with pytest.raises(ValueError, match=f"size is {size}; .* at most the 10 that take part"):
        bench_assemble(config, Progress(disable=True))


def test_all_pairs_are_edges(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = (1, 2, 4)
    table = table_from_graphs(
        [
            Graph(
                num_nodes=n,
                nodes={"z": np.full(n, n, np.uint8), "pos": rng.normal(size=(n, 3))},
                graph={"u0": np.array(-float(n))},
            )
            for n in sizes
        ]
    )
    atoms = with_target(table, table.columns["u0"])
    full = open_table(store_molecules(tmp_path, atoms, None)["table"])
    assert full.num_edges.tolist() == [0, 2, 12]
    for n, graph in zip(sizes, full, strict=True):
        graph.validate()
        pairs = set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
        assert pairs == {(a, b) for a in range(n) for b in range(n) if a != b}
        assert graph.graph["y"] == -n
        assert graph.nodes["z"].tolist() == [n] * n
