"""Supergraphs for training: batches of one shape with their adjacency, some of them to a step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from weft.batching import EpochPlan, GraphSampler
from weft.graphs import GraphBatch, GraphTable, assemble
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


class StepLoader:
    """Iterates the steps of an epoch; `fit` resumes it in the middle of one.

    The supergraphs and what they make up are the same for any number of ranks: of every step each
    rank takes its share, which may be none.

    Attributes:
        sampler: which graphs make a supergraph.
        waiting_seconds: that the user of the supergraphs had to wait.
    """

    def __init__(
        self,
        table: GraphTable,
        sampler: GraphSampler,
        adjacency: Callable[[GraphBatch], Adjacency],
        *,
        per_step: int = 1,
        world: World | None = None,
        prefetch: int = 2,
    ) -> None:
        """Connect the parts.

        Args:
            table: the graphs whose sizes the sampler has.
            sampler: which graphs make a supergraph; of one rank.
            adjacency: makes a batch's adjacency, in a thread.
            per_step: supergraphs in a step.
            world: the ranks that share each step.
            prefetch: supergraphs made ahead, and held in memory, at most.
        """
        if per_step < 1 or prefetch < 1:
            raise ValueError(f"per_step is {per_step}, prefetch {prefetch}; both are at least 1")
        self.sampler, self.waiting_seconds = sampler, 0.0
        self._table, self._adjacency = table, adjacency
        self._per_step, self._prefetch = per_step, prefetch
        self._world = world or single()

    def __len__(self) -> int:
        return -(-len(self.sampler) // self._per_step)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`, from 0."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The epoch and how many of its supergraphs were handed out, over all ranks."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Let the next iteration go on where `state` was taken."""
        self.sampler.load_state_dict(state)

    def __iter__(self) -> Iterator[StepBatch]:
        return self._steps(self.sampler.begin())

    def _steps(self, first: int) -> Iterator[StepBatch]:
        plan, rank, size = self.sampler.plan(), self._world.rank, self._world.ranks
        bounds = [
            (start, min(start + self._per_step, len(plan)))
            for start in range(first, len(plan), self._per_step)
        ]
        shares = [range(start + rank, stop, size) for start, stop in bounds]
        numbers = [number for share in shares for number in share]
        with closing(self._ahead(plan, numbers)) as supergraphs:
            for (start, stop), share in zip(bounds, shares, strict=True):
                mine = islice(supergraphs, len(share))
                self.sampler.hand_out(stop - 1)
                graphs = int(plan.starts[stop] - plan.starts[start])
                yield StepBatch(num_graphs=graphs, supergraphs=mine)
                # What a step has left would be the next one's.
                deque(mine, maxlen=0)

    def _ahead(self, plan: EpochPlan, numbers: Sequence[int]) -> Generator[Supergraph, None, None]:
        thread = ThreadPoolExecutor(1, thread_name_prefix="weft-loader")
        coming: deque[Future[Supergraph]] = deque()
        try:
            for number in numbers:
                coming.append(thread.submit(self._make, plan, number))
                if len(coming) > self._prefetch:
                    yield self._next(coming)
            while coming:
                yield self._next(coming)
        finally:
            thread.shutdown(wait=True, cancel_futures=True)

    def _next(self, coming: deque[Future[Supergraph]]) -> Supergraph:
        began = time.perf_counter()
        made = coming.popleft().result()
        self.waiting_seconds += time.perf_counter() - began
        return made

    def _make(self, plan: EpochPlan, number: int) -> Supergraph:
        planned = plan[number]
        batch = assemble(self._table, planned.graphs, planned.budget)
        return Supergraph(
            batch=batch,
            adjacency=self._adjacency(batch),
            epoch=self.sampler.epoch,
            number=number,
        )
