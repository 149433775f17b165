"""Everything that a study of dense hardware measured, and its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from weft.errors import DataError
from weft_lab.studies.dense_crossover import FormCell
from weft_lab.studies.dense_orders import OrderFigures, Spy
from weft_lab.studies.dense_settings import DenseHardwareStudy
from weft_lab.studies.dense_slices import Slice
from weft_lab.studies.dense_supergraphs import SupergraphCount
from weft_lab.studies.results_file import RESULTS, Provenance, read_results, write_results

_SCHEMA = "weft study dense-hardware 1"


@dataclass(kw_only=True)
class DenseResults(Provenance):
    """Everything that was measured, and where.

    Attributes:
        config: what was asked.
        data: what it was measured on.
        orders: bandwidths by order of nodes.
        supergraphs: by block and nodes; None until they are counted.
        spy: one graph before and after.
        slices: of the training data; empty until they are cut.
        baselines: accuracies on the validation graphs that need no training.
        cells: banded against csr.
    """

    title: ClassVar[str] = "Study of dense hardware"
    method: ClassVar[str] = (
        "Forms and slices took turns, round by round, so that what disturbs the machine disturbs "
        "all alike. Times are medians."
    )

    config: DenseHardwareStudy
    data: dict[str, Any] = field(default_factory=dict)
    orders: list[OrderFigures] = field(default_factory=list)
    supergraphs: list[SupergraphCount] | None = None
    spy: Spy | None = None
    slices: list[Slice] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)
    cells: list[FormCell] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        counts = self.supergraphs
        measured = {
            "data": self.data,
            "orders": [asdict(figures) for figures in self.orders],
            "supergraphs": None if counts is None else [asdict(count) for count in counts],
            "spy": None if self.spy is None else asdict(self.spy),
            "slices": [asdict(each) for each in self.slices],
            "baselines": self.baselines,
            "cells": [asdict(cell) for cell in self.cells],
        }
        write_results(folder, _SCHEMA, self, self.config, measured)

    @classmethod
    def load(cls, folder: Path, config: DenseHardwareStudy) -> DenseResults:
        """What a study with the same `config` has measured so far.

        Raises:
            DataError: the file is none, or of a study with other settings.
        """
        try:
            values = read_results(folder, _SCHEMA, config)
            counts, one = values["supergraphs"], values["spy"]
            return cls(
                config=config,
                data=values["data"],
                orders=[OrderFigures(**figures) for figures in values["orders"]],
                supergraphs=None if counts is None else [SupergraphCount(**c) for c in counts],
                spy=None if one is None else Spy(**one),
                slices=[_slice(each) for each in values["slices"]],
                baselines=values["baselines"],
                cells=[FormCell(**cell) for cell in values["cells"]],
                command=values["command"],
                machine=values["machine"],
                created=values["created"],
            )
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{folder / RESULTS} is not the file of a study of dense hardware; choose another "
                "folder"
            ) from error


def _slice(values: dict[str, Any]) -> Slice:
    curve = [(int(seen), int(steps), float(accuracy)) for seen, steps, accuracy in values["curve"]]
    return Slice(**{**values, "curve": curve})
