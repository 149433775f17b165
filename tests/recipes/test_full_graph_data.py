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
    with pytest.raises(DataError, match="prepared with normalisation symmetric, and row is asked"):
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
    with pytest.raises(DataError, match="matrix of float32, and dtype float64 is asked for; prep"):
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
