"""`weft train RECIPE`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from weft.cli.show import print_config
from weft.errors import DataError
from weft.sources import load
from weft.training import FitResult, Run, prepare_process
from weft.training.citations import CitationsConfig, citation_batch, train_citations

__all__ = ["COMMANDS", "Citations"]


@dataclass(frozen=True, kw_only=True)
class Citations:
    """Train a two-layer GCN to tell a paper's topic on Cora, CiteSeer or PubMed.

    Attributes:
        run_dir: folder for metrics, checkpoints and weights; by default runs/citations-DATA.
        resume: go on with the run in that folder, where and as it stopped.
        init_from: start from the weights of this run folder or file, nothing else of it.
        files: folder with the Planetoid files ind.*, instead of cached or downloaded ones.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: no progress.
        print_config: print the settings as JSON and stop.
    """

    config: Annotated[CitationsConfig, tyro.conf.arg(name="")] = field(
        default_factory=CitationsConfig
    )
    run_dir: Path | None = None
    resume: bool = False
    init_from: Path | None = None
    files: Path | None = None
    data_dir: Path | None = None
    quiet: bool = False
    print_config: bool = False

    def __call__(self, console: Console) -> int:
        """Train, then print what came out and where it is."""
        config = self.config
        if self.print_config:
            return print_config(config, console)
        if self.init_from and not self.init_from.exists():
            raise DataError(f"--init-from {self.init_from} does not exist")
        prepare_process()
        table = load(config.data, files=[self.files] if self.files else [], data_dir=self.data_dir)
        batch = citation_batch(table)
        folder = self.run_dir or Path("runs") / f"citations-{config.data}"
        with Run.create(folder, config, resume=self.resume) as run:
            if self.resume and not run.resumed:
                console.print(f"There is no run in {folder} to resume; a new one starts.")
            _, result, scores = train_citations(
                batch, config, run=run, init_from=self.init_from, quiet=self.quiet
            )
            if result.stopped.startswith("interrupted"):
                return _interrupted(result, folder, console)
            run.summarise(**scores)
        summary = Table(title=f"{config.data}: {result.stopped}", title_justify="left")
        for heading in ("part", "accuracy", "loss"):
            summary.add_column(heading, justify="left" if heading == "part" else "right")
        for part in ("train", "validation", "test"):
            accuracy, loss = scores[f"{part}_accuracy"], scores[f"{part}_loss"]
            summary.add_row(part, f"{accuracy:.1%}", f"{loss:.4f}")
        console.print(summary)
        console.print(
            f"{result.epochs} epochs in {result.seconds:.1f} s; the weights are those of epoch "
            f"{result.best_epoch}, the best on the validation papers.\n"
            f"Everything is in {folder} (tensorboard --logdir {folder}).",
            soft_wrap=True,
        )
        return 0


def _interrupted(result: FitResult, folder: Path, console: Console) -> int:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    console.print(
        f"{result.stopped} after epoch {result.epochs}, step {result.steps}; everything is in "
        f"{folder}. Go on with:\n  {shlex.join(['weft', *words, '--resume'])}",
        soft_wrap=True,
    )
    return 128 + (2 if "SIGINT" in result.stopped else 15)


COMMANDS = {"citations": Citations}
