"""Peng et al. (2022), "Towards Sparsification of Graph Neural Networks", and what it left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import DataError
from weft.graphs import Graph
from weft.sources import EdgeList, planted_partition, temporal
from weft.sources.progress_bar import progress_bar
from weft_lab.studies.results_file import RESULTS
from weft_lab.studies.sparsification_results import SparsificationResults
from weft_lab.studies.sparsification_settings import SparsificationStudy
from weft_lab.studies.sparsification_times import FORMS, TimeCell, time_forms
from weft_lab.studies.sparsification_training import kinds_of, prepare_task, train_kind


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
        return {
            "links": {
                "name": self.links_name,
                "nodes": self.edges.num_nodes,
                "edges": self.edges.num_edges,
            },
            "nodes": {
                "name": self.nodes_name,
                "nodes": self.graph.num_nodes,
                "edges": self.graph.num_edges,
            },
        }


def generated_edges(config: SparsificationStudy) -> EdgeList:
    """A stream in which the active stay active."""
    return temporal(config.nodes, config.edges, seed=config.seed)


def generated_nodes(config: SparsificationStudy) -> Graph:
    """Ten classes that show in who links to whom, and in features."""
    return planted_partition(
        config.nodes, 10, mean_degree=10, homophily=0.8, num_features=32, seed=config.seed
    )


def study_sparsification(
    config: SparsificationStudy,
    data: SparsificationData,
    folder: Path,
    *,
    resume: bool = False,
    machine: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> SparsificationResults:
    """Measure, and keep what was measured in `folder` all along.

    Args:
        config: what to measure.
        data: what to learn.
        folder: where results.json goes.
        resume: go on with the study in `folder`: what it has is not measured again.
        machine: what to say about it in the file.
        quiet: no progress.

    Raises:
        DataError: there is a study in `folder` and `resume` is not given, or it has other settings
            or other data; the data is too small, or lacks a column.
        KeyboardInterrupt: it was interrupted; what was measured is kept.
    """
    about = data.about()
    if (folder / RESULTS).exists():
        if not resume:
            raise DataError(
                f"{folder} holds a study already; go on with it (--resume) or choose another folder"
            )
        results = SparsificationResults.load(folder, config)
        if results.data != about:
            raise DataError(
                f"{folder} holds a study of {results.data}, not of {about}; choose another folder"
            )
    else:
        results = SparsificationResults(config=config, machine=dict(machine or {}), data=about)
    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder)
    _time(results, folder, quiet=quiet)
    _train(results, data, folder, quiet=quiet)
    return results


def _time(results: SparsificationResults, folder: Path, *, quiet: bool) -> None:
    config = results.config
    wanted = [
        TimeCell(network=network, sparsity=sparsity, mode=mode)
        for network in config.networks
        for mode in FORMS
        for sparsity in config.time_sparsities
    ]
    known = {(cell.network, cell.mode, cell.sparsity) for cell in results.cells}
    with progress_bar("times", len(wanted), show=not quiet, count=True) as move:
        for number, cell in enumerate(wanted):
            if (cell.network, cell.mode, cell.sparsity) not in known:
                time_forms(cell, rounds=config.rounds, seed=config.seed)
                results.cells.append(cell)
                results.save(folder)
            move(number + 1)


def _train(
    results: SparsificationResults, data: SparsificationData, folder: Path, *, quiet: bool
) -> None:
    config = results.config
    known = {run.kind for run in results.runs}
    kinds = {task: list(kinds_of(config, task)) for task in config.tasks}
    total = sum(map(len, kinds.values()))
    with progress_bar("trainings", total, show=not quiet, count=True) as move:
        done = 0
        for task, own in kinds.items():
            missing = [kind for kind in own if kind not in known]
            done += len(own) - len(missing)
            move(done)
            if not missing:
                continue
            prepared = prepare_task(config, task, data.edges, data.graph)
            results.densities[task] = prepared.density
            for kind in missing:
                results.runs.append(train_kind(prepared, kind))
                results.save(folder)
                done += 1
                move(done)
