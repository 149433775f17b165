"""The experiment of Speckhard et al. (2025), on this machine: what a way to batch costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from weft.batching import BatchingConfig, GraphSampler, PolicyName, graph_sizes
from weft.errors import DataError
from weft.graphs import GraphTable, assemble
from weft.models.target_scale import element_counts, learn_scale
from weft.recipes.structures.config import ModelName, NeighbourConfig, StructuresConfig
from weft.recipes.structures.data import (
    LABEL,
    labelled,
    neighbour_table,
    some_of,
    structure_table,
    usable_structures,
)
from weft.recipes.structures.training import make_network, train_structures
from weft.sources.progress_bar import progress_bar
from weft.training.compilation import Compilation, why_not_inductor
from weft.training.config import CompileMode
from weft_lab.statistics import compare
from weft_lab.studies.batch_shapes import ShapeCount, count_shapes
from weft_lab.study import StudyResults
from weft_lab.study_settings import BatchingStudy
from weft_lab.timing import turn_order

Errors = dict[str, list[float]]
"""Test RMSE of each seed in order, by policy, in the target's unit."""

# Steps before anything is timed: kernels are loaded, memory is taken, caches fill.
_WARM_UP = 3
# Policies of the paper; the shapes of the others need no 100,000 steps to be known.
_COUNTED = ("dynamic", "static-64", "static-2^n")


@dataclass(frozen=True)
class StudyData:
    """A data set of the study.

    Attributes:
        name: in the results; the published figures are of "qm9".
        table: structures with `z`, `pos` and the target, without neighbours.
        target: column to learn.
        references: learn a value for each element first.
        neighbours: which atoms exchange messages, by model.
        data_dir: the data folder, where neighbours of whole data sets are kept.
    """

    name: str
    table: GraphTable
    target: str
    references: bool
    neighbours: Mapping[str, NeighbourConfig]
    data_dir: Path | None = None

    def usable(self) -> GraphTable:
        """The structures that have atoms and a value of the target."""
        usable = usable_structures(self.table, [self.target])
        if not usable.any():
            raise DataError(f"no structure of {self.name} has a value of '{self.target}'")
        return self.table if usable.all() else self.table.select(np.flatnonzero(usable))


def molecules(
    table: GraphTable, *, name: str = "qm9", target: str = "u0", data_dir: Path | None = None
) -> StudyData:
    """Molecules as in the paper: every pair of atoms an edge, for PaiNN those within 5 Å."""
    rules = _neighbours(NeighbourConfig(kind="complete"), 5.0)
    return StudyData(name, table, target, references=True, neighbours=rules, data_dir=data_dir)


def crystals(
    table: GraphTable,
    *,
    name: str = "mp-matminer",
    target: str = "formation_energy_per_atom",
    data_dir: Path | None = None,
) -> StudyData:
    """Crystals: the 24 nearest neighbours over periodic images, for PaiNN those within 6 Å."""
    rules = _neighbours(NeighbourConfig(kind="nearest", nearest=24), 6.0)
    return StudyData(name, table, target, references=False, neighbours=rules, data_dir=data_dir)


def _neighbours(rule: NeighbourConfig, cutoff: float) -> dict[str, NeighbourConfig]:
    painn = NeighbourConfig(kind="cutoff", cutoff=cutoff)
    return {"schnet": rule, "mpeu": rule, "painn": painn}


def batching_data(
    config: BatchingStudy,
    *,
    data_dir: Path | None = None,
    quiet: bool = False,
    crystals_file: Path | None = None,
) -> list[StudyData]:
    """QM9 and, where a file is named, crystals: JSON lines as of the data set mp-matminer.

    Raises:
        DataError: the data is not there.
    """
    read = partial(structure_table, data_dir=data_dir, progress=not quiet)
    data = [molecules(read("qm9", ["u0"]), data_dir=data_dir)]
    if crystals_file is not None:
        if not crystals_file.exists():
            raise DataError(f"--crystals {crystals_file} does not exist")
        table = read("mp-matminer", ["formation_energy_per_atom"], files=[crystals_file])
        data.append(crystals(table, data_dir=data_dir))
    return data


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

    def derived(self) -> dict[str, Any]:
        """What the samples amount to, for readers of the file."""
        return {"summary": self.summary() if self.graphs else None}

    @property
    def combined(self) -> list[float]:
        """Seconds of each step, batching and update."""
        return [b + u for b, u in zip(self.batching, self.update, strict=True)]

    @property
    def per_graph(self) -> list[float]:
        """Seconds a graph of each step: batches hold different numbers of graphs."""
        return [s / max(1, g) for s, g in zip(self.combined, self.graphs, strict=True)]

    @property
    def graphs_per_second(self) -> float:
        """Of the median step."""
        return 1 / statistics.median(self.per_graph)

    def by_round(self) -> list[float]:
        """Median seconds a graph of each round."""
        each = self.per_graph
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


class CellTimer:
    """A cell made ready to be timed, a few steps at a time.

    The steps go through the first epoch's batches in order, and through them again where there
    are fewer than steps. Batches are made and used one after another, without a thread: what
    overlaps cannot be told apart.

    Args:
        table: structures with neighbours and the column `label`.
        network: gives raw values [G] of a batch.
        timings: of the cell, which are added to.
        study: how many steps will be timed; mode `static` is skipped where these have too many
            shapes.
        backend: of torch.compile.
    """

    def __init__(
        self,
        table: GraphTable,
        network: nn.Module,
        timings: Timings,
        study: BatchingStudy,
        backend: str,
    ) -> None:
        cell = timings.cell
        config = BatchingConfig(policy=cell.policy, batch_size=cell.batch_size)
        sampler = GraphSampler(*graph_sizes(table), config)
        began = time.perf_counter()
        self._plan = sampler.plan()
        self._planning = (time.perf_counter() - began) / len(self._plan)
        self.timings = timings
        timings.epoch = asdict(sampler.statistics())
        self._table = table
        # Of the batches that will be used, one of each shape.
        shapes = self._plan.shapes[: study.rounds * study.steps]
        self._first_of_shape = np.unique(shapes, axis=0, return_index=True)[1].tolist()
        found, most = len(self._first_of_shape), study.max_compilations
        if cell.mode == "static" and found > most:
            timings.skipped = f"{found} shapes would be compiled, max_compilations is {most}"
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


@dataclass(kw_only=True)
class BatchingResults(StudyResults):
    """Everything that was measured, and where.

    Attributes:
        shapes: shapes and fill over many steps, of data sets whose edges are all pairs.
        cells: the timed cells.
        errors: test RMSE of the repeated trainings, by data set and policy, in the target's unit.
    """

    schemas: ClassVar[tuple[str, ...]] = ("weft study batching 1",)
    title: ClassVar[str] = "Batching study"
    kind: ClassVar[str] = "batching study"
    method: ClassVar[str] = (
        "Cells took turns, round by round, so that what disturbs the machine disturbs all alike. "
        "Batching and update follow one another without a thread between them. Compilation is "
        "counted apart."
    )

    config: BatchingStudy
    shapes: dict[str, list[ShapeCount]] = field(default_factory=dict)
    cells: list[Timings] = field(default_factory=list)
    errors: dict[str, Errors] = field(default_factory=dict)

    def derived(self) -> dict[str, Any]:
        """Tests of whether the errors differ."""
        pairs = {name: compare(errors) for name, errors in self.errors.items()}
        return {"comparisons": {name: list(map(asdict, each)) for name, each in pairs.items()}}

    @classmethod
    def describe(cls, data: Mapping[str, Any]) -> str:
        """The names of the data sets."""
        return ", ".join(data)


def about_data(data: Sequence[StudyData]) -> dict[str, Any]:
    """Structures and target of each data set."""
    return {
        each.name: {
            "structures": len(each.table),
            "target": each.target,
            "unit": each.table.schema[each.target].unit,
        }
        for each in data
    }


def measure_batching(
    results: BatchingResults, data: Sequence[StudyData], backend: str = "inductor"
) -> None:
    """Count shapes, time cells and repeat trainings; `backend` is that of torch.compile."""
    results.save()
    for each in data:
        if each.name not in results.shapes and each.neighbours["schnet"].kind == "complete":
            results.shapes[each.name] = _count(each, results)
            results.save()
    _time(results, data, backend)
    if results.config.repeats:
        for each in data:
            _repeat(results, each)


def _count(data: StudyData, results: BatchingResults) -> list[ShapeCount]:
    config = results.config
    nodes = data.table.num_nodes.astype(np.int64)
    cells = list(product(config.batch_sizes, config.policies))
    counts = []
    with progress_bar(
        f"{data.name}: shapes", len(cells), show=not results.quiet, count=True
    ) as move:
        for number, (size, policy) in enumerate(cells, start=1):
            published = policy == "dynamic" and data.name == "qm9"
            batching = BatchingConfig(
                policy=policy, batch_size=size, paper="qm9" if published else False
            )
            # One epoch of the others, or less.
            steps = config.planned_steps
            if policy not in _COUNTED:
                steps = min(steps, max(1, len(nodes) // size))
            counts.append(count_shapes(nodes, nodes * (nodes - 1), batching, steps=steps))
            move(number)
    return counts


def _cells(config: BatchingStudy, data: Sequence[StudyData]) -> Iterator[Cell]:
    choices = product(data, config.models, config.batch_sizes, config.policies, config.compile)
    for each, model, size, policy, mode in choices:
        if mode == "eager" or policy in config.compiled_policies:
            yield Cell(data=each.name, model=model, batch_size=size, policy=policy, mode=mode)


def _time(results: BatchingResults, data: Sequence[StudyData], backend: str) -> None:
    """Give every cell its turns, round by round: what disturbs the machine disturbs all alike."""
    config, show = results.config, not results.quiet
    known = {str(timings.cell): timings for timings in results.cells}
    results.cells = []
    missing = why_not_inductor() if backend == "inductor" and config.compile != ("eager",) else None
    for cell in _cells(config, data):
        timings = known.get(str(cell)) or Timings(cell=cell)
        if timings.rounds < config.rounds and cell.mode != "eager":
            timings = Timings(cell=cell, skipped=missing or "")
        results.cells.append(timings)
    left = [t for t in results.cells if not t.skipped and t.rounds < config.rounds]
    if not left:
        return
    by_name = {each.name: each for each in data}
    # Cells that share their data share a table, which is made before any of them is timed.
    tables: dict[tuple[str, str], GraphTable] = {}
    for name, model in dict.fromkeys((t.cell.data, t.cell.model) for t in left):
        each = by_name[name]
        key = name, each.neighbours[model].name
        if key not in tables:
            tables[key] = _labelled(each, model, config, show=show)
    timers = []
    with progress_bar("cells made ready", len(left), show=show, count=True) as move:
        for number, timings in enumerate(left, start=1):
            rule = by_name[timings.cell.data].neighbours[timings.cell.model]
            table = tables[timings.cell.data, rule.name]
            network = _network(timings.cell.model, table, rule, config)
            timer = CellTimer(table, network, timings, config, backend)
            if not timings.skipped:
                timer.warm_up()
                timers.append(timer)
            move(number)
    total = sum(config.rounds - timer.timings.rounds for timer in timers)
    done = 0
    with progress_bar("turns", total, show=show, count=True) as move:
        for turn, order in turn_order(len(timers), config.rounds):
            for number in order:
                timer = timers[number]
                if timer.timings.rounds <= turn:
                    timer.turn(config.steps)
                    done += 1
                    move(done)
            results.save()


def _some_with_neighbours(
    data: StudyData, model: ModelName, count: int, *, show: bool
) -> GraphTable:
    some = some_of(data.usable(), count, 0)
    return neighbour_table(some, data.neighbours[model], data_dir=data.data_dir, progress=show)


def _labelled(
    data: StudyData, model: ModelName, config: BatchingStudy, *, show: bool
) -> GraphTable:
    """The table that cells of a model train on."""
    table = _some_with_neighbours(data, model, config.structures, show=show)
    scale = learn_scale(table, np.arange(len(table)), data.target, references=data.references)
    return labelled(table, data.target, scale)


def _network(
    model: ModelName, table: GraphTable, rule: NeighbourConfig, config: BatchingStudy
) -> nn.Module:
    recipe = StructuresConfig(model=model, hidden=config.hidden, readout="mean", neighbours=rule)
    torch.manual_seed(0)
    return make_network(recipe, tuple(int(z) for z in element_counts(table)[0]))


def _repeat(results: BatchingResults, data: StudyData) -> None:
    """Train with every policy from seeds 0, 1, ... and keep the test errors.

    All trainings have the split of the data in common, those of a seed their first weights; all
    see each graph as often.
    """
    config = results.config
    errors = results.errors.setdefault(data.name, {})
    kinds = list(product(range(config.repeats), config.policies))
    if sum(map(len, errors.values())) == len(kinds):
        return
    rule = data.neighbours[config.repeat_model]
    table = _some_with_neighbours(
        data, config.repeat_model, config.repeat_structures, show=not results.quiet
    )
    for seed, policy in results.missing(
        f"{data.name}: trainings", kinds, lambda kind: len(errors.get(kind[1], ())) > kind[0]
    ):
        recipe = StructuresConfig(
            target=data.target,
            model=config.repeat_model,
            hidden=config.hidden,
            references=data.references,
            # The paper's own.
            readout="mean",
            neighbours=rule,
            batching=BatchingConfig(policy=policy, batch_size=config.repeat_batch_size),
            epochs=config.repeat_epochs,
            seed=seed,
        )
        trained = train_structures(table, recipe, quiet=True)
        if trained.result.stopped.startswith("interrupted"):
            raise KeyboardInterrupt
        errors.setdefault(policy, []).append(trained.scores["test_rmse"])
