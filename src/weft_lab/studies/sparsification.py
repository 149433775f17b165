"""Peng et al. (2022), "Towards Sparsification of Graph Neural Networks", and what it left open."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from weft.errors import DataError
from weft.graphs import Graph
from weft.recipes.links.data import temporal_edges
from weft.sources import CATALOGUE, EdgeList, load, planted_partition, temporal
from weft_lab.studies.sparsification_times import FORMS, TimeCell, time_forms
from weft_lab.studies.sparsification_training import (
    PreparedTask,
    SparseRun,
    kinds_of,
    prepare_task,
    train_kind,
)
from weft_lab.study import StudyResults
from weft_lab.study_settings import SparsificationStudy, Task

# What a file of version 1 counted; its runs are kept, and the tables say so.
_NONZERO = (
    "Weights and FLOPs of trainings from a file of version 1 are of the weights that were not 0 at "
    "the end; those that masks keep and that happened to be 0 are not among them."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SparsificationData:
    """What is learned.

    Attributes:
        links_name: of the temporal graph.
        edges: with times.
        nodes_name: of the graph whose nodes have classes.
        graph: with node columns `y` and, for the GCN, `x`.
    """

    links_name: str
    edges: EdgeList
    nodes_name: str
    graph: Graph

    def about(self) -> dict[str, Any]:
        """Names and sizes."""
        both: dict[str, tuple[str, EdgeList | Graph]] = {
            "links": (self.links_name, self.edges),
            "nodes": (self.nodes_name, self.graph),
        }
        return {
            kind: {"name": name, "nodes": each.num_nodes, "edges": each.num_edges}
            for kind, (name, each) in both.items()
        }


def generated_edges(config: SparsificationStudy) -> EdgeList:
    """A stream in which the active stay active."""
    return temporal(config.nodes, config.edges, seed=config.seed)


def generated_nodes(config: SparsificationStudy) -> Graph:
    """Ten classes that show in who links to whom, and in features."""
    return planted_partition(
        config.nodes, 10, mean_degree=10, homophily=0.8, num_features=32, seed=config.seed
    )


def sparsification_data(
    config: SparsificationStudy,
    *,
    data_dir: Path | None = None,
    quiet: bool = False,
    links: str | None = None,
    links_files: tuple[Path, ...] = (),
    classes: str | None = None,
    classes_files: tuple[Path, ...] = (),
) -> SparsificationData:
    """A temporal graph and one whose nodes have classes; what is not named is generated.

    Raises:
        DataError: there is no such data set or file, or it is not what is learned here.
    """
    for name, given, files in (("links", links, links_files), ("classes", classes, classes_files)):
        if given is None and files:
            raise DataError(f"--{name}-files are of a data set; name it with --{name}")
    edges = (
        generated_edges(config)
        if links is None
        else temporal_edges(links, files=links_files, data_dir=data_dir, progress=not quiet)
    )
    if classes is None:
        graph = generated_nodes(config)
    elif classes not in CATALOGUE:
        raise DataError(f"--classes {classes} is no data set of `weft data list`")
    else:
        table = load(classes, files=classes_files, data_dir=data_dir, progress=not quiet)
        if len(table) != 1 or "y" not in table.schema:
            raise DataError(f"--classes {classes} is not one graph whose nodes have classes")
        graph = table[0]
        if "gcn" in config.tasks and "x" not in graph.nodes:
            raise DataError(
                f"the nodes of {classes} have no features for a GCN; leave it out: "
                "--tasks links nodes"
            )
    return SparsificationData(
        links_name=links or "generated stream",
        edges=edges,
        nodes_name=classes or "planted partition",
        graph=graph,
    )


@dataclass(kw_only=True)
class SparsificationResults(StudyResults):
    """Everything that was measured, and where.

    Attributes:
        densities: share of the training inputs that is not 0 with sparse embeddings, by task.
        runs: trainings.
        cells: times.
        remarks: what is to be known of trainings from a file of an earlier version.
    """

    schemas: ClassVar[tuple[str, ...]] = (
        "weft study sparsification 2",
        "weft study sparsification 1",
    )
    title: ClassVar[str] = "Study of sparsification"
    kind: ClassVar[str] = "study of sparsification"
    method: ClassVar[str] = (
        "FLOPs say what would be computed if no zero were multiplied; times are measured. The "
        "trainings keep masks on dense weights, as Peng et al. (2022) did: their FLOPs fall and "
        "their time does not. What time sparse weights save is in the tables of times, where "
        "forms took turns: medians over turns of the fastest call. SLR and RigL share the recipe "
        "(epochs, batches, learning rate); intervals are of 95% over training seeds on one split "
        "and one embedding; the best epoch is chosen by validation."
    )

    config: SparsificationStudy
    densities: dict[str, float] = field(default_factory=dict)
    runs: list[SparseRun] = field(default_factory=list)
    cells: list[TimeCell] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def of(self, task: Task) -> list[SparseRun]:
        """The trainings of a task."""
        return [run for run in self.runs if run.kind.task == task]

    @classmethod
    def upgraded(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Version 1 counted weights that are not 0, where version 2 counts those of the masks."""
        if values["schema"] == cls.schemas[0]:
            return {"remarks": [], **values}
        runs = [{"active": run["nonzero"], **run} for run in values["runs"]]
        return {**values, "runs": runs, "remarks": [_NONZERO] if runs else []}


def measure_sparsification(results: SparsificationResults, data: SparsificationData) -> None:
    """Times of all networks and forms, then trainings."""
    config = results.config
    results.save()
    wanted = [
        TimeCell(network=network, sparsity=sparsity, mode=mode)
        for network, mode, sparsity in product(config.networks, FORMS, config.time_sparsities)
    ]
    timed = {cell.key for cell in results.cells}
    for cell in results.missing("times", wanted, lambda cell: cell.key in timed):
        time_forms(cell, rounds=config.rounds, seed=config.seed)
        results.cells.append(cell)
    trained = {run.kind for run in results.runs}
    kinds = [kind for task in config.tasks for kind in kinds_of(config, task)]
    prepared: PreparedTask | None = None
    for kind in results.missing("trainings", kinds, trained.__contains__):
        if prepared is None or prepared.task != kind.task:
            prepared = prepare_task(config, kind.task, data.edges, data.graph)
            results.densities[kind.task] = prepared.density
        results.runs.append(train_kind(prepared, kind))
