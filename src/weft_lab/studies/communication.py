"""The algorithms of Tripathy, Yelick and Buluç (2020) and ours: what travels, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Graph
from weft.parallel.grid import Grid, grids_for
from weft.sources.progress_bar import progress_bar
from weft_lab.studies.communication_ranks import (
    METHODS,
    GridRun,
    PreparedTables,
    counts_of,
    predicted_bytes,
    simulate_rank,
    train_on_ranks,
    with_random_features,
)
from weft_lab.studies.communication_results import (
    AccuracyRun,
    CommunicationCell,
    CommunicationResults,
)
from weft_lab.studies.communication_settings import CommunicationStudy
from weft_lab.studies.results_file import RESULTS


def study_communication(
    config: CommunicationStudy,
    graph: Graph,
    folder: Path,
    *,
    name: str = "graph",
    resume: bool = False,
    machine: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> CommunicationResults:
    """Measure, and keep what was measured in `folder` all along.

    Args:
        config: what to measure.
        graph: with features, classes and a split.
        folder: where results.json goes.
        name: of the graph.
        resume: go on with the study in `folder`: what it has is not measured again.
        machine: what to say about it in the file.
        quiet: no progress.

    Raises:
        DataError: there is a study in `folder` and `resume` is not given, or it has other settings
            or another graph; a rank failed.
        ValueError: more ranks than nodes.
    """
    about = {"name": name, "nodes": graph.num_nodes, "edges": graph.num_edges}
    if (folder / RESULTS).exists():
        if not resume:
            raise DataError(
                f"{folder} holds a study already; go on with it (--resume) or choose another folder"
            )
        results = CommunicationResults.load(folder, config)
        if results.data != about:
            raise DataError(
                f"{folder} holds a study of {results.data}, not of {about}; choose another folder"
            )
    else:
        results = CommunicationResults(config=config, machine=dict(machine or {}), data=about)
    if max(config.ranks) > graph.num_nodes:
        raise ValueError(
            f"{max(config.ranks)} ranks for {graph.num_nodes} nodes: each needs at least one; "
            "take fewer ranks"
        )
    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder)
    _volumes(results, graph, folder, quiet=quiet)
    _accuracies(results, graph, folder, quiet=quiet)
    return results


def _volumes(results: CommunicationResults, graph: Graph, folder: Path, *, quiet: bool) -> None:
    config = results.config
    known = {cell.ranks for cell in results.cells}
    random = with_random_features(graph, config.widths[0], config.widths[-1], config.seed)
    with (
        TemporaryDirectory(prefix="weft-study-") as place,
        progress_bar("bytes and times", sum(config.ranks), show=not quiet, count=True) as move,
    ):
        tables = PreparedTables(random, Path(place), partition=config.partition, seed=config.seed)
        done = 0
        for ranks in config.ranks:
            if ranks not in known:
                results.cells += _cells(tables, ranks, config)
                results.save(folder)
            done += ranks
            move(done)


def _cells(
    tables: PreparedTables, ranks: int, config: CommunicationStudy
) -> list[CommunicationCell]:
    """Every grid of so many ranks, with every method."""
    real = ranks <= config.real_ranks
    cells, runs = [], []
    for grid in grids_for(ranks):
        for name, method in METHODS.items():
            table = tables.table(method, grid)
            assert table.path is not None
            run = GridRun(
                table=table.path,
                grid=grid,
                method=method,
                hidden=config.widths[1:-1],
                epochs=config.timed_epochs if real else 1,
                seed=config.seed,
            )
            predicted = predicted_bytes(counts_of(table, grid), method, config.widths)
            cells.append(CommunicationCell(grid=grid, method=name, predicted=predicted, real=real))
            runs.append(run)
    if real:
        for cell, records in zip(cells, train_on_ranks(runs), strict=True):
            cell.records = dict(enumerate(records))
    else:
        for cell, run in zip(cells, runs, strict=True):
            cell.records = {rank: simulate_rank(run, rank) for rank in _some(ranks, config)}
    return cells


def _some(ranks: int, config: CommunicationStudy) -> list[int]:
    """Ranks to simulate, the first and the last among them."""
    count = min(ranks, config.simulated or ranks)
    return sorted({int(rank) for rank in np.linspace(0, ranks - 1, count)})


def _accuracies(results: CommunicationResults, graph: Graph, folder: Path, *, quiet: bool) -> None:
    config = results.config
    known = {run.grid for run in results.accuracies}
    groups = [group for group in _accuracy_grids(config) if not known.issuperset(group)]
    with (
        TemporaryDirectory(prefix="weft-study-") as place,
        progress_bar("accuracies", len(groups), show=not quiet, count=True) as move,
    ):
        # Rounding of float32 grows with the epochs, and hides a real difference.
        tables = PreparedTables(
            graph, Path(place), partition=config.partition, seed=config.seed, dtype="float64"
        )
        for number, grids in enumerate(groups):
            method = METHODS["sparsity-aware"]
            runs = []
            for grid in grids:
                table = tables.table(method, grid)
                assert table.path is not None
                runs.append(
                    GridRun(
                        table=table.path,
                        grid=grid,
                        method=method,
                        hidden=config.hidden,
                        epochs=config.epochs,
                        dropout=0.5,
                        dtype="float64",
                        scored=True,
                        seed=config.seed,
                    )
                )
            for grid, records in zip(grids, train_on_ranks(runs), strict=True):
                first = records[0]
                results.accuracies.append(
                    AccuracyRun(grid=grid, losses=first.losses, scores=first.scores)
                )
            results.save(folder)
            move(number + 1)


def _accuracy_grids(config: CommunicationStudy) -> Iterator[list[Grid]]:
    """One process, then all grids of each number of ranks."""
    for ranks in dict.fromkeys((1, *config.accuracy_ranks)):
        if ranks <= config.real_ranks:
            yield grids_for(ranks)
