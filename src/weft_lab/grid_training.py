"""A GCN trained on the ranks of a grid, real or one at a time alone, with what each received."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from weft.graphs import Array, Graph, GraphTable, open_table
from weft.models import GCN, GCNConfig
from weft.parallel.grid import Grid, grids_for
from weft.parallel.method import CUT_FOR_GRID, PUBLISHED, Method
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard, row_offsets
from weft.parallel.splits import share_split
from weft.parallel.traffic_formulas import Sizes, count_graph, predicted_events
from weft.parallel.world import World, alone, joined
from weft.training.launch import launch
from weft.training.numerics import prepare_process

METHODS = {
    "published": PUBLISHED,
    "reductions": Method(exchange="blocks"),
    "sparsity-aware": Method(),
}
"""The algorithms as published; the exact reductions alone; those and only the rows needed."""

_RATE = 0.01

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class GridRun:
    """A GCN to train on all of a graph.

    Attributes:
        table: folder of the prepared graph.
        grid: the ranks.
        method: what travels.
        hidden: widths of the hidden layers.
        epochs: steps of Adam.
        dropout: of hidden activations.
        dtype: of features and weights.
        scored: measure losses and accuracies at the end.
        seed: of weights and dropout.
    """

    table: Path
    grid: Grid
    method: Method
    hidden: tuple[int, ...]
    epochs: int = 1
    dropout: float = 0.0
    dtype: Literal["float32", "float64"] = "float32"
    scored: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one rank noted.

    Attributes:
        once: bytes received before the first epoch: who wants which rows, the first product.
        bytes: received in an epoch, by kind of collective; the same in every epoch.
        seconds: of each epoch.
        communication: seconds of each epoch in collectives, waiting for others included.
        losses: of each epoch.
        scores: at the end, where they were requested.
        threads: that computed.
    """

    once: int
    bytes: dict[str, int]
    seconds: list[float]
    communication: list[float]
    losses: list[float]
    scores: dict[str, float] = field(default_factory=dict)
    threads: int = 1

    @property
    def received(self) -> int:
        """Bytes of an epoch."""
        return sum(self.bytes.values())

    @property
    def compute(self) -> list[float]:
        """Seconds of each epoch outside of collectives."""
        return [a - b for a, b in zip(self.seconds, self.communication, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch of one rank; seconds.

    Attributes:
        loss: of the step.
        seconds: in all.
        waiting: in collectives, waiting for other ranks included.
        cpu: that the rank's own thread has run, which other programs do not disturb as much.
        bytes: received, by kind of collective.
    """

    loss: float
    seconds: float
    waiting: float
    cpu: float
    bytes: dict[str, int]

    @property
    def compute(self) -> float:
        """Seconds outside of collectives."""
        return self.seconds - self.waiting


class GridTrainer:
    """A GCN on one rank's part of a prepared graph, trained by Adam.

    Args:
        run: what is trained; its grid is that of `world`.
        world: the ranks.

    Attributes:
        network: the GCN on its part of the graph.
        seconds: of `opening` the part, and of the `first product`.
        once: bytes received before the first epoch.
    """

    def __init__(self, run: GridRun, world: World) -> None:
        self.run, self.world = run, world
        dtype = torch.float32 if run.dtype == "float32" else torch.float64
        began = time.perf_counter()
        shard = GraphShard.open(open_table(run.table), world, run.method, dtype)
        self.seconds = {"opening": time.perf_counter() - began}
        torch.manual_seed(run.seed)
        layers = GCNConfig(hidden=run.hidden, dropout=run.dropout, input_dropout=0.0)
        self.model = GCN(shard.features, shard.classes, layers).to(dtype)
        began = time.perf_counter()
        self.network = GridNetwork(self.model, shard)
        self.seconds["first product"] = time.perf_counter() - began
        self.once = world.recorder.total().bytes
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=_RATE)

    def epoch(self, number: int) -> Epoch:
        """Take a step; `number` chooses the dropout."""
        world = self.world
        world.recorder.clear()
        if world.grid.ranks > 1 and not world.dry:
            # Epochs begin together; what ranks differ in then shows as waiting.
            dist.barrier()
        began, cpu = time.perf_counter(), time.thread_time()
        loss = self.network.step(seed=self.run.seed * 2**32 + number)
        self._optimizer.step()
        seconds, cpu = time.perf_counter() - began, time.thread_time() - cpu
        totals = world.recorder.totals()
        return Epoch(
            loss=loss,
            seconds=seconds,
            waiting=world.recorder.total().seconds,
            cpu=cpu,
            bytes={kind: each.bytes for kind, each in totals.items() if each.bytes},
        )


def on_ranks(function: Callable[..., Answer], *arguments: Any, ranks: int = 1) -> list[Answer]:
    """What `function` gives in each of so many new processes that were started together.

    Raises:
        RankError: a process failed.
        LaunchStopped: a signal stopped them.
    """
    with TemporaryDirectory(prefix="weft-ranks-") as folder:
        return launch(function, arguments, ranks=ranks, logs=Path(folder))


def train_on_ranks(runs: Sequence[GridRun]) -> list[list[RankRecord]]:
    """Train each run in turn on processes of this machine; records by run and rank.

    The grids must have equally many ranks: they are started once for all runs.

    Raises:
        RankError: a rank failed.
    """
    ranks = {run.grid.ranks for run in runs}
    if len(ranks) != 1:
        raise ValueError(f"runs on {sorted(ranks)} ranks; they must have the same number of them")
    answers = on_ranks(_train_runs, list(runs), ranks=ranks.pop())
    return [list(records) for records in zip(*answers, strict=True)]


def _train_runs(runs: list[GridRun]) -> list[RankRecord]:
    prepare_process()
    worlds = joined_worlds([run.grid for run in runs])
    return [_train(run, world) for run, world in zip(runs, worlds, strict=True)]


def joined_worlds(grids: Sequence[Grid]) -> Iterator[World]:
    """The processes that were started together, joined to one grid after another."""
    # Joined once for all of them: what is joined inside finds the group, and leaves it there.
    with join_grid(Grid(rows=grids[0].ranks)):
        for grid in grids:
            with join_grid(grid) as world:
                yield world


def join_grid(grid: Grid) -> AbstractContextManager[World]:
    """The processes that were started together, joined to `grid`, on the CPU."""
    if grid.replicated:
        return joined("1.5d", grid.layers, device=torch.device("cpu"))
    return joined(grid.shape, device=torch.device("cpu"))


def _train(run: GridRun, world: World) -> RankRecord:
    """What one rank receives; in a world of its own, losses and scores mean nothing."""
    trainer = GridTrainer(run, world)
    epochs = [trainer.epoch(number) for number in range(run.epochs)]
    assert all(each.bytes == epochs[0].bytes for each in epochs)
    trainer.model.eval()
    return RankRecord(
        once=trainer.once,
        bytes=epochs[0].bytes,
        seconds=[each.seconds for each in epochs],
        communication=[each.waiting for each in epochs],
        losses=[each.loss for each in epochs],
        scores=trainer.network.evaluate() if run.scored else {},
        threads=torch.get_num_threads(),
    )


def counts_of(table: GraphTable, grid: Grid) -> list[Sizes]:
    """A prepared graph as `grid` cuts it, by rank."""
    graph = table[0]
    training = graph.nodes["train"] & (graph.nodes["y"] >= 0)
    return count_graph(grid, row_offsets(table, grid), graph.senders, graph.receivers, training)


def predicted_bytes(
    counts: Sequence[Sizes], method: Method, widths: Sequence[int], item: int = 4
) -> list[int]:
    """Bytes that each rank receives in an epoch of a GCN, by formula."""
    return [
        sum(event.bytes for event in predicted_events(sizes, method, widths, item=item))
        for sizes in counts
    ]


def with_random_features(graph: Graph, features: int, classes: int, seed: int = 0) -> Graph:
    """The same nodes and edges with random features and classes, 60 % of them to train on."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=graph.num_nodes)
    # Every class is there, or there would be fewer.
    y[:classes] = np.arange(min(classes, graph.num_nodes))
    x: Array = rng.standard_normal((graph.num_nodes, features), dtype=np.float32)
    return replace(graph, nodes={"x": x, "y": y, **share_split(y, seed=seed)})


@dataclass(frozen=True)
class PreparedTables:
    """A graph prepared in as many ways as methods and grids need, each once.

    Attributes:
        graph: with features, classes and a split.
        folder: for the tables.
        partition: of the nodes for the sparsity-aware method; blocks of others stay in order.
        seed: of the partition, and of the weights and dropout of trainings.
        dtype: of the normalised matrix, and of features and weights.
    """

    graph: Graph
    folder: Path
    partition: str
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"

    def table(self, method: Method, grid: Grid) -> GraphTable:
        """The table for a method on a grid.

        Raises:
            DataError: the partition needs a package that is not installed.
        """
        how = self.partition if method.exchange == "rows" else "contiguous"
        # An order without blocks of its own is cut for any grid.
        blocks = grid.blocks if how in CUT_FOR_GRID else 1
        shape = grid.shape if how == "balanced" else blocks
        path = self.folder / f"{how}-{shape}.weft"
        if path.exists():
            return open_table(path)
        return prepare(
            self.graph,
            path,
            blocks=blocks,
            partition=how,
            seed=self.seed,
            dtype=self.dtype,
            grid=grid if how == "balanced" else None,
        )

    def run(self, method: Method, grid: Grid, **settings: Any) -> GridRun:
        """A training on the table for a method and a grid; see `GridRun` for the settings."""
        path = self.table(method, grid).path
        assert path is not None
        return GridRun(
            table=path, grid=grid, method=method, dtype=self.dtype, seed=self.seed, **settings
        )


def grid_label(grid: Grid) -> str:
    """`1.5d(c=2)` where the name alone would not tell."""
    return f"1.5d(c={grid.layers})" if grid.name == "1.5d" else grid.name


@dataclass(kw_only=True)
class GridCell:
    """What ranks receive with one method on one grid.

    Attributes:
        grid: the ranks.
        method: a name of METHODS.
        predicted: bytes that each rank receives in an epoch, by formula.
        records: what ranks noted, by rank; all ranks if they are real.
        real: they were processes; else simulated, one at a time.
    """

    grid: Grid
    method: str
    predicted: list[int]
    records: dict[int, RankRecord] = field(default_factory=dict)
    real: bool = False

    @property
    def ranks(self) -> int:
        """P."""
        return self.grid.ranks

    @property
    def label(self) -> str:
        """Of the grid."""
        return grid_label(self.grid)

    @property
    def mean(self) -> float:
        """Bytes of the mean rank, predicted."""
        return statistics.fmean(self.predicted)

    @property
    def differing(self) -> list[int]:
        """Ranks that recorded another number than predicted."""
        return [r for r, each in self.records.items() if each.received != self.predicted[r]]

    def seconds(self, what: str) -> float:
        """Median over epochs of the mean rank's `compute` or `communication`, or an `epoch`."""
        records = list(self.records.values())
        epochs: list[float] = []
        for number in range(len(records[0].seconds)):
            if what == "epoch":
                epochs.append(max(record.seconds[number] for record in records))
            else:
                epochs.append(statistics.fmean(getattr(r, what)[number] for r in records))
        return statistics.median(epochs)

    def derived(self) -> dict[str, str]:
        """The label, for readers of the file."""
        return {"label": self.label}


def grid_cells(
    tables: PreparedTables,
    ranks: int,
    widths: tuple[int, ...],
    *,
    epochs: int,
    simulated: int | None = None,
) -> list[GridCell]:
    """Every grid of so many ranks, with every method: what is predicted, and what is recorded.

    Args:
        tables: of the graph, whose features and classes are of these widths.
        ranks: P.
        widths: of the features, the hidden layers and the classes.
        epochs: of each training.
        simulated: ranks to simulate, spread over each grid; by default all are real processes.
    """
    cells, runs = [], []
    for grid in grids_for(ranks):
        for name, method in METHODS.items():
            runs.append(tables.run(method, grid, hidden=widths[1:-1], epochs=epochs))
            counts = counts_of(tables.table(method, grid), grid)
            predicted = predicted_bytes(counts, method, widths)
            cells.append(
                GridCell(grid=grid, method=name, predicted=predicted, real=simulated is None)
            )
    if simulated is None:
        for cell, records in zip(cells, train_on_ranks(runs), strict=True):
            cell.records = dict(enumerate(records))
    else:
        # The first and the last among them.
        some = sorted({int(rank) for rank in np.linspace(0, ranks - 1, min(ranks, simulated))})
        for cell, run in zip(cells, runs, strict=True):
            cell.records = {rank: _train(run, alone(run.grid, rank)) for rank in some}
    return cells
