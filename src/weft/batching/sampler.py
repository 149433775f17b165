"""GraphSampler: an epoch's batches as lists of graph numbers, for any DataLoader."""

from __future__ import annotations

import dataclasses
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler, Subset

from weft.batching.epoch_plan import BatchStatistics, Capacity, EpochPlan, plan_epoch, statistics_of
from weft.batching.policies import Averages, BatchingConfig, published_budget
from weft.errors import DataError
from weft.graphs import Array, Budget, GraphTable


class GraphSampler(Sampler[list[int]]):
    """Batches of graph numbers, every graph once an epoch over all ranks.

    A `batch_sampler` for torch's DataLoader, or the `sampler` of a GraphLoader. The batches follow
    from the sizes, the configuration and the epoch alone: all ranks plan the same ones and each
    hands out its share, in the same number of steps.

    Attributes:
        config: how the batches are made.
        budget: the padded size of all batches; None where they have sizes of their own.
        epoch: the epoch of the batches, which `set_epoch` changes.
        num_nodes: int64, the nodes of every graph.
        num_edges: int64, the edges of every graph.
        room: what a batch can hold.
    """

    def __init__(
        self,
        num_nodes: Sequence[int] | Array,
        num_edges: Sequence[int] | Array,
        config: BatchingConfig,
        *,
        graphs: Sequence[int] | Array | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """Look at the sizes and choose the budget.

        Args:
            num_nodes: of every graph; `graph_sizes` has them for tables and data sets.
            num_edges: of every graph.
            config: how to make batches.
            graphs: the numbers of the graphs to batch, such as those of a training split; all by
                default.
            rank: the process that this sampler is in, from 0.
            ranks: processes that share each epoch.

        Raises:
            ValueError: sizes, graph numbers or ranks are invalid.
            DataError: a graph larger than the budget, with `oversize="raise"`.
        """
        self.config = config
        self.num_nodes, self.num_edges = (
            _sizes("num_nodes", num_nodes),
            _sizes("num_edges", num_edges),
        )
        if len(self.num_nodes) != len(self.num_edges):
            raise ValueError(
                f"num_nodes has {len(self.num_nodes)} graphs and num_edges {len(self.num_edges)}; "
                "pass both for every graph"
            )
        chosen = graph_numbers(graphs, len(self.num_nodes))
        if not 0 <= rank < ranks:
            raise ValueError(f"rank is {rank} of {ranks}; ranks are counted from 0")
        self._rank, self._ranks = rank, ranks
        nodes, edges = self.num_nodes[chosen], self.num_edges[chosen]
        self.budget = _budget(nodes, edges, config)
        self.room = Capacity(policy=config.rules, budget=self.budget, batch_size=config.batch_size)
        limits = self.room.limits()
        over = (nodes > limits[0]) | (edges > limits[1])
        self._skipped = self._alone = 0
        if over.any():
            first, count = int(chosen[over][0]), int(over.sum())
            what = (
                f"graph {first} has {self.num_nodes[first]} nodes and {self.num_edges[first]} "
                f"edges, a batch has room for {limits[0]} and {limits[1]}"
            )
            if config.oversize == "raise":
                raise DataError(
                    f"{what} ({count} of {len(chosen)} graphs are too large); take a larger "
                    "batch_size or budget, or oversize='alone' or 'skip'"
                )
            if config.oversize == "skip":
                warnings.warn(
                    f"{count} of {len(chosen)} graphs are skipped as too large: {what}",
                    stacklevel=2,
                )
                self._skipped = count
                chosen = chosen[~over]
            else:
                self._alone = count
        if len(chosen) < ranks:
            raise ValueError(
                f"{len(chosen)} graphs cannot be shared by {ranks} ranks: each needs at least one "
                "in every step"
            )
        self._graphs = chosen
        self.epoch = 0
        self._planned: tuple[int, EpochPlan] | None = None
        self._done = 0
        self._resuming = False

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`, from 0. Without it every epoch has the same batches."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; epochs are counted from 0")
        self.epoch, self._done, self._resuming = epoch, 0, False

    def __len__(self) -> int:
        return len(self._all_ranks()) // self._ranks

    def __iter__(self) -> Iterator[list[int]]:
        # The plan of this epoch, whatever the sampler's epoch is when the first batch is taken.
        return self._lists(self.begin(), self.plan())

    def _lists(self, first: int, plan: EpochPlan) -> Iterator[list[int]]:
        for number in range(first, len(plan)):
            self.hand_out(number)
            yield plan[number].graphs.tolist()

    def plan(self) -> EpochPlan:
        """This rank's batches of the current epoch: graphs and budget of each."""
        return self._all_ranks()[self._rank :: self._ranks]

    def statistics(self) -> BatchStatistics:
        """Fill, shapes and counts of the current epoch, over all ranks."""
        return statistics_of(
            self._all_ranks(),
            self.num_nodes,
            self.num_edges,
            skipped=self._skipped,
            alone=self._alone,
        )

    def begin(self) -> int:
        """The batch to begin with: 0, or after `load_state_dict` the first not handed out."""
        if not self._resuming:
            self._done = 0
        self._resuming = False
        return self._done

    def hand_out(self, number: int) -> None:
        """Record that batch `number` of the epoch was handed out."""
        self._done = number + 1

    def state_dict(self) -> dict[str, Any]:
        """The epoch and how many of its batches were handed out."""
        return {"epoch": self.epoch, "batches": self._done, "made_of": self._made_of()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Make the next iteration continue where `state` was taken.

        Raises:
            DataError: it was taken from other graphs, another configuration or other ranks.
        """
        if state["made_of"] != self._made_of():
            raise DataError(
                "the state was taken from other graphs, another batching configuration or another "
                "number of ranks; resume with the same"
            )
        self.set_epoch(state["epoch"])
        self._done, self._resuming = state["batches"], True

    def _made_of(self) -> int:
        """A checksum of everything that decides the batches, the epoch and the rank apart."""
        described = repr((dataclasses.astuple(self.config), self._ranks)).encode()
        for array in (self.num_nodes, self.num_edges, self._graphs):
            described += zlib.crc32(array.data).to_bytes(4, "little")
        return zlib.crc32(described)

    def _all_ranks(self) -> EpochPlan:
        if self._planned is None or self._planned[0] != self.epoch:
            plan = plan_epoch(
                self.num_nodes,
                self.num_edges,
                self._graphs,
                self.room,
                shuffle=self._draws(),
                ranks=self._ranks,
            )
            self._planned = self.epoch, plan
        return self._planned[1]

    def _draws(self) -> np.random.Generator | None:
        if self.config.shuffle:
            return np.random.default_rng([self.config.seed, self.epoch])
        # Packed graphs have no order to keep, and those that come sorted by size pack badly.
        return np.random.default_rng(self.config.seed) if self.config.rules.packed else None


def evaluation_sampler(
    num_nodes: Sequence[int] | Array,
    num_edges: Sequence[int] | Array,
    config: BatchingConfig,
    *,
    graphs: Sequence[int] | Array | None = None,
    budget: Budget | None = None,
) -> GraphSampler:
    """A sampler that takes every graph once: nothing is shuffled, packed or skipped.

    Graphs come in their order, but for one that is larger than the budget: it has a
    batch alone, right after the batch that it would have interrupted. `plan` lists the graphs of
    each batch.

    Arguments are those of GraphSampler; `config` is that of the training, and `budget` that of the
    training's sampler, so that a compiled model sees the shape it knows. By default, and where
    training has none, it is the policy's for these graphs.
    """
    if budget is not None:
        config = dataclasses.replace(config, policy="dynamic", budget=budget, paper=False)
    elif config.rules.packed:
        config = dataclasses.replace(config, policy="dynamic")
    config = dataclasses.replace(config, shuffle=False, oversize="alone")
    return GraphSampler(num_nodes, num_edges, config, graphs=graphs)


def _budget(nodes: Array, edges: Array, config: BatchingConfig) -> Budget | None:
    if config.budget is not None or config.rules.budget is None:
        return config.budget
    if config.paper:
        return published_budget(nodes, edges, config.batch_size, str(config.paper))
    return config.rules.budget(Averages.of(nodes, edges), config.batch_size)


def _whole_numbers(given: Sequence[int] | Array, what: str) -> Array:
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{what}, not {array.dtype} {list(array.shape)}")
    return np.ascontiguousarray(array, dtype=np.int64)


def _sizes(name: str, given: Sequence[int] | Array) -> Array:
    sizes = _whole_numbers(given, f"{name} must be a whole number for each graph")
    if sizes.size and sizes.min() < 0:
        bad = int(np.flatnonzero(sizes < 0)[0])
        raise ValueError(f"{name} of graph {bad} is {sizes[bad]}; it cannot be negative")
    return sizes


def graph_numbers(graphs: Sequence[int] | Array | None, count: int) -> Array:
    """The numbers of the graphs to batch, int64, out of `count` graphs; all for None.

    Raises:
        ValueError: a mask, a number that is not there, one that is there twice, or none at all.
    """
    given = np.arange(count) if graphs is None else graphs
    chosen = _whole_numbers(given, "graphs are chosen by number (np.flatnonzero a mask)")
    bad = chosen[(chosen < 0) | (chosen >= count)]
    if len(bad):
        raise ValueError(f"graph {bad[0]} is out of range: there are sizes of {count} graphs")
    unique, times = np.unique(chosen, return_counts=True)
    if len(unique) < len(chosen):
        raise ValueError(
            f"graph {unique[times > 1][0]} is among the graphs twice; an epoch has each once"
        )
    if not len(chosen):
        raise ValueError("no graphs to batch")
    return chosen


# Columns by which torch_geometric knows the number of nodes, in no other order than the data's.
_NODE_COLUMNS = ("x", "feat", "pos", "batch", "node_type", "n_id")


def graph_sizes(data: Any) -> tuple[Array, Array]:
    """Nodes and edges of every graph, int64 [g] each.

    A GraphTable has them. Of a torch_geometric data set in memory they are read from its `slices`;
    of any other (on disk, with a transform that may change the graphs, a list) every sample is
    taken once. A torch Subset has those of its graphs.
    """
    if isinstance(data, GraphTable):
        return data.num_nodes, data.num_edges
    # A class of one's own may change each graph that is taken out.
    if type(data) is Subset and (whole := _collated_sizes(data.dataset)) is not None:
        chosen = np.asarray(data.indices, dtype=np.int64)
        return whole[0][chosen], whole[1][chosen]
    sizes = _collated_sizes(data)
    return _loaded_sizes(data) if sizes is None else sizes


def _collated_sizes(data: Any) -> tuple[Array, Array] | None:
    """From the slices of torch_geometric's InMemoryDataset; None where they do not say."""
    slices, store = getattr(data, "slices", None), getattr(data, "_data", None)
    if not slices or store is None or getattr(data, "transform", None) is not None:
        return None
    if "edge_index" not in slices:
        return None
    if hasattr(store, "_num_nodes"):
        nodes: Array = np.asarray(store._num_nodes, dtype=np.int64)
    else:
        known = [name for name in slices if name in _NODE_COLUMNS or "node" in name]
        known.sort(key=lambda name: name not in _NODE_COLUMNS)
        if not known or known[0] == "num_nodes":
            return None
        nodes = np.diff(np.asarray(slices[known[0]], dtype=np.int64))
    edges = np.diff(np.asarray(slices["edge_index"], dtype=np.int64))
    chosen = np.asarray(list(data.indices()), dtype=np.int64)
    return nodes[chosen], edges[chosen]


def _loaded_sizes(data: Any) -> tuple[Array, Array]:
    sizes = np.empty((2, len(data)), dtype=np.int64)
    for i in range(len(data)):
        sample = data[i]
        nodes, edges = getattr(sample, "num_nodes", None), getattr(sample, "num_edges", None)
        if nodes is None or edges is None:
            raise DataError(
                f"sample {i} is a {type(sample).__name__} without num_nodes and num_edges; pass "
                "lists of both instead"
            )
        sizes[:, i] = int(nodes), int(edges)
    return sizes[0], sizes[1]
