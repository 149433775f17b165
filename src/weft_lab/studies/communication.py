"""The algorithms of Tripathy, Yelick and Buluç (2020) and ours: what travels, and what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from weft.errors import DataError
from weft.graphs import Graph, open_table
from weft.graphs.store import MANIFEST
from weft.parallel.grid import Grid, grids_for
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import source_graph
from weft.sources import CATALOGUE, load, planted_partition, shchur
from weft.sources.progress_bar import progress_bar
from weft_lab.grid_training import (
    METHODS,
    PreparedTables,
    RankRecord,
    counts_of,
    grid_label,
    predicted_bytes,
    simulate_rank,
    train_on_ranks,
    with_random_features,
)
from weft_lab.study import StudyResults
from weft_lab.study_settings import CommunicationStudy


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedGraph:
    """The graph that ranks share: with features, classes and a split."""

    name: str
    graph: Graph

    def about(self) -> dict[str, Any]:
        """Its name and size."""
        return {
            "name": self.name,
            "nodes": self.graph.num_nodes,
            "edges": self.graph.num_edges,
        }


def shared_graph(
    config: CommunicationStudy,
    *,
    data_dir: Path | None = None,
    quiet: bool = False,
    data: str | None = None,
    files: tuple[Path, ...] = (),
) -> NamedGraph:
    """A graph of the catalogue or of a path, as for `weft train full-graph`, or a generated one.

    Raises:
        DataError: there is no such graph, or it is not one graph.
    """
    if data is None:
        if files:
            raise DataError("--files are of a data set; name it with --data")
        graph = planted_partition(
            config.nodes, 8, mean_degree=14, homophily=0.8, num_features=32, seed=config.seed
        )
        return NamedGraph(name="planted partition", graph=graph)
    recipe = FullGraphConfig(data=data, seed=config.seed)
    path = Path(data)
    if data in CATALOGUE:
        if (kind := CATALOGUE[data].kind) != "one graph":
            raise DataError(f"--data {data} is {kind}, not one graph for ranks to share")
        graph = source_graph(recipe, load(data, files=files, data_dir=data_dir, progress=not quiet))
    elif not path.exists():
        raise DataError(f"--data {path} is neither a file nor a graph of `weft data list`")
    elif (path / MANIFEST).exists():
        graph = source_graph(recipe, open_table(path))
    elif path.suffix in (".npz", ".zip"):
        graph = source_graph(recipe, shchur(path))
    else:
        raise DataError(f"--data {path} is no graph table and no npz of Shchur et al.")
    return NamedGraph(name=data, graph=graph)


@dataclass(kw_only=True)
class CommunicationCell:
    """One method on one grid.

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


@dataclass(frozen=True, kw_only=True)
class AccuracyRun:
    """A training on the graph's own features and classes, in float64.

    Attributes:
        grid: the ranks.
        losses: of each epoch.
        scores: loss and accuracy of each part at the end.
    """

    grid: Grid
    losses: list[float]
    scores: dict[str, float]

    @property
    def label(self) -> str:
        """Of the grid."""
        return "1 process" if self.grid.ranks == 1 else grid_label(self.grid)


@dataclass(kw_only=True)
class CommunicationResults(StudyResults):
    """Everything that was measured, and where.

    Attributes:
        cells: bytes and times, by grid and method.
        accuracies: trainings to compare; one process first.
    """

    schemas: ClassVar[tuple[str, ...]] = ("weft study communication 1",)
    title: ClassVar[str] = "Study of communication"
    kind: ClassVar[str] = "study of communication"
    method: ClassVar[str] = (
        "Bytes are those that a rank receives in an epoch, as its recorder notes them and as the "
        "formulas give them. Times are medians over epochs of the mean rank; ranks beyond the "
        "cores of the machine share them. Waiting is time in collectives that is not hidden "
        "behind products."
    )

    config: CommunicationStudy
    cells: list[CommunicationCell] = field(default_factory=list)
    accuracies: list[AccuracyRun] = field(default_factory=list)


def measure_communication(results: CommunicationResults, data: NamedGraph, quiet: bool) -> None:
    """Bytes and times of every grid and method, then accuracies."""
    most, nodes = max(results.config.ranks), data.graph.num_nodes
    if most > nodes:
        raise ValueError(
            f"{most} ranks for {nodes} nodes: each needs at least one; take fewer ranks"
        )
    results.save()
    _volumes(results, data.graph, quiet=quiet)
    _accuracies(results, data.graph, quiet=quiet)


def _volumes(results: CommunicationResults, graph: Graph, *, quiet: bool) -> None:
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
                results.save()
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
            epochs = config.timed_epochs if real else 1
            hidden = config.widths[1:-1]
            run = tables.run(method, grid, hidden=hidden, epochs=epochs, seed=config.seed)
            counts = counts_of(tables.table(method, grid), grid)
            predicted = predicted_bytes(counts, method, config.widths)
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


def _accuracies(results: CommunicationResults, graph: Graph, *, quiet: bool) -> None:
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
            runs = [
                tables.run(
                    METHODS["sparsity-aware"],
                    grid,
                    hidden=config.hidden,
                    epochs=config.epochs,
                    dropout=0.5,
                    dtype="float64",
                    scored=True,
                    seed=config.seed,
                )
                for grid in grids
            ]
            for grid, records in zip(grids, train_on_ranks(runs), strict=True):
                first = records[0]
                results.accuracies.append(
                    AccuracyRun(grid=grid, losses=first.losses, scores=first.scores)
                )
            results.save()
            move(number + 1)


def _accuracy_grids(config: CommunicationStudy) -> Iterator[list[Grid]]:
    """One process, then all grids of each number of ranks."""
    for ranks in dict.fromkeys((1, *config.accuracy_ranks)):
        if ranks <= config.real_ranks:
            yield grids_for(ranks)
