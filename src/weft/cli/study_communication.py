"""`weft study communication`."""

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
from weft.graphs import Graph, open_table
from weft.graphs.store import MANIFEST
from weft.sources import CATALOGUE, load, planted_partition, shchur
from weft.studies import (
    CommunicationStudy,
    communication_report,
    plot_communication,
    quick_communication,
    study_communication,
)
from weft.training.full_graph_config import FullGraphConfig
from weft.training.full_graph_data import source_graph
from weft.training.launch import LaunchStopped

__all__ = ["Communication"]


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Tripathy et al. (2020): what ranks that share one graph send each other, on every grid.

    Bytes predicted and recorded, as published and with less communication; times; accuracies.

    Examples:
      weft study communication --quick
      weft study communication --data amazon-photo --files amazon-photo.zip

    Attributes:
        quick: smaller settings for everything not given: under 3 minutes on 2 cores.
        data: a graph of the catalogue, or a path, as for `weft train full-graph`; by default one
            is generated.
        files: files of the data set of that name, instead of cached or downloaded ones.
        folder: for results.json, results.md and the plots.
        resume: go on with the study in that folder; what is measured there is kept.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[CommunicationStudy, tyro.conf.arg(name="")] = field(
        default_factory=CommunicationStudy
    )
    quick: bool = False
    data: str | None = None
    files: tuple[Path, ...] = ()
    folder: Path = Path("studies/communication")
    resume: bool = False
    data_dir: Path | None = None
    quiet: bool = False
    print_config: bool = False

    def __call__(self, console: Console) -> int:
        """Measure, print the tables, and write everything to the folder."""
        config = quick_communication(self.config) if self.quick else self.config
        if self.print_config:
            return print_config(config, console)
        check_folder(self.folder)
        try:
            results = study_communication(
                config,
                self._graph(config),
                self.folder,
                name=self.data or "planted partition",
                resume=self.resume,
                machine=machine(),
                quiet=self.quiet,
            )
        except (KeyboardInterrupt, LaunchStopped):
            return interrupted(self.folder, console)
        plot = partial(plot_communication, results, self.folder)
        return show_study(results, communication_report(results), plot, self.folder, console)

    def _graph(self, config: CommunicationStudy) -> Graph:
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
