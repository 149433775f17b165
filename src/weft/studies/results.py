"""Everything that a batching study measured, and its file."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

import weft
from weft.errors import DataError
from weft.files import json_text, write_atomically
from weft.studies.cells import Timings
from weft.studies.repeats import Errors
from weft.studies.settings import BatchingStudy
from weft.studies.shapes import ShapeCount
from weft.studies.statistics import compare

__all__ = ["RESULTS", "StudyResults"]

RESULTS = "results.json"
"""File of a study's folder with everything that was measured."""
_SCHEMA = "weft study batching 1"


@dataclass(kw_only=True)
class StudyResults:
    """Everything that was measured, and where.

    Attributes:
        config: what was asked.
        data: structures and target of each data set.
        shapes: shapes and fill over many steps, of data sets whose edges are all pairs.
        cells: the timed cells.
        errors: test RMSE of the repeated trainings, by data set and policy, in the target's unit.
        command: that the study was begun with.
        machine: it ran on.
        created: when it was begun.
    """

    config: BatchingStudy
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    shapes: dict[str, list[ShapeCount]] = field(default_factory=dict)
    cells: list[Timings] = field(default_factory=list)
    errors: dict[str, Errors] = field(default_factory=dict)
    command: str = field(default_factory=lambda: shlex.join(["weft", *sys.argv[1:]]))
    machine: dict[str, Any] = field(default_factory=dict)
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        values = {
            "schema": _SCHEMA,
            "created": self.created,
            "command": self.command,
            "machine": self.machine,
            "versions": {
                "weft": weft.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "config": asdict(self.config),
            "data": self.data,
            "shapes": {name: [asdict(c) for c in counts] for name, counts in self.shapes.items()},
            "cells": [timings.to_json() for timings in self.cells],
            "errors": self.errors,
            "comparisons": {
                name: [asdict(comparison) for comparison in compare(errors)]
                for name, errors in self.errors.items()
            },
        }
        text = json_text(values, indent=1)
        write_atomically(folder / RESULTS, lambda file: file.write(text.encode()))

    @classmethod
    def load(cls, folder: Path, config: BatchingStudy) -> StudyResults:
        """What a study with the same `config` has measured so far.

        Raises:
            DataError: the file is none, or of a study with other settings.
        """
        path = folder / RESULTS
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["schema"] != _SCHEMA:
                raise ValueError(values["schema"])
            asked = json.loads(json_text(asdict(config)))
            for name, value in asked.items():
                if values["config"].get(name) != value:
                    raise DataError(
                        f"{path} is of a study with {name} = {values['config'].get(name)}, not "
                        f"{value}; resume it with the same settings or choose another folder"
                    )
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
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is not the file of a batching study; choose another folder"
            ) from error


def _shape_count(values: dict[str, Any]) -> ShapeCount:
    budget = values["budget"]
    return ShapeCount(**{**values, "budget": None if budget is None else tuple(budget)})
