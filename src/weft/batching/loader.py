"""GraphLoader: the batches of a table that a sampler plans, assembled ahead in a thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from weft.batching.epoch_plan import PlannedBatch
from weft.batching.sampler import GraphSampler
from weft.graphs import Budget, GraphBatch, GraphTable, assemble

# The batch that is used now, and the one before, which a loop's variable still holds.
_KEPT = 2


def locks_memory(device: torch.device | None) -> bool:
    """Whether the device supports asynchronous copies from page-locked memory."""
    if device is None or device.type in ("cpu", "mps"):
        return False
    found = torch.accelerator.current_accelerator(check_available=True)
    return found is not None and found.type == device.type


class StaticMemory:
    """Memory on a device for one thing at a time: each is copied over the one before.

    A captured CUDA graph reads the same addresses in every step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._places = device, list[torch.Tensor]()

    def copy(self, parts: Any) -> Any:
        """A batch or an adjacency on the device: whatever has a `map`.

        A tensor of another shape than the first one in its place has memory of its own.
        """
        left = iter(list(self._places))

        def place(tensor: torch.Tensor) -> torch.Tensor:
            known = next(left, None)
            if known is not None and known.shape == tensor.shape:
                return known.copy_(tensor, non_blocking=True)
            new = tensor.to(self._device, non_blocking=True)
            if known is None:
                self._places.append(new)
            return new

        return parts.map(place)


class GraphLoader:
    """Iterates over the batches of `sampler` as GraphBatch, and prepares the next ones meanwhile.

    One thread is enough: assembling releases the interpreter lock and is far faster than a step.
    It ends with the epoch, or when the iterator is dropped.

    Attributes:
        table: where graphs come from.
        sampler: which graphs make a batch.
        seconds: time spent on planning and assembling so far, in any thread.
        waiting_seconds: time that the consumer of the batches had to wait.
    """

    def __init__(
        self,
        table: GraphTable,
        sampler: GraphSampler,
        *,
        prefetch: int = 2,
        transform: Callable[[GraphBatch], GraphBatch] | None = None,
        device: torch.device | str | None = None,
        static: bool = False,
    ) -> None:
        """Connect the parts.

        Args:
            table: the graphs whose sizes the sampler has.
            sampler: which graphs make a batch.
            prefetch: batches made ahead, and held in memory, at most; 0 makes each when it is
                requested, without a thread.
            transform: changes each batch, in the thread.
            device: where batches go; to a GPU from page-locked memory, without waiting.
            static: batches with the sampler's budget have one place on the device, where a captured
                CUDA graph finds each of them; a batch is gone when the next one comes.

        Raises:
            ValueError: the sampler was made for other graphs.
        """
        if prefetch < 0:
            raise ValueError(f"prefetch is {prefetch}; it must be at least 0")
        if not (
            np.array_equal(table.num_nodes, sampler.num_nodes)
            and np.array_equal(table.num_edges, sampler.num_edges)
        ):
            raise ValueError(
                f"the sampler has the sizes of other graphs ({len(sampler.num_nodes)}) than "
                f"the table's ({len(table)}); make it with graph_sizes(table) and choose graphs "
                "by its option `graphs`"
            )
        self.table, self.sampler = table, sampler
        self._prefetch, self._transform = prefetch, transform
        self._device = None if device is None else torch.device(device)
        self._pin = locks_memory(self._device)
        self._static: StaticMemory | None = None
        if static and self._device is not None and self._device.type != "cpu":
            self._static = StaticMemory(self._device)
        self.seconds = self.waiting_seconds = 0.0

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`, from 0."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The epoch and how many of its batches were handed out; those made ahead do not count."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Make the next iteration continue where `state` was taken."""
        self.sampler.load_state_dict(state)

    def __iter__(self) -> Iterator[GraphBatch]:
        return self._batches(self.sampler.begin())

    def _batches(self, first: int) -> Iterator[GraphBatch]:
        began = time.perf_counter()
        plan = self.sampler.plan()
        spent = time.perf_counter() - began
        self.seconds += spent
        self.waiting_seconds += spent
        batches = self._ahead(plan[first:]) if self._prefetch else map(self._make, plan[first:])
        for number in range(first, len(plan)):
            began = time.perf_counter()
            batch = next(batches)
            if self._device is not None:
                batch = self._moved(batch)
            self.waiting_seconds += time.perf_counter() - began
            self.sampler.hand_out(number)
            yield batch
            del batch

    def _moved(self, batch: GraphBatch) -> GraphBatch:
        """The batch on the device."""
        assert self._device is not None
        if self._static is not None and self._has_budget(batch):
            placed: GraphBatch = self._static.copy(batch)
            return placed
        return batch.to(self._device, non_blocking=self._pin)

    def _has_budget(self, batch: GraphBatch) -> bool:
        size = Budget(nodes=batch.num_nodes, edges=batch.num_edges, graphs=batch.num_graphs)
        return size == self.sampler.budget

    def _ahead(self, plan: Any) -> Iterator[GraphBatch]:
        """The same batches, with up to `prefetch` of them being made or waiting."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="weft-loader")
        coming: deque[Future[GraphBatch]] = deque()
        # The thread frees what was used. torch gives up the interpreter's lock for each tensor that
        # it frees: a training loop would wait for the thread, once a tensor.
        used: deque[GraphBatch] = deque()
        try:
            for planned in plan:
                if len(coming) == self._prefetch:
                    # The next is begun before this one is used, so that none is late.
                    used.append(coming.popleft().result())
                    old = used.popleft() if len(used) > _KEPT else None
                    coming.append(thread.submit(self._make, planned, old))
                    old = None
                    yield used[-1]
                else:
                    coming.append(thread.submit(self._make, planned))
            while coming:
                yield coming.popleft().result()
        finally:
            thread.shutdown(wait=True, cancel_futures=True)

    def _make(self, planned: PlannedBatch, used: GraphBatch | None = None) -> GraphBatch:
        """The next batch; the thread frees `used` once it is made."""
        began = time.thread_time()
        batch = assemble(self.table, planned.graphs, planned.budget)
        if self._transform is not None:
            batch = self._transform(batch)
        if self._pin:
            batch = batch.pin_memory()
        self.seconds += time.thread_time() - began
        return batch
