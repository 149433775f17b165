"""`weft export RUN FILE`: one command for the runs of every recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from weft.recipes.recipe import ExportOptions, recipe_of_run

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Export(ExportOptions):
    """Write a trained model for programs without weft: torch's AOTInductor (.pt2), or ONNX.

    The file is compared with the run at several sizes before it is kept. Examples:
      weft export runs/molecules-mine-energy model.pt2
      weft export runs/molecules-mine-energy model.onnx --no-forces

    Attributes:
        run: The folder of a run of `weft train`.
        file: Write the model to this file: .pt2 (compiled for this machine's processor), .onnx.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]

    def __call__(self, console: Console) -> int:
        """Write the file; print its size, its largest differences and the time of a call."""
        made = recipe_of_run(self.run).export(self.run, self.file, self)
        found = ", ".join(f"{name} {value:.1e}" for name, value in made.differences.items())
        console.print(
            f"Written to {made.path}, {made.path.stat().st_size / 1e6:.2f} MB. Largest differences "
            f"from the run in {made.runtime}: {found}.\n"
            f"{made.inputs}: {made.weft_seconds * 1e3:.1f} ms in weft, {made.seconds * 1e3:.1f} ms "
            f"in {made.runtime}.",
            soft_wrap=True,
            highlight=False,
        )
        return 0


COMMAND = Export
