"""Padded sizes: how large a batch of given graphs becomes under each policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.graphs import Array, Budget

# Graphs that the published budgets were estimated from.
_PAPER_SAMPLE = 1000
# Room above the mean of a packed batch: with none the last graphs of a batch rarely fit.
_PACKED_SLACK = 0.005


@dataclass(frozen=True, kw_only=True)
class Averages:
    """Mean and largest sizes of a set of graphs."""

    mean_nodes: float
    max_nodes: int
    mean_edges: float
    max_edges: int

    @classmethod
    def of(cls, num_nodes: Array, num_edges: Array) -> Averages:
        """Those of graphs with int [g] nodes and edges, g > 0."""
        return cls(
            mean_nodes=float(num_nodes.mean()),
            max_nodes=int(num_nodes.max()),
            mean_edges=float(num_edges.mean()),
            max_edges=int(num_edges.max()),
        )


# Of the first 1000 molecules in the order of the authors' published splits, from which the paper
# estimates its four budgets; with these numbers any order of the molecules gives the same budgets.
# (The means of all 130,831 molecules are 18.03 and 315.8, the largest 29 and 812.)
_QM9 = Averages(mean_nodes=17.908, max_nodes=25, mean_edges=311.518, max_edges=600)


def _bumped(size: float) -> int:
    """The multiple of 64 above `size`, also where `size` is one itself."""
    return 64 * (1 + int(size // 64))


def dynamic_budget(averages: Averages, batch_size: int) -> Budget:
    """Room for `batch_size` average graphs, and for the largest."""
    return Budget(
        nodes=_bumped(max(averages.mean_nodes * batch_size, averages.max_nodes)),
        edges=_bumped(max(averages.mean_edges * batch_size, averages.max_edges)),
        graphs=batch_size,
    )


def published_budget(num_nodes: Array, num_edges: Array, batch_size: int, data: str) -> Budget:
    """`dynamic_budget` as in the paper: from the first graphs, or from what it says of `data`."""
    if data == "qm9":
        return dynamic_budget(_QM9, batch_size)
    first = slice(0, _PAPER_SAMPLE)
    return dynamic_budget(Averages.of(num_nodes[first], num_edges[first]), batch_size)


def constant_budget(averages: Averages, batch_size: int) -> Budget:
    """Room for `batch_size` graphs of the largest size."""
    return Budget(
        nodes=_bumped(averages.max_nodes * batch_size),
        edges=_bumped(averages.max_edges * batch_size),
        graphs=batch_size,
    )


def packed_budget(averages: Averages, batch_size: int) -> Budget:
    """Room for just about `batch_size` - 1 average graphs: what can be filled to the brim.

    Nothing is rounded up: every row would be padding in every batch.
    """
    count = (batch_size - 1) * (1 + _PACKED_SLACK)
    return Budget(
        nodes=int(np.ceil(max(averages.mean_nodes * count, averages.max_nodes))) + 1,
        edges=int(np.ceil(max(averages.mean_edges * count, averages.max_edges))),
        graphs=batch_size,
    )


def own_budget(num_nodes: Array, num_edges: Array) -> Array:
    """int64 [b, 3]: the budget of one graph alone, with nodes [b] and edges [b]."""
    return np.stack(
        [64 * (1 + num_nodes // 64), 64 * (1 + num_edges // 64), np.full_like(num_nodes, 2)], axis=1
    )


def up_to_64(sizes: Array) -> Array:
    """The next multiple of 64; multiples stay as they are."""
    rounded: Array = -(-sizes // 64) * 64
    return rounded


def up_to_power_of_2(sizes: Array) -> Array:
    """The next power of two; powers stay as they are, and 0 becomes 1."""
    # frexp is exact where log2 is not: size - 1 = m 2^e with m < 1, so 2^e is the power wanted.
    exponents = np.frexp(np.maximum(sizes, 1).astype(np.float64) - 1)[1]
    powers: Array = np.left_shift(np.int64(1), exponents.astype(np.int64))
    return powers
