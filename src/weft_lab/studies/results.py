"""Everything that a batching study measured, and its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from weft.errors import DataError
from weft_lab.studies.cells import Timings
from weft_lab.studies.repeats import Errors
from weft_lab.studies.results_file import RESULTS, Provenance, read_results, write_results
from weft_lab.studies.settings import BatchingStudy
from weft_lab.studies.shapes import ShapeCount
from weft_lab.studies.statistics import compare

_SCHEMA = "weft study batching 1"


@dataclass(kw_only=True)
class StudyResults(Provenance):
    """Everything that was measured, and where.

    Attributes:
        config: what was asked.
        data: structures and target of each data set.
        shapes: shapes and fill over many steps, of data sets whose edges are all pairs.
        cells: the timed cells.
        errors: test RMSE of the repeated trainings, by data set and policy, in the target's unit.
    """

    title: ClassVar[str] = "Batching study"
    method: ClassVar[str] = (
        "Cells took turns, round by round, so that what disturbs the machine disturbs all alike. "
        "Batching and update follow one another without a thread between them. Compilation is "
        "counted apart."
    )

    config: BatchingStudy
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    shapes: dict[str, list[ShapeCount]] = field(default_factory=dict)
    cells: list[Timings] = field(default_factory=list)
    errors: dict[str, Errors] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        measured = {
            "data": self.data,
            "shapes": {name: [asdict(c) for c in counts] for name, counts in self.shapes.items()},
            "cells": [timings.to_json() for timings in self.cells],
            "errors": self.errors,
            "comparisons": {
                name: [asdict(comparison) for comparison in compare(errors)]
                for name, errors in self.errors.items()
            },
        }
        write_results(folder, _SCHEMA, self, self.config, measured)

    @classmethod
    def load(cls, folder: Path, config: BatchingStudy) -> StudyResults:
        """What a study with the same `config` has measured so far.

        Raises:
            DataError: the file is none, or of a study with other settings.
        """
        try:
            values = read_results(folder, _SCHEMA, config)
            return cls(
                config=config,
                data=values["data"],
                shapes={
                    name: [_shape_count(count) for count in counts]
                    for name, counts in values["shapes"].items()
                },
                cells=[Timings.from_json(cell) for cell in values["cells"]],
                errors=values["errors"],
                command=values["command"],
                machine=values["machine"],
                created=values["created"],
            )
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{folder / RESULTS} is not the file of a batching study; choose another folder"
            ) from error


def _shape_count(values: dict[str, Any]) -> ShapeCount:
    budget = values["budget"]
    return ShapeCount(**{**values, "budget": None if budget is None else tuple(budget)})
