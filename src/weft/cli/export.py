"""`weft export RUN|MODEL FILE`: one command for runs of every recipe and for saved programs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from weft.recipes.recipe import ExportOptions

if TYPE_CHECKING:
    from rich.console import Console

    from weft.models.exported_program import Exported


@dataclass(frozen=True, kw_only=True)
class Export(ExportOptions):
    """Write a trained model for programs without weft: torch's AOTInductor (.pt2), or ONNX.

    Hidden units that do nothing are left out. The file is compared with the model at several sizes
    before it is kept. Examples:
      weft export runs/molecules-mine-energy model.pt2
      weft export runs/molecules-mine-energy model.onnx --no-forces
      weft export runs/links-CollegeMsg model.onnx --int8
      weft export runs/programs-python model.onnx --layout banded
      weft export my_program.pt2 model.onnx   (of torch.export.save, any model)

    Attributes:
        model: The folder of a run of `weft train`, or a file that torch.export.save wrote.
        file: Write the model to this file: .pt2 (compiled for this machine's processor), .onnx.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")]
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]

    def __call__(self, console: Console) -> int:
        """Write the file; print its size, its largest differences and the time of a call."""
        from weft.front_door import export

        options = {each.name: getattr(self, each.name) for each in fields(ExportOptions)}
        made = export(self.model, self.file, **options)
        console.print(said_of(made), soft_wrap=True, highlight=False)
        return 0


def said_of(made: Exported) -> str:
    """Sentences on a file that was written."""
    found = ", ".join(
        f"{name} {value:.1e}" + (f" (of {made.largest[name]:.1e})" if made.weft_size else "")
        for name, value in made.differences.items()
    )
    before = _millis(made.weft_seconds, made.model_in, made.weft_size)
    others = [_millis(each.seconds, each.form, each.size) for each in made.others]
    last = f"{made.seconds * 1e3:.3g} ms in {made.runtime}"
    whose = "run" if made.model_in == "weft" else "model"
    return "\n".join(
        [
            f"Written to {made.path}, {_mega(made.path.stat().st_size)}. Largest differences from "
            f"the {whose} in {made.runtime}: {found}.",
            *made.notes,
            f"{made.inputs}: {', '.join([before, *others, last])}.",
        ]
    )


def _millis(seconds: float, form: str, size: int | None) -> str:
    return f"{seconds * 1e3:.3g} ms in {form}" + ("" if size is None else f" ({_mega(size)})")


def _mega(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


COMMAND = Export
