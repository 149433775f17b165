"""Crystals as CIF text in CSV, CIF folders and the crystals that the catalogue knows."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import DataError
from weft.sources import Nearest, cif_csv_table, load, with_neighbours
from weft.sources.atoms import ATOMIC_NUMBERS
from weft.sources.crystals import read_cif

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"

CIF = """# a comment
data_NaCl
_symmetry_space_group_name_H-M   'P 1'
_cell_length_a   4.0
_cell_length_b   4.0(1)
_cell_length_c   5.0
_cell_angle_alpha   90.0
_cell_angle_beta   90.0
_cell_angle_gamma   120.0
_chemical_formula_sum   'Na1 Cl1'
loop_
 _symmetry_equiv_pos_site_id
 _symmetry_equiv_pos_as_xyz
  1  'x, y, z'
loop_
 _atom_site_type_symbol
 _atom_site_label
 _atom_site_fract_x
 _atom_site_fract_y
 _atom_site_fract_z
 _atom_site_occupancy
  Na+  Na0  0.0  0.0  0.0  1
  Cl-  Cl1  0.5  0.5  0.25  1.0
"""


OPERATIONS = CIF[CIF.index("loop_") : CIF.index("loop_", CIF.index("loop_") + 1)]


def write_rows(path: Path, rows: list[list[Any]], header: Any = None) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header or ["", "material_id", "cif", "gap", "name"])
        writer.writerows(rows)
    return path


def test_a_cif() -> None:
    z, frac, lattice = read_cif(CIF, "here")
    assert z.tolist() == [11, 17]
    assert frac.tolist() == [[0, 0, 0], [0.5, 0.5, 0.25]]
    np.testing.assert_allclose(lattice, [[4, 0, 0], [-2, np.sqrt(12), 0], [0, 0, 5]], atol=1e-12)


@pytest.mark.parametrize("group", ["_space_group_IT_number ?", "_space_group_name_H-M_alt 'P 1'"])
def test_a_cif_without_operations(group: str) -> None:
    z, _, _ = read_cif(CIF.replace(OPERATIONS, f"{group}\n"), "here")
    assert z.tolist() == [11, 17]


def test_empty_text_is_a_value() -> None:
    listed = CIF.replace(" _atom_site_label\n", " _atom_site_label\n _atom_site_calc_flag\n")
    text = listed.replace("Na0", "Na0 ''").replace("Cl1  0", 'Cl1 "" 0')
    z, frac, _ = read_cif(text, "here")
    assert z.tolist() == [11, 17]
    assert frac.tolist() == [[0, 0, 0], [0.5, 0.5, 0.25]]


def test_labels_tell_elements_where_no_symbols_do() -> None:
    z, _, _ = read_cif(CIF.replace("_atom_site_type_symbol", "_atom_site_charge"), "here")
    assert z.tolist() == [11, 17]


def test_elements_are_ases() -> None:
    data = pytest.importorskip("ase.data")
    assert list(ATOMIC_NUMBERS) == data.chemical_symbols[1:]
    assert ATOMIC_NUMBERS["Og"] == 118


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("_cell_length_b   4.0(1)\n", "", "has no _cell_length_b"),
        ("_cell_length_b   4.0(1)", "_cell_length_b wide", "'_cell_length_b': 'wide' is not a f"),
        ("gamma   120.0", "gamma   0.0", "are not the lengths and angles of a cell"),
        ("  1  'x, y, z'", "  1  'x, y, z'\n  2  '-x, -y, -z'", "has symmetry to expand; write it"),
        (OPERATIONS, "_space_group_IT_number 225\n", "has symmetry to expand"),
        (OPERATIONS, "_symmetry_space_group_name_H-M 'F m -3 m'\n", "has symmetry to expand"),
        (" _atom_site_fract_z\n", "", "has 12 values in 5 columns"),
        ("0.25  1.0", "0.25  0.5", "partially occupied"),
        ("Cl-  Cl1  0.5", "Cl-  Cl1  nan", "'nan' is not a finite number"),
        ("Cl-", "Qq", "'Qq' is not an element"),
        ("Cl-", "?", r"'\?' is not an element"),
        ("_atom_site_type_symbol\n _atom_site_label", "_a\n _b", "does not say which elements"),
        ("# a comment\n", "stray\n", "'stray' in the CIF belongs to no field"),
        ("# a comment\n", "data_other\n", "has 2 structures, one expected"),
        ("# a comment\n", "_text\n;\nlong\n;\n", "fields of several lines"),
        ("_fract_", "_cartn_", "no list of atoms with _atom_site_fract_x"),
    ],
)
def test_a_cif_that_cannot_be_read(old: str, new: str, problem: str) -> None:
    assert old in CIF
    text = CIF.replace(old, new)
    with pytest.raises(DataError, match=f"^here.*{problem}"):
        read_cif(text, "here")


def test_a_mark_of_the_byte_order_is_no_part_of_a_name(tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    write_rows(file, [["m-1", CIF]], header=["material_id", "cif"])
    file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    assert len(cif_csv_table(tmp_path / "table", [file], progress=False)) == 1


def test_columns(tmp_path: Path) -> None:
    rows = [[0, "m-1", CIF, 1.5, "a"], [1, "ü", CIF, "", "b"]]
    file = write_rows(tmp_path / "some.csv", rows)
    packed = tmp_path / "more.csv.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    table = cif_csv_table(
        tmp_path / "t", [file, packed], targets=["gap"], units={"gap": "eV"}, progress=False
    )
    assert list(table.schema) == ["z", "pos", "cell", "pbc", "gap", "id", "dataset"]
    np.testing.assert_array_equal(table.column("gap"), [1.5, np.nan, 1.5, np.nan])
    assert table.schema["gap"].unit == "eV"
    assert table.num_nodes.tolist() == [2, 2, 2, 2]
    assert [bytes(g.ragged["id"]).decode() for g in table] == ["m-1", "ü"] * 2
    assert [bytes(g.ragged["dataset"]).decode() for g in table] == ["some"] * 2 + ["more"] * 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def check(file: Path, problem: str, *targets: str) -> None:
        with pytest.raises(DataError, match=problem):
            cif_csv_table(tmp_path / "t", [file], targets=targets, progress=False)
        assert not (tmp_path / "t").exists()

    good = write_rows(tmp_path / "good.csv", [[0, "m", CIF, "wide", "a"]])
    check(tmp_path / "no.csv", "is not a file")
    check(good, "line 1: no column energy; it has , material_id, cif, gap, name", "energy")
    check(good, "'gap': 'wide' is not a finite number", "gap")
    check(write_rows(tmp_path / "a.csv", [[0, "m", CIF]]), "line 2: 3 fields, but the header has 5")
    check(write_rows(tmp_path / "b.csv", []), "holds no crystals")
    cut = tmp_path / "cut.csv.gz"
    many = write_rows(tmp_path / "many.csv", [[i, "m", CIF, 1, "a"] for i in range(400)])
    cut.write_bytes(gzip.compress(many.read_bytes())[:-100])
    check(cut, "is cut or damaged not far after line")
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"material_id,cif\n\xff,x\n")
    check(latin, "codec can't decode")
    quote = tmp_path / "quote.csv"
    quote.write_text('material_id,cif\nm,"open', encoding="utf-8")
    check(quote, "line 2: unexpected end of data")


@pytest.mark.parametrize(
    ("name", "files", "targets", "atoms"),
    [
        ("perov-5", "perov_5_val*", ["heat_all", "heat_ref", "dir_gap", "ind_gap"], (3787, 5, 5)),
        ("carbon-24", "carbon_24_val*", ["energy_per_atom"], (2032, 6, 24)),
    ],
)
def test_cdvae(
    name: str, files: str, targets: list[str], atoms: tuple[int, int, int], tmp_path: Path
) -> None:
    folder = SHARED / "cdvae_crystals"
    if not folder.is_dir():
        pytest.skip("the files of CDVAE are not there")
    table = load(name, files=sorted(folder.glob(files)), data_dir=tmp_path, progress=False)
    assert (len(table), table.num_nodes.min(), table.num_nodes.max()) == atoms
    assert all(table.schema[target].unit.startswith("eV") for target in targets)
    assert all(np.isfinite(table.column(target)).all() for target in targets)
    read = pytest.importorskip("ase.io").read
    first = sorted(folder.glob(files))[0]
    with gzip.open(first, "rt", encoding="utf-8", newline="") as lines:
        for row, graph in zip(csv.DictReader(lines), table.select(range(20)), strict=False):
            expected = read(io.StringIO(row["cif"]), format="cif")
            np.testing.assert_array_equal(expected.numbers, graph.nodes["z"])
            np.testing.assert_allclose(expected.cell.array, graph.graph["cell"], atol=1e-4)
            away = graph.nodes["pos"] - expected.positions
            images = np.linalg.solve(expected.cell.array.T, away.T)
            np.testing.assert_allclose(images, np.round(images), atol=1e-4)
    # They are crystals in earnest: every atom finds its neighbours.
    some = with_neighbours(table.select(range(50)), Nearest(k=12), progress=False)
    assert some.total_edges == 12 * some.total_nodes


def test_mp_matminer(tmp_path: Path) -> None:
    file = SHARED / "mp_matminer" / "crystals.jsonl.gz"
    if not file.is_file():
        pytest.skip("the crystals are not there")
    table = load("mp-matminer", files=[file], data_dir=tmp_path, progress=False)
    assert len(table) == 7116
    counts = {
        name: int(np.isfinite(table.column(name)).sum())
        for name, column in table.schema.items()
        if column.missing
    }
    assert counts["formation_energy_per_atom"] == counts["e_above_hull"] == 3938
    assert counts["band_gap"] == 1056
    assert counts["K_VRH"] == 1181
    assert counts["eij_max"] == 941
    assert counts["volume"] == 1056 + 1181 + 941
    assert table.schema["formation_energy_per_atom"].unit == "eV/atom"


def test_own_files_by_name(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "own.csv", [[0, "m", CIF, 2.0, "a"]])
    table = load("cif-csv", files=[file], targets=["gap"], data_dir=tmp_path, progress=False)
    assert table.column("gap").tolist() == [2.0]
    with pytest.raises(DataError, match="'perov-5' needs the files to read: name them with --file"):
        load("perov-5", data_dir=tmp_path, progress=False)


def test_a_folder_of_cif_files(tmp_path: Path) -> None:
    pytest.importorskip("ase")
    folder = tmp_path / "cifs"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / f"{name}.cif").write_text(CIF.replace("# a comment\n", ""), encoding="utf-8")
    table = load("atoms", files=[folder], data_dir=tmp_path / "data", progress=False)
    assert len(table) == 2
    assert table.column("pbc").all()
    z, frac, lattice = read_cif(CIF, "here")
    np.testing.assert_array_equal(table[0].nodes["z"], z)
    np.testing.assert_allclose(table[0].nodes["pos"], frac @ lattice, atol=1e-5)


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.files.LONGEST_LINE", 10_000)
    file = tmp_path / "bomb.csv.gz"
    file.write_bytes(gzip.compress(b"material_id,cif\r\na," + b"x" * 10_001))
    with pytest.raises(DataError, match=r"bomb\.csv\.gz, line 2: longer than 10,000"):
        cif_csv_table(tmp_path / "t", [file], progress=False)
