"""Cases: an epoch on several ranks beside one process, and one on a very large graph."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.distributed as dist
from rich.progress import Progress

from weft.graphs import GraphTable
from weft.parallel.cost_model import Problem, rank_memory
from weft.parallel.grid import Grid, grid_of
from weft.parallel.method import Method
from weft.parallel.prepare import prepare
from weft.parallel.world import World, alone
from weft.sources import planted_partition, rmat
from weft.training.hardware import held_memory, peak_memory, process_memory
from weft.training.numerics import prepare_process
from weft_lab.bench.result import CandidateResult, CaseResult
from weft_lab.bench_settings import CommunicationBench
from weft_lab.grid_training import (
    Epoch,
    GridRun,
    GridTrainer,
    counts_of,
    join_grid,
    on_ranks,
    with_random_features,
)

_WARMUP = 2
_MOST_MEMORY = 16e9
_LOOK_SECONDS = 0.02
# Nodes and edges of a graph whose training needs next to no memory.
_SMALL = 1000, 4000

_Epochs = list[Epoch]


def speed_case(config: CommunicationBench, progress: Progress) -> CaseResult:
    """Epochs of a GCN on ranks of one thread each, and in one process.

    They take turns: while a process trains alone the other ranks sleep.
    """
    ranks, hidden = config.speed_ranks, 128
    task = progress.add_task("speed: preparing", total=2)
    graph = planted_partition(
        config.nodes, 40, mean_degree=config.degree, homophily=0.7, num_features=128, seed=0
    )
    threads = tuple(sorted({1, min(ranks, os.cpu_count() or 1)}))
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        table = prepare(graph, Path(folder) / "graph.weft", blocks=1)
        features, classes = table.column("x").shape[1], table.metadata["classes"]
        progress.update(task, description="speed: timing", advance=1)
        run = _run(Path(folder) / "graph.weft", Grid(rows=ranks), (hidden,))
        answers = on_ranks(_take_turns, run, threads, config.rounds, config.steps, ranks=ranks)
    progress.update(task, description="speed", advance=1)
    shared: list[_Epochs] = [answer["shared"] for answer in answers]
    candidates = {
        f"weft, 1 process, {count} thread{'s' if count > 1 else ''}": _result(
            [answers[0][f"{count} threads"]]
        )
        for count in threads
    }
    candidates[f"weft, {ranks} ranks, 1 thread each"] = _result(shared)
    lone: _Epochs = answers[0]["1 threads"]
    shares = {
        name: statistics.fmean(_median(epochs, name) for epochs in shared) / _median(lone, name)
        for name in ("compute", "cpu")
    }
    by_rank = ", ".join(f"{1e3 * _median(epochs, 'compute'):.4g} ms" for epochs in shared)
    return CaseResult(
        case="speed",
        what=f"ms an epoch, {graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges, "
        f"{features}-{hidden}-{classes}, 1d, sparsity-aware",
        unit="s",
        candidates=candidates,
        says=[
            f"A rank of {ranks} computes {shares['compute']:.3f} of the time of one process with "
            f"one thread, {shares['cpu']:.3f} by CPU time (1 / {ranks} = {1 / ranks:.3f}); by rank "
            f"{by_rank}. Waiting is time in collectives."
        ],
    )


def _result(by_rank: list[_Epochs]) -> CandidateResult:
    """Medians over epochs of the mean rank; an epoch is over when all ranks are done."""
    epochs = list(zip(*by_rank, strict=True))
    samples = [max(epoch.seconds for epoch in ranks) for ranks in epochs]
    means = {
        name: [statistics.fmean(getattr(epoch, name) for epoch in ranks) for ranks in epochs]
        for name in ("compute", "waiting", "cpu")
    }
    figures = {
        "epoch": statistics.median(samples),
        **{name: statistics.median(values) for name, values in means.items()},
        "fastest": min(samples),
        "slowest": max(samples),
    }
    return CandidateResult(
        samples=samples, figures={name: 1e3 * value for name, value in figures.items()}
    )


def _median(epochs: _Epochs, name: str) -> float:
    values: list[float] = [getattr(epoch, name) for epoch in epochs]
    return statistics.median(values)


def _run(table: Path, grid: Grid, hidden: tuple[int, ...]) -> GridRun:
    return GridRun(table=table, grid=grid, method=Method(), hidden=hidden, dropout=0.5)


def _take_turns(
    run: GridRun, threads: tuple[int, ...], rounds: int, steps: int
) -> dict[str, _Epochs]:
    """What one rank measured: by itself with so many `threads` too, where it is rank 0."""
    prepare_process()
    torch.set_num_threads(1)
    found: dict[str, _Epochs] = {"shared": []}
    with join_grid(run.grid) as world:
        shared, lone = GridTrainer(run, world), None
        if world.rank == 0:
            lone = GridTrainer(run, alone(Grid(rows=1), 0))
            found |= {f"{count} threads": [] for count in threads}
        for turn in range(rounds + 1):
            # The first warms up, and does not count.
            numbers = range(steps if turn else _WARMUP)
            epochs = [shared.epoch(number) for number in numbers]
            found["shared"] += epochs if turn else []
            for count in threads:
                _together(world)
                if lone is not None:
                    torch.set_num_threads(count)
                    epochs = [lone.epoch(number) for number in numbers]
                    found[f"{count} threads"] += epochs if turn else []
                    torch.set_num_threads(1)
            _together(world)
    return found


def _together(world: World) -> None:
    if world.grid.ranks > 1:
        dist.barrier()


@dataclass(frozen=True)
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


def scale_cases(config: CommunicationBench, progress: Progress) -> list[CaseResult]:
    """From nothing to an epoch on several ranks; seconds of each stage, memory of each rank."""
    nodes, edges = config.scale_nodes, config.scale_edges
    widths, ranks = config.scale_widths, config.scale_ranks
    clock = _Clock(progress)
    with TemporaryDirectory(prefix="weft-bench-", dir=config.scratch) as folder:
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
        found = on_ranks(_train, small, path, grid, widths[1:-1], ranks=ranks)
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
        f"weft {name}": CandidateResult(samples=[value], figures={"s": value})
        for name, value in clock.seconds.items()
    }
    memory = {
        f"weft rank {number}": CandidateResult(
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
    if most > _MOST_MEMORY:
        missed.append(f"{most / 1e9:.1f} GB in all are more than {_MOST_MEMORY / 1e9:.0f} GB.")
    losses = {each.loss for each in found}
    if len(losses) > 1 or not np.isfinite(found[0].loss):
        missed.append(f"The ranks' losses are {sorted(losses)}, not one finite number.")
    return [
        CaseResult(case="scale, seconds", what=what, unit="s", candidates=stages),
        CaseResult(
            case="scale, memory of a rank, MB",
            what=f"{what}; predicted: beyond the process itself",
            unit="bytes",
            candidates=memory,
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
    problem = Problem(
        nodes=table.total_nodes,
        edges=table.total_edges,
        widths=widths,
        symmetric=bool(table.metadata["symmetric_values"]),
    )
    return [rank_memory(problem, Method(), sizes).total for sizes in counts_of(table, grid)]


def _train(small: Path, path: Path, grid: Grid, hidden: tuple[int, ...]) -> _Rank:
    with join_grid(grid) as world:
        GridTrainer(_run(small, grid, hidden), world).epoch(0)
        before = process_memory("VmRSS")
        with _watched() as most:
            trainer = GridTrainer(_run(path, grid, hidden), world)
            epoch = trainer.epoch(0)
    epochs = {"epoch": epoch.seconds, "of it communication": epoch.waiting}
    seconds = {**trainer.seconds, **epochs}
    return _Rank(seconds, epoch.loss, before, peak_memory(), most[0])


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
