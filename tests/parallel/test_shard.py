import json
import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

from weft.errors import DataError
from weft.graphs import (
    Graph,
    gcn_weights,
    open_table,
    row_weights,
    table_from_graphs,
    write_table,
)
from weft.parallel import shard as shards
from weft.parallel.grid import grid_of
from weft.parallel.partition import PARTITIONS
from weft.parallel.prepare import prepare
from weft.parallel.shard import fingerprint_of, read_blocks, read_nodes, row_offsets
from weft.parallel.splits import PARTS

quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
PLAIN = {"none": lambda graph: graph, "symmetric": gcn_weights, "row": row_weights}


def make_graph(num_nodes, senders, receivers, weights=None, dtype=np.float32):
    y = np.arange(num_nodes) % 3
    return Graph(
        num_nodes=num_nodes,
        senders=senders,
        receivers=receivers,
        nodes={
            "x": np.arange(4 * num_nodes, dtype=dtype).reshape(num_nodes, 4),
            "y": y,
            **{name: np.arange(num_nodes) % 4 == i for i, name in enumerate(PARTS)},
        },
        edges={} if weights is None else {"weight": weights},
    )


@st.composite
def graphs(draw):
    """Directed or both ways, weighted or not, with repeated edges, self-loops and empty rows."""
    n = draw(st.integers(1, 12))
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    pairs = draw(st.lists(ends, max_size=40))
    if draw(st.booleans()):
        pairs += [(b, a) for a, b in pairs]
    index = draw(st.sampled_from([np.int32, np.int64, np.uint8]))
    senders, receivers = np.array(pairs, dtype=index).reshape(-1, 2).T
    kind = draw(st.sampled_from([None, np.float32, np.float64, np.int16]))
    weights = None
    if kind is not None:
        small = st.integers(0, 5)
        weights = np.array(
            draw(st.lists(small, min_size=len(pairs), max_size=len(pairs))), dtype=kind
        )
    return make_graph(n, senders, receivers, weights)


def cuts(draw, n):
    """Uneven ascending ranges in 0:n, some empty, some columns in none."""
    ends = sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=10)))
    ranges = list(pairwise(ends))
    return [part for part in ranges if draw(st.booleans())] or ranges


def matrix_of(graph):
    """The dense matrix [receiver, sender] of a graph, repeated edges added up."""
    weights = graph.edges.get("weight", np.ones(graph.num_edges))
    ends = graph.receivers.astype(np.int64), graph.senders.astype(np.int64)
    shape = (graph.num_nodes, graph.num_nodes)
    return coo_array((weights.astype(np.float64), ends), shape=shape).toarray()


def dense(block):
    parts = block.weights.numpy(), block.columns.numpy(), block.offsets.numpy()
    return csr_array(parts, shape=(len(block.offsets) - 1, block.num_columns)).toarray()


@given(st.data(), graphs(), st.sampled_from(sorted(PLAIN)), st.sampled_from(PARTITIONS))
@quick
def test_blocks_are_cuts_of_the_plain_matrix(data, graph, normalisation, partition):
    blocks = data.draw(st.integers(1, graph.num_nodes))
    table = prepare(graph, blocks=blocks, partition=partition, normalisation=normalisation)
    order = table.columns["id"]
    matrix = matrix_of(PLAIN[normalisation](graph))[np.ix_(order, order)]
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, graph.num_nodes)] * 2)))
    ranges = cuts(data.draw, graph.num_nodes)
    symmetric = table.metadata["symmetric_values"]
    if symmetric:
        assert (matrix == matrix.T).all()
    for transposed in (False, True):
        whole = matrix.T if transposed else matrix
        found = read_blocks(table, first, stop, ranges, transposed=transposed, dtype=torch.float64)
        assert len(found) == len(ranges)
        for block, (low, high) in zip(found, ranges, strict=True):
            assert block.offsets.dtype == torch.int64
            assert block.columns.dtype == torch.int32
            assert (len(block.offsets) - 1, block.num_columns) == (stop - first, high - low)
            assert len(block.columns) == int(block.offsets[-1])
            np.testing.assert_allclose(dense(block), whole[first:stop, low:high], rtol=1e-6)
            for begin, end in zip(block.offsets[:-1], block.offsets[1:], strict=True):
                assert (block.columns[begin:end].diff() >= 0).all()


@given(graphs(), st.sampled_from(PARTITIONS))
@quick
def test_a_prepared_table_is_a_table(graph, partition):
    table = prepare(graph, blocks=1, partition=partition, normalisation="none")
    order = table.columns["id"]
    place = np.argsort(order)
    ends = {name: place[getattr(graph, name).astype(np.int64)] for name in ("senders", "receivers")}
    weights = graph.edges.get("weight", np.ones(graph.num_edges)).astype(np.float32)
    plain = table_from_graphs([Graph(num_nodes=graph.num_nodes, **ends, edges={"weight": weights})])
    for name, values in plain.columns.items():
        assert table.columns[name].dtype == values.dtype
        assert table.columns[name].tolist() == values.tolist(), name
    for name in ("x", "y", *PARTS):
        assert (table.columns[name] == graph.nodes[name][order]).all()


@given(graphs())
@quick
def test_gcn_weights_to_the_last_bit(graph):
    graph = replace(graph, edges={})
    table = prepare(graph, blocks=1)
    plain = table_from_graphs([gcn_weights(replace(graph, nodes={}))])
    for name in ("senders", "receivers", "weight"):
        assert (table.columns[name] == plain.columns[name]).all()


def path_graph(n=9, **options):
    return make_graph(n, np.arange(n - 1), np.arange(1, n), **options)


def both_ways(n=9, weights=None):
    senders, receivers = np.arange(n - 1), np.arange(1, n)
    return make_graph(n, np.append(senders, receivers), np.append(receivers, senders), weights)


def test_symmetric_values():
    one_way = np.arange(1.0, 9)
    assert prepare(both_ways(), blocks=1).metadata["symmetric_values"]
    same = both_ways(weights=np.append(one_way, one_way))
    other = both_ways(weights=np.append(one_way, one_way[::-1]))
    assert prepare(same, blocks=1).metadata["symmetric_values"]
    assert not prepare(other, blocks=1).metadata["symmetric_values"]
    assert not prepare(path_graph(), blocks=1).metadata["symmetric_values"]
    row = prepare(both_ways(), blocks=1, normalisation="row")
    assert not row.metadata["symmetric_values"]
    assert {"out_receivers", "out_weight"} <= set(row.schema)
    # Twice each edge: the matrix is still its own transpose.
    twice = replace(both_ways(), senders=np.tile(both_ways().senders, 2))
    twice = replace(twice, receivers=np.tile(both_ways().receivers, 2))
    assert prepare(twice, blocks=1).metadata["symmetric_values"]


def test_metadata_of_a_mapped_table(tmp_path):
    stages = []
    table = prepare(
        path_graph(), tmp_path / "graph", blocks=3, partition="random", seed=5,
        normalisation="none", progress=stages.append,
    )  # fmt: skip
    about = dict(table.metadata)
    assert about["kind"] == "full graph"
    assert about["normalisation"] == "none"
    assert about["classes"] == 3
    assert about["counts"] == {"train": 3, "validation": 2, "test": 2}
    partition = about["partition"]
    assert (partition["how"], partition["blocks"], partition["seed"]) == ("random", 3, 5)
    assert partition["offsets"] == [0, 3, 6, 9]
    assert partition["imbalance_nodes"] == 1
    block = np.argsort(table.columns["id"]) // 3
    assert partition["cut_edges"] == np.count_nonzero(np.diff(block))
    assert partition["imbalance_edges"] == np.bincount(block[1:]).max() / (8 / 3)
    assert any("sorting" in stage for stage in stages)
    assert "writing" in stages[-1]
    assert table.path == tmp_path / "graph"


def test_mapped_and_in_memory_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_CHUNK_EDGES", 7)
    monkeypatch.setattr(shards, "_CHUNK_BYTES", 64)
    rng = np.random.default_rng(0)
    graph = make_graph(50, *rng.integers(0, 50, (2, 400)), rng.random(400), np.float64)
    memory = prepare(graph, blocks=3, partition="random")
    mapped = prepare(
        write_table(tmp_path / "given", [graph]), tmp_path / "a", blocks=3, partition="random"
    )
    assert memory.metadata == mapped.metadata
    assert fingerprint_of(mapped) == fingerprint_of(memory) == mapped.metadata["fingerprint"]
    for transposed in (False, True):
        options = {"ranges": [(0, 9), (9, 10), (30, 50)], "transposed": transposed}
        for a, b in zip(
            read_blocks(memory, 5, 44, **options), read_blocks(mapped, 5, 44, **options),
            strict=True,
        ):  # fmt: skip
            assert a.offsets.tolist() == b.offsets.tolist()
            assert a.columns.tolist() == b.columns.tolist()
            assert a.weights.tolist() == b.weights.tolist()
            assert a.weights.dtype == torch.float32
            assert a.num_bytes == b.num_bytes == 8 * 40 + 8 * len(a.columns)
    x = read_nodes(mapped, "x", 7, 49, slice(1, 3))
    assert x.dtype == torch.float64
    assert x.is_contiguous()
    assert x.tolist() == memory.columns["x"][7:49, 1:3].tolist()
    assert read_nodes(mapped, "y", 3, 3).shape == (0,)
    assert read_nodes(mapped, "id", 0, 50).tolist() == memory.columns["id"].tolist()


def test_row_offsets():
    table = prepare(path_graph(), blocks=2)
    assert row_offsets(table, grid_of("1d", 2)).tolist() == [0, 4, 9]
    assert row_offsets(table, grid_of("1d", 4)).tolist() == [0, 2, 4, 6, 9]
    with pytest.raises(ValueError, match="9 nodes cannot be cut into the 10 blocks"):
        row_offsets(table, grid_of("1d", 10))
    metis = prepare(path_graph(), blocks=2, partition="metis")
    own = metis.metadata["partition"]["offsets"]
    assert row_offsets(metis, grid_of("1d", 2)).tolist() == own
    with pytest.raises(ValueError, match=r"metis has 2 blocks.*prepare the graph again with 4"):
        row_offsets(metis, grid_of("1d", 4))


def test_fingerprint_tells_contents_and_settings():
    graph = path_graph()
    prints = [fingerprint_of(prepare(graph, blocks=2)) for _ in range(2)]
    assert prints[0] == prints[1]
    x = graph.nodes["x"].copy()
    x[4, 2] += 1
    changed = replace(graph, nodes={**graph.nodes, "x": x})
    prints.append(fingerprint_of(prepare(changed, blocks=2)))
    prints.append(fingerprint_of(prepare(graph, blocks=3)))
    prints.append(fingerprint_of(prepare(graph, blocks=2, normalisation="row")))
    assert len(set(prints)) == 4


def test_a_table_that_was_replaced_has_another_fingerprint(tmp_path):
    first = fingerprint_of(prepare(path_graph(), tmp_path / "a", blocks=2))
    (tmp_path / "a").rename(tmp_path / "old")
    prepare(both_ways(), tmp_path / "a", blocks=2)
    again = open_table(tmp_path / "a")
    assert fingerprint_of(again) == again.metadata["fingerprint"] != first
    # Whoever changes a column by hand, and its checksums with it, is found out too.
    file, manifest = tmp_path / "old" / "x.npy", tmp_path / "old" / "table.json"
    x = np.load(file)
    x[0] += 1
    np.save(file, x)
    whole = json.loads(manifest.read_text())
    whole["arrays"]["x"]["crc32"] = zlib.crc32(x.reshape(-1).view(np.uint8))
    body = {key: whole[key] for key in ("columns", "arrays", "metadata")}
    whole["crc32"] = zlib.crc32(json.dumps(body).encode())
    manifest.write_text(json.dumps(whole))
    changed = open_table(tmp_path / "old")
    assert changed.metadata["fingerprint"] == first
    assert fingerprint_of(changed) != first
    manifest.unlink()
    with pytest.raises(DataError, match=r"table\.json changed since"):
        fingerprint_of(changed)


@pytest.mark.parametrize("value", [-1, 9, 2**30])
def test_a_damaged_column_is_refused(tmp_path, value):
    prepare(both_ways(), tmp_path / "a", blocks=2)
    file = tmp_path / "a" / "senders.npy"
    senders = np.load(file)
    senders[3] = value
    np.save(file, senders)
    with pytest.raises(DataError, match="checksum"):
        open_table(tmp_path / "a")
    table = open_table(tmp_path / "a", check=False)
    with pytest.raises(DataError, match=r"senders\.npy is damaged"):
        read_blocks(table, 0, 9, [(0, 9)], transposed=False)
    starts = np.load(tmp_path / "a" / "in_start.npy")
    starts[4] = -1
    np.save(tmp_path / "a" / "in_start.npy", starts)
    table = open_table(tmp_path / "a", check=False)
    with pytest.raises(DataError, match=r"in_start\.npy is damaged"):
        read_blocks(table, 0, 9, [(0, 9)], transposed=False)


def test_not_a_prepared_table():
    table = table_from_graphs([path_graph()])
    with pytest.raises(DataError, match=r"make one with weft\.parallel\.prepare"):
        read_blocks(table, 0, 9, [(0, 9)], transposed=False)
    with pytest.raises(DataError, match="prepared"):
        row_offsets(table, grid_of("1d", 2))
    with pytest.raises(ValueError, match="nodes 3 to 10 of a graph with 9"):
        read_nodes(prepare(path_graph(), blocks=1), "x", 3, 10)


def without(name):
    graph = path_graph()
    return replace(graph, nodes={k: v for k, v in graph.nodes.items() if k != name})


def with_nodes(**columns):
    graph = path_graph()
    return replace(graph, nodes={**graph.nodes, **columns})


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (without("x"), "no node column 'x'; it has y"),
        (without("y"), "no node column 'y'"),
        (without("validation"), r"no node column 'validation'.*class_split or share_split"),
        (with_nodes(x=np.ones(9)), r"'x' is float64\[9\]"),
        (with_nodes(y=np.ones(9)), "'y' is float64 and holds whole numbers only: pass --target"),
        (with_nodes(test=np.ones(9, np.int8)), r"'test' is int8\[9\]; a mask"),
        (with_nodes(y=np.full(9, -1)), "node 0 is in 'train' but has no class"),
        (with_nodes(test=np.ones(9, bool)), "is in 'train' and in 'test'"),
        (with_nodes(y=np.arange(9) + 1), "the target of node 8 is 9; .* that have one .9.,"),
        (with_nodes(x=np.array([[1.0, 2]] * 8 + [[1, np.nan]])), "'x' is nan in row 8"),
        (path_graph(weights=np.array([1.0] * 7 + [np.inf])), "'weight' is inf in row 7"),
        (path_graph(weights=np.ones((8, 2))), r"'weight' is float64\[8, 2\]"),
        (path_graph(weights=np.full(8, -2.0)), "node 1 sum to -1; .*use 'row' or 'none'"),
        (make_graph(3, [0], [3]), "out of range for 3 nodes"),
    ],
)
def test_bad_graphs(graph, message):
    with pytest.raises(DataError, match=message):
        prepare(graph, blocks=2)


def test_bad_options(tmp_path):
    graph = path_graph()
    with pytest.raises(ValueError, match="'gcn'; choose from symmetric, row, none"):
        prepare(graph, blocks=2, normalisation="gcn")
    with pytest.raises(ValueError, match="'spectral'; choose from contiguous"):
        prepare(graph, blocks=2, partition="spectral")
    with pytest.raises(ValueError, match="9 nodes cannot be cut into 10 blocks"):
        prepare(graph, blocks=10)
    with pytest.raises(DataError, match="holds 2 graphs"):
        prepare(table_from_graphs([graph, graph]), blocks=1)
    with pytest.raises(DataError, match="exists already"):
        prepare(graph, tmp_path, blocks=1)


def test_classes_and_nodes_without_one():
    y = np.array([0, 1, 6, -100, 2, 3, 1, -1, 0])
    table = prepare(with_nodes(y=y, test=np.zeros(9, bool), train=y == 1, validation=y == 6),
                    blocks=2)  # fmt: skip
    assert table.metadata["classes"] == 7
    assert table.columns["y"].tolist() == np.maximum(y, -1).tolist()
    assert table.metadata["counts"] == {"train": 2, "validation": 1, "test": 0}
