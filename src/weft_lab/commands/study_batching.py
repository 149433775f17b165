"""`weft study batching`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from weft.errors import DataError
from weft.recipes.structures.data import structure_table
from weft_lab.bench.machine import machine
from weft_lab.commands.study_command import StudyCommand
from weft_lab.studies import (
    BatchingStudy,
    Section,
    StudyData,
    StudyResults,
    batching_report,
    crystals,
    molecules,
    plot_study,
    quick,
    study_batching,
)


@dataclass(frozen=True, kw_only=True)
class Batching(StudyCommand):
    """Speckhard et al. (2025): models, batch sizes and policies of batching, timed and compared.

    On QM9, and on crystals of your own. Examples:
      weft study batching --quick
      weft study batching --compile eager static dynamic --crystals crystals.jsonl.gz

    Attributes:
        crystals: also on these crystals, JSON lines as of the data set mp-matminer.
    """

    config: Annotated[BatchingStudy, tyro.conf.arg(name="")] = field(default_factory=BatchingStudy)
    folder: Path = Path("studies/batching")
    crystals: Path | None = None

    @property
    def settings(self) -> BatchingStudy:
        """What is measured."""
        return quick(self.config) if self.quick else self.config

    def measure(self) -> StudyResults:
        """Measure, and keep what was measured in the folder."""
        return study_batching(
            self.settings,
            self._data(),
            self.folder,
            resume=self.resume,
            machine=machine(),
            data_dir=self.data_dir,
            quiet=self.quiet,
        )

    def sections(self, results: StudyResults) -> list[Section]:
        """The tables."""
        return batching_report(results)

    def plot(self, results: StudyResults) -> list[Path]:
        """The pictures."""
        return plot_study(results, self.folder)

    def _data(self) -> list[StudyData]:
        qm9 = structure_table("qm9", ["u0"], data_dir=self.data_dir, progress=not self.quiet)
        data = [molecules(qm9)]
        if self.crystals is not None:
            if not self.crystals.exists():
                raise DataError(f"--crystals {self.crystals} does not exist")
            table = structure_table(
                "mp-matminer",
                ["formation_energy_per_atom"],
                files=[self.crystals],
                data_dir=self.data_dir,
                progress=not self.quiet,
            )
            data.append(crystals(table))
        return data
