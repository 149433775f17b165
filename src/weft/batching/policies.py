"""Batching policies: their options, and how large a batch of given graphs becomes under each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from weft.errors import check_least
from weft.graphs import Array, Budget

# Graphs that the published budgets were estimated from.
_PAPER_SAMPLE = 1000
# Room above the mean of a packed batch: with none the last graphs of a batch rarely fit.
_PACKED_SLACK = 0.005


@dataclass(frozen=True, kw_only=True)
class Averages:
    """Mean and largest sizes of a set of graphs: [2], nodes and edges."""

    mean: Array
    largest: Array

    @classmethod
    def of(cls, num_nodes: Array, num_edges: Array) -> Averages:
        """The sizes of graphs with int [g] nodes and edges, g > 0."""
        sizes = np.stack([num_nodes, num_edges])
        return cls(mean=sizes.mean(axis=1), largest=sizes.max(axis=1))


# Of the first 1000 molecules in the order of the authors' published splits, from which the paper
# estimates its four budgets; with these numbers any order of the molecules gives the same budgets.
# (The means of all 130,831 molecules are 18.03 and 315.8, the largest 29 and 812.)
_QM9 = Averages(mean=np.array([17.908, 311.518]), largest=np.array([25, 600]))


def _bumped(sizes: Array) -> Array:
    """The multiples of 64 above `sizes`, also where one is a multiple itself."""
    multiples: Array = 64 * (1 + (sizes // 64).astype(np.int64))
    return multiples


def _budget(sizes: Array, batch_size: int) -> Budget:
    nodes, edges = sizes.astype(np.int64).tolist()
    return Budget(nodes=nodes, edges=edges, graphs=batch_size)


def dynamic_budget(averages: Averages, batch_size: int) -> Budget:
    """Room for `batch_size` average graphs, and for the largest."""
    return _budget(_bumped(np.maximum(averages.mean * batch_size, averages.largest)), batch_size)


def published_budget(num_nodes: Array, num_edges: Array, batch_size: int, data: str) -> Budget:
    """`dynamic_budget` as in the paper: from the first graphs, or its own figures for `data`."""
    if data == "qm9":
        return dynamic_budget(_QM9, batch_size)
    first = slice(0, _PAPER_SAMPLE)
    return dynamic_budget(Averages.of(num_nodes[first], num_edges[first]), batch_size)


def constant_budget(averages: Averages, batch_size: int) -> Budget:
    """Room for `batch_size` graphs of the largest size."""
    return _budget(_bumped(averages.largest * batch_size), batch_size)


def packed_budget(averages: Averages, batch_size: int) -> Budget:
    """Room for just about `batch_size` - 1 average graphs, so that batches can be filled up.

    Nothing is rounded up: every row would be padding in every batch.
    """
    count = (batch_size - 1) * (1 + _PACKED_SLACK)
    sizes = np.ceil(np.maximum(averages.mean * count, averages.largest))
    return _budget(sizes + np.array([1, 0]), batch_size)


def single_graph_budget(num_nodes: Array, num_edges: Array) -> Array:
    """int64 [b, 3]: the budget of one graph alone, with nodes [b] and edges [b]."""
    return np.stack([_bumped(num_nodes), _bumped(num_edges), np.full_like(num_nodes, 2)], axis=1)


def up_to_64(sizes: Array) -> Array:
    """The next multiple of 64; multiples stay as they are."""
    rounded: Array = -(-sizes // 64) * 64
    return rounded


def up_to_power_of_2(sizes: Array) -> Array:
    """The next power of two; powers stay as they are, and 0 becomes 1."""
    # frexp is exact where log2 is not: size - 1 = m 2^e with m < 1, so 2^e is the next power.
    exponents = np.frexp(np.maximum(sizes, 1).astype(np.float64) - 1)[1]
    powers: Array = np.left_shift(np.int64(1), exponents.astype(np.int64))
    return powers


PolicyName = Literal["dynamic", "static-64", "static-2^n", "static-constant", "packed", "unpadded"]
Oversize = Literal["raise", "skip", "alone"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How graphs become batches, and batches padded shapes.

    Attributes:
        budget: the one padded size of all batches, from the sizes of the graphs and the batch
            size; None where each batch has its own.
        limited: a batch ends where the next graph would not fit the budget; otherwise it has a
            fixed number of graphs.
        packed: graphs are chosen to fill a batch, not taken in order.
        round_up: the padded size of a batch from its own, where batches share no budget; None
            leaves it unpadded.
    """

    budget: Callable[[Averages, int], Budget] | None = None
    limited: bool = False
    packed: bool = False
    round_up: Callable[[Array], Array] | None = None

    @property
    def padded(self) -> bool:
        """Whether batches have padding, which takes the room of one node and one graph."""
        return self.budget is not None or self.round_up is not None


POLICIES: dict[PolicyName, Policy] = {
    "dynamic": Policy(budget=dynamic_budget, limited=True),
    "static-64": Policy(round_up=up_to_64),
    "static-2^n": Policy(round_up=up_to_power_of_2),
    "static-constant": Policy(budget=constant_budget),
    "packed": Policy(budget=packed_budget, limited=True, packed=True),
    "unpadded": Policy(),
}


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """How a data set is cut into batches.

    Attributes:
        policy: `dynamic`: one padded shape, graphs taken in order until one does not fit.
            `static-64`, `static-2^n`: batch_size - 1 graphs, padded to the next multiple of 64 or
            power of two. `static-constant`: the same, padded to batch_size times the largest
            graph. `packed`: one padded shape, filled as well as possible. `unpadded`: batch_size
            graphs and nothing else.
        batch_size: graphs in a batch; a padded batch keeps one of them for its padding.
        oversize: what becomes of a graph that is larger than the budget: `raise` an error, `skip`
            it, or give it a batch `alone`, with its own padded shape.
        shuffle: make different batches in every epoch; False makes the same ones in each, with the
            graphs in order (in `packed` they have no order).
        seed: Seed of the shuffles.
        budget: for `dynamic` and `packed`, the padded size in place of the one that the graphs'
            sizes suggest: what a device can hold, or what a model was compiled for.
        paper: for `dynamic`, the budget as published: estimated from the first 1000 graphs, or,
            with "qm9", from the sizes of the authors' first 1000, in any order of the graphs.
    """

    policy: PolicyName
    batch_size: int
    oversize: Oversize = "raise"
    shuffle: bool = True
    seed: int = 0
    budget: Budget | None = None
    paper: bool | Literal["qm9"] = False

    def __post_init__(self) -> None:
        for name, legal in (("policy", tuple(POLICIES)), ("oversize", get_args(Oversize))):
            if getattr(self, name) not in legal:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(legal)}"
                )
        least = 2 if self.rules.padded else 1
        if self.batch_size < least:
            raise ValueError(
                f"batch_size is {self.batch_size}; policy {self.policy} needs at least {least}"
                + (", because one graph of a batch is padding" if least == 2 else "")
            )
        check_least(self, seed=0)
        if self.paper not in (False, True, "qm9"):
            raise ValueError(f"paper is {self.paper!r}; it must be True, False or 'qm9'")
        if self.paper and self.policy != "dynamic":
            raise ValueError(
                f"paper=True is for the policy dynamic, not for {self.policy}; leave it out"
            )
        if self.budget is not None:
            self._check_budget(self.budget)

    def _check_budget(self, budget: Budget) -> None:
        if not self.rules.limited:
            raise ValueError(
                f"policy {self.policy} takes its padded sizes from the batches; a budget is for "
                "dynamic and packed"
            )
        if self.paper:
            raise ValueError("budget and paper=True each say how large a batch is; choose one")
        if budget.nodes < 2 or budget.edges < 0 or budget.graphs < 2:
            raise ValueError(
                f"{budget} has no room for a graph: it needs at least 2 nodes and 2 graphs, one of "
                "each is padding"
            )

    @property
    def rules(self) -> Policy:
        """The policy's data."""
        return POLICIES[self.policy]
