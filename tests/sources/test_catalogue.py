"""Every data set by its name: from files of one's own, from packages, from generators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import GraphTable
from weft.sources import CATALOGUE, load

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"

EXTXYZ = """2
Properties=species:S:1:pos:R:3 energy=-1.5 charge=1.0 pbc="F F F"
O 0.0 0.0 0.0
H 0.0 0.0 0.96
1
Properties=species:S:1:pos:R:3 energy=-2.5 charge=0.0 pbc="F F F"
He 1.0 2.0 3.0
"""
CRYSTAL = {
    "dataset": "toy",
    "id": "t-1",
    "lattice": [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 5.0]],
    "z": [11, 17],
    "frac": [[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]],
    "targets": {"gap": 1.5, "volume": 80.0},
}
MATRIX = """%%MatrixMarket matrix coordinate real symmetric
3 3 2
2 1 0.5
3 2 2.0
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def get(name: str, tmp_path: Path, **options: Any) -> GraphTable:
    return load(name, data_dir=tmp_path / "data", progress=False, **options)


def pairs(table: GraphTable) -> set[tuple[int, int]]:
    (graph,) = table
    return set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


def test_every_entry_says_what_it_is() -> None:
    for name, source in CATALOGUE.items():
        assert all((source.title, source.kind, source.origin, source.licence)), name
        assert name == name.strip()
        assert " " not in name
        assert callable(source.build)


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no data set 'coraa'; choose from") as caught:
        get("coraa", tmp_path)
    assert all(name in str(caught.value) for name in CATALOGUE)
    assert not (tmp_path / "data").exists()


def test_atoms(tmp_path: Path) -> None:
    pytest.importorskip("ase")
    file = write(tmp_path / "two.extxyz", EXTXYZ)
    table = get("atoms", tmp_path, files=[file], targets=["energy"])
    assert table.num_nodes.tolist() == [2, 1]
    assert table.column("z").tolist() == [8, 1, 2]
    assert table.column("energy").tolist() == [-1.5, -2.5]
    assert "charge" not in table.schema
    assert table.metadata["files"] == ["two.extxyz"]


def test_atoms_from_several_files(tmp_path: Path) -> None:
    pytest.importorskip("ase")
    files = [write(tmp_path / f"{i}.extxyz", EXTXYZ) for i in range(3)]
    assert len(get("atoms", tmp_path, files=files)) == 6


def test_crystals(tmp_path: Path) -> None:
    lines = [CRYSTAL, {**CRYSTAL, "targets": {"gap": 2.5}}]
    file = write(tmp_path / "c.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    table = get("crystals", tmp_path, files=[file], targets=["gap"])
    assert table.column("gap").tolist() == [1.5, 2.5]
    assert table.column("z").tolist() == [11, 17, 11, 17]


def test_edge_list(tmp_path: Path) -> None:
    table = get("edge-list", tmp_path, files=[write(tmp_path / "e.txt", "# a\n0 1\n1 2\n5 0\n")])
    assert len(table) == 1
    assert table.total_edges == 3
    assert table.metadata["licence"] == "yours"


def test_temporal_edge_list(tmp_path: Path) -> None:
    file = write(tmp_path / "e.txt", "0 1 100\n1 2 50\n2 0 75\n")
    table = get("temporal-edge-list", tmp_path, files=[file])
    (time,) = (name for name, column in table.schema.items() if column.level == "edge")
    assert sorted(table.column(time).tolist()) == [50, 75, 100]


def test_matrix_market(tmp_path: Path) -> None:
    table = get("matrix-market", tmp_path, files=[write(tmp_path / "m.mtx", MATRIX)])
    assert table.total_nodes == 3
    assert pairs(table) == {(0, 1), (1, 0), (1, 2), (2, 1)}


def test_a_snap_set_from_a_file(tmp_path: Path) -> None:
    file = write(tmp_path / "CollegeMsg.txt", "1 2 1082040961\n3 4 1082155839\n")
    table = get("CollegeMsg", tmp_path, files=[file])
    assert (table.total_nodes, table.total_edges) == (4, 2)


def test_planetoid_from_a_folder(tmp_path: Path) -> None:
    folder = SHARED / "planetoid"
    if not folder.exists():
        pytest.skip("planetoid is not here")
    table = get("citeseer", tmp_path, files=[folder])
    assert (table.total_nodes, int(table.column("train").sum())) == (3327, 120)
    assert "citeseer" in table.metadata["source"]


def test_a_folder_without_the_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ind\.cora\.\S+ is missing"):
        get("cora", tmp_path, files=[tmp_path])
    assert list((tmp_path / "data").glob("*")) == []


def test_a_coauthor_graph_from_a_file(tmp_path: Path) -> None:
    matrix = {"data": np.ones(2), "indices": [1, 0], "indptr": [0, 1, 2], "shape": [2, 2]}
    arrays = {f"{m}_{part}": v for m in ("adj", "attr") for part, v in matrix.items()}
    np.savez(tmp_path / "g.npz", labels=[0, 1], **arrays)
    table = get("amazon-photo", tmp_path, files=[tmp_path / "g.npz"])
    assert pairs(table) == {(0, 1), (1, 0)}


def test_cora_from_the_package(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = get("cora-package", tmp_path)
    assert (table.total_nodes, table.total_edges) == (2708, 2 * 5278)
    assert int(table.column("train").sum()) == 140


def test_planted_partition(tmp_path: Path) -> None:
    table = get("planted-partition", tmp_path)
    assert table.total_nodes == 10_000
    assert np.bincount(table.column("y")).tolist() == [1250] * 8


def test_the_second_call_opens_the_cache(tmp_path: Path) -> None:
    file = write(tmp_path / "e.txt", "0 1\n")
    first = get("edge-list", tmp_path, files=[file])
    assert first.path is not None
    made = first.path.stat().st_ino
    again = get("edge-list", tmp_path, files=[file])
    without = get("edge-list", tmp_path)
    assert {t.path.stat().st_ino for t in (again, without) if t.path} == {made}
    assert again.total_edges == without.total_edges == 1


def test_rebuild_reads_the_files_again(tmp_path: Path) -> None:
    file = write(tmp_path / "e.txt", "0 1\n")
    get("edge-list", tmp_path, files=[file])
    write(file, "0 1\n1 2\n")
    assert get("edge-list", tmp_path, files=[file], rebuild=True).total_edges == 2
    assert get("edge-list", tmp_path).total_edges == 2


def test_the_cache_does_not_pass_for_other_files(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.txt", "0 1\n"), write(tmp_path / "2.txt", "0 1\n1 2\n")
    get("edge-list", tmp_path, files=[one])
    with pytest.raises(DataError, match=r"edge-list\.weft was built with another choice of files"):
        get("edge-list", tmp_path, files=[two])
    write(one, "0 1\n1 2\n2 3\n")
    with pytest.raises(DataError, match=r"weft data get edge-list --files .*1\.txt .*--rebuild"):
        get("edge-list", tmp_path, files=[one])
    assert get("edge-list", tmp_path, files=[two], rebuild=True).total_edges == 2


def test_the_cache_does_not_pass_for_other_targets(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", json.dumps(CRYSTAL) + "\n")
    get("crystals", tmp_path, files=[file], targets=["gap"])
    with pytest.raises(DataError, match="another choice of targets"):
        get("crystals", tmp_path, files=[file], targets=["volume"])
    with pytest.raises(DataError, match="another data set"):
        get("planted-partition", tmp_path, table="crystals")


def test_two_tables_of_one_data_set(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.txt", "0 1\n"), write(tmp_path / "2.txt", "0 1\n1 2\n")
    first = get("edge-list", tmp_path, files=[one], table="first")
    second = get("edge-list", tmp_path, files=[two], table="second")
    assert first.path == tmp_path / "data" / "first.weft"
    assert (first.total_edges, second.total_edges) == (1, 2)
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["first.weft", "second.weft"]


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "a b"])
def test_a_name_that_is_no_folder(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "e.txt", "0 1\n")
    with pytest.raises(DataError, match="cannot name a table"):
        get("edge-list", tmp_path, files=[file], table=name)


@pytest.mark.parametrize(
    "name", ["crystals", "edge-list", "temporal-edge-list", "matrix-market", "coauthor-cs"]
)
def test_files_that_are_not_given(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"'{name}' reads one file or folder, 0 given.*--files"):
        get(name, tmp_path)
    with pytest.raises(DataError, match="2 given"):
        get(name, tmp_path, files=[tmp_path, tmp_path])


def test_atoms_that_are_not_given(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'atoms' needs the files to read.*--files"):
        get("atoms", tmp_path)


@pytest.mark.parametrize(
    "name", ["atoms", "crystals", "edge-list", "matrix-market", "amazon-photo", "CollegeMsg"]
)
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    if name == "atoms":
        pytest.importorskip("ase")
    with pytest.raises((DataError, FileNotFoundError), match=r"nowhere\.txt"):
        get(name, tmp_path, files=[tmp_path / "nowhere.txt"])
    assert list((tmp_path / "data").glob("*")) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("edge-list", "", "holds no edges"),
        ("edge-list", "# nothing\n", "holds no edges"),
        ("temporal-edge-list", "# nothing\n", "holds no edges"),
        ("CollegeMsg", "", "holds no edges"),
        ("edge-list", "rabbit,fox\n1,2\n", "line 1 looks like a header"),
    ],
)
def test_an_edge_list_without_edges(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"e\.txt.*{message}"):
        get(name, tmp_path, files=[write(tmp_path / "e.txt", content)])
    assert list((tmp_path / "data").glob("*")) == []


def test_an_edge_list_keeps_what_the_nodes_are_called(tmp_path: Path) -> None:
    table = get("edge-list", tmp_path, files=[write(tmp_path / "e.txt", "70 9\n9 12\n")])
    assert table.column("id").tolist() == [9, 12, 70]
    file = write(tmp_path / "n.txt", "bob Åse\nÅse al\n")
    (graph,) = get("edge-list", tmp_path, files=[file], table="names")
    assert bytes(graph.ragged["names"]).decode().splitlines() == ["al", "bob", "Åse"]


@pytest.mark.parametrize("name", ["rmat", "cora-package", "planted-partition"])
def test_files_for_a_set_that_reads_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"'{name}' does not read files: leave out --files"):
        get(name, tmp_path, files=[tmp_path])


@pytest.mark.parametrize("name", ["qm9", "cora", "edge-list", "rmat"])
def test_targets_for_a_set_without_any(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"'{name}' has no targets to choose: leave out"):
        get(name, tmp_path, targets=["energy"])


def test_the_cache_does_not_pass_for_a_changed_folder(tmp_path: Path) -> None:
    pytest.importorskip("ase")
    from ase import Atoms
    from ase.io import write as write_atoms

    folder = tmp_path / "cifs"
    folder.mkdir()
    write_atoms(folder / "a.cif", Atoms("H", cell=[4] * 3, pbc=True))
    assert len(get("atoms", tmp_path, files=[folder])) == 1
    assert len(get("atoms", tmp_path, files=[folder])) == 1
    write_atoms(folder / "a.cif", Atoms("He", cell=[4, 4, 5], pbc=True))
    with pytest.raises(DataError, match="another choice of files"):
        get("atoms", tmp_path, files=[folder])
    assert get("atoms", tmp_path, files=[folder], rebuild=True).column("z").tolist() == [2]
    (folder / "a.cif").rename(folder / "b.cif")
    with pytest.raises(DataError, match="another choice of files"):
        get("atoms", tmp_path, files=[folder])


def test_the_command_in_the_message_rebuilds_the_table(tmp_path: Path) -> None:
    file = write(tmp_path / "my edges.txt", "0 1\n")
    made = get("edge-list", tmp_path, files=[file], table="mine").path
    assert made is not None
    (made / "id.npy").write_bytes(b"")
    expected = (
        f"weft data get edge-list --files '{file}' --table mine "
        f"--data-dir {tmp_path / 'data'} --rebuild"
    )
    with pytest.raises(DataError) as damaged:
        get("edge-list", tmp_path, files=[file], table="mine")
    assert str(damaged.value).endswith(f"run `{expected}`")
    get("edge-list", tmp_path, files=[file], table="mine", rebuild=True)
    write(file, "0 1\n1 2\n")
    with pytest.raises(DataError) as changed:
        get("edge-list", tmp_path, files=[file], table="mine")
    assert f"`{expected}`" in str(changed.value)


def test_forces_are_a_column_of_the_atoms(tmp_path: Path) -> None:
    pytest.importorskip("ase")
    text = EXTXYZ.replace("pos:R:3", "pos:R:3:forces:R:3")
    rows = [line + " 1 2 3" if line[0] in "OH" else line for line in text.splitlines()]
    file = write(tmp_path / "f.extxyz", "\n".join(rows) + "\n")
    table = get("atoms", tmp_path, files=[file], targets=["energy", "forces"])
    assert table.schema["forces"].level == "node"
    assert table.column("forces").tolist() == [[1, 2, 3]] * 3
    assert table.schema["energy"].level == "graph"
