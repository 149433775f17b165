"""`weft study NAME`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from weft.bench.machine import machine
from weft.cli.show import print_config
from weft.cli.study_communication import Communication
from weft.cli.study_dense import DenseHardware
from weft.cli.study_output import check_folder, interrupted, show_study
from weft.cli.study_sparsification import Sparsification
from weft.errors import DataError
from weft.studies import (
    BatchingStudy,
    StudyData,
    batching_report,
    crystals,
    molecules,
    plot_study,
    quick,
    study_batching,
)
from weft.training import prepare_process
from weft.training.structure_data import structure_table

__all__ = ["COMMANDS", "Batching"]


@dataclass(frozen=True, kw_only=True)
class Batching:
    """Speckhard et al. (2025): models, batch sizes and policies of batching, timed and compared.

    On QM9, and on crystals of your own. Examples:
      weft study batching --quick
      weft study batching --compile eager static dynamic --crystals crystals.jsonl.gz

    Attributes:
        quick: smaller settings for everything not given: under 5 minutes on 2 cores.
        folder: for results.json, results.md and the plots.
        resume: go on with the study in that folder; what is measured there is kept.
        crystals: also on these crystals, JSON lines as of the data set mp-matminer.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[BatchingStudy, tyro.conf.arg(name="")] = field(default_factory=BatchingStudy)
    quick: bool = False
    folder: Path = Path("studies/batching")
    resume: bool = False
    crystals: Path | None = None
    data_dir: Path | None = None
    quiet: bool = False
    print_config: bool = False

    def __call__(self, console: Console) -> int:
        """Measure, print the tables, and write everything to the folder."""
        config = quick(self.config) if self.quick else self.config
        if self.print_config:
            return print_config(config, console)
        check_folder(self.folder)
        prepare_process()
        try:
            results = study_batching(
                config,
                self._data(),
                self.folder,
                resume=self.resume,
                machine=machine(),
                data_dir=self.data_dir,
                quiet=self.quiet,
            )
        except KeyboardInterrupt:
            return interrupted(self.folder, console)
        plot = partial(plot_study, results, self.folder)
        return show_study(results, batching_report(results), plot, self.folder, console)

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


COMMANDS = {
    "batching": Batching,
    "dense-hardware": DenseHardware,
    "communication": Communication,
    "sparsification": Sparsification,
}
