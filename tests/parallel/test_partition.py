import sys
from pathlib import Path

import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import Graph
from weft.parallel.grid import grid_of
from weft.parallel.partition import PARTITIONS, partition_nodes
from weft.parallel.prepare import prepare
from weft.parallel.splits import with_split
from weft.parallel.traffic_formulas import count_graph
from weft.sources import rmat, shchur

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def random_graph(num_nodes, num_edges, seed=0):
    ends = np.random.default_rng(seed).integers(0, num_nodes, (2, num_edges))
    return Graph(num_nodes=num_nodes, senders=ends[0], receivers=ends[1])


def clusters(count, size, seed=0):
    """`count` dense clusters, their nodes mixed, with a directed edge from each to the next."""
    rng = np.random.default_rng(seed)
    cluster = rng.permutation(np.repeat(np.arange(count), size))
    members = [np.flatnonzero(cluster == c) for c in range(count)]
    inside = [own[rng.integers(0, size, (2, 10 * size))] for own in members]
    between = [[[members[c][0]], [members[c - 1][0]]] for c in range(count)]
    senders, receivers = np.concatenate([*inside, *between], axis=1)
    return Graph(num_nodes=count * size, senders=senders, receivers=receivers), cluster


@pytest.mark.parametrize("how", PARTITIONS)
@pytest.mark.parametrize(
    ("nodes", "edges", "blocks"), [(1, 0, 1), (5, 0, 3), (5, 9, 5), (37, 100, 4), (40, 80, 33)]
)
def test_every_node_is_in_one_block(how, nodes, edges, blocks):
    found = partition_nodes(random_graph(nodes, edges), blocks, how)
    assert sorted(found.order.tolist()) == list(range(nodes))
    assert found.order.dtype == found.offsets.dtype == np.int64
    assert found.offsets[0] == 0
    assert found.offsets[-1] == nodes
    sizes = np.diff(found.offsets)
    assert len(sizes) == blocks
    assert (sizes >= 0).all()
    if how not in ("metis", "volume"):
        assert sizes.max() - sizes.min() <= 1


def test_contiguous_keeps_the_order():
    assert partition_nodes(random_graph(7, 9), 3, "contiguous").order.tolist() == list(range(7))


@pytest.mark.parametrize("how", ["random", "metis", "volume", "balanced"])
def test_the_seed_decides(how):
    graph = random_graph(200, 800)
    orders = [partition_nodes(graph, 4, how, seed).order.tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_rcm_brings_a_shuffled_path_into_line():
    names = np.random.default_rng(0).permutation(50)
    graph = Graph(num_nodes=50, senders=names[:-1], receivers=names[1:])
    order = partition_nodes(graph, 2, "rcm").order.tolist()
    assert order in (names.tolist(), names[::-1].tolist())


def test_metis_finds_clusters_in_a_directed_multigraph():
    graph, cluster = clusters(4, 50)
    loops = np.arange(200)
    graph = Graph(
        num_nodes=200,
        senders=np.concatenate([graph.senders, loops]),
        receivers=np.concatenate([graph.receivers, loops]),
    )
    found = partition_nodes(graph, 4, "metis")
    for first, stop in zip(found.offsets[:-1], found.offsets[1:], strict=True):
        block = found.order[first:stop]
        assert len(set(cluster[block])) == 1
        assert (np.diff(block) > 0).all()


@pytest.mark.parametrize("blocks", [0, 6])
def test_more_blocks_than_nodes(blocks):
    with pytest.raises(ValueError, match=rf"5 nodes cannot be cut into {blocks} blocks.*1 to 5"):
        partition_nodes(random_graph(5, 9), blocks, "contiguous")


def test_unknown_way_lists_the_legal_ones():
    with pytest.raises(ValueError, match="'best'; choose from contiguous, random, metis, volume"):
        partition_nodes(random_graph(5, 9), 2, "best")


@pytest.mark.parametrize("how", ["metis", "volume"])
def test_metis_without_its_package(how, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(DataError, match=rf"'{how}' needs pymetis.*weft\[partition\]"):
        partition_nodes(random_graph(5, 9), 2, how)


@pytest.mark.parametrize("how", ["volume", "balanced"])
def test_an_edge_of_a_node_that_is_not_there(how):
    graph = Graph(num_nodes=5, senders=np.array([0, 9]), receivers=np.array([1, 2]))
    with pytest.raises(DataError, match="senders = 9, out of range"):
        partition_nodes(graph, 2, how)


@pytest.mark.parametrize(("blocks", "fewer"), [(4, 5.0), (16, 8.8)])
def test_metis_on_coauthor_physics(blocks, fewer, physics):
    table = prepare(physics, blocks=blocks, partition="metis")
    partition = table.metadata["partition"]
    graph, offsets = table[0], np.array(partition["offsets"])
    counts = count_graph(
        grid_of("1d", blocks), offsets, graph.senders, graph.receivers, graph.nodes["train"]
    )
    wanted = np.array([sizes.forward.wanted for sizes in counts])
    received = wanted.sum() - np.trace(wanted)
    assert physics.num_nodes * (blocks - 1) / received > fewer
    assert partition["imbalance_nodes"] < 1.05
    assert partition["imbalance_edges"] >= 1
    assert 0 < partition["cut_edges"] < physics.num_edges / 2


@pytest.fixture(scope="module")
def physics():
    file = DATA / "amazon_coauthor" / "coauthor-physics.zip"
    if not file.exists():
        pytest.skip("shared data set not here")
    graph = shchur(file)
    # The features are 1.2 GB and do not matter here.
    nodes = {"x": graph.nodes["x"][:, :1].copy(), "y": graph.nodes["y"]}
    return with_split(
        Graph(
            num_nodes=graph.num_nodes,
            senders=graph.senders,
            receivers=graph.receivers,
            nodes=nodes,
        )
    )


def test_a_random_order_does_not_undo_the_shuffling_of_a_generated_graph():
    # The nodes that R-MAT favours come first before it shuffles them.
    graph = rmat(4096, 60_000, seed=0)
    parts = partition_nodes(graph, 4, "random", seed=0)
    degrees = np.bincount(graph.receivers, minlength=4096)[parts.order]
    blocks = degrees.reshape(4, -1).sum(1)
    assert blocks.max() < 1.2 * blocks.mean()
