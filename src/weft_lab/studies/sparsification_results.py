"""Everything that a study of sparsification measured, and its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from weft.errors import DataError
from weft_lab.studies.results_file import RESULTS, Provenance, read_results, write_results
from weft_lab.studies.sparsification_settings import SparsificationStudy, Task
from weft_lab.studies.sparsification_times import TimeCell
from weft_lab.studies.sparsification_training import SparseRun

_SCHEMA = "weft study sparsification 2"


@dataclass(kw_only=True)
class SparsificationResults(Provenance):
    """Everything that was measured, and where.

    Attributes:
        config: what was asked.
        data: what it was measured on: names and sizes of the two graphs.
        densities: share of the training inputs that is not 0 with sparse embeddings, by task.
        runs: trainings.
        cells: times.
    """

    title: ClassVar[str] = "Study of sparsification"
    method: ClassVar[str] = (
        "FLOPs say what would be computed if no zero were multiplied; times are measured. The "
        "trainings keep masks on dense weights, as Peng et al. (2022) did: their FLOPs fall and "
        "their time does not. What time sparse weights save is in the tables of times, where "
        "forms took turns: medians over turns of the fastest call. SLR and RigL share the recipe "
        "(epochs, batches, learning rate); intervals are of 95% over training seeds on one split "
        "and one embedding; the best epoch is chosen by validation."
    )

    config: SparsificationStudy
    data: dict[str, Any] = field(default_factory=dict)
    densities: dict[str, float] = field(default_factory=dict)
    runs: list[SparseRun] = field(default_factory=list)
    cells: list[TimeCell] = field(default_factory=list)

    def of(self, task: Task) -> list[SparseRun]:
        """The trainings of a task."""
        return [run for run in self.runs if run.kind.task == task]

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        measured = {
            "data": self.data,
            "densities": self.densities,
            "runs": [asdict(run) for run in self.runs],
            "cells": [asdict(cell) for cell in self.cells],
        }
        write_results(folder, _SCHEMA, self, self.config, measured)

    @classmethod
    def load(cls, folder: Path, config: SparsificationStudy) -> SparsificationResults:
        """What a study with the same `config` has measured so far.

        Raises:
            DataError: the file is none, or of a study with other settings.
        """
        try:
            values = read_results(folder, _SCHEMA, config)
            return cls(
                config=config,
                data=values["data"],
                densities=values["densities"],
                runs=[SparseRun.from_json(run) for run in values["runs"]],
                cells=[TimeCell(**cell) for cell in values["cells"]],
                command=values["command"],
                machine=values["machine"],
                created=values["created"],
            )
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{folder / RESULTS} is not the file of a study of sparsification; choose another "
                "folder"
            ) from error
