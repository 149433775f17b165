"""Everything that a study of communication measured, and its file."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from weft.errors import DataError
from weft.parallel.grid import Grid
from weft_lab.studies.communication_ranks import RankRecord, grid_label
from weft_lab.studies.communication_settings import CommunicationStudy
from weft_lab.studies.results_file import RESULTS, Provenance, read_results, write_results

_SCHEMA = "weft study communication 1"


@dataclass(kw_only=True)
class CommunicationCell:
    """One method on one grid.

    Attributes:
        grid: the ranks.
        method: a name of METHODS.
        predicted: bytes that each rank receives in an epoch, by formula.
        records: what ranks noted, by rank; all ranks if they are real.
        real: they were processes; else simulated, one at a time.
    """

    grid: Grid
    method: str
    predicted: list[int]
    records: dict[int, RankRecord] = field(default_factory=dict)
    real: bool = False

    @property
    def ranks(self) -> int:
        """P."""
        return self.grid.ranks

    @property
    def label(self) -> str:
        """Of the grid."""
        return grid_label(self.grid)

    @property
    def mean(self) -> float:
        """Bytes of the mean rank, predicted."""
        return statistics.fmean(self.predicted)

    @property
    def differing(self) -> list[int]:
        """Ranks that recorded another number than predicted."""
        return [r for r, each in self.records.items() if each.received != self.predicted[r]]

    def seconds(self, what: str) -> float:
        """Median over epochs of the mean rank's `compute` or `communication`, or an `epoch`."""
        records = list(self.records.values())
        epochs: list[float] = []
        for number in range(len(records[0].seconds)):
            if what == "epoch":
                epochs.append(max(record.seconds[number] for record in records))
            else:
                epochs.append(statistics.fmean(getattr(r, what)[number] for r in records))
        return statistics.median(epochs)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "label": self.label,
            "grid": asdict(self.grid),
            "method": self.method,
            "real": self.real,
            "predicted": self.predicted,
            "records": {str(rank): asdict(record) for rank, record in self.records.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CommunicationCell:
        """What `to_json` gave."""
        return cls(
            grid=Grid(**values["grid"]),
            method=values["method"],
            predicted=values["predicted"],
            records={int(rank): RankRecord(**each) for rank, each in values["records"].items()},
            real=values["real"],
        )


@dataclass(frozen=True, kw_only=True)
class AccuracyRun:
    """A training on the graph's own features and classes, in float64.

    Attributes:
        grid: the ranks.
        losses: of each epoch.
        scores: loss and accuracy of each part at the end.
    """

    grid: Grid
    losses: list[float]
    scores: dict[str, float]

    @property
    def label(self) -> str:
        """Of the grid."""
        return "1 process" if self.grid.ranks == 1 else grid_label(self.grid)


@dataclass(kw_only=True)
class CommunicationResults(Provenance):
    """Everything that was measured, and where.

    Attributes:
        config: what was asked.
        data: what it was measured on.
        cells: bytes and times, by grid and method.
        accuracies: trainings to compare; one process first.
    """

    title: ClassVar[str] = "Study of communication"
    method: ClassVar[str] = (
        "Bytes are those that a rank receives in an epoch, as its recorder notes them and as the "
        "formulas give them. Times are medians over epochs of the mean rank; ranks beyond the "
        "cores of the machine share them. Waiting is time in collectives that is not hidden "
        "behind products."
    )

    config: CommunicationStudy
    data: dict[str, Any] = field(default_factory=dict)
    cells: list[CommunicationCell] = field(default_factory=list)
    accuracies: list[AccuracyRun] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        measured = {
            "data": self.data,
            "cells": [cell.to_json() for cell in self.cells],
            "accuracies": [asdict(run) for run in self.accuracies],
        }
        write_results(folder, _SCHEMA, self, self.config, measured)

    @classmethod
    def load(cls, folder: Path, config: CommunicationStudy) -> CommunicationResults:
        """What a study with the same `config` has measured so far.

        Raises:
            DataError: the file is none, or of a study with other settings.
        """
        try:
            values = read_results(folder, _SCHEMA, config)
            return cls(
                config=config,
                data=values["data"],
                cells=[CommunicationCell.from_json(cell) for cell in values["cells"]],
                accuracies=[
                    AccuracyRun(**{**run, "grid": Grid(**run["grid"])})
                    for run in values["accuracies"]
                ],
                command=values["command"],
                machine=values["machine"],
                created=values["created"],
            )
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{folder / RESULTS} is not the file of a study of communication; choose another "
                "folder"
            ) from error
