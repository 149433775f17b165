"""The graph that ranks share: read from anywhere, prepared once, known again in any partition."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import Graph, write_table
from weft.parallel.prepare import prepare
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import full_graph_table, source_graph
from weft.recipes.full_graph.prediction import predict_nodes
from weft.recipes.full_graph.training import train_full_graph
from weft.sources import planted_partition

GRAPH = planted_partition(40, 2, mean_degree=4, homophily=0.9, num_features=3, seed=0)


@pytest.fixture
def config(tmp_path: Path) -> FullGraphConfig:
    write_table(tmp_path / "own.weft", [GRAPH])
    return FullGraphConfig(data=str(tmp_path / "own.weft"), ranks=2, grid="1d")


def test_a_table_is_prepared_once_for_each_way_to_share_it(config, tmp_path):
    stages: list[str] = []
    table, grid = full_graph_table(config, data_dir=tmp_path / "data", tell=stages.append)
    assert (grid.rows, table.metadata["partition"]["blocks"]) == (2, 2)
    assert stages
    again: list[str] = []
    same, _ = full_graph_table(config, data_dir=tmp_path / "data", tell=again.append)
    assert (same.path, again) == (table.path, [])
    found = {table.path}
    for options in (
        {"partition": "random"},
        {"ranks": 4},
        {"normalisation": "row"},
        {"dtype": "float64"},
        {"split": (0.5, 0.5, 0.0)},
        {"feature_scale": "rows"},
    ):
        other, _ = full_graph_table(replace(config, **options), data_dir=tmp_path / "data")
        assert other.path not in found
        found.add(other.path)


def test_a_table_that_is_prepared_already_is_taken_as_it_is(tmp_path):
    table = prepare(GRAPH, tmp_path / "mine.weft", blocks=2)
    config = FullGraphConfig(data=str(tmp_path / "mine.weft"), ranks=2, grid="1d")
    found, _ = full_graph_table(config, data_dir=tmp_path / "data")
    assert found.path == table.path
    with pytest.raises(DataError, match="with normalisation symmetric, and row is requested"):
        full_graph_table(replace(config, model="sage"), data_dir=tmp_path / "data")
    for options in ({"partition": "rcm"}, {"split": (0.5, 0.25, 0.25)}):
        with pytest.raises(DataError, match="a split and the partition contiguous; leave"):
            full_graph_table(replace(config, **options), data_dir=tmp_path / "data")


def test_float64_is_asked_of_matrix_and_features(config, tmp_path):
    words = replace(GRAPH, nodes={**GRAPH.nodes, "x": np.abs(GRAPH.nodes["x"])})
    write_table(tmp_path / "words.weft", [words])
    wide = replace(config, data=str(tmp_path / "words.weft"), dtype="float64", ranks=1)
    table, _ = full_graph_table(wide, data_dir=tmp_path / "data")
    x = words.nodes["x"].astype(np.float64)
    np.testing.assert_array_equal(table.column("x"), x / x.sum(1, keepdims=True))
    matrix = np.eye(40)
    matrix[words.receivers, words.senders] = 1
    scale = 1 / np.sqrt(matrix.sum(1))
    graph = table[0]
    found = np.zeros((40, 40))
    found[graph.receivers, graph.senders] = graph.edges["weight"]
    np.testing.assert_allclose(found, scale[:, None] * matrix * scale, rtol=1e-15)
    prepare(GRAPH, tmp_path / "mine.weft", blocks=1)
    wide = replace(wide, data=str(tmp_path / "mine.weft"))
    with pytest.raises(DataError, match="matrix of float32, and dtype float64 is requested; prep"):
        full_graph_table(wide, data_dir=tmp_path / "data")


def test_the_digest_knows_a_graph_in_any_partition():
    digests = {
        prepare(GRAPH, blocks=blocks, partition=partition).metadata["original"]
        for blocks, partition in ((1, "contiguous"), (4, "random"), (3, "rcm"))
    }
    assert len(digests) == 1
    y = GRAPH.nodes["y"].copy()
    y[7] = 1 - y[7]
    changes = (
        {"nodes": {**GRAPH.nodes, "y": y}},
        {"nodes": {**GRAPH.nodes, "x": 2 * GRAPH.nodes["x"]}},
        {"senders": GRAPH.senders[1:], "receivers": GRAPH.receivers[1:]},
    )
    for change in changes:
        digests.add(prepare(replace(GRAPH, **change), blocks=2).metadata["original"])
    assert len(digests) == 1 + len(changes)


def test_features_are_scaled_where_none_is_negative(config):
    words = replace(GRAPH, nodes={**GRAPH.nodes, "x": (GRAPH.nodes["x"] > 0).astype(np.int64)})
    scaled = source_graph(config, words).nodes["x"]
    sums = scaled.sum(1)
    assert set(np.round(sums, 6)) <= {0.0, 1.0}
    assert source_graph(config, GRAPH).nodes["x"] is GRAPH.nodes["x"]
    plain = source_graph(replace(config, feature_scale="none"), words).nodes["x"]
    assert plain.max() == 1


def test_a_split_by_shares(config):
    shared = source_graph(replace(config, split=(0.5, 0.25, 0.25)), GRAPH)
    counts = [int(shared.nodes[part].sum()) for part in ("train", "validation", "test")]
    assert counts == [20, 10, 10]


def test_an_edge_list_goes_one_way_or_both(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n2 1\n")
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32))
    np.save(tmp_path / "y.npy", np.array([0, 1, 0, -1]))
    config = FullGraphConfig(
        data=str(tmp_path / "edges.txt"),
        features=str(tmp_path / "x.npy"),
        labels=str(tmp_path / "y.npy"),
        split=(1.0, 0.0, 0.0),
        normalisation="none",
    )
    both, _ = full_graph_table(config, data_dir=tmp_path / "data")
    assert (both.total_nodes, both.total_edges) == (4, 4)
    assert both.metadata["counts"]["train"] == 3
    one, _ = full_graph_table(replace(config, directed=True), data_dir=tmp_path / "data")
    assert one.total_edges == 3
    assert not one.metadata["symmetric_values"]


def test_a_graph_without_features(config):
    bare = Graph(num_nodes=2, nodes={"y": np.zeros(2, dtype=np.int64)})
    with pytest.raises(DataError, match=r"has no node column 'x'.*--features FILE.npy"):
        source_graph(config, bare)


def test_a_graph_to_apply_a_network_to_needs_features_alone(config, tmp_path):
    table, _ = full_graph_table(config, data_dir=tmp_path / "data", unlabelled=True)
    assert (table.metadata["classes"], table.metadata["counts"]["train"]) == (0, 0)
    assert set(table.column("y")) == {-1}
    with pytest.raises(DataError, match=r"give --features FILE.npy with"):
        source_graph(config, Graph(num_nodes=2), unlabelled=True)


def test_metis_without_its_package(config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(DataError, match=r"pip install 'weft\[partition\]'"):
        full_graph_table(replace(config, partition="metis"), data_dir=tmp_path / "data")
    assert not list((tmp_path / "data").glob("*.weft"))


def test_the_grid_is_chosen_by_cost(config):
    chosen = replace(config, grid="auto", ranks=4).chosen_grid(10_000, 100_000, 500, 5)
    assert chosen.ranks == 4
    with pytest.raises(ValueError, match="3 nodes for 4 ranks"):
        replace(config, ranks=4).chosen_grid(3, 9, 5, 2)


def named_graph(folder):
    """Three named nodes: edges with weights and a header, features, classes, a split."""
    folder.mkdir(exist_ok=True)
    (folder / "edges.csv").write_text("source,target,weight\nbob,ann,2\nann,eve,0.5\n")
    (folder / "x.csv").write_text("node,age,size\nann,1,-2\nbob,3,4\neve,5,6\n")
    (folder / "y.csv").write_text("node,label\nann,red\nbob,blue\neve,red\n")
    for part, node in (("train", "ann"), ("validation", "bob"), ("test", "eve")):
        (folder / f"{part}.txt").write_text(f"{node}\n")
    return FullGraphConfig(
        data=str(folder / "edges.csv"),
        columns=("src", "dst", "weight"),
        features=str(folder / "x.csv"),
        labels=str(folder / "y.csv"),
        train_mask=str(folder / "train.txt"),
        validation_mask=str(folder / "validation.txt"),
        test_mask=str(folder / "test.txt"),
        normalisation="none",
    )


def test_names_of_nodes_and_classes_are_kept(tmp_path):
    config = named_graph(tmp_path)
    table, _ = full_graph_table(config, data_dir=tmp_path / "data")
    assert bytes(table.column("names")) == b"ann\nbob\neve\n"
    assert bytes(table.column("classes")) == b"blue\nred\n"
    assert table.column("y").tolist() == [1, 0, 1]
    assert table.column("x").tolist() == [[1, -2], [3, 4], [5, 6]]
    graph = table[0]
    found = np.zeros((3, 3))
    found[graph.receivers, graph.senders] = graph.edges["weight"]
    np.testing.assert_array_equal(found, [[0, 2, 0.5], [2, 0, 0], [0.5, 0, 0]])
    for number, part in enumerate(("train", "validation", "test")):
        assert np.flatnonzero(table.column(part)).tolist() == [number]
    # Whole numbers may be names, too, in any order and with gaps.
    (tmp_path / "edges.csv").write_text("700,5,2\n5,-1,0.5\n")
    (tmp_path / "x.csv").write_text("5,1,-2\n700,3,4\n-1,5,6\n")
    (tmp_path / "y.csv").write_text("5,red\n700,blue\n-1,red\n")
    for part, node in (("train", "5"), ("validation", "700"), ("test", "-1")):
        (tmp_path / f"{part}.txt").write_text(f"{node}\n")
    numbers, _ = full_graph_table(config, data_dir=tmp_path / "data")
    assert bytes(numbers.column("names")) == b"5\n700\n-1\n"
    for name in ("x", "y", "senders", "receivers", "weight", "train", "validation", "test"):
        np.testing.assert_array_equal(numbers.arrays[name], table.arrays[name])


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("test.txt", "ann\n", r"node 'ann' is in .*train\.txt and in .*test\.txt \(1 such nodes\)"),
        ("train.txt", "carl\n", r"train\.txt, line 1: no node is called 'carl'"),
        ("y.csv", "carl,red\n", r"y\.csv, line 1: no node is called 'carl'"),
        (
            "y.csv",
            "ann,0\nbob,1\neve,9\n",
            r"the target of node 2 is 9; .* as nodes that have one \(3\)",
        ),
        ("y.csv", "bob,1\neve,0\n", r"node 0 is in 'train' but has no class"),
        ("edges.csv", "ann,carl,1\n", r"edges\.csv names node 'carl', which .*x\.csv has no row"),
        ("edges.csv", "src,weight,dst\nann,1,bob\n", "pass --columns src weight dst"),
        ("edges.csv", "bob,ann,-3\n", r"weights that enter node 0 sum to -2; a symmetric"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path, file, text, reason):
    config = replace(named_graph(tmp_path), normalisation="symmetric")
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=reason):
        full_graph_table(config, data_dir=tmp_path / "data")


def test_masks_go_without_a_split(tmp_path):
    config = named_graph(tmp_path)
    with pytest.raises(ValueError, match="but split is given too"):
        replace(config, split=(0.5, 0.25, 0.25))
    with pytest.raises(ValueError, match="but train_mask is missing"):
        replace(config, train_mask=None)
    prepare(GRAPH, tmp_path / "mine.weft", blocks=1)
    prepared = replace(config, data=str(tmp_path / "mine.weft"), features=None, labels=None)
    with pytest.raises(DataError, match="leave --partition, --split and masks out"):
        full_graph_table(replace(prepared, normalisation="auto"), data_dir=tmp_path / "data")


def test_a_file_with_everything_in_it(tmp_path):
    masks = {f"{part}_mask": np.eye(3, dtype=bool)[i] for i, part in enumerate(("train", "val"))}
    arrays = {"edge_index": np.array([[0, 1], [1, 2]]), "x": -np.eye(3), "y": np.array([0, 1, 0])}
    np.savez(tmp_path / "g.npz", **arrays, **masks, test_mask=np.eye(3, dtype=bool)[2])
    config = FullGraphConfig(data=str(tmp_path / "g.npz"), normalisation="none")
    table, _ = full_graph_table(config, data_dir=tmp_path / "data")
    assert (table.total_edges, table.metadata["symmetric_values"]) == (4, True)
    assert table.metadata["counts"] == {"train": 1, "validation": 1, "test": 1}
    one, _ = full_graph_table(replace(config, directed=True), data_dir=tmp_path / "data")
    assert one.total_edges == 2
    # Features and classes of other files take the place of its own.
    np.save(tmp_path / "x.npy", -2 * np.eye(3))
    other = replace(config, features=str(tmp_path / "x.npy"))
    table, _ = full_graph_table(other, data_dir=tmp_path / "data")
    np.testing.assert_array_equal(table.column("x"), -2 * np.eye(3))


def test_predictions_have_the_names(tmp_path):
    config = replace(named_graph(tmp_path), epochs=1)
    table, grid = full_graph_table(config, data_dir=tmp_path / "data")
    train_full_graph(table, config, grid, folder=tmp_path / "run", quiet=True)
    for options in ({}, {"data": config.data, "features": config.features}):
        out = tmp_path / "out.csv"
        predict_nodes(tmp_path / "run", out, data_dir=tmp_path / "data", **options)
        heading, *rows = [line.split(",") for line in out.read_text().splitlines()]
        assert heading == ["node", "class", "probability"]
        assert [row[0] for row in rows] == ["ann", "bob", "eve"]
        assert {row[1] for row in rows} <= {"red", "blue"}
