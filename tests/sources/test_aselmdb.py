"""LMDB databases of structures: as ase-db-backends writes them, cut, damaged, or pickled."""

from __future__ import annotations

import pickle
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from weft.errors import DataError
from weft.sources import atoms_table

lmdb = pytest.importorskip("lmdb")
backends = pytest.importorskip("ase_db_backends.aselmdb")


def structures(count: int, seed: int = 0) -> list[Atoms]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        atoms = Atoms("OHH", rng.random((3, 3)), cell=[4, 5, 6 + number], pbc=True)
        results = {"energy": -float(number), "forces": rng.random((3, 3))}
        atoms.calc = SinglePointCalculator(atoms, **results, stress=rng.random(6))
        made.append(atoms)
    return made


def written(path: Path, made: list[Atoms]) -> Path:
    with backends.LMDBDatabase(path) as database:
        for number, atoms in enumerate(made):
            database.write(atoms, gap=number / 2, data={"field": np.arange(3.0) + number})
    return path


def put(path: Path, rows: dict[bytes, bytes]) -> None:
    with lmdb.open(str(path), subdir=False) as content, content.begin(write=True) as change:
        for key, value in rows.items():
            change.put(key, value)


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = structures(12)
    file = written(tmp_path / "a.aselmdb", made)
    names = ["energy", "forces", "stress", "gap", "field"]
    table = atoms_table(tmp_path / "t", file, targets=names, progress=False)
    np.testing.assert_allclose(
        table.column("pos"), np.concatenate([atoms.positions for atoms in made]), rtol=1e-6
    )
    np.testing.assert_allclose(
        table.column("forces"), np.concatenate([atoms.get_forces() for atoms in made]), rtol=1e-6
    )
    # By number, not by the order of the keys as text.
    assert table.column("energy").tolist() == [-float(number) for number in range(12)]
    assert table.column("gap").tolist() == [number / 2 for number in range(12)]
    assert table.column("field")[3].tolist() == [3, 4, 5]
    assert table.column("pbc").all()
    np.testing.assert_allclose(table.column("stress")[7], made[7].get_stress())


def test_a_folder_of_databases(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    written(folder / "data.0001.aselmdb", structures(2))
    written(folder / "data.0000.aselmdb", structures(3))
    (folder / "metadata.npz").write_bytes(b"")
    table = atoms_table(tmp_path / "t", folder, targets=["energy"], progress=False)
    assert table.column("energy").tolist() == [0, -1, -2, 0, -1]


def test_databases_that_cannot_be_read(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.aselmdb", structures(400))

    def fails(file: Path, named: str) -> None:
        with pytest.raises(DataError, match=named):
            atoms_table(tmp_path / "t", file, progress=False)

    cut = tmp_path / "cut.aselmdb"
    shutil.copy(whole, cut)
    with cut.open("r+b") as content:
        content.truncate(whole.stat().st_size // 2)
    fails(cut, "cut.aselmdb is cut")
    (tmp_path / "b.aselmdb").write_bytes(b"no database" * 1000)
    fails(tmp_path / "b.aselmdb", "b.aselmdb is not an LMDB database")
    for name, packed in (
        ("old.lmdb", pickle.dumps({"pos": 1})),
        ("packed.lmdb", zlib.compress(pickle.dumps({"pos": 1}))),
    ):
        put(tmp_path / name, {b"0": packed, b"length": pickle.dumps(1)})
        fails(tmp_path / name, "holds pickled objects, as fairchem's older data sets do")
    put(tmp_path / "c.aselmdb", {b"1": zlib.compress(b"{")})
    fails(tmp_path / "c.aselmdb", r"c.aselmdb, structure 0 cannot be read \(")
    put(tmp_path / "d.aselmdb", {})
    fails(tmp_path / "d.aselmdb", "d.aselmdb holds no structures")
    put(tmp_path / "e.aselmdb", {b"1": zlib.compress(b" " * (70 * 2**20))})
    fails(tmp_path / "e.aselmdb", "row 1 unpacks to more than 67,108,864 bytes")
