"""`weft predict RUN [FILE]`: values with their units, in files that others read."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.io import read, write

from weft.recipes.structures.prediction import load_structures, predict_file


@pytest.fixture
def run(weft: Callable[..., Any], tmp_path: Path, small_molecules: Path) -> Path:
    """A run on small molecules."""
    said = weft(
        *("train", "molecules", "--data", small_molecules, "--target", "energy", "--epochs", "1"),
        *("--hidden", "8", "--layers", "1", "--out", "run", "--quiet"),
    )
    assert said.code == 0, said.err
    return tmp_path / "run"


def test_csv_by_default(weft, tmp_path, run):
    said = weft("predict", "run", "mols.extxyz")
    assert said.code == 0, said.err
    assert "energy [eV]" in said.out
    assert "... and 14 more. Written to mols-predicted.csv." in said.out
    found = predict_file(load_structures(run), tmp_path / "mols.extxyz", progress=False)
    with (tmp_path / "mols-predicted.csv").open(newline="") as file:
        heading, *rows = csv.reader(file)
    assert heading == ["structure", "atoms", "energy [eV]"]
    assert [float(row[2]) for row in rows] == found.values.tolist()
    assert f"{found.values[0]:.6g}" in said.out
    assert weft("predict", "run", "mols.extxyz", "--quiet").err == ""


def test_extxyz_with_forces(weft, tmp_path, run):
    said = weft("predict", "run", "mols.extxyz", "--forces", "--out", "new.extxyz")
    assert said.code == 0, said.err
    assert "Written to new.extxyz." in said.out
    found = predict_file(
        load_structures(run), tmp_path / "mols.extxyz", forces=True, progress=False
    )
    back = read(tmp_path / "new.extxyz", ":")
    assert [a.info["predicted_energy"] for a in back] == found.values.tolist()
    assert {a.info["predicted_energy_unit"] for a in back} == {"eV"}
    for atoms, forces in zip(back, found.forces, strict=True):
        assert np.abs(atoms.arrays["predicted_forces"] - forces).max() < 1e-7
    assert (
        "Written to mols-predicted.extxyz." in weft("predict", "run", "mols.extxyz", "--forces").out
    )


def test_forces_of_a_model_that_has_no_sound_ones(weft, tmp_path, run):
    assert "Do not rely" not in weft("predict", "run", "mols.extxyz", "--forces").out
    whole = json.loads((run / "config.json").read_text())
    whole["config"]["readout"] = "mean"
    (run / "config.json").write_text(json.dumps(whole))
    said = weft("predict", "run", "mols.extxyz", "--forces", "--out", "b.extxyz")
    assert said.code == 0
    assert "Do not rely on these forces: readout is 'mean'" in said.out


def test_a_folder_of_cif_files_with_a_network_for_crystals(weft, tmp_path):
    folder = tmp_path / "cifs"
    folder.mkdir()
    for n in range(4):
        edge = 4 + n / 10
        cell = Atoms("NaCl", [[0, 0, 0], [edge / 2] * 3], cell=[edge] * 3, pbc=True)
        write(folder / f"c{n}.cif", cell)
    (folder / "id_prop.csv").write_text("".join(f"c{n},{n}\n" for n in range(4)))
    said = weft(
        *("train", "crystals", "--data", "cifs", "--target", "target", "--epochs", "1"),
        *("--hidden", "8", "--layers", "1", "--quiet"),
    )
    assert said.code == 0, said.err
    said = weft("predict", "runs/crystals-cifs-target", "cifs/")
    assert said.code == 0, said.err
    assert (tmp_path / "cifs-predicted.csv").read_text().startswith("structure,atoms,target\n0,2,")
    said = weft("predict", "runs/crystals-cifs-target", "cifs", "--out", "out.xyz")
    assert said.code == 0, said.err
    assert len(read(tmp_path / "out.xyz", ":", format="extxyz")) == 4


def test_crystals_of_json_lines(weft, mistake, tmp_path):
    def line(edge: float) -> str:
        crystal = {
            "dataset": "made",
            "id": f"c{edge}",
            "lattice": [[edge, 0, 0], [0, edge, 0], [0, 0, edge]],
            "z": [11, 17],
            "frac": [[0, 0, 0], [0.5, 0.5, 0.5]],
            "targets": {"gap": edge},
        }
        return json.dumps(crystal) + "\n"

    (tmp_path / "my.jsonl").write_text("".join(line(4 + n / 10) for n in range(6)))
    said = weft(
        *("train", "crystals", "--data", "my.jsonl", "--target", "gap", "--epochs", "1"),
        *("--hidden", "8", "--layers", "1", "--out", "run", "--quiet"),
    )
    assert said.code == 0, said.err
    said = weft("predict", "run", "my.jsonl")
    assert said.code == 0, said.err
    assert len((tmp_path / "my-predicted.csv").read_text().splitlines()) == 7
    assert "write .csv" in mistake("predict", "run", "my.jsonl", "--out", "a.extxyz")


def test_forces_of_something_that_is_no_energy(mistake, tmp_path, run):
    about = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps({**about, "unit": "D"}))
    said = mistake("predict", "run", "mols.extxyz", "--forces", "--quiet")
    assert "energy in eV, and 'energy' is in D; leave out --forces" in said
    assert not (tmp_path / "mols-predicted.extxyz").exists()


def test_new_structures_that_cannot_be_predicted(mistake, tmp_path, run):
    for name, atoms, named in (
        ("cl", Atoms("HCl", [[0, 0, 0], [0, 0, 1.3]]), "structure 0: atom 1 is Cl, an element"),
        ("place", Atoms("HH", [[0, 0, 0]] * 2), "atoms 0 and 1 are in one place"),
        ("cell", Atoms("H", cell=[3, 3, 0], pbc=True), "periodic along 3 vectors, but the cell"),
        ("far", Atoms("H", [[np.inf, 0, 0]]), "structure 0 (line 1): atom 0 is at [inf"),
    ):
        write(tmp_path / f"{name}.extxyz", atoms)
        said = mistake("predict", "run", f"{name}.extxyz", "--quiet")
        assert f"{name}.extxyz" in said
        assert named in said
    assert not list(tmp_path.glob("*-predicted.csv"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "nothing.extxyz"], "nothing.extxyz is not there"),
        (["run", "empty.extxyz"], "empty.extxyz"),
        (["nowhere", "mols.extxyz"], "nowhere holds no run of `weft train`"),
        (["mols.extxyz", "mols.extxyz"], "mols.extxyz holds no run"),
        (
            ["citations", "mols.extxyz"],
            "citations holds no run of `weft train nodes` that can predict",
        ),
        (["run", "mols.extxyz", "--out", "a.txt"], "written as .csv, .extxyz or .xyz"),
        (
            ["run", "mols.extxyz", "--out", "a.csv", "--forces"],
            "forces and stresses are written as .extxyz",
        ),
        (
            ["run", "mols.extxyz", "--out", "no/a.csv"],
            "no/a.csv cannot be written: there is no folder no",
        ),
        (["run", "mols.extxyz", "--out", "mols.extxyz"], "is the file to read"),
    ],
)
def test_mistakes(weft, mistake, tmp_path, run, small_cora, words, named):
    (tmp_path / "empty.extxyz").write_text("")
    if "citations" in words:
        weft("train", "citations", "--epochs", "0", "--out", "citations", "--quiet")
        # As runs of earlier versions are.
        (tmp_path / "citations" / "model.json").unlink()
    before = (tmp_path / "mols.extxyz").read_bytes()
    assert named in mistake("predict", *words, "--quiet")
    assert (tmp_path / "mols.extxyz").read_bytes() == before


def test_help(weft):
    said = weft("predict", "--help")
    assert said.code == 0
    assert "usage: weft predict [-h] [OPTIONS] RUN [FILE]" in said.out
    assert "  weft predict runs/molecules-qm9-u0 new.extxyz --out" in said.out
    assert "forces in eV/Å" in said.out
    assert weft("predict").code == 2
