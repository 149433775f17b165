"""`weft study communication`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from weft.errors import DataError
from weft.graphs import Graph, open_table
from weft.graphs.store import MANIFEST
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import source_graph
from weft.sources import CATALOGUE, load, planted_partition, shchur
from weft_lab.bench.machine import machine
from weft_lab.commands.study_command import StudyCommand
from weft_lab.studies import (
    CommunicationResults,
    CommunicationStudy,
    Section,
    communication_report,
    plot_communication,
    quick_communication,
    study_communication,
)


@dataclass(frozen=True, kw_only=True)
class Communication(StudyCommand):
    """Tripathy et al. (2020): what ranks that share one graph send each other, on every grid.

    Bytes predicted and recorded, as published and with less communication; times; accuracies.

    Examples:
      weft study communication --quick
      weft study communication --data amazon-photo --files amazon-photo.zip

    Attributes:
        data: a graph of the catalogue, or a path, as for `weft train full-graph`; by default one
            is generated.
        files: files of the data set of that name, instead of cached or downloaded ones.
    """

    config: Annotated[CommunicationStudy, tyro.conf.arg(name="")] = field(
        default_factory=CommunicationStudy
    )
    data: str | None = None
    files: tuple[Path, ...] = ()
    folder: Path = Path("studies/communication")

    @property
    def settings(self) -> CommunicationStudy:
        """What is measured."""
        return quick_communication(self.config) if self.quick else self.config

    def measure(self) -> CommunicationResults:
        """Measure, and keep what was measured in the folder."""
        return study_communication(
            self.settings,
            self._graph(),
            self.folder,
            name=self.data or "planted partition",
            resume=self.resume,
            machine=machine(),
            quiet=self.quiet,
        )

    def sections(self, results: CommunicationResults) -> list[Section]:
        """The tables."""
        return communication_report(results)

    def plot(self, results: CommunicationResults) -> list[Path]:
        """The pictures."""
        return plot_communication(results, self.folder)

    def _graph(self) -> Graph:
        config = self.settings
        if self.data is None:
            if self.files:
                raise DataError("--files are of a data set; name it with --data")
            return planted_partition(
                config.nodes, 8, mean_degree=14, homophily=0.8, num_features=32, seed=config.seed
            )
        recipe = FullGraphConfig(data=self.data, seed=config.seed)
        if self.data in CATALOGUE:
            if (kind := CATALOGUE[self.data].kind) != "one graph":
                raise DataError(f"--data {self.data} is {kind}, not one graph for ranks to share")
            table = load(
                self.data, files=self.files, data_dir=self.data_dir, progress=not self.quiet
            )
            return source_graph(recipe, table)
        path = Path(self.data)
        if not path.exists():
            raise DataError(f"--data {path} is neither a file nor a graph of `weft data list`")
        if (path / MANIFEST).exists():
            return source_graph(recipe, open_table(path))
        if path.suffix in (".npz", ".zip"):
            return source_graph(recipe, shchur(path))
        raise DataError(f"--data {path} is no graph table and no npz of Shchur et al.")
