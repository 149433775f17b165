from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import DataError
from weft.sources.atoms import ATOMS_SCHEMA, atoms_table

ase = pytest.importorskip("ase")

from ase import Atoms  # noqa: E402
from ase.calculators.singlepoint import SinglePointCalculator  # noqa: E402
from ase.db import connect  # noqa: E402
from ase.io import write  # noqa: E402

SAMPLES = (
    Path(__file__).resolve().parents[2].parent
    / "shared"
    / "data"
    / "cgcnn_sample"
    / "cgcnn_samples.tar.gz"
)


def frames(count: int) -> list[Any]:
    """Water-like molecules and salt-like crystals in turn, with energy, forces and a label."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        symbols, periodic = ("OH2", False) if i % 2 == 0 else ("NaCl", True)
        size = 3 if i % 2 == 0 else 2
        atoms = Atoms(symbols, positions=rng.normal(size=(size, 3)).round(6))
        if periodic:
            atoms.set_cell([[3.5, 0, 0], [0.5, 3.5, 0], [0, 0.25, 4.0]])
            atoms.pbc = (True, True, False)
        atoms.calc = SinglePointCalculator(
            atoms, energy=-float(i) - 0.5, forces=rng.normal(size=(size, 3)).round(6)
        )
        atoms.info["label"] = float(i)
        made.append(atoms)
    return made


def assert_same(table: Any, made: list[Any]) -> None:
    assert table.num_nodes.tolist() == [len(atoms) for atoms in made]
    for graph, atoms in zip(table, made, strict=True):
        assert graph.num_edges == 0
        assert graph.nodes["z"].tolist() == atoms.numbers.tolist()
        np.testing.assert_allclose(graph.nodes["pos"], atoms.positions, atol=1e-6)
        np.testing.assert_allclose(graph.graph["cell"], atoms.cell.array, atol=1e-6)
        assert graph.graph["pbc"].tolist() == atoms.pbc.tolist()


def write_database(path: Path, made: list[Any]) -> None:
    with connect(path) as database:
        for atoms in made:
            database.write(
                atoms,
                key_value_pairs={"label": atoms.info["label"]},
                data={"dipole_vector": np.arange(3.0)},
            )


@pytest.mark.parametrize("name", ["a.extxyz", "b@2.xyz", "c.xyz.gz", "d.traj"])
def test_files_with_many_structures(tmp_path: Path, name: str) -> None:
    made = frames(7)
    if name.endswith(".gz"):
        write(tmp_path / "c.xyz", made, format="extxyz")
        (tmp_path / name).write_bytes(gzip.compress((tmp_path / "c.xyz").read_bytes()))
    else:
        kind = "traj" if name.endswith("traj") else "extxyz"
        write(str(tmp_path / "plain"), made, format=kind)
        (tmp_path / "plain").rename(tmp_path / name)
    table = atoms_table(
        tmp_path / "t",
        tmp_path / name,
        targets=["energy", "label", "forces"],
        progress=False,
    )
    assert_same(table, made)
    assert list(table.schema) == [*ATOMS_SCHEMA, "energy", "label", "forces"]
    assert table.column("energy").tolist() == [-i - 0.5 for i in range(7)]
    assert table.column("label").tolist() == list(range(7))
    forces = np.concatenate([atoms.get_forces() for atoms in made])
    np.testing.assert_allclose(table.column("forces"), forces, atol=1e-6)
    units = [table.schema[name].unit for name in ("pos", "cell", "energy", "forces", "label")]
    assert units == ["Å", "Å", "eV", "eV/Å", ""]


@pytest.mark.parametrize("name", ["a.db", "a.json"])
def test_databases_give_their_key_value_pairs_and_data(tmp_path: Path, name: str) -> None:
    made = frames(5)
    write_database(tmp_path / name, made)
    table = atoms_table(
        tmp_path / "t",
        tmp_path / name,
        targets=["energy", "label", "dipole_vector", "forces"],
        progress=False,
    )
    assert_same(table, made)
    assert table.column("label").tolist() == list(range(5))
    assert table.column("dipole_vector").tolist() == [[0.0, 1.0, 2.0]] * 5
    assert table.schema["dipole_vector"].shape == (3,)


def test_a_folder_of_cif_files_is_read_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "cifs"
    folder.mkdir()
    for i, name in enumerate(["b.cif", "a.cif", "c.cif"]):
        write(folder / name, Atoms("NaCl", [[0, 0, 0], [2, 2, 2]], cell=[4 + i] * 3, pbc=True))
    (folder / "id_prop.csv").write_text("a,1\n")
    table = atoms_table(tmp_path / "t", folder, progress=False)
    assert table.column("cell")[:, 0, 0].tolist() == [5.0, 4.0, 6.0]
    assert table.metadata["files"] == ["a.cif", "b.cif", "c.cif"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \*\.cif, .* files in the folder .*empty"):
        atoms_table(tmp_path / "u", tmp_path / "empty", progress=False)


def test_values_beside_cif_files(tmp_path: Path) -> None:
    write(tmp_path / "a.cif", Atoms("Cu", cell=[3.6] * 3, pbc=True))
    listed = tmp_path / "id_prop.csv"
    listed.write_text("\ufeffa,1.5\n", encoding="utf-8")
    table = atoms_table(tmp_path / "table", tmp_path, targets=["target"], progress=False)
    assert table.column("target").tolist() == [1.5]
    listed.write_text("a,1.5\na,2.5\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"id_prop\.csv, line 2: a appears twice"):
        atoms_table(tmp_path / "other", tmp_path, targets=["target"], progress=False)


def test_many_files_make_one_table(tmp_path: Path) -> None:
    made = frames(6)
    write(tmp_path / "a.extxyz", made[:4])
    write(tmp_path / "b.extxyz", made[4:])
    sources = [tmp_path / "a.extxyz", tmp_path / "b.extxyz"]
    assert_same(atoms_table(tmp_path / "t", sources, progress=False), made)


def test_a_missing_target_is_an_error_or_nan(tmp_path: Path) -> None:
    made = frames(5)
    made[3].calc = None
    del made[0].info["label"]
    file = tmp_path / "a.extxyz"
    write(file, made)
    with pytest.raises(DataError) as caught:
        atoms_table(tmp_path / "t", file, targets=["energy"], progress=False)
    # Structures 0, 1 and 2 have 5 + 4 + 5 lines.
    assert str(caught.value).startswith(f"{file}, structure 3 (line 15): no 'energy'; it has ")
    assert "label" in str(caught.value)
    assert not (tmp_path / "t").exists()
    table = atoms_table(
        tmp_path / "t",
        file,
        targets=["energy", "label", "forces"],
        missing="nan",
        progress=False,
    )
    assert np.isnan(table.column("energy")).tolist() == [False, False, False, True, False]
    assert np.isnan(table.column("label")).tolist() == [True, False, False, False, False]
    assert np.isnan(table[3].nodes["forces"]).all()
    assert table.schema["forces"].missing
    assert table.schema["forces"].shape == (3,)


def test_a_target_of_another_shape_or_kind_is_named(tmp_path: Path) -> None:
    made = frames(3)
    made[1].info["label"] = [1.0, 2.0]
    made[2].info["text"] = "words"
    made[2].calc.results["forces"][1, 1] = np.nan
    file = tmp_path / "a.extxyz"
    write(file, made)

    def fail(**options: Any) -> str:
        with pytest.raises(DataError) as caught:
            atoms_table(tmp_path / "t", file, progress=False, **options)
        return str(caught.value)

    assert "structure 1 (line 6): 'label' has shape [2], [] expected" in fail(targets=["label"])
    assert "structure 2 (line 10): 'text' is 'words', not a number" in fail(
        targets=["text"], missing="nan"
    )
    assert "structure 2 (line 10): 'forces' is not finite" in fail(targets=["forces"])


def blank(lines: list[str]) -> None:
    lines[9] = ""


def broken(lines: list[str]) -> None:
    lines[11] = lines[11].replace("O ", "O x", 1)


def headless(lines: list[str]) -> None:
    del lines[5]


def cut(lines: list[str]) -> None:
    del lines[-1]


def unknown(lines: list[str]) -> None:
    lines[11] = lines[11].replace("O", "X", 1)


def infinite(lines: list[str]) -> None:
    words = lines[12].split()
    lines[12] = " ".join([words[0], "inf", *words[2:]])


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (blank, "line 10: '' where structure 2 should begin"),
        (headless, "line 6: "),
        (cut, "structure 3 (line 15): the file ends before its 2 atoms do"),
        (broken, "structure 2 (line 10) cannot be read"),
        (unknown, "structure 2 (line 10): atom 0 has atomic number 0"),
        (infinite, "structure 2 (line 10): atom 1 is at [inf, "),
    ],
)
def test_a_malformed_xyz_file_names_structure_and_line(
    tmp_path: Path, spoil: Callable[[list[str]], None], place: str
) -> None:
    file = tmp_path / "a.extxyz"
    write(file, frames(4))
    lines = file.read_text().splitlines()
    spoil(lines)
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as caught:
        atoms_table(tmp_path / "t", file, progress=False)
    assert str(caught.value).startswith(f"{file}, {place}")
    assert not (tmp_path / "t").exists()


def test_a_cut_xyz_archive_is_named(tmp_path: Path) -> None:
    write(tmp_path / "plain.xyz", frames(400), format="extxyz")
    packed = gzip.compress((tmp_path / "plain.xyz").read_bytes())
    file = tmp_path / "cut.xyz.gz"
    for content in (packed[: len(packed) // 2], packed[:-4]):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"cut\.xyz\.gz is cut or damaged after line \d+"):
            atoms_table(tmp_path / "t", file, progress=False)


def test_an_xyz_file_that_is_not_utf8_is_named_with_the_line(tmp_path: Path) -> None:
    text = "1\nProperties=species:S:1:pos:R:3\nH 0.0 0.0 0.0\n"
    bad = text.replace("pos:R:3", "pos:R:3 note=caf\xe9")
    (tmp_path / "a.xyz").write_bytes((text * 50 + bad + text).encode("latin1"))
    with pytest.raises(DataError, match=r"a\.xyz, line 152: 'utf-8' codec can't decode"):
        atoms_table(tmp_path / "t", tmp_path / "a.xyz", progress=False)


def test_arrays_of_the_file_are_columns_of_the_atoms(tmp_path: Path) -> None:
    made = [Atoms("OH2", np.eye(3)), Atoms("OH2", 2 * np.eye(3))]
    for atoms in made:
        # As many atoms as components: the shape alone would not tell.
        atoms.arrays["spin"] = np.arange(3.0)
        atoms.info["field"] = np.arange(3.0)
    write(tmp_path / "a.extxyz", made)
    table = atoms_table(
        tmp_path / "t", tmp_path / "a.extxyz", targets=["spin", "field"], progress=False
    )
    assert (table.schema["spin"].level, table.schema["field"].level) == ("node", "graph")
    assert table.column("spin").tolist() == [0, 1, 2] * 2
    assert table.column("field").tolist() == [[0, 1, 2]] * 2


def test_a_target_that_no_structure_has(tmp_path: Path) -> None:
    write(tmp_path / "a.extxyz", frames(3))
    with pytest.raises(DataError, match=r"no structure has a 'enrgy'; they have .*energy"):
        atoms_table(
            tmp_path / "t",
            tmp_path / "a.extxyz",
            targets=["enrgy"],
            missing="nan",
            progress=False,
        )
    assert not (tmp_path / "t").exists()


def test_empty_lines_at_the_end_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "a.xyz"
    write(file, frames(2), format="extxyz")
    file.write_text(file.read_text() + "\n\n")
    assert len(atoms_table(tmp_path / "t", file, progress=False)) == 2


def test_a_malformed_line_deep_in_a_large_file(tmp_path: Path) -> None:
    file = tmp_path / "large.xyz"
    text = "1\nProperties=species:S:1:pos:R:3\nH 0.0 0.0 0.0\n"
    good, bad = text * 3000, text.replace("H 0.0", "H oops")
    file.write_text(good + bad + text * 10)
    with pytest.raises(DataError, match=r"large\.xyz, structure 3000 \(line 9001\) cannot be read"):
        atoms_table(tmp_path / "t", file, progress=False)
    assert list(tmp_path.iterdir()) == [file]


def test_a_cell_that_is_flat_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.extxyz", Atoms("H", cell=[[1, 0, 0], [2, 0, 0], [0, 0, 1]], pbc=True))
    with pytest.raises(DataError, match=r"a\.extxyz, structure 0 \(line 1\): periodic along 3"):
        atoms_table(tmp_path / "t", tmp_path / "a.extxyz", progress=False)


@pytest.mark.parametrize("name", ["x.db", "x.cif", "x.strange", "x.xyz"])
def test_a_file_that_is_something_else(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("this is no structure\n" * 20)
    with pytest.raises(DataError, match=str(file)):
        atoms_table(tmp_path / "t", file, progress=False)
    file.write_text("")
    with pytest.raises(DataError, match=str(file)):
        atoms_table(tmp_path / "t", file, progress=False)
    file.unlink()
    with pytest.raises(DataError, match=f"{file} is not there"):
        atoms_table(tmp_path / "t", file, progress=False)


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'pos' is named twice, or is a column of every table"):
        atoms_table(tmp_path / "t", tmp_path, targets=["pos"])
    with pytest.raises(ValueError, match="'energy' is named twice"):
        atoms_table(tmp_path / "t", tmp_path, targets=["energy", "energy"])
    with pytest.raises(ValueError, match=r"missing is 'skip'; choose from \['error', 'nan'\]"):
        atoms_table(tmp_path / "t", tmp_path, missing="skip")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no files"):
        atoms_table(tmp_path / "t", [])


def test_progress_is_shown_or_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.extxyz", frames(3))
    atoms_table(tmp_path / "quiet", tmp_path / "a.extxyz", progress=False)
    assert capsys.readouterr() == ("", "")
    atoms_table(tmp_path / "loud", tmp_path / "a.extxyz")
    assert "3/3" in capsys.readouterr().err


# ASE has this to say about every file with symmetry operations and a crystal system.
@pytest.mark.filterwarnings("ignore:crystal system:UserWarning")
@pytest.mark.skipif(not SAMPLES.exists(), reason="the real CIF files are not here")
def test_real_cif_files(tmp_path: Path) -> None:
    folder = tmp_path / "cifs"
    folder.mkdir()
    with tarfile.open(SAMPLES) as archive:
        for member in archive:
            name = Path(member.name)
            if name.suffix == ".cif" and name.parent.name == "sample-regression":
                file = archive.extractfile(member)
                assert file is not None
                (folder / name.name).write_bytes(file.read())
    table = atoms_table(tmp_path / "t", folder, progress=False)
    assert len(table) == 10
    assert table.column("pbc").all()
    volumes = np.abs(np.linalg.det(table.column("cell").astype(np.float64)))
    per_atom = volumes / table.num_nodes
    assert per_atom.min() > 4
    assert per_atom.max() < 60


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bomb.xyz.gz"
    file.write_bytes(gzip.compress(b"1\n\nH 0 0 0\n" + b"1" * (2**24 + 9), 1))
    with pytest.raises(DataError, match=r"bomb\.xyz\.gz, line 4: longer than 16,777,216"):
        atoms_table(tmp_path / "t", [file], progress=False)


def test_more_atoms_than_can_be_counted_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "many.xyz"
    file.write_text("9" * 5000 + "\n\nH 0 0 0\n")
    with pytest.raises(DataError, match=r"many\.xyz, structure 0 \(line 1\): the file ends"):
        atoms_table(tmp_path / "t", [file], progress=False)


def test_a_packed_file_of_another_format_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.sources.atoms.MEMBER_LIMIT", 2**20)
    file = tmp_path / "bomb.cif.gz"
    file.write_bytes(gzip.compress(b"data_a\n" + b"# " * 2**20, 1))
    with pytest.raises(DataError, match=r"bomb\.cif\.gz unpacks to more than 1,048,576 bytes"):
        atoms_table(tmp_path / "t", [file], progress=False)
