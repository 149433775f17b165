"""Supergraphs for training: batches of one shape with their adjacency, some of them to a step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from weft.batching import GraphLoader, GraphSampler
from weft.graphs import GraphBatch, GraphTable
from weft.models.ggnn import Adjacency
from weft.parallel.world import World, single


@dataclass(frozen=True, kw_only=True, eq=False)
class Supergraph:
    """A batch and its adjacency.

    Attributes:
        batch: the graphs.
        adjacency: their edges, as a model multiplies with them.
        epoch: from 0.
        number: in the epoch, from 0, over all ranks.
    """

    batch: GraphBatch
    adjacency: Adjacency
    epoch: int
    number: int


@dataclass(frozen=True, kw_only=True, eq=False)
class StepBatch:
    """What makes one step of an optimizer.

    Attributes:
        num_graphs: of all ranks' supergraphs; what a loss is divided by.
        supergraphs: this rank's, each made while the one before is used; to be taken once.
    """

    num_graphs: int
    supergraphs: Iterator[Supergraph]


class StepLoader(GraphLoader):
    """Iterates the steps of an epoch; `fit` resumes it in the middle of one.

    The supergraphs and what they make up are the same for any number of ranks: of every step each
    rank takes its share, which may be none.
    """

    def __init__(
        self,
        table: GraphTable,
        sampler: GraphSampler,
        adjacency: Callable[[GraphBatch], Adjacency],
        *,
        per_step: int = 1,
        world: World | None = None,
    ) -> None:
        """Connect the parts.

        Args:
            table: the graphs whose sizes the sampler has.
            sampler: which graphs make a supergraph; of one rank.
            adjacency: makes a batch's adjacency, in a thread.
            per_step: supergraphs in a step.
            world: the ranks that share each step.
        """
        if per_step < 1:
            raise ValueError(f"per_step is {per_step}; it must be at least 1")
        super().__init__(table, sampler)
        self._adjacency, self._per_step, self._world = adjacency, per_step, world or single()

    def __len__(self) -> int:
        return -(-len(self.sampler) // self._per_step)

    def __iter__(self) -> Iterator[Any]:
        return self._steps(self.sampler.begin())

    def _steps(self, first: int) -> Iterator[StepBatch]:
        plan, rank, size = self.sampler.plan(), self._world.rank, self._world.ranks
        bounds = [
            (start, min(start + self._per_step, len(plan)))
            for start in range(first, len(plan), self._per_step)
        ]
        shares = [range(start + rank, stop, size) for start, stop in bounds]
        numbered = ((number, plan[number]) for share in shares for number in share)
        with closing(self._supergraphs(numbered)) as supergraphs:
            for (start, stop), share in zip(bounds, shares, strict=True):
                mine = islice(supergraphs, len(share))
                self.sampler.hand_out(stop - 1)
                graphs = int(plan.starts[stop] - plan.starts[start])
                yield StepBatch(num_graphs=graphs, supergraphs=mine)
                # What a step has left would be the next one's.
                deque(mine, maxlen=0)

    def _supergraphs(self, numbered: Iterator[Any]) -> Generator[Supergraph, None, None]:
        coming: Iterator[Any] = self._ahead(numbered)
        while True:
            began = time.perf_counter()
            made = next(coming, None)
            self.waiting_seconds += time.perf_counter() - began
            if made is None:
                return
            yield made

    def _make(self, planned: Any, used: Any = None) -> Any:
        number, graphs = planned
        batch = super()._make(graphs)
        return Supergraph(
            batch=batch,
            adjacency=self._adjacency(batch),
            epoch=self.sampler.epoch,
            number=number,
        )
