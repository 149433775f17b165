"""Checksums that tell data from changed data, and know it again in another order."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest

from weft.graphs import Graph, open_table, table_from_graphs, write_table
from weft.graphs.checksums import checksum, edges_checksum, graph_checksums, table_checksums

RNG = np.random.default_rng(0)


def test_a_checksum_is_that_of_zlib_in_any_layout(monkeypatch):
    values = RNG.normal(size=(1000, 7))
    expected = f"float64[1000, 7] {zlib.crc32(values.tobytes()):08x}"
    assert checksum(values) == expected
    monkeypatch.setattr("weft.graphs.checksums._CHUNK_BYTES", 1000)
    assert checksum(values) == expected
    assert checksum(np.asfortranarray(values)) == expected
    assert checksum(np.zeros((0, 3))) == "float64[0, 3] 00000000"
    assert checksum(values.astype(np.float32)) != expected
    assert checksum(np.array(["a", "b"], dtype=object)) != checksum(np.array(["ab"], dtype=object))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_edges_in_any_order_and_dtype(monkeypatch, dtype):
    monkeypatch.setattr("weft.graphs.checksums._CHUNK_EDGES", 64)
    senders, receivers = RNG.integers(0, 50, (2, 300))
    weights = RNG.normal(size=300)
    order = RNG.permutation(300)
    for own in (None, weights):
        mixed = None if own is None else own[order]
        expected = edges_checksum(senders, receivers, own)
        assert edges_checksum(senders[order].astype(dtype), receivers[order], mixed) == expected
    different = {edges_checksum(senders, receivers), edges_checksum(receivers, senders)}
    # Every single change of an end, and two ends exchanged, which leaves all degrees as they are.
    for edge in range(100):
        changed = senders.copy()
        changed[edge] += 1
        different.add(edges_checksum(changed, receivers))
        other = int(np.flatnonzero((senders != senders[edge]) & (receivers != receivers[edge]))[0])
        changed = senders.copy()
        changed[[edge, other]] = changed[[other, edge]]
        different.add(edges_checksum(changed, receivers))
    assert len(different) > 190
    assert edges_checksum(senders, receivers, weights) not in different
    assert edges_checksum(senders[:0], receivers[:0]) == "0 0000000000000000"


def test_a_mapped_table_has_the_checksums_of_the_one_in_memory(tmp_path):
    graph = Graph(
        num_nodes=3,
        senders=np.array([0, 1, 2]),
        receivers=np.array([1, 2, 0]),
        nodes={"x": RNG.normal(size=(3, 2)).astype(np.float32)},
        edges={"weight": RNG.normal(size=3)},
        graph={"y": np.float64(2.0)},
    )
    memory = table_from_graphs([graph, graph])
    write_table(tmp_path / "t.weft", [graph, graph])
    mapped = open_table(tmp_path / "t.weft")
    assert table_checksums(mapped) == table_checksums(memory)
    assert list(table_checksums(mapped, ["x", "cell"])) == ["x", "node_offsets"]
    found = graph_checksums(graph)
    assert list(found) == ["edges", "weight", "x", "y"]
    changed = graph_checksums(replace(graph, graph={"y": np.float64(3.0)}))
    assert [name for name in found if found[name] != changed[name]] == ["y"]


def test_lists_that_are_cut_elsewhere_have_another_checksum():
    whole = np.arange(4)
    none = np.zeros(0, dtype=np.int64)
    one, other = (
        table_from_graphs(
            [
                Graph(num_nodes=1, senders=none, receivers=none, ragged={"list": part})
                for part in parts
            ]
        )
        for parts in ((whole[:1], whole[1:]), (whole[:2], whole[2:]))
    )
    assert table_checksums(one)["list"] == table_checksums(other)["list"]
    assert table_checksums(one) != table_checksums(other)
    assert set(table_checksums(one, ["list"])) == {"list", "node_offsets"}
