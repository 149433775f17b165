"""`weft predict RUN [FILE]`: one command for the runs of every recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from weft.errors import DataError
from weft.recipes.recipe import PredictOptions, recipe_of_run

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Predict(PredictOptions):
    """Predict structures, nodes, links or suspicious names of variables, with a trained run.

    Values are in the unit of the training data, forces in eV/Å. In code, every use of a variable
    is checked: would another name in scope be likelier there? Examples:
      weft predict runs/molecules-qm9-u0 new.extxyz
      weft predict runs/molecules-qm9-u0 new.extxyz --out new-predicted.extxyz --forces
      weft predict runs/programs-python my_project/
      weft predict runs/programs-python new.py --format sarif --out new.sarif
      weft predict runs/programs-python src --changed-since main --fail-over 0.9
      weft predict runs/full-graph-cora --ranks 4
      weft predict runs/full-graph-cora new-edges.txt --features new-x.npy
      weft predict runs/links-my_edges pairs.txt             (a pair src dst on each line)
      weft predict runs/nodes-cora --out classes.json        (every node of the run's graph)
      weft predict runs/nodes-my_edges some-nodes.txt        (a node on each line)

    Attributes:
        run: The folder of a run of `weft train`.
        file: What to predict: a file that ASE reads (extxyz, CIF, an ASE database), a folder of
            CIF files, or crystals as JSON lines or CIF in CSV (predictions as .csv only); a Python
            file or a folder of them; another graph than that of a full-graph run, which is the
            default there; pairs of nodes for a run on links, or nodes for a run on nodes, named as
            in its edge list.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    file: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = None

    def __call__(self, console: Console) -> int:
        """Predict, write the file, and print the first values."""
        from weft.training import prepare_process

        if self.file is not None and not self.file.exists():
            raise DataError(f"{self.file} is not there")
        recipe = recipe_of_run(self.run)
        for field in dataclasses.fields(PredictOptions):
            given = getattr(self, field.name) != field.default
            if given and field.name not in recipe.predicts_with:
                names = [f"--{each.replace('_', '-')}" for each in recipe.predicts_with]
                raise DataError(
                    f"{self.run} is a run of `weft train {recipe.name}`, for which there is no "
                    f"--{field.name.replace('_', '-')}, only {', '.join(names[:-1])} and "
                    f"{names[-1]}"
                )
        prepare_process()
        return recipe.predict(self.run, self.file, self, console) or 0


COMMAND = Predict
