"""Case: bytes that ranks receive in an epoch, recorded and predicted, beside the published 1D."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.progress import Progress

from weft.errors import DataError
from weft.graphs import Graph
from weft.parallel.grid import grids_for
from weft.parallel.splits import one_graph
from weft.sources import load, shchur
from weft_lab.bench.result import CaseResult, Contender
from weft_lab.studies.communication_ranks import (
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
_BARS = {"reductions": 10, "sparsity-aware": 40}


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
            cases.append(_case(tables, count, tuple(widths)))
            progress.advance(task)
    progress.update(task, description="bytes")
    return cases


def _case(tables: PreparedTables, ranks: int, widths: tuple[int, ...]) -> CaseResult:
    runs: dict[str, GridRun] = {}
    predicted: dict[str, list[int]] = {}
    for grid in grids_for(ranks):
        for name, method in METHODS.items():
            label = f"weft {grid_label(grid)}: {name}"
            table = tables.table(method, grid)
            assert table.path is not None
            runs[label] = GridRun(
                table=table.path, grid=grid, method=method, hidden=widths[1:-1], epochs=2
            )
            predicted[label] = predicted_bytes(counts_of(table, grid), method, widths)
    recorded = dict(zip(runs, train_on_ranks(list(runs.values())), strict=True))
    published = sum(each.received for each in recorded["weft 1d: published"])
    contenders, missed = {}, []
    for label, records in recorded.items():
        contenders[label] = _contender(records, predicted[label], published)
        if contenders[label].samples != predicted[label]:
            missed.append(f"{label}: what was recorded is not what was predicted.")
    for name, least in _BARS.items():
        times = contenders[f"weft 1d: {name}"].figures[LESS]
        if times < least:
            missed.append(f"1d: {name} receives 1 / {times:.1f} of 1d: published, not 1 / {least}.")
    nodes, edges = tables.graph.num_nodes, tables.graph.num_edges
    shape = "-".join(map(str, widths))
    return CaseResult(
        case=f"bytes, P = {ranks}",
        what=f"MB received by a rank in an epoch, {nodes:,} nodes, {edges:,} edges, GCN {shape}",
        unit="bytes",
        contenders=contenders,
        says=[
            "`times less` is the sum over ranks of 1d: published over the sum of this row. "
            "Sparsity-aware blocks are by METIS, others in the order of the nodes. `once` comes "
            "before the first epoch."
        ],
        missed=missed,
    )


def _contender(records: list[RankRecord], predicted: list[int], published: int) -> Contender:
    received = [each.received for each in records]
    return Contender(
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
