"""Folders of Python files as tables of programs."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import Graph, GraphTable, open_table, table_from_graphs
from weft.layout import reorder
from weft.sources import CATALOGUE, load, program_table, split_by_file
from weft.sources.program_graph import (
    CANDIDATE,
    EDGE_NAMES,
    PROGRAM_SCHEMA,
    SLOT,
    VOCABULARY,
    label_buckets,
)
from weft.sources.python_programs import python_files, standard_library

FUNCTION = "def f{i}(a, b):\n    c = a + b\n    for d in c:\n        c = d, b\n    return c, a\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    (root / "deep" / "tests").mkdir(parents=True)
    for i in range(6):
        text = "".join(FUNCTION.format(i=j) for j in range(i + 1))
        (root / f"m{i}.py").write_text(text)
    (root / "deep" / "inner.py").write_text(FUNCTION.format(i=0))
    (root / "deep" / "tests" / "test_it.py").write_text(FUNCTION.format(i=0))
    (root / "bad.py").write_text("def f(:\n")
    (root / "latin.py").write_bytes(b"x = '\xe4'\n")
    (root / "null.py").write_bytes(b"x = 1\0\n")
    (root / "empty.py").write_text("")
    (root / "nothing.py").write_text("print(1)\n")
    (root / "large.py").write_text("def f(a, b):\n" + "    b = a + b\n" * 500)
    (root / "notes.txt").write_text("def f(a, b): return a\n")
    return root


def table_of(paths: Any, **options: Any) -> GraphTable:
    return program_table(paths, progress=False, **{"workers": 1, **options})


def same(one: GraphTable, other: GraphTable) -> bool:
    return (
        dict(one.metadata) == dict(other.metadata)
        and one.columns.keys() == other.columns.keys()
        and np.array_equal(one.node_offsets, other.node_offsets)
        and np.array_equal(one.edge_offsets, other.edge_offsets)
        and all(np.array_equal(one.columns[name], other.columns[name]) for name in one.columns)
    )


def check(table: GraphTable) -> None:
    """Whatever the files, every graph is a sample as the contract says."""
    assert dict(table.schema) == PROGRAM_SCHEMA
    for graph in table:
        role = graph.nodes["role"]
        assert (role == SLOT).sum() == 1
        candidates = role == CANDIDATE
        assert 2 <= candidates.sum() <= 8
        for name in ("correct", "recent"):
            assert graph.nodes[name].sum() == 1
            assert candidates[graph.nodes[name] == 1].all()
        slot = graph.nodes["subtokens"][role == SLOT][0]
        assert slot.tolist() == list(label_buckets("<SLOT>"))
        rows = np.stack([graph.edges["type"], graph.senders, graph.receivers], axis=1)
        assert len(np.unique(rows, axis=0)) == len(rows)
        forward = rows[rows[:, 0] < 10]
        backward = rows[rows[:, 0] >= 10][:, [0, 2, 1]] - [10, 0, 0]
        assert np.array_equal(np.unique(forward, axis=0), np.unique(backward, axis=0))
        assert set(graph.edges["type"].tolist()) <= set(range(20))
    subtokens = np.asarray(table.column("subtokens"))
    assert subtokens.min() >= 0
    assert subtokens.max() < VOCABULARY
    assert (subtokens[:, 0] > 0).all()


def test_a_folder(folder: Path) -> None:
    table = table_of(folder)
    check(table)
    names = table.metadata["files"]
    assert names == sorted(names)
    assert "deep/inner.py" in names
    assert "notes.txt" not in names
    assert table.metadata["skipped"] == {
        "syntax error": 1,
        "encoding": 1,
        "null bytes": 1,
        "too large": 1,
    }
    assert len(table) == 3 * (1 + 2 + 3 + 4 + 5 + 6 + 2)
    assert table.metadata["kind"] == "programs"
    assert table.metadata["edge_types"] == list(EDGE_NAMES)
    assert table.metadata["vocabulary"] == VOCABULARY
    assert table.metadata["order"] == "rcm"
    assert table.metadata["python"] == platform.python_version()
    file = np.asarray(table.column("file"))
    counts = {names[i]: int((file == i).sum()) for i in set(file.tolist())}
    assert counts["m5.py"] == 18
    assert "bad.py" not in counts


def test_places_lead_back_to_the_names(folder: Path) -> None:
    table = table_of(folder, slots_per_unit=None)
    for graph in table:
        file = folder / table.metadata["files"][int(graph.graph["file"])]
        line = file.read_text().split("\n")[int(graph.graph["line"]) - 1]
        name = line[int(graph.graph["column"])]
        right = graph.nodes["subtokens"][graph.nodes["correct"] == 1][0]
        assert right.tolist() == list(label_buckets(name))


def test_on_disk_and_in_memory_are_the_same(folder: Path, tmp_path: Path) -> None:
    written = table_of(folder, path=tmp_path / "t.weft")
    assert written.path == tmp_path / "t.weft"
    assert same(open_table(tmp_path / "t.weft"), table_of(folder))


def test_the_number_of_workers_does_not_matter(folder: Path) -> None:
    alone = table_of(folder)
    assert same(alone, table_of(folder, workers=2))
    assert same(alone, table_of(folder, workers=None))


def test_the_order_of_nodes_is_kept_in_a_reordering(folder: Path) -> None:
    table = table_of(folder, limit=10)
    again = reorder(table, "rcm")
    assert again.metadata["order"] == table.metadata["order"]

    def bandwidth(of: GraphTable) -> int:
        return int(np.abs(of.columns["senders"] - of.columns["receivers"]).max())

    assert bandwidth(table) <= 1.5 * bandwidth(again)


def test_slots_seed_and_limit(folder: Path) -> None:
    assert len(table_of(folder, slots_per_unit=1)) == 1 + 2 + 3 + 4 + 5 + 6 + 2
    assert not same(table_of(folder, seed=0), table_of(folder, seed=1))
    few = table_of(folder, limit=7)
    assert len(few) == 7
    assert set(np.asarray(few.column("file")).tolist()) <= set(range(len(few.metadata["files"])))
    assert same(few, table_of(folder, limit=7, workers=2))
    assert len(table_of(folder, limit=10**6)) == len(table_of(folder))


def test_files_by_name(folder: Path) -> None:
    table = table_of([folder / "m0.py", folder / "deep"])
    assert table.metadata["files"] == ["deep/inner.py", "deep/tests/test_it.py", "m0.py"]
    assert len(table) == 9


def test_tests_can_be_left_out(folder: Path) -> None:
    kept = [name for name, _ in python_files(folder, tests=False)]
    assert "deep/inner.py" in kept
    assert "deep/tests/test_it.py" not in kept


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"no \.py files in .*none"):
        table_of(tmp_path / "none")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        table_of(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"nothing to choose from.*syntax error"):
        table_of([folder / "empty.py", folder / "nothing.py", folder / "bad.py"])
    with pytest.raises(DataError, match="slots_per_unit is 0"):
        table_of(folder, slots_per_unit=0)
    with pytest.raises(DataError, match="limit is 0"):
        table_of(folder, limit=0)
    with pytest.raises(DataError, match="max_nodes is 0"):
        table_of(folder, max_nodes=0)


def test_a_script_without_a_guard_is_told(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from weft.sources import program_table\n"
        f"program_table({str(folder)!r}, workers=2, progress=False)\n"
    )
    said = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=600, check=False
    )
    assert said.returncode == 1
    assert "workers=1" in said.stderr


def test_the_standard_library(tmp_path: Path) -> None:
    names = [name for name, _ in python_files(standard_library(), tests=False)]
    assert "argparse.py" in names
    assert not any("site-packages" in name or name.startswith("test/") for name in names)
    table = program_table(limit=300, workers=1, progress=False)
    check(table)
    assert len(table) == 300
    assert "standard library" in table.metadata["source"]


def test_the_catalogue_keeps_one_table_a_python(folder: Path, tmp_path: Path) -> None:
    assert platform.python_version() in str(CATALOGUE["python"].table)
    own = load("python", files=[folder], table="mine", data_dir=tmp_path / "data", progress=False)
    assert own.path == tmp_path / "data" / "mine.weft"
    check(own)
    with pytest.raises(
        DataError, match="would be mistaken for 'python' later: name it with --table"
    ):
        load("python", files=[folder], data_dir=tmp_path / "data", progress=False)


def test_a_split_keeps_files_whole(folder: Path) -> None:
    table = table_of(folder, slots_per_unit=None)
    split = split_by_file(table, (0.5, 0.25, 0.25))
    assert list(split) == ["train", "validation", "test"]
    every = np.concatenate(list(split.values()))
    assert np.array_equal(np.sort(every), np.arange(len(table)))
    file = np.asarray(table.column("file"))
    groups = [set(file[ids].tolist()) for ids in split.values()]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert all(len(ids) for ids in split.values())
    again = split_by_file(table, (0.5, 0.25, 0.25))
    assert all(np.array_equal(split[name], again[name]) for name in split)
    seeds = {tuple(split_by_file(table, seed=seed)["test"].tolist()) for seed in range(10)}
    assert len(seeds) > 1
    assert len(split_by_file(table, (1.0, 0.0, 0.0))["train"]) == len(table)


def test_a_split_of_something_else() -> None:
    table = table_from_graphs([Graph(num_nodes=1, nodes={"x": np.zeros(1)})])
    with pytest.raises(DataError, match="not a table of programs"):
        split_by_file(table)


def test_a_split_with_other_shares(folder: Path) -> None:
    table = table_of(folder, limit=3)
    with pytest.raises(DataError, match="add up to 1"):
        split_by_file(table, (0.5, 0.1, 0.1))
