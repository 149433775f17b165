"""Files of one's own: several at once, for validation and test, with any names of the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.io import write
from small_structures import config, crystals, molecules, write_crystals

from weft.errors import DataError
from weft.recipes.structures.data import (
    parts_of,
    read_structures,
    shared_structures,
    some_of,
    split_structures,
)
from weft.recipes.structures.target_names import guessed_targets


def renamed(made: list[Any], **names: str) -> list[Any]:
    """The molecules with their energy and forces under other names, as in files of potentials."""
    found = []
    for atoms in made:
        plain = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
        plain.info[names["energy"]] = atoms.get_potential_energy()
        if "forces" in names:
            plain.arrays[names["forces"]] = atoms.get_forces()
        found.append(plain)
    return found


def files(folder: Path, **made: list[Any]) -> dict[str, str]:
    for name, structures in made.items():
        write(folder / f"{name}.extxyz", structures)
    return {name: str(folder / f"{name}.extxyz") for name in made}


def test_files_are_read_together_and_parts_are_as_given(tmp_path: Path) -> None:
    made = molecules(30)
    names = files(tmp_path, a=made[:10], b=made[10:18], v=made[18:23], t=made[23:])
    asked = config(
        data=(names["a"], names["b"]), validation_file=(names["v"],), test_file=(names["t"],)
    )
    table = read_structures(asked, data_dir=tmp_path, progress=False)
    assert np.bincount(parts_of(table)).tolist() == [18, 5, 7]
    assert table.num_nodes.tolist() == [len(atoms) for atoms in made]
    split = split_structures(table, ["energy"], parts=(0.8, 0.1, 0.1), seed=0)
    assert sorted(split["train"].tolist()) == list(range(18))
    assert split["validation"].tolist() == list(range(18, 23))
    assert split["test"].tolist() == list(range(23, 30))
    some = some_of(table, 6, 0)
    assert np.bincount(parts_of(some)).tolist() == [6, 5, 7]
    assert some.num_nodes[6:].tolist() == [len(atoms) for atoms in made[18:]]


def test_fractions_divide_what_no_file_gives(tmp_path: Path) -> None:
    made = molecules(25)
    names = files(tmp_path, a=made[:20], v=made[20:])
    asked = config(data=names["a"], validation_file=(names["v"],))
    table = read_structures(asked, data_dir=tmp_path, progress=False)
    split = split_structures(table, ["energy"], parts=(0.6, 0.2, 0.2), seed=1)
    assert {part: len(ids) for part, ids in split.items()} == {
        "train": 16,
        "validation": 5,
        "test": 4,
    }
    assert max(split["train"].max(), split["test"].max()) < 20


def test_structures_in_two_parts_are_counted(tmp_path: Path) -> None:
    made = molecules(20, largest=8)
    made = [atoms for atoms in made if len(atoms) > 1]
    names = files(tmp_path, a=made[:8], v=made[6:10], t=[made[0], made[9]])
    asked = config(data=names["a"], validation_file=(names["v"],), test_file=(names["t"],))
    table = read_structures(asked, data_dir=tmp_path, progress=False)
    split = split_structures(table, ["energy"], parts=(0.8, 0.1, 0.1), seed=0)
    assert shared_structures(table, split) == {
        ("train", "validation"): 2,
        ("train", "test"): 1,
        ("validation", "test"): 1,
    }


def test_crystals_of_several_files(tmp_path: Path) -> None:
    made = crystals(9)
    paths = [write_crystals(tmp_path / f"{n}.jsonl", made[n::3]) for n in range(3)]
    asked = config(
        data=(str(paths[0]), str(paths[1])),
        validation_file=(str(paths[2]),),
        target="gap",
        references=False,
    )
    table = read_structures(asked.settled("crystals"), data_dir=tmp_path, progress=False)
    assert np.bincount(parts_of(table)).tolist() == [6, 3]
    expected = [c["targets"]["gap"] for n in range(3) for c in made[n::3]]
    assert table.column("gap").tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"data": ("qm9", "{a}")}, "'qm9' is a data set; several at once can only be files"),
        ({"validation_file": ("qm9",)}, "--validation-file qm9: name files or folders"),
        ({"validation_file": ("nowhere",)}, "'nowhere' is neither a file or folder nor"),
        ({"test_file": ("{v}",)}, "v.extxyz: no structure has a 'energy'; they have REF_energy"),
        ({"target": ""}, "name the value of .*a.extxyz to learn with --target"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    made = molecules(6)
    names = files(tmp_path, a=made, v=renamed(made, energy="REF_energy"))

    def filled(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(filled(each) for each in value)
        return value.format(**names)

    given = {"data": names["a"]} | {name: filled(value) for name, value in options.items()}
    with pytest.raises(DataError, match=named):
        read_structures(config(**given), data_dir=tmp_path, progress=False)


def test_the_same_column_has_one_shape_in_all_files(tmp_path: Path) -> None:
    first, second = molecules(3), molecules(3)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        one.info["gap"], other.info["gap"] = float(number), [1.0, 2.0]
    names = files(tmp_path, a=first, b=second)
    asked = config(data=names["a"], validation_file=(names["b"],), target="gap")
    with pytest.raises(DataError, match=r"'gap' differs between the files \(a.extxyz: .*b.extxyz"):
        read_structures(asked, data_dir=tmp_path, progress=False)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            {"energy": "REF_energy", "forces": "REF_forces"},
            "energy: REF_energy; forces: REF_forces",
        ),
        ({"energy": "dft_energy", "forces": "dft_force"}, "energy: dft_energy; forces: dft_force"),
        ({"energy": "mp2_energy", "forces": "forces"}, "energy: mp2_energy"),
    ],
)
def test_names_of_energies_and_forces_are_found(
    tmp_path: Path, names: dict[str, str], said: str
) -> None:
    write(tmp_path / "a.extxyz", renamed(molecules(5), **names))
    assert str(guessed_targets([tmp_path / "a.extxyz"])) == said


def test_names_of_stresses_are_found_where_there_are_cells(tmp_path: Path) -> None:
    made = molecules(5)
    for atoms in made:
        atoms.info["free_energy"] = 1.0
        atoms.info["virials"] = np.eye(3)
    write(tmp_path / "a.extxyz", made)
    assert str(guessed_targets([tmp_path / "a.extxyz"])) == "energy: energy; forces: forces"
    for atoms in made:
        atoms.cell, atoms.pbc = np.eye(3) * 9, True
    write(tmp_path / "b.extxyz", made)
    found = guessed_targets([tmp_path / "b.extxyz"])
    assert str(found) == "energy: energy; forces: forces; stress: virials"
    # What only some have would leave out all others.
    del made[0].info["virials"]
    made[1].info["REF_energy"] = 1.0
    write(tmp_path / "c.extxyz", made)
    assert str(guessed_targets([tmp_path / "c.extxyz"])) == "energy: energy; forces: forces"


@pytest.mark.parametrize(
    ("infos", "named"),
    [
        ({"gap": 1.0}, "no energy was found; name the value to learn with --target .* gap"),
        ({"a_energy": 1.0, "b_energy": 2.0}, "a_energy and b_energy could be meant"),
    ],
)
def test_energies_that_cannot_be_told(tmp_path: Path, infos: dict[str, float], named: str) -> None:
    write(tmp_path / "a.extxyz", Atoms("H", info=infos))
    with pytest.raises(DataError, match=named):
        guessed_targets([tmp_path / "a.extxyz"])
