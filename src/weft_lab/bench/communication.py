"""Benchmark: one graph on many ranks: exact, how many bytes, how large, how fast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from rich.progress import Progress

from weft.errors import DataError
from weft.graphs import Graph
from weft.sources import planted_partition
from weft.training.launch import LaunchStopped
from weft_lab.bench.communication_bytes import bytes_cases, physics_graph
from weft_lab.bench.communication_exact import exact_case
from weft_lab.bench.communication_model import model_case
from weft_lab.bench.communication_scale import scale_cases
from weft_lab.bench.communication_speed import speed_case
from weft_lab.bench.result import BenchResult, CaseResult, Contender

CommunicationCase = Literal["exact", "bytes", "model", "speed", "scale"]


@dataclass(frozen=True, kw_only=True)
class CommunicationBench:
    """Training on ranks of this machine.

    Attributes:
        cases: exact: every grid against one process; bytes: received, recorded and predicted;
            model: formulas against the literature; speed: an epoch on 2 ranks and in one process;
            scale: a graph of 64 million edges, which takes minutes and some 10 GB.
        data: coauthor-physics.zip, or a folder with it, for `bytes`; else from the data folder.
        data_dir: the data folder.
        exact_ranks: numbers of ranks of `exact`.
        bytes_ranks: numbers of ranks of `bytes`.
        nodes: of the generated graph of `speed`.
        degree: its neighbours a node; 170,000 nodes of 13.53 have 2.3 million directed edges.
        speed_ranks: ranks of `speed`.
        rounds: turns of each contender of `speed`.
        steps: epochs a turn.
        scale_nodes: of the R-MAT graph of `scale`.
        scale_edges: of it.
        scale_widths: features, hidden layer and classes.
        scale_ranks: ranks of `scale`.
        scratch: folder for the table of `scale`, 2 GB; by default the system's for such files.
    """

    cases: tuple[CommunicationCase, ...] = ("exact", "bytes", "model", "speed")
    data: Path | None = None
    data_dir: Path | None = None
    exact_ranks: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 9, 16, 27)
    bytes_ranks: tuple[int, ...] = (4, 16)
    nodes: int = 170_000
    degree: float = 13.53
    speed_ranks: int = 2
    rounds: int = 5
    steps: int = 2
    scale_nodes: int = 2_000_000
    scale_edges: int = 64_000_000
    scale_widths: tuple[int, ...] = (32, 16, 8)
    scale_ranks: int = 4
    scratch: Path | None = None

    def __post_init__(self) -> None:
        if not self.cases or set(self.cases) - set(get_args(CommunicationCase)):
            raise ValueError(
                f"cases are {self.cases}; choose from {', '.join(get_args(CommunicationCase))}"
            )
        for name, least in (("exact_ranks", 1), ("bytes_ranks", 2)):
            given = getattr(self, name)
            if not given or min(given) < least:
                raise ValueError(f"{name} are {given}; one at least, and each at least {least}")
        for name in ("speed_ranks", "scale_ranks", "rounds", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if len(self.scale_widths) < 2:
            raise ValueError(f"scale_widths are {self.scale_widths}; give at least 2")
        if self.scratch is not None and not self.scratch.is_dir():
            raise DataError(f"there is no folder {self.scratch}; --scratch names one")


def bench_communication(config: CommunicationBench, progress: Progress) -> BenchResult:
    """Run the cases that were asked for."""
    try:
        return BenchResult(name="communication", cases=_cases(config, progress))
    except LaunchStopped:
        raise KeyboardInterrupt from None


def _cases(config: CommunicationBench, progress: Progress) -> list[CaseResult]:
    # First, so that what is wrong with it is known before anything is measured.
    physics, absent = _physics(config) if "bytes" in config.cases else (None, "")
    cases: list[CaseResult] = []
    for name in dict.fromkeys(config.cases):
        if name == "exact":
            cases.append(exact_case(config.exact_ranks, progress))
        elif name == "model":
            cases.append(model_case())
        elif name == "bytes" and physics is None:
            none = {"weft": Contender(absent=absent)}
            cases.append(CaseResult(case="bytes", what="no data", unit="bytes", contenders=none))
        elif name == "bytes":
            assert physics is not None
            cases += bytes_cases(physics, config.bytes_ranks, progress)
        elif name == "speed":
            graph = planted_partition(
                config.nodes, 40, mean_degree=config.degree, homophily=0.7, num_features=128, seed=0
            )
            cases.append(
                speed_case(
                    graph,
                    ranks=config.speed_ranks,
                    hidden=128,
                    rounds=config.rounds,
                    steps=config.steps,
                    progress=progress,
                )
            )
        else:
            cases += scale_cases(
                nodes=config.scale_nodes,
                edges=config.scale_edges,
                widths=config.scale_widths,
                ranks=config.scale_ranks,
                scratch=config.scratch,
                progress=progress,
            )
    return cases


def _physics(config: CommunicationBench) -> tuple[Graph | None, str]:
    """The graph, or why it is not there; what was named must be."""
    try:
        graph = physics_graph(config.data, config.data_dir)
    except DataError as error:
        if config.data is not None:
            raise
        return None, f"{error}"
    # Its own features are wide, and not used.
    bare = Graph(num_nodes=graph.num_nodes, senders=graph.senders, receivers=graph.receivers)
    return bare, ""
