"""The algorithms of Tripathy, Yelick and Buluç (2020) and ours: what travels, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from weft.errors import DataError
from weft.graphs import Graph, open_table
from weft.graphs.store import MANIFEST
from weft.parallel.grid import Grid, grids_for
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import source_graph
from weft.sources import CATALOGUE, load, planted_partition, shchur
from weft_lab.grid_training import (
    METHODS,
    GridCell,
    PreparedTables,
    grid_cells,
    grid_label,
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
        return {"name": self.name, "nodes": self.graph.num_nodes, "edges": self.graph.num_edges}


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
    cells: list[GridCell] = field(default_factory=list)
    accuracies: list[AccuracyRun] = field(default_factory=list)


def measure_communication(results: CommunicationResults, data: NamedGraph) -> None:
    """Bytes and times of every grid and method, then accuracies."""
    config, graph = results.config, data.graph
    most, nodes = max(config.ranks), graph.num_nodes
    if most > nodes:
        raise ValueError(
            f"{most} ranks for {nodes} nodes: each needs at least one; take fewer ranks"
        )
    results.save()
    with TemporaryDirectory(prefix="weft-study-") as place:
        random = with_random_features(graph, config.widths[0], config.widths[-1], config.seed)
        tables = PreparedTables(random, Path(place), partition=config.partition, seed=config.seed)
        known = {cell.ranks for cell in results.cells}
        for ranks in results.missing("bytes and times", config.ranks, known.__contains__):
            real = ranks <= config.real_ranks
            results.cells += grid_cells(
                tables,
                ranks,
                config.widths,
                epochs=config.timed_epochs if real else 1,
                simulated=None if real else config.simulated or ranks,
            )
    with TemporaryDirectory(prefix="weft-study-") as place:
        # Rounding of float32 grows with the epochs, and hides a real difference.
        tables = PreparedTables(
            graph, Path(place), partition=config.partition, seed=config.seed, dtype="float64"
        )
        trained = {run.grid for run in results.accuracies}
        for grids in results.missing("accuracies", _accuracy_grids(config), trained.issuperset):
            results.accuracies += _accuracies(tables, grids, config)


def _accuracy_grids(config: CommunicationStudy) -> list[list[Grid]]:
    """One process, then all grids of each number of ranks."""
    counts = dict.fromkeys((1, *config.accuracy_ranks))
    return [grids_for(ranks) for ranks in counts if ranks <= config.real_ranks]


def _accuracies(
    tables: PreparedTables, grids: list[Grid], config: CommunicationStudy
) -> list[AccuracyRun]:
    settings = {"hidden": config.hidden, "epochs": config.epochs, "dropout": 0.5, "scored": True}
    method = METHODS["sparsity-aware"]
    trained = train_on_ranks([tables.run(method, grid, **settings) for grid in grids])
    return [
        AccuracyRun(grid=grid, losses=first.losses, scores=first.scores)
        for grid, (first, *_) in zip(grids, trained, strict=True)
    ]
