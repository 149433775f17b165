from __future__ import annotations

import csv
import gzip
import importlib
import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import GraphTable
from weft.sources import qm9
from weft.sources.file_records import Row
from weft.sources.qm9 import (
    ATOM_REFERENCES,
    HARTREE,
    QM9_SCHEMA,
    QM9_TARGETS,
    qm9_from_archive,
    qm9_from_csv,
    uncharacterized,
)

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "qm9_3d"

HEADER = [
    "XYZ_file",
    "Index",
    "SMILES",
    "InChi",
    "N_atoms",
    "Stoichiometry",
    "Elements",
    "XYZ_Ang",
    "Mulliken_pop",
    "Harmonic_Freq_cmi",
    *(target.csv_column for target in QM9_TARGETS.values()),
]
# Made-up molecules: number, SMILES, elements, one row of four numbers an atom, properties.
MOLECULES = [
    (1, "C", "CH", ["-0.0126981359 1.0858041578 1. -0.5", "0.5 0. 0.0000015 0.133921"]),
    (7, "N#O", "NO", ["1. 2. 3. -0.25", "-1. -2. -3. 0.25"]),
    (21, "CF", "FHC", ["1.5 2. 3. -0.25", "-1. -2. -3. 0.125", "0. 0. 0. 0.125"]),
]
PROPERTIES = [[f"{(i + 1) * 0.37 - row:.4f}" for i in range(15)] for row in range(len(MOLECULES))]


def csv_rows() -> list[list[str]]:
    rows = []
    for (index, smiles, elements, atoms), values in zip(MOLECULES, PROPERTIES, strict=True):
        numbers = [atom.split() for atom in atoms]
        rows.append(
            [
                f"dsgdb9nsd_{index:06d}.xyz",
                str(index),
                smiles,
                "InChI=1S/x,y",
                str(len(elements)),
                "[1,1,0,0,0]",
                "[" + ",".join(f"'{e}'" for e in elements) + "]",
                "[" + ",".join("[" + ",".join(n[:3]) + "]" for n in numbers) + "]",
                "[" + ",".join(n[3] for n in numbers) + "]",
                "[100.5]",
                *values,
            ]
        )
    return rows


def write_csv(path: Path, rows: list[list[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([HEADER, *rows])
    return path


def xyz_files() -> dict[str, str]:
    files = {}
    for (index, smiles, elements, atoms), values in zip(MOLECULES, PROPERTIES, strict=True):
        lines = [str(len(elements)), "\t".join(["gdb " + str(index), *values]) + "\t"]
        for element, atom in zip(elements, atoms, strict=True):
            # The official files write small numbers in Mathematica's way.
            numbers = ["1.5*^-6" if word == "0.0000015" else word for word in atom.split()]
            lines.append("\t".join([element, *numbers]))
        lines += ["100.5\t200.5", f"{smiles}\t[{smiles}@@]\t", "InChI=1S/x\tInChI=1S/x"]
        files[f"dsgdb9nsd_{index:06d}.xyz"] = "\n".join(lines) + "\n"
    return files


def write_archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:bz2") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def assert_same(a: GraphTable, b: GraphTable) -> None:
    assert dict(a.schema) == dict(b.schema)
    np.testing.assert_array_equal(a.node_offsets, b.node_offsets)
    np.testing.assert_array_equal(a.ragged_offsets["smiles"], b.ragged_offsets["smiles"])
    for name in a.schema:
        np.testing.assert_array_equal(a.column(name), b.column(name), err_msg=name)


def test_columns_and_units_of_the_csv_files(tmp_path: Path) -> None:
    write_csv(tmp_path / "qm9_part1.csv", csv_rows()[:2])
    write_csv(tmp_path / "qm9_part2.csv", csv_rows()[2:])
    table = qm9_from_csv(tmp_path / "t", folder=tmp_path, progress=False)
    assert dict(table.schema) == QM9_SCHEMA
    assert table.num_nodes.tolist() == [2, 2, 3]
    assert table.total_edges == 0
    assert table.column("z").tolist() == [6, 1, 7, 8, 9, 1, 6]
    assert table.column("index").tolist() == [1, 7, 21]
    assert table.column("pos")[1].tolist() == pytest.approx([0.5, 0.0, 1.5e-6])
    assert table.column("charge").tolist() == pytest.approx(
        [-0.5, 0.133921, -0.25, 0.25, -0.25, 0.125, 0.125]
    )
    assert bytes(table[1].ragged["smiles"]).decode() == "N#O"
    for i, (name, target) in enumerate(QM9_TARGETS.items()):
        factor = HARTREE if target.csv_column.endswith("_au") else 1.0
        expected = [float(values[i]) * factor for values in PROPERTIES]
        assert table.column(name).tolist() == pytest.approx(expected, rel=1e-15)
        assert table.schema[name].unit == ("eV" if factor != 1.0 else target.unit)


def test_atom_references_are_in_electronvolts() -> None:
    assert set(ATOM_REFERENCES) == {"u0", "u", "h", "g"}
    assert ATOM_REFERENCES["u0"]["H"] == pytest.approx(-0.500273 * HARTREE)
    assert ATOM_REFERENCES["g"]["F"] == pytest.approx(-99.733544 * HARTREE)
    # At 298.15 K an atom has 3/2 kT more than at 0 K, and kT more enthalpy than energy.
    kt = 8.617333262e-5 * 298.15
    for element in "HCNOF":
        energy = ATOM_REFERENCES["u"][element]
        assert energy - ATOM_REFERENCES["u0"][element] == pytest.approx(1.5 * kt, abs=1e-4)
        assert ATOM_REFERENCES["h"][element] - energy == pytest.approx(kt, abs=1e-4)


def test_both_routes_give_the_same_table(tmp_path: Path) -> None:
    write_csv(tmp_path / "qm9_part1.csv", csv_rows())
    archive = write_archive(tmp_path / "dsgdb9nsd.xyz.tar.bz2", xyz_files())
    from_csv = qm9_from_csv(tmp_path / "csv", folder=tmp_path, progress=False)
    from_archive = qm9_from_archive(tmp_path / "xyz", archive, progress=False)
    assert_same(from_csv, from_archive)


def test_the_slow_way_reads_the_same(tmp_path: Path) -> None:
    write_csv(tmp_path / "qm9_part1.csv", csv_rows())
    fast = qm9_from_csv(tmp_path / "fast", folder=tmp_path, progress=False)
    spaced = csv_rows()
    # Spaces after the commas are fine, but not what the fast way expects.
    spaced[1][6:9] = [text.replace(",", ", ") for text in spaced[1][6:9]]
    fields = [spaced[1][HEADER.index(name)] for name in qm9._COLUMNS]
    assert qm9._fast([Row(tmp_path, 2, fields)], 0) is None
    (tmp_path / "spaced").mkdir()
    write_csv(tmp_path / "spaced" / "qm9_part1.csv", spaced)
    slow = qm9_from_csv(tmp_path / "slow", folder=tmp_path / "spaced", progress=False)
    assert_same(fast, slow)


@pytest.mark.parametrize(
    ("column", "text", "problem"),
    [
        ("Index", "one", "'one' is not a positive whole number"),
        ("N_atoms", "0", "'0' is not a positive whole number"),
        ("N_atoms", "3", "3 expected"),
        ("Elements", "['N','Xe']", "'Xe' is not one of H, C, N, O, F"),
        ("Elements", "['NO','']", "'NO' is not one of"),
        ("Elements", "'N','O'", "not a list in square brackets"),
        ("XYZ_Ang", "[[1.,2.],[3.,4.,5.,6.]]", "2 items, 3 expected"),
        ("XYZ_Ang", "[[1.,2.,3.]]", "1 positions for 2 atoms"),
        ("XYZ_Ang", "[[1.,2.,3.],[1.,x,3.]]", "'x' is not a finite number"),
        ("XYZ_Ang", "[[1.,2.,3.],[1.,,3.]]", "'' is not a finite number"),
        ("XYZ_Ang", "[[1.,2.,3.],[1.,1.2.3,3.]]", "'1.2.3' is not a finite number"),
        ("Mulliken_pop", "[0.1]", "1 items, 2 expected"),
        ("Mulliken_pop", "[0.1,nan]", "'nan' is not a finite number"),
        ("HOMO_au", "", "'' is not a finite number"),
        ("HOMO_au", "1,2", "'1,2' is not a finite number"),
        ("Heatcapacity_Cv_cal_mol_K", "inf", "'inf' is not a finite number"),
    ],
)
def test_a_malformed_field_names_file_line_and_field(
    tmp_path: Path, column: str, text: str, problem: str
) -> None:
    rows = [*csv_rows(), *csv_rows()]
    rows[4][HEADER.index(column)] = text
    file = write_csv(tmp_path / "qm9_part1.csv", rows)
    with pytest.raises(DataError) as caught:
        qm9_from_csv(tmp_path / "t", folder=tmp_path, progress=False)
    message = str(caught.value)
    assert message.startswith(f"{file}, line 6, field ")
    assert problem in message
    assert column in message or column == "N_atoms"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_malformed_line_names_file_and_line(tmp_path: Path) -> None:
    rows = csv_rows()
    file = write_csv(tmp_path / "qm9_part1.csv", rows)
    good = file.read_text(encoding="utf-8").splitlines()

    def message(lines: list[str]) -> str:
        file.write_bytes("\n".join(lines).encode("latin-1"))
        with pytest.raises(DataError) as caught:
            qm9_from_csv(tmp_path / "t", folder=tmp_path, progress=False)
        return str(caught.value)

    assert f"{file}, line 3: 3 fields" in message([*good[:2], "a,b,c", *good[2:]])
    assert f"{file}, line 4: unexpected end of data" in message([*good[:3], good[3][:50]])
    assert f"{file}, line 4: " in message([*good[:3], good[3] + ',"open'])
    assert "not far after line" in message([*good[:2], "\xe9", *good[2:]])
    header = good[0].replace("HOMO_au", "HUMO_au")
    assert f"{file}, line 1: no column HOMO_au" in message([header, *good[1:]])
    assert f"{file}, line 1: no column Index" in message([])
    # Rows may span lines: the line that is named is the one where the row begins.
    spanning = good[1].replace("InChI=1S/x,y", "InChI=1S\n/x,y")
    assert f"{file}, line 5: 1 fields" in message([good[0], spanning, good[2], "x"])


def test_no_csv_files_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none of qm9_part1\.csv, .* in"):
        qm9_from_csv(tmp_path / "t", folder=tmp_path, progress=False)


def test_only_the_three_parts_are_read(tmp_path: Path) -> None:
    write_csv(tmp_path / "qm9_part1.csv", csv_rows())
    write_csv(tmp_path / "qm9_part1 (1).csv", csv_rows())
    assert len(qm9_from_csv(tmp_path / "t", folder=tmp_path, progress=False)) == 3


def test_a_molecule_that_is_there_twice(tmp_path: Path) -> None:
    write_csv(tmp_path / "qm9_part1.csv", csv_rows())
    file = write_csv(tmp_path / "qm9_part3.csv", csv_rows()[1:])
    with pytest.raises(DataError) as caught:
        qm9_from_csv(tmp_path / "t", folder=tmp_path, progress=False)
    assert str(caught.value) == f"{file}, line 2, field Index: 7 is there twice"


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(DataError, match=r"pip install 'weft\[data\]'"):
        qm9_from_csv(tmp_path / "t", progress=False)


def test_a_package_with_a_part_missing_or_cut_is_not_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "qm9pack" / "data"
    data.mkdir(parents=True)
    # Importing it would fail, as it does on newer Pythons.
    (tmp_path / "qm9pack" / "__init__.py").write_text("import no_such_module\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    write_csv(data / "qm9_part1.csv", csv_rows()[:1])
    write_csv(data / "qm9_part2.csv", csv_rows()[1:])
    with pytest.raises(DataError, match=r"qm9_part3\.csv is missing from the package qm9pack"):
        qm9_from_csv(tmp_path / "t", progress=False)
    write_csv(data / "qm9_part3.csv", [])
    with pytest.raises(DataError, match="holds 3 molecules, 130,831 expected"):
        qm9_from_csv(tmp_path / "t", progress=False)
    assert not (tmp_path / "t").exists()


def test_progress_is_shown_or_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(tmp_path / "qm9_part1.csv", csv_rows())
    qm9_from_csv(tmp_path / "quiet", folder=tmp_path, progress=False)
    assert capsys.readouterr() == ("", "")
    qm9_from_csv(tmp_path / "loud", folder=tmp_path)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "QM9" in shown.err


def test_molecules_left_out_are_counted(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.tar.bz2", xyz_files())
    listing = tmp_path / "uncharacterized.txt"
    rule = "=" * 40
    listing.write_text(
        f"\nList of molecules among the 133885 for which\nsomething failed.\n\n{rule}\n"
        f"# Index  GDB17 SMILES  SMILES for B3LYP XYZ  D_IJ\n{rule}\n"
        f"     7   N#O    N=O    0.5\n   99   C   CC   1.25\n{rule}\n"
    )
    assert uncharacterized(listing) == [7, 99]
    table = qm9_from_archive(
        tmp_path / "t", archive, leave_out=uncharacterized(listing), progress=False
    )
    assert table.column("index").tolist() == [1, 21]
    assert table.metadata["counts"] == {"molecules": 2, "left_out": 1}
    listing.write_text("nothing here\n")
    with pytest.raises(DataError, match=r"uncharacterized\.txt lists no molecules"):
        uncharacterized(listing)


@pytest.mark.parametrize("files", [{}, {"readme.txt": "no molecules here"}])
def test_an_archive_without_molecules(tmp_path: Path, files: dict[str, str]) -> None:
    archive = write_archive(tmp_path / "a.tar.bz2", files)
    with pytest.raises(DataError, match=r"a\.tar\.bz2 holds no molecules"):
        qm9_from_archive(tmp_path / "t", archive, progress=False)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("line", "text", "problem"),
    [
        (1, "two", "line 1: 'two' is not a number of atoms"),
        (1, "9", "7 lines, 14 expected for 9 atoms"),
        (2, "gdb 7 1.0", "line 2: 3 words, 17 expected"),
        (2, "gdb x " + "1 " * 15, "line 2: 'x' is not a molecule's number"),
        (2, "gdb 7 " + "1 " * 5 + "oops " + "1 " * 9, "line 2, homo: 'oops' is not a finite"),
        (3, "Xe 1 2 3 4", "line 3: 'Xe 1 2 3 4' is not an atom"),
        (4, "O 1 2 3", "line 4: 'O 1 2 3' is not an atom"),
        (4, "O 1 2 3*^x 4", "line 4, z: '3ex' is not a finite number"),
        (6, "", "line 6: no SMILES"),
    ],
)
def test_a_malformed_member_is_named(tmp_path: Path, line: int, text: str, problem: str) -> None:
    files = xyz_files()
    name = "dsgdb9nsd_000007.xyz"
    lines = files[name].splitlines()
    lines[line - 1] = text
    files[name] = "\n".join(lines) + "\n"
    archive = write_archive(tmp_path / "a.tar.bz2", files)
    with pytest.raises(DataError) as caught:
        qm9_from_archive(tmp_path / "t", archive, progress=False)
    assert str(caught.value).startswith(f"{archive}, member {name}")
    assert problem in str(caught.value)
    assert not (tmp_path / "t").exists()


@pytest.mark.skipif(not DATA.is_dir(), reason="the real QM9 files are not here")
def test_real_molecules_agree_with_another_reading_of_them(tmp_path: Path) -> None:
    raw = gzip.decompress((DATA / "qm9pack_part1_first2000_raw.csv.gz").read_bytes())
    (tmp_path / "qm9_part1.csv").write_bytes(raw)
    table = qm9_from_csv(tmp_path / "t", folder=tmp_path, progress=False)
    with np.load(DATA / "qm9_3d.npz") as reference:
        count = len(table)
        assert count == 2000
        np.testing.assert_array_equal(table.num_nodes, reference["n_atoms"][:count])
        atoms = table.total_nodes
        np.testing.assert_array_equal(table.column("z"), reference["z"][:atoms])
        np.testing.assert_array_equal(table.column("pos"), reference["pos"][:atoms])
        np.testing.assert_array_equal(table.column("index"), reference["index"][:count])
        names = reference["y_names"].tolist()
        for name, target in QM9_TARGETS.items():
            column = next(i for i, text in enumerate(names) if text.startswith(target.csv_column))
            expected = reference["y"][:count, column] * target.factor
            np.testing.assert_allclose(table.column(name), expected, rtol=1e-14, err_msg=name)
    # Mulliken charges of a neutral molecule add up to 0.
    charges = np.add.reduceat(table.column("charge").astype(np.float64), table.node_offsets[:-1])
    assert np.abs(charges).max() < 1e-4
    np.testing.assert_allclose(
        table.column("gap"), table.column("lumo") - table.column("homo"), atol=6e-3
    )
    # Atomization energies of stable molecules are negative, -17.2 eV for methane.
    elements = {1: "H", 6: "C", 7: "N", 8: "O", 9: "F"}
    free = np.array([ATOM_REFERENCES["u0"][elements[z]] for z in table.column("z")])
    bound = table.column("u0") - np.add.reduceat(free, table.node_offsets[:-1])
    assert bound.max() < 0
    assert bound[0] == pytest.approx(-17.2, abs=0.1)
