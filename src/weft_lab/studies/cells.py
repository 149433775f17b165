"""One cell of the experiment: a model, a batch size, a policy and a compile mode, timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from weft.batching import BatchingConfig, GraphSampler, PolicyName, graph_sizes
from weft.graphs import GraphTable, assemble
from weft.recipes.structures.config import ModelName
from weft.recipes.structures.data import LABEL
from weft.training.compilation import Compilation
from weft.training.config import CompileMode

# Steps before anything is timed: kernels are loaded, memory is taken, caches fill.
_WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Which one it is."""

    data: str
    model: ModelName
    batch_size: int
    policy: PolicyName
    mode: CompileMode

    def __str__(self) -> str:
        return f"{self.data}/{self.model}/{self.batch_size}/{self.policy}/{self.mode}"


@dataclass(kw_only=True)
class Timings:
    """What was measured of a cell: plain values, as they are in the file.

    Attributes:
        cell: which one.
        skipped: why it was not measured; empty if it was.
        rounds: turns that it had.
        batching: seconds of each step to assemble its batch, with its share of planning the epoch.
        update: seconds of each step for forward, backward and Adam, compilation apart.
        graphs: real graphs of each step's batch.
        epoch: fill, shapes and counts of the epoch that the batches are from.
        compilation: compilations, recompiles, their seconds and causes.
    """

    cell: Cell
    skipped: str = ""
    rounds: int = 0
    batching: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    epoch: dict[str, Any] = field(default_factory=dict)
    compilation: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Timings:
        """What `to_json` gave."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name != "cell"}
        return cls(cell=Cell(**values["cell"]), **known)

    def to_json(self) -> dict[str, Any]:
        """All of it, with what it amounts to."""
        return {**asdict(self), "summary": self.summary() if self.graphs else None}

    @property
    def combined(self) -> list[float]:
        """Seconds of each step, batching and update."""
        return [b + u for b, u in zip(self.batching, self.update, strict=True)]

    @property
    def graphs_per_second(self) -> float:
        """Of the median step: batches hold different numbers of graphs, so they are divided by."""
        return 1 / statistics.median(_per_graph(self))

    def by_round(self) -> list[float]:
        """Median seconds a graph of each round."""
        each = _per_graph(self)
        steps = len(each) // self.rounds
        return [
            statistics.median(each[i : i + steps]) for i in range(0, steps * self.rounds, steps)
        ]

    def summary(self) -> dict[str, float]:
        """Means and medians in ms, and graphs a second."""
        found = {}
        for name in ("batching", "update", "combined"):
            samples = getattr(self, name)
            found[f"{name}_mean_ms"] = 1e3 * statistics.fmean(samples)
            found[f"{name}_median_ms"] = 1e3 * statistics.median(samples)
        return {**found, "graphs_per_second": self.graphs_per_second}


def _per_graph(timings: Timings) -> list[float]:
    return [s / max(1, g) for s, g in zip(timings.combined, timings.graphs, strict=True)]


class CellTimer:
    """A cell made ready to be timed, a few steps at a time.

    The steps go through the first epoch's batches in order, and through them again where there
    are fewer than steps. Batches are made and used one after another, without a thread: what
    overlaps cannot be told apart.

    Args:
        table: structures with neighbours and the column `label`.
        network: gives raw values [G] of a batch.
        timings: of the cell, which are added to.
        seed: of the shuffle.
        steps: that will be timed in all.
        max_compilations: mode `static` is skipped where these steps have more shapes.
        backend: of torch.compile.
    """

    def __init__(
        self,
        table: GraphTable,
        network: nn.Module,
        timings: Timings,
        *,
        seed: int,
        steps: int,
        max_compilations: int,
        backend: str,
    ) -> None:
        cell = timings.cell
        config = BatchingConfig(policy=cell.policy, batch_size=cell.batch_size, seed=seed)
        sampler = GraphSampler(*graph_sizes(table), config)
        began = time.perf_counter()
        self._plan = sampler.plan()
        self._planning = (time.perf_counter() - began) / len(self._plan)
        self.timings = timings
        timings.epoch = asdict(sampler.statistics())
        self._table = table
        # Of the batches that will be used, one of each shape.
        shapes = self._plan.shapes[:steps]
        self._first_of_shape = np.unique(shapes, axis=0, return_index=True)[1].tolist()
        found = len(self._first_of_shape)
        if cell.mode == "static" and found > max_compilations:
            timings.skipped = (
                f"{found} shapes would be compiled, max_compilations is {max_compilations}"
            )
        self._compilation = Compilation(cell.mode, backend=backend)
        self._network = network

    def warm_up(self) -> None:
        """Take the first steps, untimed: compile for every shape that will come."""
        self._compiled = self._compilation.wrap(self._network)
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=1e-4, fused=True)
        numbers = list(range(_WARM_UP))
        if self.timings.cell.mode == "static":
            numbers = [*self._first_of_shape, *numbers]
        with ExitStack() as stack:
            if self.timings.cell.mode != "eager":
                stack.enter_context(_nothing_compiled_yet())
            for number in numbers:
                self._step(number)
        self.timings.compilation = self._compilation.report()

    def turn(self, steps: int) -> None:
        """Take and time the next `steps` steps."""
        timings = self.timings
        first = len(timings.graphs)
        # Only whole rounds count: an interrupted one is taken again.
        taken = [self._step(number) for number in range(first, first + steps)]
        timings.batching += [batching + self._planning for batching, _, _ in taken]
        timings.update += [update for _, update, _ in taken]
        timings.graphs += [graphs for _, _, graphs in taken]
        timings.compilation = self._compilation.report()
        timings.rounds += 1

    def _step(self, number: int) -> tuple[float, float, int]:
        """Seconds of batching, seconds of the update without compilation, and graphs."""
        planned = self._plan[number % len(self._plan)]
        compiling = self._compilation.seconds
        began = time.perf_counter()
        batch = assemble(self._table, planned.graphs, planned.budget)
        assembled = time.perf_counter()
        self._optimizer.zero_grad()
        error = (self._compiled(batch) - batch.graphs[LABEL]).masked_fill(~batch.graph_mask, 0.0)
        loss = error.square().sum() / batch.graph_mask.sum()
        loss.backward()
        self._optimizer.step()
        ended = time.perf_counter()
        compiling = self._compilation.seconds - compiling
        return assembled - began, ended - assembled - compiling, len(planned.graphs)


@contextmanager
def _nothing_compiled_yet() -> Iterator[None]:
    """Hide from torch what it keeps on disk: a cell compiled before would take no time."""
    # Imported here: loading it takes seconds, and an eager study has no use for it.
    from torch._inductor.utils import fresh_inductor_cache

    with TemporaryDirectory(prefix="weft-study-") as folder, fresh_inductor_cache(dir=folder):
        yield
