"""What the batching study measures, and on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar, get_args

import numpy as np

from weft.batching import POLICIES, BatchingConfig, PolicyName
from weft.errors import DataError
from weft.graphs import GraphTable
from weft.recipes.structures.config import ModelName, NeighbourConfig, StructuresConfig
from weft.recipes.structures.data import usable_structures
from weft.training.config import CompileMode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Study = TypeVar("Study", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True)
class BatchingStudy:
    """What to measure.

    Attributes:
        models: schnet, mpeu, painn.
        batch_sizes: graphs in a batch.
        policies: of batching.
        compile: eager, static (torch.compile for each shape), dynamic (once for all shapes).
        compiled_policies: those that the compiled modes are measured with.
        max_compilations: mode static is left out where the timed steps have more shapes than this.
        structures: that take part in the timing, drawn at random from each data set.
        hidden: features of an atom.
        rounds: turns of each cell.
        steps: timed steps a turn.
        run_steps: length of the training for which compiling should pay.
        planned_steps: batches planned for the table of shapes and fill.
        repeats: trainings of each policy, for the test error; 0 for none.
        repeat_model: the model of these trainings.
        repeat_batch_size: graphs in a batch of these trainings.
        repeat_structures: that take part in these trainings.
        repeat_epochs: passes over the training structures.
    """

    models: tuple[ModelName, ...] = get_args(ModelName)
    batch_sizes: tuple[int, ...] = (16, 32, 64, 128)
    policies: tuple[PolicyName, ...] = tuple(POLICIES)
    compile: tuple[CompileMode, ...] = ("eager",)
    compiled_policies: tuple[PolicyName, ...] = tuple(POLICIES)
    max_compilations: int = 4
    structures: int = 20_000
    hidden: int = 64
    rounds: int = 10
    steps: int = 5
    run_steps: int = 100_000
    planned_steps: int = 100_000
    repeats: int = 10
    repeat_model: ModelName = "schnet"
    repeat_batch_size: int = 32
    repeat_structures: int = 4_000
    repeat_epochs: int = 10

    def __post_init__(self) -> None:
        for name, legal in (
            ("models", get_args(ModelName)),
            ("policies", tuple(POLICIES)),
            ("compile", get_args(CompileMode)),
            ("compiled_policies", tuple(POLICIES)),
        ):
            given = getattr(self, name)
            if not given or any(value not in legal for value in given):
                raise ValueError(f"{name} is {given}; choose at least one of {', '.join(legal)}")
        if not self.batch_sizes or min(self.batch_sizes) < 2:
            raise ValueError(f"batch_sizes is {self.batch_sizes}; each must be at least 2")
        for name, least in (
            ("max_compilations", 1),
            ("structures", 2),
            ("rounds", 1),
            ("steps", 1),
            ("run_steps", 1),
            ("planned_steps", 1),
            ("repeats", 0),
            ("repeat_structures", 10),
            ("repeat_epochs", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        # These have their own rules.
        StructuresConfig(model=self.repeat_model, hidden=self.hidden)
        BatchingConfig(policy="dynamic", batch_size=self.repeat_batch_size)


def quick(config: BatchingStudy) -> BatchingStudy:
    """`config` with less of everything that is as it is by default: under 5 minutes on 2 cores."""
    smaller = BatchingStudy(
        models=("schnet",),
        batch_sizes=(32, 128),
        compile=("eager", "static"),
        compiled_policies=("dynamic",),
        structures=4_000,
        rounds=5,
        steps=4,
        repeats=4,
        repeat_structures=600,
        repeat_epochs=3,
    )
    return keep_given(config, BatchingStudy(), smaller)


def keep_given(config: Study, default: Study, smaller: Study) -> Study:
    """`smaller` with what `config` has other than by default."""
    given = {
        f.name: getattr(config, f.name)
        for f in fields(config)
        if getattr(config, f.name) != getattr(default, f.name)
    }
    return replace(smaller, **given)


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """A data set of the study.

    Attributes:
        name: in the results; the published figures are of "qm9".
        table: structures with `z`, `pos` and the target, without neighbours.
        target: column to learn.
        references: learn a value for each element first.
        neighbours: which atoms exchange messages, by model.
    """

    name: str
    table: GraphTable
    target: str
    references: bool
    neighbours: Mapping[str, NeighbourConfig]

    def usable(self) -> GraphTable:
        """The structures that have atoms and a value of the target."""
        usable = usable_structures(self.table, [self.target])
        if not usable.any():
            raise DataError(f"no structure of {self.name} has a value of '{self.target}'")
        return self.table if usable.all() else self.table.select(np.flatnonzero(usable))


def molecules(table: GraphTable, *, name: str = "qm9", target: str = "u0") -> StudyData:
    """Molecules as in the paper: every pair of atoms an edge, for PaiNN those within 5 Å."""
    complete = NeighbourConfig(kind="complete")
    return StudyData(
        name=name,
        table=table,
        target=target,
        references=True,
        neighbours={
            "schnet": complete,
            "mpeu": complete,
            "painn": NeighbourConfig(kind="cutoff", cutoff=5.0),
        },
    )


def crystals(
    table: GraphTable, *, name: str = "mp-matminer", target: str = "formation_energy_per_atom"
) -> StudyData:
    """Crystals: the 24 nearest neighbours over periodic images, for PaiNN those within 6 Å."""
    nearest = NeighbourConfig(kind="nearest", nearest=24)
    return StudyData(
        name=name,
        table=table,
        target=target,
        references=False,
        neighbours={
            "schnet": nearest,
            "mpeu": nearest,
            "painn": NeighbourConfig(kind="cutoff", cutoff=6.0),
        },
    )
