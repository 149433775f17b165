"""`weft study sparsification`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from weft.errors import DataError
from weft.graphs import Graph
from weft.recipes.links.data import temporal_edges
from weft.sources import CATALOGUE, load
from weft_lab.bench.machine import machine
from weft_lab.commands.study_command import StudyCommand
from weft_lab.studies import (
    Section,
    SparsificationData,
    SparsificationResults,
    SparsificationStudy,
    generated_edges,
    generated_nodes,
    plot_sparsification,
    quick_sparsification,
    sparsification_report,
    study_sparsification,
)


@dataclass(frozen=True, kw_only=True)
class Sparsification(StudyCommand):
    """Peng et al. (2022): accuracy, FLOPs and time against the sparsity of the weights.

    SLR and RigL, with dense and sparse embeddings; dense, sparse and accelerated steps. Examples:
      weft study sparsification --quick
      weft study sparsification --links CollegeMsg --classes cora
      weft study sparsification --links my_edges.txt.gz --tasks links

    Attributes:
        links: a temporal graph of `weft data list`, or an edge list with the lines src dst time;
            by default a stream is generated.
        links_files: files of the data set of that name, instead of cached or downloaded ones.
        classes: a graph of `weft data list` whose nodes have classes; by default one is generated.
        classes_files: files of the data set of that name.
    """

    config: Annotated[SparsificationStudy, tyro.conf.arg(name="")] = field(
        default_factory=SparsificationStudy
    )
    links: str | None = None
    links_files: tuple[Path, ...] = ()
    classes: str | None = None
    classes_files: tuple[Path, ...] = ()
    folder: Path = Path("studies/sparsification")

    @property
    def settings(self) -> SparsificationStudy:
        """What is measured."""
        return quick_sparsification(self.config) if self.quick else self.config

    def measure(self) -> SparsificationResults:
        """Measure, and keep what was measured in the folder."""
        return study_sparsification(
            self.settings,
            self._data(),
            self.folder,
            resume=self.resume,
            machine=machine(),
            quiet=self.quiet,
        )

    def sections(self, results: SparsificationResults) -> list[Section]:
        """The tables."""
        return sparsification_report(results)

    def plot(self, results: SparsificationResults) -> list[Path]:
        """The pictures."""
        return plot_sparsification(results, self.folder)

    def _data(self) -> SparsificationData:
        config = self.settings
        for name in ("links", "classes"):
            if getattr(self, name) is None and getattr(self, f"{name}_files"):
                raise DataError(f"--{name}-files are of a data set; name it with --{name}")
        edges = (
            generated_edges(config)
            if self.links is None
            else temporal_edges(
                self.links,
                files=self.links_files,
                data_dir=self.data_dir,
                progress=not self.quiet,
            )
        )
        return SparsificationData(
            links_name=self.links or "generated stream",
            edges=edges,
            nodes_name=self.classes or "planted partition",
            graph=self._graph(),
        )

    def _graph(self) -> Graph:
        config = self.settings
        if self.classes is None:
            return generated_nodes(config)
        if self.classes not in CATALOGUE:
            raise DataError(f"--classes {self.classes} is no data set of `weft data list`")
        table = load(
            self.classes,
            files=self.classes_files,
            data_dir=self.data_dir,
            progress=not self.quiet,
        )
        if len(table) != 1 or "y" not in table.schema:
            raise DataError(f"--classes {self.classes} is not one graph whose nodes have classes")
        graph = table[0]
        if "gcn" in config.tasks and "x" not in graph.nodes:
            raise DataError(
                f"the nodes of {self.classes} have no features for a GCN; leave it out: --tasks "
                "links nodes"
            )
        return graph
