"""`weft data`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.graphs import Column, Graph, write_table
from weft.recipes.structures.data import NeighbourConfig
from weft.sources import CATALOGUE


def edges_file(folder: Path, text: str = "0 1\n1 2\n") -> Path:
    file = folder / "edges.txt"
    file.write_text(text)
    return file


def test_list_names_every_data_set(weft, tmp_path):
    said = weft("data", "list")
    assert said.code == 0
    names = [line.split()[0] for line in said.out.splitlines() if line[:1].strip()]
    assert names[1 : 1 + len(CATALOGUE)] == list(CATALOGUE)
    assert f"Data folder: {tmp_path / 'data'}" in said.out
    assert "yes" not in said.out
    assert "Your own tables" not in said.out


def test_list_names_what_is_cached(weft, tmp_path, small_cora):
    weft("data", "get", "edge-list", "--files", edges_file(tmp_path), "--table", "mine")
    out = weft("data", "list").out
    assert "Your own tables: mine" in out
    (line,) = (line for line in out.splitlines() if line.startswith("cora "))
    assert line.split()[-1] == "yes"


def test_list_tells_tables_made_for_training_from_the_users_own(weft, tmp_path):
    rules = [
        NeighbourConfig(kind="complete"),
        NeighbourConfig(kind="cutoff", cutoff=1e-5),
        NeighbourConfig(kind="cutoff", cutoff=5.0),
        NeighbourConfig(kind="nearest"),
    ]
    names = ["mine", *sorted(f"mine-{rule.name}" for rule in rules)]
    for name in names:
        (tmp_path / "data" / f"{name}.weft").mkdir(parents=True)
    out = weft("data", "list").out
    assert "Your own tables: mine\n" in out
    assert f"With neighbours, for training: {', '.join(names[1:])}\n" in out


def test_list_of_a_folder_given(weft, tmp_path):
    out = weft("data", "list", "--data-dir", tmp_path / "else[where]").out
    assert f"Data folder: {tmp_path / 'else[where]'}" in out


def test_get_builds_once_and_describes(weft, tmp_path):
    file = edges_file(tmp_path)
    said = weft("data", "get", "edge-list", "--files", file)
    assert said.code == 0
    assert "1 graphs, 3 nodes, 2 edges" in said.out
    assert "licence: yours" in said.out
    again = weft("data", "get", "edge-list").out
    assert again.partition("ready in")[0] == said.out.partition("ready in")[0]
    assert "ready in" in again


def test_get_again(weft, mistake, tmp_path):
    file = edges_file(tmp_path)
    weft("data", "get", "edge-list", "--files", file)
    file.write_text("0 1\n")
    assert "--rebuild" in mistake("data", "get", "edge-list", "--files", file)
    assert " 1 edges" in weft("data", "get", "edge-list", "--files", file, "--rebuild").out


def test_get_with_targets(weft, tmp_path):
    pytest.importorskip("ase")
    file = tmp_path / "a.extxyz"
    file.write_text("1\nProperties=species:S:1:pos:R:3 energy=-1.5\nHe 0 0 0\n")
    out = weft("data", "get", "atoms", "--files", file, "--targets", "energy").out
    (line,) = (line for line in out.splitlines() if "energy" in line)
    assert "float64" in line
    assert "eV" in line
    assert "energy" in weft("data", "info", "atoms").out


def test_info_of_a_cached_table_and_of_a_folder(weft, tmp_path):
    columns = {"pos": Column(level="node", dtype="float32", shape=(3,), unit="Å", doc="[a] place")}
    graphs = [Graph(num_nodes=n, nodes={"pos": np.zeros((n, 3), np.float32)}) for n in (2, 4)]
    write_table(tmp_path / "own", graphs, columns, metadata={"from [me]": "[there]"})
    said = weft("data", "info", "own", "--check")
    assert said.code == 0
    assert "2 graphs, 6 nodes, 0 edges" in said.out
    assert "nodes a graph: 2 to 4, mean 3.00" in said.out
    for word in ("float32[3]", "Å", "[a] place", "from [me]: [there]"):
        assert word in said.out


def test_info_prefers_the_cache(weft, tmp_path, small_cora):
    assert str(small_cora) in weft("data", "info", "cora").out


def test_an_unknown_data_set(mistake):
    said = mistake("data", "get", "imagenet")
    assert "there is no data set 'imagenet'; choose from qm9," in said


def test_an_unknown_table(mistake, tmp_path):
    said = mistake("data", "info", "nowhere")
    assert f"no table 'nowhere' in {tmp_path / 'data'}" in said
    assert "weft data list" in said


def test_a_folder_that_is_no_table(mistake, tmp_path):
    (tmp_path / "photos").mkdir()
    assert "photos is not a graph table" in mistake("data", "info", "photos")


@pytest.mark.parametrize(
    "name", ["atoms", "crystals", "edge-list", "matrix-market", "amazon-photo", "cora", "qm9"]
)
def test_a_file_that_is_not_there(mistake, name):
    assert "nowhere" in mistake("data", "get", name, "--files", "nowhere")


@pytest.mark.parametrize("name", ["atoms", "crystals", "edge-list"])
def test_files_not_given(mistake, name):
    assert "--files" in mistake("data", "get", name)


def test_a_line_that_cannot_be_read(mistake, tmp_path):
    said = mistake("data", "get", "edge-list", "--files", edges_file(tmp_path, "0 1\n2 x\n"))
    assert "edges.txt" in said
    assert "2" in said
    assert list((tmp_path / "data").iterdir()) == []


def test_a_damaged_table(mistake, small_cora):
    column = small_cora / "x.npy"
    whole = bytearray(column.read_bytes())
    whole[-1] ^= 1
    column.write_bytes(whole)
    assert "x.npy is damaged" in mistake("data", "info", "cora")
    assert "weft data get cora --rebuild" in mistake("data", "get", "cora")


def test_a_name_that_is_no_folder(mistake, tmp_path):
    said = mistake("data", "get", "edge-list", "--files", edges_file(tmp_path), "--table", "../up")
    assert "'../up' cannot name a table" in said


def test_a_data_folder_that_cannot_be_made(mistake, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WEFT_DATA_DIR", str(tmp_path / "file" / "data"))
    for words in (["list"], ["get", "planted-partition"], ["info", "cora"]):
        said = mistake("data", *words)
        assert str(tmp_path / "file" / "data") in said
        assert "--data-dir" in said


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_data_folder_that_cannot_be_written(mistake):
    said = mistake("data", "get", "planted-partition", "--data-dir", "/proc/self")
    assert "/proc/self cannot be written" in said
