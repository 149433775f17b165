"""What every `weft study` command does."""

from __future__ import annotations

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from weft.cli.show import print_config
from weft.errors import DataError
from weft.training import prepare_process
from weft.training.launch import LaunchStopped
from weft_lab.studies import Section, print_report, write_markdown


@dataclass(frozen=True, kw_only=True)
class StudyCommand(ABC):
    """Options of every study.

    Attributes:
        quick: smaller settings for everything not given: under 5 minutes on 2 cores.
        folder: for results.json, results.md and the plots.
        resume: go on with the study in that folder; what is measured there is kept.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    quick: bool = False
    folder: Path
    resume: bool = False
    data_dir: Path | None = None
    quiet: bool = False
    print_config: bool = False

    @property
    @abstractmethod
    def settings(self) -> Any:
        """What is measured: the study's own dataclass, made smaller where `quick` is given."""

    @abstractmethod
    def measure(self) -> Any:
        """Measure, and keep what was measured in the folder; gives the results."""

    @abstractmethod
    def sections(self, results: Any) -> list[Section]:
        """The results as tables."""

    @abstractmethod
    def plot(self, results: Any) -> list[Path]:
        """The results as pictures in the folder; gives their paths."""

    def __call__(self, console: Console) -> int:
        """Measure, print the tables, and write everything to the folder."""
        if self.print_config:
            return print_config(self.settings, console)
        check_folder(self.folder)
        prepare_process()
        try:
            results = self.measure()
        except (KeyboardInterrupt, LaunchStopped):
            return _interrupted(self.folder, console)
        sections = self.sections(results)
        print_report(sections, console)
        plots: Sequence[Path] = ()
        try:
            plots = self.plot(results)
        except DataError as error:
            # Hours of measuring are not to end with an error for want of pictures.
            console.print(f"No plots: {error}", soft_wrap=True)
        write_markdown(results, sections, self.folder / "results.md", plots=plots)
        console.print(
            f"Everything is in {self.folder}: results.md, results.json"
            + "".join(f", {path.name}" for path in plots),
            soft_wrap=True,
        )
        return 0


def check_folder(folder: Path) -> None:
    """Look whether a study can go to `folder`."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; --folder names a folder")


def _interrupted(folder: Path, console: Console) -> int:
    """Say how to go on; gives the exit code."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    console.print(
        f"Interrupted; what was measured is in {folder}. Go on with:\n"
        f"  {shlex.join(['weft', *words, '--resume'])}",
        soft_wrap=True,
    )
    return 130
