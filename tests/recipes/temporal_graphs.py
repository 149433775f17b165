"""Small temporal graphs with something to learn in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.graphs import Graph
from weft.sources import EdgeList


def circles(nodes: int = 40, edges: int = 1200, groups: int = 4, seed: int = 0) -> EdgeList:
    """Nodes that mostly write to others of their own group, at random times."""
    rng = np.random.default_rng(seed)
    senders = rng.integers(nodes, size=edges)
    inside = rng.integers(nodes // groups, size=edges) * groups + senders % groups
    receivers = np.where(rng.random(edges) < 0.9, inside, rng.integers(nodes, size=edges))
    return EdgeList(
        senders=senders.astype(np.int32),
        receivers=receivers.astype(np.int32),
        time=rng.permutation(edges).astype(np.float64),
        ids=np.arange(nodes),
    )


def grouped(nodes: int = 120, edges: int = 2000, groups: int = 3) -> Graph:
    """The same as a graph with the groups as classes and noisy features; two nodes have none."""
    found = circles(nodes, edges, groups)
    y = np.arange(nodes) % groups
    rng = np.random.default_rng(1)
    x = (rng.random((nodes, 12)) < 0.2) | (np.arange(12) % groups == y[:, None])
    y[-2:] = -1
    assert found.time is not None
    return Graph(
        num_nodes=nodes,
        senders=found.senders,
        receivers=found.receivers,
        nodes={"x": x.astype(np.float32), "y": y},
        edges={"time": found.time},
    )


def write_edges(edges: EdgeList, path: Path) -> Path:
    """An edge list as text."""
    assert edges.time is not None
    columns = (edges.senders, edges.receivers, edges.time)
    path.write_text("".join(f"{a} {b} {t}\n" for a, b, t in zip(*columns, strict=True)))
    return path
