"""Benchmark: one graph on many ranks: exact, how many bytes, how large, how fast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.progress import Progress

from weft.errors import DataError
from weft.graphs import Graph
from weft.parallel.cost_model import NETWORKS, Machine, Problem, estimate_published
from weft.parallel.grid import grid_of, grids_for
from weft.parallel.splits import one_graph
from weft.parallel.traffic_formulas import reduced_words
from weft.sources import load, planted_partition, shchur
from weft_lab.bench.communication_exact import exact_case
from weft_lab.bench.communication_speed import scale_cases, speed_case
from weft_lab.bench.result import BenchResult, CandidateResult, CaseResult, data_or_error
from weft_lab.bench_settings import CommunicationBench
from weft_lab.grid_training import (
    METHODS,
    GridRun,
    PreparedTables,
    RankRecord,
    counts_of,
    grid_label,
    predicted_bytes,
    train_on_ranks,
    with_random_features,
)

WIDTHS = (128, 128, 16)
"""Of the features, the hidden layer and the classes."""

_NAME = "coauthor-physics"
LESS = "times\nless"
"""Figure: what 1d as published receives, over what this one receives; sums over ranks."""

# How many times less than as published 1D is to receive.
_LESS_BARS = {"reductions": 10, "sparsity-aware": 40}
_RANKS = 64
# The Amazon graph of Tripathy, Yelick and Buluç (2020) with the widths that they trained.
_AMAZON = Problem(nodes=14_249_639, edges=230_788_269, widths=(300, 16, 24))
# GB that a rank receives in an epoch, by grid and replication.
_PUBLISHED = {("1d", None): 20.0, ("1.5d", 4): 7.0, ("1.5d", 8): 7.0, ("2d", None): 9.0}
_REDUCED = 1.8
_APART = 0.03


def bench_communication(config: CommunicationBench, progress: Progress) -> BenchResult:
    """Run the cases that were asked for."""
    # First, so that what is wrong with it is known before anything is measured.
    physics: Graph | DataError | None = None
    if "bytes" in config.cases:
        physics = data_or_error(lambda: _edges(config), config.data)
    cases: list[CaseResult] = []
    for name in dict.fromkeys(config.cases):
        if name == "exact":
            cases.append(exact_case(config.exact_ranks, progress))
        elif name == "model":
            cases.append(model_case())
        elif name == "bytes" and isinstance(physics, Graph):
            cases += bytes_cases(physics, config.bytes_ranks, progress)
        elif name == "bytes":
            cases.append(CaseResult.no_data("bytes", physics, unit="bytes"))
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
    return BenchResult(name="communication", cases=cases)


def _edges(config: CommunicationBench) -> Graph:
    graph = physics_graph(config.data, config.data_dir)
    # Its own features are wide, and not used.
    return Graph(num_nodes=graph.num_nodes, senders=graph.senders, receivers=graph.receivers)


def physics_graph(data: Path | None, data_dir: Path | None) -> Graph:
    """The Coauthor Physics graph: from its file, or a folder with it, or the data folder.

    Raises:
        DataError: it is not there.
    """
    if data is None:
        return one_graph(load(_NAME, data_dir=data_dir))
    if not data.exists():
        raise DataError(f"--data {data} does not exist; name {_NAME}.zip or a folder with it")
    if data.is_dir():
        files = [data / f"{_NAME}{suffix}" for suffix in (".zip", ".npz")]
        there = [path for path in files if path.exists()]
        if not there:
            raise DataError(f"{data} has neither {files[0].name} nor {files[1].name}")
        data = there[0]
    return shchur(data)


def bytes_cases(
    graph: Graph, ranks: Sequence[int], progress: Progress, widths: Sequence[int] = WIDTHS
) -> list[CaseResult]:
    """An epoch of a GCN on real ranks, for each number of them and each grid that fits.

    Random features and classes of these widths on the edges of `graph`.
    """
    graph = with_random_features(graph, widths[0], widths[-1])
    task = progress.add_task("bytes", total=len(ranks))
    cases = []
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        tables = PreparedTables(graph, Path(folder), partition="metis")
        for count in ranks:
            progress.update(task, description=f"bytes: {count} ranks")
            cases.append(_bytes_case(tables, count, tuple(widths)))
            progress.advance(task)
    progress.update(task, description="bytes")
    return cases


def _bytes_case(tables: PreparedTables, ranks: int, widths: tuple[int, ...]) -> CaseResult:
    runs: dict[str, GridRun] = {}
    predicted: dict[str, list[int]] = {}
    for grid in grids_for(ranks):
        for name, method in METHODS.items():
            label = f"weft {grid_label(grid)}: {name}"
            runs[label] = tables.run(method, grid, hidden=widths[1:-1], epochs=2)
            counts = counts_of(tables.table(method, grid), grid)
            predicted[label] = predicted_bytes(counts, method, widths)
    recorded = dict(zip(runs, train_on_ranks(list(runs.values())), strict=True))
    published = sum(each.received for each in recorded["weft 1d: published"])
    candidates, missed = {}, []
    for label, records in recorded.items():
        candidates[label] = _result(records, predicted[label], published)
        if candidates[label].samples != predicted[label]:
            missed.append(f"{label}: what was recorded is not what was predicted.")
    for name, least in _LESS_BARS.items():
        times = candidates[f"weft 1d: {name}"].figures[LESS]
        if times < least:
            missed.append(f"1d: {name} receives 1 / {times:.1f} of 1d: published, not 1 / {least}.")
    nodes, edges = tables.graph.num_nodes, tables.graph.num_edges
    shape = "-".join(map(str, widths))
    return CaseResult(
        case=f"bytes, P = {ranks}",
        what=f"MB received by a rank in an epoch, {nodes:,} nodes, {edges:,} edges, GCN {shape}",
        unit="bytes",
        candidates=candidates,
        says=[
            "`times less` is the sum over ranks of 1d: published over the sum of this row. "
            "Sparsity-aware blocks are by METIS, others in the order of the nodes. `once` comes "
            "before the first epoch."
        ],
        missed=missed,
    )


def _result(records: list[RankRecord], predicted: list[int], published: int) -> CandidateResult:
    received = [each.received for each in records]
    return CandidateResult(
        samples=[float(each) for each in received],
        figures={
            "mean": sum(received) / len(received) / 1e6,
            "most": max(received) / 1e6,
            "predicted\nmean": sum(predicted) / len(predicted) / 1e6,
            "predicted\nmost": max(predicted) / 1e6,
            LESS: published / sum(received),
            "once\nmean": sum(each.once for each in records) / len(records) / 1e6,
        },
    )


def model_case() -> CaseResult:
    """Bytes received by each of 64 ranks on the Amazon graph, f² terms dropped."""
    machine = Machine(name="any", link=NETWORKS["infiniband-100"])
    found = {}
    for (name, replication), expected in _PUBLISHED.items():
        grid = grid_of(name, _RANKS, replication)
        label = f"weft {grid_label(grid)}: published"
        found[label] = (estimate_published(_AMAZON, grid, machine).bytes, expected)
    words = reduced_words(grid_of("1d", _RANKS), _AMAZON.widths, nodes=_AMAZON.nodes)
    found["weft 1d: reductions"] = (words * _AMAZON.item, _REDUCED)
    candidates, missed = {}, []
    for label, (received, expected) in found.items():
        apart = received / 1e9 / expected - 1
        candidates[label] = CandidateResult(
            samples=[received / 1e9],
            figures={"GB": received / 1e9, "expected": expected, "% apart": 100 * apart},
        )
        if abs(apart) > _APART:
            missed.append(f"{label} is {100 * apart:.1f} % from {expected} GB, not within 3 %.")
    nodes, edges = _AMAZON.nodes, _AMAZON.edges
    return CaseResult(
        case="model",
        what=f"received by a rank in an epoch, by formula: {nodes:,} nodes, {edges:,} nonzeros, "
        f"GCN {'-'.join(map(str, _AMAZON.widths))}, P = {_RANKS}",
        unit="GB",
        candidates=candidates,
        missed=missed,
    )
