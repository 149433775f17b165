"""`weft study dense-hardware`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from weft.errors import DataError
from weft.graphs import GraphTable
from weft.sources import load
from weft.sources.python_programs import program_table
from weft_lab.bench.machine import machine
from weft_lab.commands.study_command import StudyCommand
from weft_lab.studies import (
    DenseHardwareStudy,
    DenseResults,
    Section,
    dense_report,
    plot_dense,
    quick_dense,
    study_dense_hardware,
)


@dataclass(frozen=True, kw_only=True)
class DenseHardware(StudyCommand):
    """Balog et al. (2019): sparse graphs of programs on dense hardware, measured and compared.

    Orders of nodes, supergraphs, slices of the data, banded against csr. Examples:
      weft study dense-hardware --quick
      weft study dense-hardware --data my_project/ --epochs 8

    Attributes:
        data: a folder of .py files; by default the standard library of this Python.
    """

    config: Annotated[DenseHardwareStudy, tyro.conf.arg(name="")] = field(
        default_factory=DenseHardwareStudy
    )
    data: Path | None = None
    folder: Path = Path("studies/dense-hardware")

    @property
    def settings(self) -> DenseHardwareStudy:
        """What is measured."""
        return quick_dense(self.config) if self.quick else self.config

    def measure(self) -> DenseResults:
        """Measure, and keep what was measured in the folder."""
        return study_dense_hardware(
            self.settings,
            self._table(),
            self.folder,
            resume=self.resume,
            machine=machine(),
            quiet=self.quiet,
        )

    def sections(self, results: DenseResults) -> list[Section]:
        """The tables."""
        return dense_report(results)

    def plot(self, results: DenseResults) -> list[Path]:
        """The pictures."""
        return plot_dense(results, self.folder)

    def _table(self) -> GraphTable:
        config = self.settings
        if self.data is not None and not self.data.exists():
            raise DataError(f"--data {self.data} does not exist; name a folder of .py files")
        if self.data is None and config.graphs is None:
            return load("python", data_dir=self.data_dir, progress=not self.quiet)
        return program_table(
            self.data, limit=config.graphs, progress=not self.quiet, seed=config.seed
        )
