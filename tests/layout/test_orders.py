"""Orders are permutations that every column follows, kept on disk once."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_graphs import edge_lists, parameters, typed_graph

from weft.errors import DataError
from weft.graphs import Graph, assemble, open_table, table_from_graphs
from weft.layout import ORDERS, TypedEdges, band_statistics, reorder, reordered


def shuffled(graph: Graph, seed: int = 0) -> Graph:
    new = np.random.default_rng(seed).permutation(graph.num_nodes)
    return dataclasses.replace(graph, senders=new[graph.senders], receivers=new[graph.receivers])


def small_table(**changes):
    return table_from_graphs([shuffled(typed_graph(n, 3 * n)) for n in (40, 1, 90)], **changes)


@settings(deadline=None, max_examples=60)
@given(edge_lists(max_nodes=80), st.sampled_from(sorted(ORDERS)))
def test_an_order_is_a_permutation(drawn, order):
    nodes, _, (senders, receivers, _) = drawn
    found = ORDERS[order](nodes, senders, receivers)
    assert np.sort(found).tolist() == list(range(nodes))


def test_what_the_orders_are():
    senders, receivers = np.array([0, 0, 0, 3]), np.array([1, 2, 3, 0])
    assert ORDERS["identity"](5, senders, receivers).tolist() == [0, 1, 2, 3, 4]
    assert ORDERS["degree"](5, senders, receivers).tolist() == [4, 1, 2, 3, 0]


def test_reverse_cuthill_mckee_finds_the_path_again():
    path = np.arange(50)
    new = np.random.default_rng(3).permutation(50)
    table = table_from_graphs(
        [Graph(num_nodes=50, senders=new[path[:-1]], receivers=new[path[1:]])]
    )
    assert band_statistics(table).bandwidth[0] > 10
    assert band_statistics(reorder(table, "rcm")).bandwidth[0] == 1


def test_metis_keeps_clusters_together():
    rng = np.random.default_rng(0)
    cluster = rng.permutation(np.repeat(np.arange(4), 32))
    ends = [np.flatnonzero(cluster == c)[rng.integers(0, 32, (2, 300))] for c in range(4)]
    senders, receivers = np.concatenate(ends, axis=1)
    order = ORDERS["metis"](128, senders, receivers)
    assert np.count_nonzero(np.diff(cluster[order])) == 3


def test_metis_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"weft\[partition\]"):
        ORDERS["metis"](100, np.arange(99), np.arange(1, 100))


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_all_columns_follow(order):
    graphs = [shuffled(typed_graph(n, 3 * n)) for n in (40, 1, 90)]
    for i, graph in enumerate(graphs):
        graph.nodes["number"] = np.arange(graph.num_nodes)
        ends = np.stack([graph.senders, graph.receivers], axis=1)
        graph.edges["ends"] = ends
        graph.ragged["name"] = np.arange(i + 2, dtype=np.uint8)
    found = reorder(table_from_graphs(graphs, metadata={"kind": "test"}), order)
    assert dict(found.metadata) == {"kind": "test", "order": order}
    for new, old in zip(found, graphs, strict=True):
        number = new.nodes["number"]
        assert (new.nodes["x"] == old.nodes["x"][number]).all()
        assert (number[new.senders] == new.edges["ends"][:, 0]).all()
        assert (number[new.receivers] == new.edges["ends"][:, 1]).all()
        rows = [np.column_stack([g.edges["ends"], g.edges["type"]]) for g in (new, old)]
        assert np.array_equal(*(r[np.lexsort(r.T)] for r in rows))
        assert new.graph["y"] == old.graph["y"]
        assert new.ragged["name"].tolist() == old.ragged["name"].tolist()


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_permutation_undone_gives_the_same_product(order):
    graph = shuffled(typed_graph(90, 270))
    edges = graph.senders, graph.receivers, graph.edges["type"]
    taken = ORDERS[order](90, *edges[:2])
    place = np.argsort(taken)
    h, weight, bias = (x.detach() for x in parameters(90, 3))
    plain = TypedEdges.of(*edges, 90, 3).propagate(h, weight, bias)
    moved = TypedEdges.of(place[edges[0]], place[edges[1]], edges[2], 90, 3)
    found = moved.propagate(h[torch.from_numpy(taken)], weight, bias)[torch.from_numpy(place)]
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)


def test_symmetric_pairs_survive():
    senders, receivers = np.array([0, 1, 1, 2, 0, 1]), np.array([1, 0, 2, 1, 1, 0])
    graph = Graph(num_nodes=3, senders=senders, receivers=receivers)
    table = table_from_graphs([graph], metadata={"symmetric": True})
    pairs = assemble(reorder(table, "degree"), [0]).pairs
    assert len(pairs["forward"]) == 3


def test_tables_without_nodes_or_graphs():
    assert len(reorder(table_from_graphs([], {}))) == 0
    empty = Graph(num_nodes=0, senders=np.zeros(0, int), receivers=np.zeros(0, int))
    for order in ORDERS:
        assert reorder(table_from_graphs([empty, empty]), order).num_nodes.tolist() == [0, 0]


def test_an_order_is_kept_on_disk(tmp_path):
    table = small_table()
    first = reordered(table, tmp_path, "rcm")
    assert first.path is not None
    written = (first.path / "table.json").stat().st_mtime_ns
    again = reordered(table, tmp_path, "rcm")
    assert again.path == first.path
    assert (first.path / "table.json").stat().st_mtime_ns == written
    expected = reorder(table, "rcm")
    for name, values in expected.columns.items():
        assert np.array_equal(again.columns[name], values)
    assert again.metadata["order"] == "rcm"


def test_another_table_or_order_is_kept_beside_it(tmp_path):
    table = small_table()
    values = {**table.columns, "x": table.columns["x"] + 1}
    other = dataclasses.replace(table, columns=values)
    paths = {
        reordered(table, tmp_path, "rcm").path,
        reordered(table, tmp_path, "degree").path,
        reordered(other, tmp_path, "rcm").path,
        reordered(small_table(metadata={"a": 1}), tmp_path, "rcm").path,
    }
    assert len(paths) == 4
    assert (reordered(other, tmp_path).columns["x"] == reorder(other).columns["x"]).all()


def test_a_mapped_table_has_the_fingerprint_of_the_one_in_memory(tmp_path):
    table = small_table()
    first = reordered(table, tmp_path / "a", "identity")
    mapped = open_table(first.path)
    plain = dataclasses.replace(mapped, metadata={})
    assert reordered(plain, tmp_path / "a", "identity").path == first.path


def test_a_folder_with_another_table_in_it(tmp_path):
    table = small_table()
    path = reordered(table, tmp_path, "rcm").path
    other = reordered(table, tmp_path, "degree").path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    other.rename(path)
    with pytest.raises(DataError, match=r"not this table in the order 'rcm'; remove it"):
        reordered(table, tmp_path, "rcm")


def test_an_unknown_order(tmp_path):
    table = small_table()
    for call in (lambda: reorder(table, "best"), lambda: reordered(table, tmp_path, "best")):
        with pytest.raises(
            DataError, match=r"order is 'best'; choose from identity, degree, rcm, metis"
        ):
            call()
