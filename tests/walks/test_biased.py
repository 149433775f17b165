"""Uniform and node2vec walks against the definition in plain Python."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from reference_walks import counted, node2vec_walk, p_of_same_distribution

from weft.graphs import Graph, table_from_graphs
from weft.sources import rmat
from weft.walks import node2vec_walks, uniform_walks

# A triangle with a tail, a one-way street to a dead end, parallel edges and a loop.
PAIRS = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (3, 5)]
EDGES = [*PAIRS, *((b, a) for a, b in PAIRS), (0, 6), (1, 1), (4, 3), (0, 2)]
GRAPH = Graph(num_nodes=7, senders=[a for a, _ in EDGES], receivers=[b for _, b in EDGES])
MANY = 6000


@pytest.mark.parametrize("start", range(7))
def test_uniform_walks(start: int) -> None:
    walks = uniform_walks(GRAPH, walks=MANY, length=4, seed=5)[start * MANY : (start + 1) * MANY]
    rng = random.Random(start)
    drawn = (node2vec_walk(EDGES, start, 4, 1, 1, rng) for _ in range(MANY))
    assert p_of_same_distribution(counted(walks), drawn) > 1e-3


@pytest.mark.parametrize(
    ("p", "q"),
    [(1, 1), (0.25, 4), (4, 0.25), (1e-3, 1), (1, 1e3), (1e3, 1e3), (1e4, 1e-4)],
)
@pytest.mark.parametrize("start", [0, 3, 4])
def test_node2vec_walks(start: int, p: float, q: float) -> None:
    walks = node2vec_walks(GRAPH, p=p, q=q, walks=MANY, length=4, seed=9)
    walks = walks[start * MANY : (start + 1) * MANY]
    rng = random.Random(start)
    drawn = (node2vec_walk(EDGES, start, 4, p, q, rng) for _ in range(MANY))
    assert p_of_same_distribution(counted(walks), drawn) > 1e-3


def test_any_number_of_threads_gives_the_same() -> None:
    graph = rmat(num_nodes=3000, num_edges=20_000, seed=0)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([uniform_walks(graph, seed=1), node2vec_walks(graph, p=0.5, q=2, seed=1)])
    finally:
        torch.set_num_threads(before)
    for uniform, biased in found[1:]:
        assert np.array_equal(found[0][0], uniform)
        assert np.array_equal(found[0][1], biased)


def test_a_table_is_its_graphs_side_by_side() -> None:
    walks = uniform_walks(table_from_graphs([GRAPH, GRAPH]), walks=3, length=5)
    assert walks.shape == (42, 5)
    there = set(EDGES)
    for walk in walks.tolist():
        shift = 7 * (walk[0] >= 7)
        nodes = [node - shift for node in walk if node >= 0]
        assert all(step in there for step in pairwise(nodes))
        assert len(nodes) == 5 or nodes[-1] == 6


def test_bad_input() -> None:
    for name, value in (("p", 0.0), ("q", -1.0), ("p", float("nan")), ("q", float("inf"))):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be above 0 and finite"):
            node2vec_walks(GRAPH, **{"p": 1.0, "q": 1.0, name: value})
    with pytest.raises(ValueError, match="length is 0"):
        uniform_walks(GRAPH, length=0)
