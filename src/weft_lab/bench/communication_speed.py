"""Case: an epoch on several ranks beside one process, with what it is spent on."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from rich.progress import Progress

from weft.graphs import Graph, GraphTable, open_table
from weft.models import GCN, GCNConfig
from weft.parallel.grid import Grid
from weft.parallel.method import Method
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard
from weft.parallel.world import World, alone
from weft.training.launch import launch
from weft.training.numerics import prepare_process
from weft_lab.bench.result import CaseResult, Contender
from weft_lab.studies.communication_ranks import join_grid

_WARMUP = 2


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What the ranks take turns in.

    Attributes:
        table: folder of the prepared graph.
        ranks: P.
        threads: of the processes that train alone.
        hidden: width of the hidden layer.
        rounds: turns of each.
        steps: epochs a turn.
    """

    table: Path
    ranks: int
    threads: tuple[int, ...]
    hidden: int
    rounds: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class _Epoch:
    """Of one rank, s.

    Attributes:
        seconds: in all.
        waiting: in collectives.
        cpu: that the rank's own thread has run, which other programs do not disturb as much.
    """

    seconds: float
    waiting: float
    cpu: float

    @property
    def compute(self) -> float:
        """Outside of collectives."""
        return self.seconds - self.waiting


_Epochs = list[_Epoch]


def speed_case(
    graph: Graph, *, ranks: int, hidden: int, rounds: int, steps: int, progress: Progress
) -> CaseResult:
    """Epochs of a GCN on `ranks` ranks of one thread each, and in one process.

    They take turns: while a process trains alone the other ranks sleep.
    """
    if rounds < 1 or steps < 1:
        raise ValueError(f"{rounds} rounds of {steps} steps time nothing; each must be at least 1")
    task = progress.add_task("speed: preparing", total=2)
    threads = tuple(sorted({1, min(ranks, os.cpu_count() or 1)}))
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        table = prepare(graph, Path(folder) / "graph.weft", blocks=1)
        features, classes = table.column("x").shape[1], table.metadata["classes"]
        progress.update(task, description="speed: timing", advance=1)
        job = _Job(
            table=Path(folder) / "graph.weft",
            ranks=ranks,
            threads=threads,
            hidden=hidden,
            rounds=rounds,
            steps=steps,
        )
        answers = launch(_take_turns, (job,), ranks=ranks, logs=Path(folder) / "logs")
    progress.update(task, description="speed", advance=1)
    shared: list[_Epochs] = [answer["shared"] for answer in answers]
    contenders = {
        f"weft, 1 process, {count} thread{'s' if count > 1 else ''}": _contender(
            [answers[0][f"{count} threads"]]
        )
        for count in threads
    }
    contenders[f"weft, {ranks} ranks, 1 thread each"] = _contender(shared)
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
        contenders=contenders,
        says=[
            f"A rank of {ranks} computes {shares['compute']:.3f} of the time of one process with "
            f"one thread, {shares['cpu']:.3f} by CPU time (1 / {ranks} = {1 / ranks:.3f}); by rank "
            f"{by_rank}. Waiting is time in collectives."
        ],
    )


def _contender(by_rank: list[_Epochs]) -> Contender:
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
    return Contender(
        samples=samples, figures={name: 1e3 * value for name, value in figures.items()}
    )


def _median(epochs: _Epochs, name: str) -> float:
    values: list[float] = [getattr(epoch, name) for epoch in epochs]
    return statistics.median(values)


def _take_turns(job: _Job) -> dict[str, _Epochs]:
    """What one rank measured; rank 0 also trains alone."""
    prepare_process()
    torch.set_num_threads(1)
    if job.ranks > 1:
        dist.init_process_group("gloo")
    table = open_table(job.table)
    found: dict[str, _Epochs] = {"shared": []}
    with join_grid(Grid(rows=job.ranks)) as world:
        shared = _Trainer(table, world, job.hidden)
        lone = None
        if world.rank == 0:
            lone = _Trainer(table, alone(Grid(rows=1), 0), job.hidden)
            found |= {f"{count} threads": [] for count in job.threads}
        for turn in range(job.rounds + 1):
            steps = job.steps if turn else _WARMUP
            epochs = [shared.epoch() for _ in range(steps)]
            found["shared"] += epochs if turn else []
            for count in job.threads:
                _together(job)
                if lone is not None:
                    torch.set_num_threads(count)
                    epochs = [lone.epoch() for _ in range(steps)]
                    found[f"{count} threads"] += epochs if turn else []
                    torch.set_num_threads(1)
            _together(job)
    if dist.is_initialized():
        dist.destroy_process_group()
    return found


def _together(job: _Job) -> None:
    if job.ranks > 1:
        dist.barrier()


class _Trainer:
    def __init__(self, table: GraphTable, world: World, hidden: int) -> None:
        self.world = world
        shard = GraphShard.open(table, world, Method())
        torch.manual_seed(0)
        config = GCNConfig(hidden=(hidden,), dropout=0.5, input_dropout=0.0)
        self.model = GCN(shard.features, shard.classes, config)
        self.network = GridNetwork(self.model, shard)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.epochs = 0

    def epoch(self) -> _Epoch:
        if self.world.grid.ranks > 1:
            dist.barrier()
        self.world.recorder.clear()
        self.epochs += 1
        start, cpu = time.perf_counter(), time.thread_time()
        self.network.step(seed=self.epochs)
        self.optimizer.step()
        return _Epoch(
            seconds=time.perf_counter() - start,
            waiting=self.world.recorder.total().seconds,
            cpu=time.thread_time() - cpu,
        )
