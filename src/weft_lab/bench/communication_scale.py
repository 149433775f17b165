"""Case: a large R-MAT graph generated, stored, partitioned and trained on, with its memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from rich.progress import Progress
from weft.parallel.cost import Problem, rank_memory

from weft.graphs import GraphTable, open_table
from weft.models import GCN, GCNConfig
from weft.parallel.grid import Grid, grid_of
from weft.parallel.method import Method
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard
from weft.parallel.world import World
from weft.sources import rmat
from weft.training.hardware import held_memory, peak_memory, process_memory
from weft.training.launch import launch
from weft_lab.bench.result import CaseResult, Contender
from weft_lab.studies.communication_ranks import counts_of, join_grid, with_random_features

_MOST = 16e9
_LOOK_SECONDS = 0.02
# Nodes and edges of a graph whose training needs next to no memory.
_SMALL = 1000, 4000


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """What one rank noted: seconds, and bytes of memory.

    Attributes:
        seconds: of each stage.
        loss: of the epoch.
        before: memory held before its part was opened, all code loaded: a small graph was
            trained on first.
        peak: the most held, pages of mapped files and those shared with other ranks included.
        own: the most held of its own, without pages of files.
    """

    seconds: dict[str, float]
    loss: float
    before: float
    peak: float
    own: float


def scale_cases(
    *,
    nodes: int,
    edges: int,
    widths: tuple[int, ...],
    ranks: int,
    scratch: Path | None,
    progress: Progress,
) -> list[CaseResult]:
    """From nothing to an epoch on `ranks` ranks; seconds of each stage, memory of each rank."""
    clock = _Clock(progress)
    with TemporaryDirectory(prefix="weft-bench-", dir=scratch) as folder:
        path, small = Path(folder) / "graph.weft", Path(folder) / "small.weft"
        table = _prepared(path, nodes, edges, widths, ranks, clock)
        _prepared(small, *_SMALL, widths, ranks, _Clock(Progress(disable=True)))
        grid = grid_of("1d", ranks)
        clock.stage("counting for the prediction")
        predicted = _predicted(table, grid, widths)
        making = peak_memory()
        stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        total_edges = table.total_edges
        del table
        clock.stage(f"training on {ranks} ranks")
        arguments = (small, path, grid, widths[1:-1])
        found: list[_Rank] = launch(_train, arguments, ranks=ranks, logs=Path(folder) / "logs")
        clock.stop()
    resident = process_memory("VmRSS")
    together = resident + sum(each.peak for each in found)
    most = max(making, together)
    for name in found[0].seconds:
        clock.seconds[f"ranks: {name}"] = max(each.seconds[name] for each in found)
    what = (
        f"R-MAT, {nodes:,} nodes, {edges:,} edges, {total_edges:,} with self-loops, "
        f"{'-'.join(map(str, widths))}, {ranks} ranks, random partition"
    )
    stages = {
        f"weft {name}": Contender(samples=[value], figures={"s": value})
        for name, value in clock.seconds.items()
    }
    memory = {
        f"weft rank {number}": Contender(
            samples=[each.peak],
            figures={
                "peak": each.peak / 1e6,
                "before": each.before / 1e6,
                "peak beyond": (each.peak - each.before) / 1e6,
                "own pages": each.own / 1e6,
                "predicted": right / 1e6,
                "beyond\n/ predicted": (each.peak - each.before) / right,
            },
        )
        for number, (each, right) in enumerate(zip(found, predicted, strict=True))
    }
    says = [
        f"In all at most {most / 1e9:.2f} GB: {making / 1e9:.2f} GB while the table was made, "
        f"{together / 1e9:.2f} GB while it was trained on ({resident / 1e9:.2f} GB in the process "
        "that started the ranks, and each rank's peak, as if all came at once). The table has "
        f"{stored / 1e9:.2f} GB."
    ]
    missed = []
    if most > _MOST:
        missed.append(f"{most / 1e9:.1f} GB in all are more than {_MOST / 1e9:.0f} GB.")
    losses = {each.loss for each in found}
    if len(losses) > 1 or not np.isfinite(found[0].loss):
        missed.append(f"The ranks' losses are {sorted(losses)}, not one finite number.")
    return [
        CaseResult(case="scale, seconds", what=what, unit="s", contenders=stages),
        CaseResult(
            case="scale, memory of a rank, MB",
            what=f"{what}; predicted: beyond the process itself",
            unit="bytes",
            contenders=memory,
            says=says,
            missed=missed,
        ),
    ]


class _Clock:
    """Seconds of stages, one after another, and a line of progress for each."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress, self._task = progress, progress.add_task("scale", total=None)
        self._name, self._start = "", 0.0

    def stage(self, name: str) -> None:
        self.stop()
        self._name, self._start = name, time.perf_counter()
        self._progress.update(self._task, description=f"scale: {name}")

    def stop(self) -> None:
        if self._name:
            self.seconds[self._name] = time.perf_counter() - self._start
            self._name = ""
        self._progress.update(self._task, description="scale", total=1)


def _prepared(
    path: Path, nodes: int, edges: int, widths: tuple[int, ...], ranks: int, clock: _Clock
) -> GraphTable:
    clock.stage("generating")
    graph = rmat(nodes, edges)
    clock.stage("features")
    graph = with_random_features(graph, widths[0], widths[-1])

    def tell(stage: str) -> None:
        clock.stage("writing" if stage.startswith("writing") else stage)

    return prepare(graph, path, blocks=ranks, partition="random", progress=tell)


def _predicted(table: GraphTable, grid: Grid, widths: tuple[int, ...]) -> list[float]:
    """Bytes that each rank holds at its peak, beyond the process itself."""
    counts = counts_of(table, grid)
    problem = Problem(
        nodes=table.total_nodes,
        edges=table.total_edges,
        widths=widths,
        symmetric=bool(table.metadata["symmetric_values"]),
    )
    places = [grid.place(rank) for rank in range(grid.ranks)]
    return [rank_memory(problem, grid, p, Method(), counts.of(p)).total for p in places]


def _train(small: Path, path: Path, grid: Grid, hidden: tuple[int, ...]) -> _Rank:
    with join_grid(grid) as world:
        _epoch(small, world, hidden)
        before = process_memory("VmRSS")
        with _watched() as most:
            loss, seconds = _epoch(path, world, hidden)
    return _Rank(seconds=seconds, loss=loss, before=before, peak=peak_memory(), own=most[0])


def _epoch(path: Path, world: World, hidden: tuple[int, ...]) -> tuple[float, dict[str, float]]:
    """The loss, and seconds of each stage."""
    seconds = {}
    start = time.perf_counter()
    shard = GraphShard.open(open_table(path), world, Method())
    seconds["opening"] = time.perf_counter() - start
    torch.manual_seed(0)
    config = GCNConfig(hidden=hidden, dropout=0.5, input_dropout=0.0)
    model = GCN(shard.features, shard.classes, config)
    start = time.perf_counter()
    network = GridNetwork(model, shard)
    seconds["first product"] = time.perf_counter() - start
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    world.recorder.clear()
    start = time.perf_counter()
    loss = network.step(seed=0)
    optimizer.step()
    seconds["epoch"] = time.perf_counter() - start
    seconds["of it communication"] = world.recorder.total().seconds
    return loss, seconds


@contextmanager
def _watched() -> Iterator[list[float]]:
    """The most memory of its own that this process is seen to hold meanwhile."""
    most = [0.0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            most[0] = max(most[0], held_memory())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()
        most[0] = max(most[0], held_memory())
