"""Benchmark: sparse weights: speed, memory, accuracy; edge lists and walks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from rich.progress import Progress

from weft.errors import DataError
from weft.graphs import GraphTable
from weft.sources import load
from weft.training.launch import LaunchStopped
from weft_lab.bench.result import BenchResult, CaseResult, Contender
from weft_lab.bench.sparse_accelerate import accelerate_case
from weft_lab.bench.sparse_accuracy import accuracy_case
from weft_lab.bench.sparse_edges import edges_case, temporal_graph, walks_case
from weft_lab.bench.sparse_memory import memory_case
from weft_lab.bench.sparse_step import Network, step_case

SparseCase = Literal["step", "accelerate", "memory", "accuracy", "walks", "edges"]

_BARS = {"wide": {0.906: 1.8, 0.95: 3.0}, "narrow": {0.906: 1.2, 0.95: 1.5}}


@dataclass(frozen=True, kw_only=True)
class SparseBench:
    """Sparse networks beside dense ones, rigl-torch and sparseprop; and what feeds them.

    Attributes:
        cases: step: a training step of two networks against the same dense ones and the peers;
            accelerate: the step of an accelerated network over the dense one's; memory: of
            weights and optimizer; accuracy: a GCN on Cora, dense, RigL, SET and static random;
            walks: temporal walks on sx-mathoverflow; edges: a generated edge list read.
        wide: widths of the first network.
        wide_batch: samples of its step.
        narrow: widths of the second, the literature's.
        narrow_batch: samples of its step.
        sparsities: of `step`.
        accelerate_sparsities: of `accelerate`, ascending, and, those above 0, of `memory`.
        update_every: steps of RigL from one change of the pattern to the next.
        rounds: turns of each contender of `step`, `walks` and `edges`.
        steps: training steps a turn of `step`; as many times `rounds` in `accelerate`.
        seeds: trainings of each contender of `accuracy`, with seeds 0, 1, ...
        epochs: of these trainings; by default those of `weft train nodes`.
        lines: of the edge list of `edges`.
        temporal: sx-mathoverflow.txt.gz, or a folder with it; else from the data folder.
        planetoid: folder with the ind.* files of Cora; else from the data folder.
        data_dir: the data folder.
        scratch: folder for the edge list, 25 bytes a line; by default the system's for such files.
    """

    cases: tuple[SparseCase, ...] = get_args(SparseCase)
    wide: tuple[int, ...] = (1024, 1024, 1024, 10)
    wide_batch: int = 1024
    narrow: tuple[int, ...] = (64, 256, 128, 10)
    narrow_batch: int = 512
    sparsities: tuple[float, ...] = (0.906, 0.95)
    accelerate_sparsities: tuple[float, ...] = (0.0, 0.5, 0.75, 0.875, 0.906, 0.938, 0.969, 0.99)
    update_every: int = 100
    rounds: int = 10
    steps: int = 20
    seeds: int = 10
    epochs: int | None = None
    lines: int = 10_000_000
    temporal: Path | None = None
    planetoid: Path | None = None
    data_dir: Path | None = None
    scratch: Path | None = None

    def __post_init__(self) -> None:
        if not self.cases or set(self.cases) - set(get_args(SparseCase)):
            raise ValueError(
                f"cases are {self.cases}; choose from {', '.join(get_args(SparseCase))}"
            )
        for name in ("wide", "narrow"):
            widths = getattr(self, name)
            if len(widths) < 2 or min(widths) < 1:
                raise ValueError(f"{name} is {widths}; give at least 2 widths of at least 1")
        for name in ("sparsities", "accelerate_sparsities"):
            given = getattr(self, name)
            if not given or not all(0 <= each < 1 for each in given):
                raise ValueError(f"{name} are {given}; one at least, each from 0 to below 1")
        if list(self.accelerate_sparsities) != sorted(set(self.accelerate_sparsities)):
            raise ValueError(
                f"accelerate_sparsities are {self.accelerate_sparsities}; they must ascend"
            )
        for name, least in (
            ("wide_batch", 1),
            ("narrow_batch", 1),
            # rigl-torch accumulates gradients over fewer steps than that, and over at least one.
            ("update_every", 2),
            ("rounds", 1),
            ("steps", 1),
            ("seeds", 1),
            ("lines", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.scratch is not None and not self.scratch.is_dir():
            raise DataError(f"there is no folder {self.scratch}; --scratch names one")

    @property
    def networks(self) -> tuple[Network, Network]:
        """The wide and the narrow one, with their bars."""
        return (
            Network(widths=self.wide, batch=self.wide_batch, bars=_BARS["wide"]),
            Network(widths=self.narrow, batch=self.narrow_batch, bars=_BARS["narrow"]),
        )


def bench_sparse(config: SparseBench, progress: Progress) -> BenchResult:
    """Run the cases that were asked for."""
    try:
        return BenchResult(name="sparse", cases=_cases(config, progress))
    except LaunchStopped:
        raise KeyboardInterrupt from None


def _cases(config: SparseBench, progress: Progress) -> list[CaseResult]:
    # First, so that what is wrong with them is known before anything is measured.
    tables = {
        "walks": lambda: temporal_graph(config.temporal, config.data_dir),
        "accuracy": lambda: _cora(config),
    }
    named = {"walks": config.temporal, "accuracy": config.planetoid}
    found = {n: _table(tables[n], named[n]) for n in config.cases if n in tables}
    cases: list[CaseResult] = []
    for name in dict.fromkeys(config.cases):
        table, absent = found.get(name, (None, ""))
        if name == "step":
            cases += [
                step_case(
                    network,
                    sparsity,
                    rounds=config.rounds,
                    steps=config.steps,
                    update_every=config.update_every,
                    progress=progress,
                )
                for network in config.networks
                for sparsity in config.sparsities
            ]
        elif name == "accelerate":
            cases += [
                accelerate_case(
                    network,
                    config.accelerate_sparsities,
                    steps=config.rounds * config.steps,
                    progress=progress,
                )
                for network in config.networks
            ]
        elif name == "memory":
            above = [each for each in config.accelerate_sparsities if each]
            cases.append(memory_case(config.wide, above, progress))
        elif name == "edges":
            cases.append(
                edges_case(
                    config.lines,
                    rounds=config.rounds,
                    scratch=config.scratch,
                    progress=progress,
                )
            )
        elif table is None:
            none = {"weft": Contender(absent=absent)}
            cases.append(CaseResult(case=name, what="no data", unit="", contenders=none))
        elif name == "walks":
            cases.append(walks_case(table, rounds=config.rounds, progress=progress))
        else:
            cases.append(
                accuracy_case(table, seeds=config.seeds, epochs=config.epochs, progress=progress)
            )
    return cases


def _cora(config: SparseBench) -> GraphTable:
    files = [config.planetoid] if config.planetoid else []
    return load("cora", files=files, data_dir=config.data_dir, progress=False)


def _table(get: Callable[[], GraphTable], named: Path | None) -> tuple[GraphTable | None, str]:
    """The data, or why it is not there; what was named must be."""
    try:
        return get(), ""
    except DataError as error:
        if named is not None:
            raise
        return None, f"{error}"
