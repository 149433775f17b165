"""weft: batches gathered from a table on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import weft
from weft.graphs import Array, Budget, GraphTable, assemble, open_table


def _slices(order: Array, size: int) -> Iterator[Array]:
    for first in range(0, len(order) - size + 1, size):
        yield order[first : first + size]


def _greedy(table: GraphTable, order: Array, budget: Budget) -> Iterator[Array]:
    """Consecutive graphs of `order` as long as they fit: the rule of dynamic batching."""
    nodes, edges = np.cumsum(table.num_nodes[order]), np.cumsum(table.num_edges[order])
    first, node_base, edge_base = 0, 0, 0
    while first < len(order):
        stop = min(
            int(np.searchsorted(nodes, node_base + budget.nodes - 1, side="right")),
            int(np.searchsorted(edges, edge_base + budget.edges, side="right")),
            first + budget.graphs - 1,
        )
        yield order[first:stop]
        first, node_base, edge_base = stop, int(nodes[stop - 1]), int(edges[stop - 1])


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One batch a step; case["budget"] pads it, otherwise case["size"] graphs unpadded."""
    table = open_table(case["table"])
    rng = np.random.default_rng(0)
    budget = Budget(**case["budget"]) if case["budget"] else None

    def batches() -> Iterator[Array]:
        while True:
            order = rng.permutation(len(table))
            yield from _greedy(table, order, budget) if budget else _slices(order, case["size"])

    source = batches()

    def step() -> None:
        assemble(table, next(source), budget)

    return step, {"weft": weft.__version__, "torch": torch.__version__}
