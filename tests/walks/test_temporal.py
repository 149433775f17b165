"""Temporal walks against the definition in plain Python, and the same on any number of threads."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference_walks import Edge, counted, p_of_same_distribution, temporal_walk

from weft.errors import DataError
from weft.graphs import Array, Graph, table_from_graphs
from weft.sources import EdgeList, read_edge_list
from weft.walks import temporal_walks

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def graph_of(edges: list[Edge], nodes: int) -> Graph:
    columns = np.array(edges, dtype=np.float64).reshape(-1, 3)
    return Graph(
        num_nodes=nodes,
        senders=columns[:, 0].astype(np.int32),
        receivers=columns[:, 1].astype(np.int32),
        edges={"time": columns[:, 2]},
    )


# A node of equal times, parallel edges, a loop, a node that no edge leaves, times in disorder.
EDGES: list[Edge] = [
    (0, 1, 0.3),
    (0, 2, 0.9),
    (0, 2, 0.1),
    (0, 3, 0.1),
    (1, 0, 0.2),
    (1, 2, 0.5),
    (1, 1, 0.4),
    (1, 4, 1.0),
    (2, 0, 0.6),
    (2, 3, 0.6),
    (2, 1, 0.6),
    (3, 0, 0.0),
    (3, 1, 0.7),
    (3, 2, 0.8),
]


@pytest.mark.parametrize("scale", [(1.0, 0.0), (1e9, 1.1e9), (1e-9, 0.0)], ids=["", "unix", "ns"])
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_the_distribution_of_whole_walks(start: int, scale: tuple[float, float]) -> None:
    factor, origin = scale
    graph = graph_of([(a, b, t * factor + origin) for a, b, t in EDGES], 5)
    many = 8_000
    walks = temporal_walks(graph, walks=many, length=5, seed=3)[start * many : (start + 1) * many]
    rng = random.Random(start)
    drawn = (temporal_walk(EDGES, start, 5, rng) for _ in range(many))
    assert p_of_same_distribution(counted(walks), drawn) > 1e-3


def test_first_steps_have_the_exact_probabilities() -> None:
    times = np.array([0.0, 1.0, 2.0, 4.0])
    graph = Graph(num_nodes=5, senders=[0] * 4, receivers=[1, 2, 3, 4], edges={"time": times})
    walks = temporal_walks(graph, walks=200_000, length=2)[:200_000]
    expected = np.exp(times / 4) / np.exp(times / 4).sum()
    found = np.bincount(walks[:, 1], minlength=5)[1:] / len(walks)
    np.testing.assert_allclose(found, expected, atol=5 * np.sqrt(0.25 / len(walks)))


def is_temporal(edges: EdgeList | Graph, time: Array, walks: Array) -> bool:
    """Whether each walk has edges of strictly rising times, and ends only where none is left."""
    later: dict[tuple[int, int], list[float]] = {}
    last: dict[int, float] = {}
    for a, b, t in zip(
        edges.senders.tolist(), edges.receivers.tolist(), time.tolist(), strict=True
    ):
        later.setdefault((a, b), []).append(t)
        last[a] = max(last.get(a, t), t)
    for walk in walks.tolist():
        # All times at which the walk can have come so far; it is one of them.
        reached = {-np.inf}
        for i, (a, b) in enumerate(pairwise(walk)):
            if b < 0:
                possible = a not in last or any(t >= last[a] for t in reached)
                if not possible or any(node >= 0 for node in walk[i + 1 :]):
                    return False
                break
            reached = {t for t in later.get((a, b), []) if t > min(reached)}
            if not reached:
                return False
    return True


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4).map(float)), max_size=30
    ),
    st.integers(0, 2**64 - 1),
)
def test_every_walk_is_one(edges: list[Edge], seed: int) -> None:
    graph = graph_of(edges, 6)
    walks = temporal_walks(graph, walks=3, length=4, seed=seed)
    assert walks.dtype == np.int32
    assert walks[:, 0].tolist() == np.repeat(np.arange(6), 3).tolist()
    assert is_temporal(graph, graph.edges["time"], walks)


def test_any_number_of_threads_gives_the_same() -> None:
    rng = np.random.default_rng(0)
    edges, nodes = 30_000, 2000
    graph = Graph(
        num_nodes=nodes,
        senders=rng.integers(nodes, size=edges),
        receivers=rng.integers(nodes, size=edges),
        edges={"time": rng.random(edges)},
    )
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            found.append(temporal_walks(graph, seed=7))
    finally:
        torch.set_num_threads(before)
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert not np.array_equal(found[0], temporal_walks(graph, seed=8))


def test_fewer_and_shorter_walks_are_the_beginning_of_more() -> None:
    graph = graph_of(EDGES, 5)
    whole = temporal_walks(graph, walks=6, length=5, seed=1).reshape(5, 6, 5)
    part = temporal_walks(graph, walks=2, length=3, seed=1).reshape(5, 2, 3)
    assert np.array_equal(part, whole[:, :2, :3])


def test_lists_graphs_and_tables_walk_alike() -> None:
    graph = graph_of(EDGES, 5)
    edges = EdgeList(
        senders=graph.senders,
        receivers=graph.receivers,
        time=graph.edges["time"],
        ids=np.arange(5),
    )
    assert np.array_equal(temporal_walks(edges, seed=2), temporal_walks(graph, seed=2))
    two = temporal_walks(table_from_graphs([graph, graph]), walks=4, seed=2)
    assert two.shape == (40, 5)
    second = two[20:]
    assert second[second >= 0].min() >= 5
    lists = table_from_graphs([graph])[0]
    assert is_temporal(lists, lists.edges["time"], np.where(second < 0, -1, second - 5))


def test_huge_and_equal_times() -> None:
    big = graph_of([(0, 1, -1e308), (0, 2, 1e308), (1, 2, 5.0), (2, 0, 5.0)], 3)
    walks = temporal_walks(big, walks=50, length=6)
    assert is_temporal(big, big.edges["time"], walks)
    equal = graph_of([(0, 1, 2.0), (1, 0, 2.0)], 2)
    assert temporal_walks(equal, walks=1, length=4).tolist() == [[0, 1, -1, -1], [1, 0, -1, -1]]


def test_nothing_to_walk_on() -> None:
    assert temporal_walks(graph_of([], 3), walks=2, length=2).tolist() == [
        [node, -1] for node in (0, 0, 1, 1, 2, 2)
    ]
    assert temporal_walks(graph_of([], 0)).shape == (0, 5)
    assert temporal_walks(graph_of(EDGES, 5), walks=1, length=1).tolist() == [[i] for i in range(5)]


def test_bad_input() -> None:
    with pytest.raises(DataError, match=r"need the time of each edge.*uniform_walks"):
        temporal_walks(Graph(num_nodes=2, senders=[0], receivers=[1]))
    with pytest.raises(DataError, match="edge 1 has the time nan"):
        temporal_walks(graph_of([(0, 1, 0.0), (1, 0, float("nan"))], 2))
    with pytest.raises(DataError, match="receivers = 7, out of range for 2 nodes"):
        temporal_walks(graph_of([(0, 7, 0.0)], 2))
    with pytest.raises(DataError, match=r"time has shape \[2\]"):
        temporal_walks(Graph(num_nodes=2, senders=[0], receivers=[1], edges={"time": np.zeros(2)}))
    for name, value in (("walks", 0), ("length", 0), ("seed", -1)):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be at least"):
            temporal_walks(graph_of(EDGES, 5), **{name: value})
    with pytest.raises(ValueError, match=r"below 2\*\*64"):
        temporal_walks(graph_of(EDGES, 5), seed=2**64)


def test_messages_of_a_college() -> None:
    path = SHARED / "snap_temporal" / "CollegeMsg.txt.gz"
    if not path.exists():
        pytest.skip("snap_temporal is not here")
    edges = read_edge_list(path)
    assert edges.time is not None
    walks = temporal_walks(edges, walks=3)
    assert is_temporal(edges, edges.time, walks[::5])
    assert 2 < (walks >= 0).sum(axis=1).mean() < 5
