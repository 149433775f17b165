import zlib
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from weft.errors import DataError
from weft.graphs import assemble, table_from_graphs
from weft.sources.edge_lists import edge_list_graph
from weft.sources.synthetic import planted_partition, rmat, small_graphs, temporal


def checksum(*arrays) -> int:
    """Of integers only: the last bit of a float may differ between machines."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array, dtype="<i8").tobytes(), total)
    return total


def same(one, other) -> bool:
    return (
        np.array_equal(one.senders, other.senders)
        and np.array_equal(one.receivers, other.receivers)
        and all(np.array_equal(one.nodes[k], other.nodes[k]) for k in one.nodes)
    )


def test_golden_checksums():
    directed = rmat(1000, 5000, seed=7)
    undirected = rmat(1000, 5000, seed=7, undirected=True)
    planted = planted_partition(600, 3, 8.0, 0.8, 4, seed=7)
    stream = temporal(100, 5000, seed=7)
    molecules = list(small_graphs(20, seed=7))
    assert {
        "rmat": checksum(directed.senders, directed.receivers),
        "rmat, undirected": checksum(undirected.senders, undirected.receivers),
        "planted": checksum(planted.senders, planted.receivers, planted.nodes["y"]),
        "temporal": checksum(stream.senders, stream.receivers),
        "small": checksum(*(a for g in molecules for a in (g.senders, g.nodes["z"]))),
    } == {
        "rmat": 2734559847,
        "rmat, undirected": 2864393221,
        "planted": 693318006,
        "temporal": 2996835315,
        "small": 2195606523,
    }


def test_another_seed_is_another_graph():
    assert same(rmat(100, 500, seed=1), rmat(100, 500, seed=1))
    assert not same(rmat(100, 500, seed=1), rmat(100, 500, seed=2))
    arguments = (100, 2, 5.0, 0.5, 3)
    assert same(planted_partition(*arguments, seed=1), planted_partition(*arguments, seed=1))
    assert not same(planted_partition(*arguments, seed=1), planted_partition(*arguments, seed=2))


@settings(max_examples=25, deadline=None)
@given(num_nodes=st.integers(1, 70), num_edges=st.integers(0, 300), seed=st.integers(0, 99))
def test_rmat_has_what_was_asked(num_nodes, num_edges, seed):
    graph = rmat(num_nodes, num_edges, seed=seed)
    graph.validate()
    assert (graph.num_nodes, graph.num_edges) == (num_nodes, num_edges)
    assert graph.senders.dtype == np.int32


def test_rmat_over_several_blocks():
    graph = rmat(3000, 600_000, seed=0)
    graph.validate()
    assert graph.num_edges == 600_000
    # Blocks are draws of their own.
    assert not np.array_equal(graph.senders[:200_000], graph.senders[200_000:400_000])


def test_rmat_is_skewed_as_its_quadrants_say():
    graph = rmat(2**14, 400_000, seed=3)
    degrees = np.sort(np.bincount(graph.senders, minlength=2**14))[::-1]
    # A node whose number has k of 14 bits set sends with probability 0.76^(14 - k) 0.24^k: the
    # top 106 nodes are those with two bits or fewer. Evenly spread they would send 0.6 %.
    share = sum(comb(14, k) * 0.76 ** (14 - k) * 0.24**k for k in range(3))
    assert degrees[:106].sum() / 400_000 == pytest.approx(share, rel=0.02)
    assert degrees[0] == pytest.approx(400_000 * 0.76**14, rel=0.05)
    even = rmat(2**14, 400_000, a=0.25, b=0.25, c=0.25, seed=3)
    assert np.bincount(even.senders).max() < 60


def test_rmat_number_says_nothing_about_degree():
    graph = rmat(2**12, 100_000, seed=5)
    degrees = np.bincount(graph.senders, minlength=2**12)
    assert abs(np.corrcoef(np.arange(2**12), degrees)[0, 1]) < 0.05


def test_rmat_undirected_is_simple_and_symmetric():
    graph = rmat(500, 4000, seed=1, undirected=True)
    matrix = coo_array((np.ones(graph.num_edges), (graph.senders, graph.receivers)), (500, 500))
    dense = matrix.toarray()
    assert np.array_equal(dense, dense.T)
    assert dense.max() == 1
    assert not dense.diagonal().any()
    assert 4000 < graph.num_edges <= 8000


def test_planted_partition_degree_homophily_and_columns():
    graph = planted_partition(6000, 5, 12.0, 0.7, 16, seed=2)
    graph.validate()
    y = graph.nodes["y"]
    assert graph.num_edges / graph.num_nodes == pytest.approx(12, rel=0.01)
    assert np.mean(y[graph.senders] == y[graph.receivers]) == pytest.approx(0.7, abs=0.01)
    assert np.bincount(y).tolist() == [1200] * 5
    assert graph.nodes["x"].shape == (6000, 16)
    assert graph.nodes["x"].dtype == np.float32
    masks = [graph.nodes[part] for part in ("train", "validation", "test")]
    assert [int(mask.sum()) for mask in masks] == [3600, 1200, 1200]
    assert np.sum([mask.astype(int) for mask in masks], axis=0).tolist() == [1] * 6000
    assert (graph.senders != graph.receivers).all()


@pytest.mark.parametrize("homophily", [0.0, 1.0])
def test_planted_partition_at_the_ends_of_homophily(homophily):
    graph = planted_partition(30, 4, 6.0, homophily, 2, seed=1)
    y = graph.nodes["y"]
    assert graph.num_edges > 0
    assert np.mean(y[graph.senders] == y[graph.receivers]) == homophily


def test_planted_partition_can_be_learnt_and_better_with_neighbours():
    graph = planted_partition(4000, 4, 10.0, 0.8, 32, seed=0)
    x, y, train = (graph.nodes[name] for name in ("x", "y", "train"))

    def accuracy(features):
        centres = np.stack([features[train & (y == label)].mean(axis=0) for label in range(4)])
        distances = ((features[:, None] - centres) ** 2).sum(axis=2)
        return np.mean(distances.argmin(axis=1)[graph.nodes["test"]] == y[graph.nodes["test"]])

    matrix = coo_array(
        (np.ones(graph.num_edges, np.float32), (graph.receivers, graph.senders)), (4000, 4000)
    )
    alone, together = accuracy(x), accuracy(x + matrix.tocsr() @ x)
    assert 0.5 < alone < 0.9
    assert together > alone + 0.1


def test_temporal_stream_is_busy_and_in_order():
    stream = temporal(2000, 50_000, seed=4)
    graph = edge_list_graph(stream)
    graph.validate()
    assert (stream.num_nodes, stream.num_edges) == (2000, 50_000)
    assert stream.time is not None
    assert stream.time[0] > 0
    assert (np.diff(stream.time) > 0).all()
    assert stream.time[-1] == pytest.approx(50_000, rel=0.05)
    assert (stream.senders != stream.receivers).all()
    events = np.sort(np.bincount(stream.senders, minlength=2000))
    # Evenly spread, a node would send 25 events and hardly one more than 50.
    assert events[-1] > 150
    # The busy of the first half are the busy of the second.
    halves = [np.bincount(half, minlength=2000) for half in np.split(stream.senders, 2)]
    assert np.corrcoef(halves)[0, 1] > 0.5


def test_small_graphs_are_connected_and_of_molecular_size():
    graphs = list(small_graphs(200, seed=1))
    assert len(graphs) == 200
    for graph in graphs:
        graph.validate()
        ends = (graph.senders, graph.receivers)
        matrix = coo_array((np.ones(graph.num_edges), ends), (graph.num_nodes,) * 2)
        assert connected_components(matrix, directed=False)[0] == 1
        assert 3 <= graph.num_nodes <= 29
        pos = graph.nodes["pos"]
        distance = np.linalg.norm(pos[graph.senders] - pos[graph.receivers], axis=1)
        assert graph.edges["distance"] == pytest.approx(distance, abs=1e-5)
    table = table_from_graphs(graphs)
    assert assemble(table, [3, 1, 2]).graphs["energy"].shape == (3,)
    assert set(table.column("z").tolist()) == {1, 6, 7, 8}
    assert table.num_edges.mean() / table.num_nodes.mean() == pytest.approx(2.1, abs=0.2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rmat(0, 5), "num_nodes is 0; it must be at least 1"),
        (lambda: rmat(5, -1), "num_edges is -1"),
        (lambda: rmat(5, 5, a=0.9, b=0.2), r"a = 0\.9, b = 0\.2, c = 0\.19 are not probabilities"),
        (lambda: rmat(5, 5, a=0.0), r"a = 0\.0"),
        (lambda: rmat(5, 10, a=1e-9, b=0, c=0), "less than one edge in 100 among 5 nodes"),
        (lambda: planted_partition(10, 6, 2, 0.5, 1), "num_nodes is 10; it must be at least 12"),
        (lambda: planted_partition(10, 2, 2, 1.5, 1), r"homophily is 1\.5"),
        (lambda: planted_partition(10, 1, 2, 0.5, 1), "homophily must be 1"),
        (lambda: planted_partition(10, 2, 10, 0.5, 1), "mean_degree is 10"),
        (lambda: temporal(1, 5), "num_nodes is 1; it must be at least 2"),
        (lambda: list(small_graphs(-1)), "count is -1"),
    ],
)
def test_wrong_sizes_are_named(call, message):
    with pytest.raises(DataError, match=message):
        call()
