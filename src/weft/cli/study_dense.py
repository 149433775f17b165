"""`weft study dense-hardware`."""

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
from weft.graphs import GraphTable
from weft.sources import load
from weft.sources.programs import program_table
from weft.studies import (
    DenseHardwareStudy,
    dense_report,
    plot_dense,
    quick_dense,
    study_dense_hardware,
)
from weft.training import prepare_process

__all__ = ["DenseHardware"]


@dataclass(frozen=True, kw_only=True)
class DenseHardware:
    """Balog et al. (2019): sparse graphs of programs on dense hardware, measured and compared.

    Orders of nodes, supergraphs, slices of the data, banded against csr. Examples:
      weft study dense-hardware --quick
      weft study dense-hardware --data my_project/ --epochs 8

    Attributes:
        quick: smaller settings for everything not given: under 5 minutes on 2 cores.
        data: a folder of .py files; by default the standard library of this Python.
        folder: for results.json, results.md and the plots.
        resume: go on with the study in that folder; what is measured there is kept.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[DenseHardwareStudy, tyro.conf.arg(name="")] = field(
        default_factory=DenseHardwareStudy
    )
    quick: bool = False
    data: Path | None = None
    folder: Path = Path("studies/dense-hardware")
    resume: bool = False
    data_dir: Path | None = None
    quiet: bool = False
    print_config: bool = False

    def __call__(self, console: Console) -> int:
        """Measure, print the tables, and write everything to the folder."""
        config = quick_dense(self.config) if self.quick else self.config
        if self.print_config:
            return print_config(config, console)
        check_folder(self.folder)
        prepare_process()
        try:
            results = study_dense_hardware(
                config,
                self._table(config),
                self.folder,
                resume=self.resume,
                machine=machine(),
                quiet=self.quiet,
            )
        except KeyboardInterrupt:
            return interrupted(self.folder, console)
        plot = partial(plot_dense, results, self.folder)
        return show_study(results, dense_report(results), plot, self.folder, console)

    def _table(self, config: DenseHardwareStudy) -> GraphTable:
        if self.data is not None and not self.data.exists():
            raise DataError(f"--data {self.data} does not exist; name a folder of .py files")
        if self.data is None and config.graphs is None:
            return load("python", data_dir=self.data_dir, progress=not self.quiet)
        return program_table(
            self.data, limit=config.graphs, progress=not self.quiet, seed=config.seed
        )
