"""`weft study NAME`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from weft.bench.machine import machine
from weft.cli.show import print_config
from weft.errors import DataError
from weft.studies import (
    BatchingStudy,
    StudyData,
    batching_report,
    crystals,
    molecules,
    plot_study,
    print_report,
    quick,
    study_batching,
    write_markdown,
)
from weft.training import prepare_process
from weft.training.structure_data import structure_table

__all__ = ["COMMANDS", "Batching"]


@dataclass(frozen=True, kw_only=True)
class Batching:
    """Speckhard et al. (2025): models, batch sizes and policies of batching, timed and compared.

    Examples:
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
        if self.folder.exists() and not self.folder.is_dir():
            raise DataError(f"{self.folder} is a file; --folder names a folder")
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
            words = [word for word in sys.argv[1:] if word != "--resume"]
            console.print(
                f"Interrupted; what was measured is in {self.folder}. Go on with:\n"
                f"  {shlex.join(['weft', *words, '--resume'])}",
                soft_wrap=True,
            )
            return 130
        sections = batching_report(results)
        print_report(sections, console)
        plots = []
        try:
            plots = plot_study(results, self.folder)
        except DataError as error:
            # Hours of measuring are not to end with an error for want of pictures.
            console.print(f"No plots: {error}", soft_wrap=True)
        write_markdown(results, sections, self.folder / "results.md", plots=plots)
        console.print(
            f"Everything is in {self.folder}: results.md, results.json"
            + "".join(f", {plot.name}" for plot in plots),
            soft_wrap=True,
        )
        return 0

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


COMMANDS = {"batching": Batching}
