"""`weft md RUN FILE`: trajectories that ASE reads, and a sentence for what cannot be."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.constraints import FixAtoms
from ase.io import read, write

from weft.integrations.md.dynamics import BatchMoves


@pytest.fixture
def carbon(tmp_path: Path) -> Path:
    """Diamond in a cell smaller than the cutoff."""
    atoms = bulk("C")
    atoms.rattle(0.05, seed=0)
    write(tmp_path / "carbon.extxyz", atoms)
    return tmp_path / "carbon.extxyz"


def test_a_crystal_with_images(weft, weft_run, carbon):
    said = weft("md", "run", "carbon.extxyz", "--steps", 25, "--temperature", 50)
    assert said.code == 0, said.err
    assert "nvt: 25 steps" in said.out
    assert "steps/s" in said.out
    assert "ns/day" in said.out
    assert "% of the time in neighbour lists. Trajectory: carbon-nvt.extxyz." in said.out
    frames = read("carbon-nvt.extxyz", ":")
    assert [frame.info["step"] for frame in frames] == [0, 10, 20, 25]
    assert [frame.info["time_fs"] for frame in frames] == [0.0, 5.0, 10.0, 12.5]
    assert all(np.isfinite(frame.get_forces()).all() for frame in frames)
    assert abs(frames[-1].get_momenta().sum(axis=0)).max() < 1e-6
    page = Path("carbon-nvt.html").read_text()
    for words in ("Temperature", "Energy drift", "Radial distribution", "C–C", "--steps 25"):
        assert words in page
    # It goes on with the velocities of a frame.
    words = ("--index", -1, "--ensemble", "nve", "--steps", 1, "--out", "more.extxyz")
    assert weft("md", "run", "carbon-nvt.extxyz", *words).code == 0
    first = read("more.extxyz", 0)
    np.testing.assert_allclose(first.get_momenta(), frames[-1].get_momenta(), atol=1e-7)


def test_many_molecules_at_once(weft, weft_run, small_molecules):
    molecules = [atoms for atoms in read(small_molecules, ":") if len(atoms) > 2][:8]
    write("some.extxyz", molecules)
    said = weft("md", "run", "some.extxyz", "--steps", 4, "--every", 2, "--out", "m.traj")
    assert said.code == 0, said.err
    assert "Trajectory: m-0.traj to m-7.traj." in said.out
    for number, atoms in enumerate(molecules):
        frames = read(f"m-{number}.traj", ":")
        assert [frame.info["step"] for frame in frames] == [0, 2, 4]
        np.testing.assert_allclose(frames[0].positions, atoms.positions, atol=1e-7)
    assert "neighbours [1/Å]" in Path("m.html").read_text()
    # Beside others a molecule moves as it does alone.
    write("one.extxyz", molecules[0])
    weft("md", "run", "one.extxyz", "--steps", 4)
    alone = read("one-nvt.extxyz", -1)
    np.testing.assert_allclose(alone.positions, read("m-0.traj", -1).positions, atol=1e-5)


def test_relax(weft, weft_run, small_molecules):
    write("one.extxyz", read(small_molecules, 3))
    words = ("md", "run", "one.extxyz", "--ensemble", "relax", "--fmax", 0.05, "--dtype", "float64")
    said = weft(*words, "--steps", 50, "--quiet")
    assert said.code in (0, 2)
    assert "relaxed to 0.05 eV/Å" in said.out
    energies = [frame.get_potential_energy() for frame in read("one-relax.extxyz", ":")]
    assert energies[-1] < energies[0]


@pytest.mark.sends_sigint
def test_interrupted(weft, weft_run, carbon, monkeypatch):
    advance, calls = BatchMoves.advance, []

    def and_then(self):
        calls.append(0)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self)

    monkeypatch.setattr(BatchMoves, "advance", and_then)
    said = weft("md", "run", "carbon.extxyz", "--steps", 1000, "--temperature", 50)
    assert said.code == 130
    assert "interrupted by SIGINT after step 3" in said.err
    assert [frame.info["step"] for frame in read("carbon-nvt.extxyz", ":")] == [0, 3]
    assert Path("carbon-nvt.html").exists()


def test_atoms_fly_apart(weft, weft_run, carbon):
    said = weft("md", "run", "carbon.extxyz", "--temperature", 1e7, "--quiet")
    assert said.code == 2
    assert "structure 0 flies apart after step 0: its atom 0 moves by more than" in said.err
    assert said.err.count("\n") == 1
    assert len(read("carbon-nvt.extxyz", ":")) == 1


def test_what_cannot_be(mistake, weft_run, carbon, tmp_path):
    assert "nowhere.extxyz is not there" in mistake("md", "run", "nowhere.extxyz")
    assert "holds no run" in mistake("md", "nowhere", "carbon.extxyz")
    (tmp_path / "empty.extxyz").write_text("")
    assert "empty.extxyz" in mistake("md", "run", "empty.extxyz")
    write("gold.extxyz", Atoms("CAu", [[0, 0, 0], [0, 0, 2]]))
    said = mistake("md", "run", "gold.extxyz")
    assert "gold.extxyz, structure 0: atom 1 is Au, an element that the model has not" in said
    for words in (("--ensemble", "npt"), ("--ensemble", "relax", "--relax-cell")):
        write("open.extxyz", Atoms("CO", [[0, 0, 0], [0, 0, 1.2]]))
        said = mistake("md", "run", "open.extxyz", *words)
        assert "changes the cell by the stress, and pbc is [False, False, False]" in said
    fixed = read(carbon)
    fixed.set_constraint(FixAtoms([0]))
    write("fixed.traj", fixed)
    assert "has constraints (FixAtoms)" in mistake("md", "run", "fixed.traj")
    out = ("md", "run", "carbon.extxyz", "--out")
    assert "written as .extxyz or .traj, not as a.xyz" in mistake(*out, "a.xyz")
    assert "there is no folder no" in mistake(*out, "no/a.extxyz")
    assert "--index is 1, and carbon.extxyz has 1 structures" in mistake(*out[:3], "--index", 1)
    assert "is the file to read" in mistake(*out, "carbon.extxyz")
    Path("folder.extxyz").mkdir()
    assert "folder.extxyz" in mistake(*out, "folder.extxyz")
    write("same.extxyz", Atoms("CO", [[0, 0, 0], [0, 0, 0]]))
    assert "atoms 0 and 1 are in one place" in mistake("md", "run", "same.extxyz")
    assert "timestep is -1.0 fs" in mistake("md", "run", "carbon.extxyz", "--timestep", -1)


def test_the_commands_of_the_docs(weft, small_molecules):
    text = (Path(__file__).parents[2] / "docs" / "md.md").read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    assert len(commands) == 6
    write("mine.extxyz", [atoms for atoms in read(small_molecules, ":") if len(atoms) > 2])
    for words in commands:
        if words[0] == "train":
            words += ["--hidden", "8", "--layers", "1", "--epochs", "1", "--quiet"]
        if words[0] == "md":
            words += ["--steps", "3", "--quiet"]
        said = weft(*words)
        assert said.code == 0, said.err
    assert read("free.extxyz", -1).info["step"] == 3
    assert Path("free.html").exists()


def test_the_input_and_its_labels(weft, weft_run, small_molecules):
    molecules = [atoms for atoms in read(small_molecules, ":") if len(atoms) > 2][:2]
    for atoms in molecules:
        atoms.info["REF_energy"] = 1.23
    write("some-0.extxyz", molecules)
    before = Path("some-0.extxyz").read_bytes()
    said = weft("md", "run", "some-0.extxyz", "--steps", 1, "--out", "some.extxyz")
    assert said.code == 2
    assert "would replace some-0.extxyz" in said.err
    assert Path("some-0.extxyz").read_bytes() == before
    assert weft("md", "run", "some-0.extxyz", "--steps", 1, "--out", "m.extxyz").code == 0
    assert "REF_energy" not in read("m-0.extxyz", -1).info


@pytest.mark.parametrize("option", ["--temperature", "--pressure", "--friction"])
def test_numbers_that_are_not_finite(weft, option):
    said = weft("md", "run", "carbon.extxyz", option, "inf")
    assert said.code == 2
    assert "must be finite" in said.err
