"""Graphs made up from a seed: R-MAT, planted partitions, temporal streams, small molecules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph
from weft.sources.edge_lists import EdgeList, both_directions, index_dtype

# Share of edge ends in a temporal stream that repeat an earlier one.
_REPEATS = 0.8
# Small enough that a block's scratch arrays stay in the cache.
_BLOCK_EDGES = 2**18
# Edges that R-MAT draws for each that it keeps, at most.
_TRIES = 100


def rmat(
    num_nodes: int,
    num_edges: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    seed: int = 0,
    undirected: bool = False,
) -> Graph:
    """A graph with skewed degrees by recursive quadrants (R-MAT); the defaults are Graph500's.

    Each edge falls, level by level, into a quadrant of the adjacency matrix: top left with
    probability `a`, top right `b`, bottom left `c`, bottom right 1 - a - b - c. Nodes are shuffled
    afterwards, so that a number says nothing about a degree. Beside its result this needs a few MB.

    Args:
        num_nodes: n, any number from 1.
        num_edges: edges drawn. A directed graph has exactly these, repeats and self-loops among
            them; an undirected one has both directions of each that is left without those.
        a: probability of (low half, low half).
        b: probability of (low half, high half).
        c: probability of (high half, low half).
        seed: the same seed gives the same graph.
        undirected: make it an undirected simple graph (sorts: needs some 40 bytes an edge).
    """
    _at_least("num_nodes", num_nodes, 1)
    _at_least("num_edges", num_edges, 0)
    if min(a, b, c) < 0 or a + b + c > 1 or a == 0:
        raise DataError(
            f"a = {a}, b = {b}, c = {c} are not probabilities of quadrants: a must be positive, "
            "none negative and their sum at most 1"
        )
    rng = np.random.default_rng(seed)
    dtype = index_dtype(num_nodes)
    names = rng.permutation(num_nodes).astype(dtype)
    ends = np.empty((2, num_edges), dtype=dtype)
    done = 0
    blocks_left = _TRIES * (1 + num_edges // _BLOCK_EDGES)
    while done < num_edges:
        if blocks_left == 0:
            raise DataError(
                f"a = {a}, b = {b}, c = {c} put less than one edge in {_TRIES} among {num_nodes} "
                "nodes; choose a larger a, or a power of two nodes"
            )
        blocks_left -= 1
        block = _rmat_block(num_nodes, a, b, c, rng)[:, : num_edges - done]
        ends[:, done : done + block.shape[1]] = names[block]
        done += block.shape[1]
    senders, receivers = ends
    if undirected:
        senders, receivers = both_directions(senders, receivers, num_nodes)
    return Graph(num_nodes=num_nodes, senders=senders, receivers=receivers)


def _rmat_block(num_nodes: int, a: float, b: float, c: float, rng: np.random.Generator) -> Array:
    """Edges [2, k], k <= _BLOCK_EDGES: those that fall inside the first num_nodes of 2^levels."""
    ends = np.zeros((2, _BLOCK_EDGES), dtype=index_dtype(num_nodes))
    for _ in range((num_nodes - 1).bit_length()):
        draw = rng.random(_BLOCK_EDGES, dtype=np.float32)
        low = draw < np.float32(a + b)
        right = (draw >= np.float32(a)) & low
        right |= draw >= np.float32(a + b + c)
        ends <<= 1
        ends[0] |= ~low
        ends[1] |= right
    inside: Array = ends[:, (ends < num_nodes).all(axis=0)]
    return inside


def planted_partition(
    num_nodes: int,
    num_classes: int,
    mean_degree: float,
    homophily: float,
    num_features: int,
    seed: int = 0,
) -> Graph:
    """An undirected graph whose classes show in its features and in who links to whom.

    Node columns: `x` float32 [n, f], noise of variance 1 around a centre for each class, two
    apart, so that features alone leave errors that neighbours help to mend; `y` int64 [n], classes
    of equal size; masks `train`, `validation`, `test` of 60, 20 and 20 % of the nodes.

    Args:
        num_nodes: n.
        num_classes: classes, each with at least 2 nodes.
        mean_degree: neighbours of a node on average, a little less for the repeats that fall out.
        homophily: probability that an edge stays inside its class, 0 to 1.
        num_features: f.
        seed: the same seed gives the same graph. Give `share_split` another one: with the same it
            would split these nodes by their classes.
    """
    _at_least("num_classes", num_classes, 1)
    _at_least("num_nodes", num_nodes, 2 * num_classes)
    _at_least("num_features", num_features, 1)
    if not 0 <= homophily <= 1:
        raise DataError(f"homophily is {homophily}; it is a probability, 0 to 1")
    if num_classes == 1 and homophily < 1:
        raise DataError("with a single class every edge is inside it: homophily must be 1")
    if not 0 <= mean_degree < num_nodes:
        raise DataError(f"mean_degree is {mean_degree}; it must be from 0 to below {num_nodes}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_nodes)
    # Places: the nodes in order of class. Class k has the places starts[k]:starts[k + 1].
    starts = np.arange(num_classes + 1) * num_nodes // num_classes
    class_of_place = np.repeat(np.arange(num_classes), np.diff(starts))
    num_edges = round(num_nodes * mean_degree / 2)
    place = rng.integers(num_nodes, size=num_edges)
    label = class_of_place[place]
    first, size = starts[label], np.diff(starts)[label]
    inside = rng.random(num_edges) < homophily
    # A step of 1 to size - 1 around the class never returns to the node itself.
    step = rng.integers(1, np.where(inside, size, 2))
    other_class = rng.integers(np.where(inside, 1, num_nodes - size))
    partner = np.where(
        inside,
        first + (place - first + step) % size,
        np.where(other_class < first, other_class, other_class + size),
    )
    senders, receivers = both_directions(order[place], order[partner], num_nodes)
    y = np.empty(num_nodes, dtype=np.int64)
    y[order] = class_of_place
    # Two centres are sqrt(2 f) scale = 2 apart on average.
    scale = np.float32(np.sqrt(2 / num_features))
    centres = rng.standard_normal((num_classes, num_features), dtype=np.float32) * scale
    x = rng.standard_normal((num_nodes, num_features), dtype=np.float32)
    x += centres[y]
    part = rng.permutation(num_nodes) / num_nodes
    masks = {"train": part < 0.6, "validation": (part >= 0.6) & (part < 0.8), "test": part >= 0.8}
    return Graph(
        num_nodes=num_nodes, senders=senders, receivers=receivers, nodes={"x": x, "y": y, **masks}
    )


def temporal(num_nodes: int, num_edges: int, seed: int = 0) -> EdgeList:
    """A stream of events in which the active stay active, at increasing times (float64, from 0).

    Four in five edge ends repeat the end of an earlier edge (preferential attachment), the others
    are any node. Times have exponential gaps of mean 1. No self-loops; pairs do repeat.

    Args:
        num_nodes: n, at least 2.
        num_edges: e, any number.
        seed: the same seed makes the same stream.
    """
    _at_least("num_nodes", num_nodes, 2)
    _at_least("num_edges", num_edges, 0)
    rng = np.random.default_rng(seed)
    dtype = index_dtype(num_nodes)
    senders, receivers = (_busy_ends(num_nodes, num_edges, rng).astype(dtype) for _ in range(2))
    step = rng.integers(1, num_nodes, size=num_edges, dtype=dtype)
    same = senders == receivers
    receivers[same] = (receivers[same] + step[same].astype(np.int64)) % num_nodes
    return EdgeList(
        senders=senders,
        receivers=receivers,
        time=np.cumsum(rng.exponential(size=num_edges)),
        ids=np.arange(num_nodes),
    )


def _busy_ends(num_nodes: int, num_edges: int, rng: np.random.Generator) -> Array:
    fresh = rng.integers(num_nodes, size=num_edges)
    number = np.arange(num_edges)
    earlier = (rng.random(num_edges) * number).astype(np.int64)
    source = np.where(rng.random(num_edges) < _REPEATS, earlier, number)
    # Copies of copies: jumping twice as far each round, all arrive after log2(depth) rounds.
    while True:
        further = source[source]
        if (further == source).all():
            return fresh[source]
        source = further


_ELEMENTS = np.array([1, 6, 7, 8], dtype=np.uint8)
_ELEMENT_SHARES = np.array([0.5, 0.35, 0.06, 0.09])
_ELEMENT_ENERGIES = np.array([-0.5, -1.5, -1.0, -2.0])
_BOND_LENGTH = 1.5


def small_graphs(count: int, seed: int = 0) -> Iterator[Graph]:
    """Connected graphs of the size and sparsity of small molecules, 3 to 29 nodes, for trying out.

    Chains with branches and a few rings. Node columns `z` uint8 [n] (atomic numbers) and `pos`
    float32 [n, 3] (Å); edge column `distance` float32 [e]; graph column `energy` float32 [], a sum
    over atoms and bonds that a model can learn. Each bond is there in both directions.

    Args:
        count: how many.
        seed: the same seed makes the same graphs.
    """
    _at_least("count", count, 0)
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n = int(rng.integers(3, 30))
        kind = rng.choice(len(_ELEMENTS), size=n, p=_ELEMENT_SHARES)
        child = np.arange(1, n)
        parent = np.maximum(0, child - rng.geometric(0.6, size=n - 1))
        rings = rng.integers(n, size=(2, n // 6))
        senders, receivers = both_directions(
            np.concatenate([child, rings[0]]), np.concatenate([parent, rings[1]]), n
        )
        steps = rng.standard_normal((n, 3))
        steps *= _BOND_LENGTH / np.linalg.norm(steps, axis=1, keepdims=True)
        position = np.zeros((n, 3))
        for node in range(1, n):
            position[node] = position[parent[node - 1]] + steps[node]
        distance = np.linalg.norm(position[senders] - position[receivers], axis=1)
        energy = _ELEMENT_ENERGIES[kind].sum() - np.exp(-distance).sum()
        yield Graph(
            num_nodes=n,
            senders=senders,
            receivers=receivers,
            nodes={"z": _ELEMENTS[kind], "pos": position.astype(np.float32)},
            edges={"distance": distance.astype(np.float32)},
            graph={"energy": np.array(energy, dtype=np.float32)},
        )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise DataError(f"{name} is {value}; it must be at least {least}")
