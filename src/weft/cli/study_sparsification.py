"""`weft study sparsification`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from weft.bench.machine import machine
from weft.cli.show import print_config
from weft.cli.study_output import check_folder, interrupted, show_study
from weft.errors import DataError
from weft.graphs import Graph
from weft.sources import CATALOGUE, load
from weft.studies import (
    SparsificationData,
    SparsificationStudy,
    generated_edges,
    generated_nodes,
    plot_sparsification,
    quick_sparsification,
    sparsification_report,
    study_sparsification,
)
from weft.training import prepare_process
from weft.training.link_data import temporal_edges

__all__ = ["Sparsification"]


@dataclass(frozen=True, kw_only=True)
class Sparsification:
    """Peng et al. (2022): accuracy, FLOPs and time against the sparsity of the weights.

    SLR and RigL, with dense and sparse embeddings; dense, sparse and accelerated steps. Examples:
      weft study sparsification --quick
      weft study sparsification --links CollegeMsg --classes cora
      weft study sparsification --links my_edges.txt.gz --tasks links

    Attributes:
        quick: smaller settings for everything not given: under 5 minutes on 2 cores.
        links: a temporal graph of `weft data list`, or an edge list with the lines src dst time;
            by default a stream is generated.
        links_files: files of the data set of that name, instead of cached or downloaded ones.
        classes: a graph of `weft data list` whose nodes have classes; by default one is generated.
        classes_files: files of the data set of that name.
        folder: for results.json, results.md and the plots.
        resume: go on with the study in that folder; what is measured there is kept.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[SparsificationStudy, tyro.conf.arg(name="")] = field(
        default_factory=SparsificationStudy
    )
    quick: bool = False
    links: str | None = None
    links_files: tuple[Path, ...] = ()
    classes: str | None = None
    classes_files: tuple[Path, ...] = ()
    folder: Path = Path("studies/sparsification")
    resume: bool = False
    data_dir: Path | None = None
    quiet: bool = False
    print_config: bool = False

    def __call__(self, console: Console) -> int:
        """Measure, print the tables, and write everything to the folder."""
        config = quick_sparsification(self.config) if self.quick else self.config
        if self.print_config:
            return print_config(config, console)
        check_folder(self.folder)
        prepare_process()
        try:
            results = study_sparsification(
                config,
                self._data(config),
                self.folder,
                resume=self.resume,
                machine=machine(),
                quiet=self.quiet,
            )
        except KeyboardInterrupt:
            return interrupted(self.folder, console)
        plot = partial(plot_sparsification, results, self.folder)
        return show_study(results, sparsification_report(results), plot, self.folder, console)

    def _data(self, config: SparsificationStudy) -> SparsificationData:
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
            graph=self._graph(config),
        )

    def _graph(self, config: SparsificationStudy) -> Graph:
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
