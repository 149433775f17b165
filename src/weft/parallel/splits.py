"""Which nodes to train on: splits for graphs that come without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable

PARTS = ("train", "validation", "test")
"""The masks of a split."""


def class_split(
    y: Array, *, train: int = 20, validation: int = 30, seed: int = 0
) -> dict[str, Array]:
    """Masks of Shchur et al. (2018): equally many nodes of each class, all others for the test.

    Args:
        y: int [n], classes; nodes with y < 0 have none and are in no mask.
        train: training nodes of each class.
        validation: validation nodes of each class.
        seed: the same seed gives the same split.

    Raises:
        DataError: a class has too few nodes.
    """
    order = np.random.default_rng(seed).permutation(np.flatnonzero(y >= 0))
    part = np.full(len(y), -1)
    part[order] = PARTS.index("test")
    for label in np.unique(y[order]):
        members = order[y[order] == label]
        if len(members) < train + validation:
            raise DataError(
                f"class {label} has {len(members)} nodes, too few for {train} to train on and "
                f"{validation} to validate with; take fewer, or share_split"
            )
        part[members[:train]] = PARTS.index("train")
        part[members[train : train + validation]] = PARTS.index("validation")
    return {name: part == i for i, name in enumerate(PARTS)}


def share_split(
    y: Array, *, shares: tuple[float, float, float] = (0.6, 0.2, 0.2), seed: int = 0
) -> dict[str, Array]:
    """Masks of random shares of the nodes that have a class, regardless of the class.

    Args:
        y: int [n], classes; nodes with y < 0 have none and are in no mask.
        shares: for training, validation and test; 1 in all, or less to leave nodes out.
        seed: the same seed gives the same split.
    """
    if len(shares) != len(PARTS) or min(shares) < 0 or sum(shares) > 1 + 1e-9:
        raise ValueError(
            f"shares are {', '.join(f'{share:g}' for share in shares)}; three are needed, for "
            f"{', '.join(PARTS)}, none negative and their sum at most 1"
        )
    order = np.random.default_rng(seed).permutation(np.flatnonzero(y >= 0))
    stops = np.round(np.cumsum(shares) * len(order)).astype(np.int64)
    part = np.full(len(y), -1)
    for i, chosen in enumerate(np.split(order, stops)[: len(PARTS)]):
        part[chosen] = i
    return {name: part == i for i, name in enumerate(PARTS)}


def with_split(source: Graph | GraphTable, masks: Mapping[str, Array] | None = None) -> Graph:
    """The graph with these masks, or those of `class_split` if it has none of its own."""
    graph = one_graph(source)
    if masks is None:
        if all(name in graph.nodes for name in PARTS):
            return graph
        if "y" not in graph.nodes:
            raise DataError("the graph has no node column 'y', the classes, to split by")
        masks = class_split(graph.nodes["y"])
    return replace(graph, nodes={**graph.nodes, **masks})


def check_apart(
    masks: Mapping[str, Array],
    *,
    files: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Raise DataError where a node is in two parts of a split.

    Args:
        masks: bool [n] of each part.
        files: the file of each part, for the message.
        names: what the nodes are called; numbers by default.
    """
    for second, later in enumerate(PARTS):
        for earlier in PARTS[:second]:
            both = masks[earlier] & masks[later]
            if both.any():
                node = int(np.argmax(both))
                called = node if names is None else repr(names[node])
                first, other = ((files or {}).get(part, f"'{part}'") for part in (earlier, later))
                raise DataError(
                    f"node {called} is in {first} and in {other} ({int(both.sum())} such nodes); "
                    "the parts of a split have no node in common"
                )


def one_graph(source: Graph | GraphTable) -> Graph:
    """The graph itself, or the only graph of a table."""
    if isinstance(source, Graph):
        return source
    if len(source) != 1:
        raise DataError(
            f"the table{f' {source.path}' if source.path else ''} holds {len(source)} graphs; "
            "training on a full graph takes a table with one"
        )
    return source[0]
