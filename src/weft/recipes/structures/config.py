"""Settings for training on molecules or crystals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from weft.batching import BatchingConfig
from weft.errors import check_choices, check_least
from weft.models.config import Pooling
from weft.sources.config import Cutoff, FullyConnected, Nearest, Neighbours
from weft.training.config import (
    BatchOptions,
    CompileMode,
    FitConfig,
    OptimizerOptions,
    ScheduleConfig,
)

BEFORE: Mapping[str, Any] = {"envelope": False, "monitor": "validation_mae"}
"""Settings that the config.json of older runs lacks, as they were trained."""

_DEFAULT_TARGETS = {
    "qm9": "u0",
    "qm9-official": "u0",
    "mp-matminer": "formation_energy_per_atom",
}

_OPEN = ("readout", "envelope", "monitor")
"""Settings that are decided by others where they are None, beside neighbours.kind."""

ModelName = Literal["schnet", "mpeu", "painn"]
LossName = Literal["mse", "huber", "mae"]
Monitor = Literal[
    "validation_loss",
    "validation_mae",
    "validation_rmse",
    "validation_force_mae",
    "validation_force_rmse",
]
_MONITORS_WITHOUT_FORCES = ("validation_mae", "validation_rmse")
Kind = Literal["complete", "cutoff", "nearest"]


@dataclass(frozen=True, kw_only=True)
class NeighbourConfig:
    """Which atoms are neighbours.

    Attributes:
        kind: every pair of a molecule's atoms (`complete`), all within a distance (`cutoff`), or
            the nearest ones over periodic images (`nearest`); by default `cutoff` where the
            readout is a sum, else `complete` for molecules and `nearest` for crystals. Forces
            refuse `nearest`.
        cutoff: Distance in Å, for `cutoff`; with PaiNN or an envelope messages end there, whatever
            the kind.
        nearest: Number of neighbours of an atom, for `nearest`.
    """

    kind: Kind | None = None
    cutoff: float = 5.0
    nearest: int = 24

    def __post_init__(self) -> None:
        if self.kind is not None:
            self.rule()

    def rule(self) -> Neighbours:
        """The same as with_neighbours takes it; a recipe decides which where kind is None."""
        check_choices(self, kind=Kind)
        if self.kind == "complete":
            return FullyConnected()
        return Cutoff(radius=self.cutoff) if self.kind == "cutoff" else Nearest(k=self.nearest)

    @property
    def name(self) -> str:
        """Part of a file name."""
        numbers = {"complete": "", "cutoff": f"-{self.cutoff!r}", "nearest": f"-{self.nearest}"}
        return f"{self.kind}{numbers[str(self.kind)]}"


@dataclass(frozen=True, kw_only=True)
class Swap:
    """A change of the energy's weight late in training.

    Attributes:
        epoch: the first epoch, counted from 1, with the other weight.
        energy_weight: the weight of the energy from then on.
    """

    epoch: int
    energy_weight: float

    def __post_init__(self) -> None:
        check_least(self, epoch=1, energy_weight=0)


@dataclass(frozen=True, kw_only=True)
class StructuresConfig(BatchOptions, OptimizerOptions):
    """A network that predicts one value per structure.

    Attributes:
        data: a data set of `weft data list`, or files or folders of your own: extxyz, an ASE
            database (aselmdb too), crystals as JSON lines, CIF files with their values in
            id_prop.csv.
        validation_file: files of your own whose structures are all for validation; the fractions
            of --split then divide the rest.
        test_file: files of your own whose structures are all for the test.
        target: the value to learn, a column of the data. By default it is U0 of QM9; of a file of
            your own the energy that is there (REF_energy, energy or the like), and its forces and
            stress are then learned from, too.
        forces: the column with forces, to learn from them too; the target is then an energy in eV
            and forces are in eV/Å.
        stress: the column with stresses in eV/Å³, to learn from them too: 6 numbers in Voigt order
            or 9; or with virials in eV, which have `virial` in their name.
        energy_weight: weight of the target's errors in the loss.
        force_weight: weight of the forces' errors in the loss.
        stress_weight: weight of the stress's errors in the loss.
        per_atom: divide errors of the energy by the number of atoms.
        swap: Give the energy a different weight from this epoch on, late in training.
        loss: mse: squared errors; mae: absolute ones; huber: squared up to huber_delta, absolute
            beyond.
        huber_delta: Where huber becomes absolute: in eV (or the target's unit), eV/Å and eV/Å³.
        model: The network: schnet, mpeu (edges have learned features too) or painn (atoms have
            vectors too).
        vector: the target is a vector, three numbers per structure that rotate with it, such as the
            dipole moment of a neutral molecule; by default the data decide. PaiNN learns it.
        hidden: features of an atom.
        layers: rounds of messages.
        readout: a structure's value is the sum over its atoms, for quantities that grow with their
            number, or the mean; by default the sum with forces or references. Forces need the sum.
        neighbours: which atoms exchange messages.
        envelope: messages of SchNet and MPEU fade to 0 at neighbours.cutoff and are summed, not
            averaged, so that what is far away has no effect and the energy does not jump there; by
            default where the readout is a sum. PaiNN's always do.
        references: learn a value for each element first, by least squares; for quantities that grow
            with the number of atoms, such as an energy.
        atom_energies: energies of isolated atoms to take as references instead: H=-13.6 C=-1029.8,
            or a JSON file, or `isolated` for those of all single atoms without neighbours. By
            default they are those of structures with config_type=IsolatedAtom, if there are any.
            Isolated atoms are not trained on.
        split: fractions for training, validation and test.
        split_seed: Seed of the split, and of what --limit draws.
        limit: use only this many structures, drawn at random.
        batching: how structures become batches.
        compile: Run eager; static: torch.compile for each shape; dynamic: once for all shapes.
        learning_rate: Learning rate.
        schedule: how the learning rate moves.
        epochs: passes over the training structures, at most.
        max_steps: Stop after this many optimizer steps.
        monitor: the metric whose best epoch is kept; by default the loss on the validation
            structures with forces (energy and forces, weighted as in training), else the mean
            absolute error.
        patience: Stop after this many epochs without a better value of --monitor.
        checkpoint_every: steps from one checkpoint to the next; 0 for every 30 seconds.
        seed: Seed of the weights and, unless batching has its own, the batches.
    """

    data: str | tuple[str, ...] = "qm9"
    validation_file: tuple[str, ...] = ()
    test_file: tuple[str, ...] = ()
    target: str = ""
    forces: str | None = None
    stress: str | None = None
    energy_weight: float = 1.0
    force_weight: float = 1.0
    stress_weight: float = 100.0
    per_atom: bool = False
    swap: Swap | None = None
    loss: LossName = "mse"
    huber_delta: float = 0.01
    model: ModelName = "schnet"
    vector: bool = False
    hidden: int = 64
    layers: int = 3
    readout: Pooling | None = None
    neighbours: NeighbourConfig = field(default_factory=NeighbourConfig)
    envelope: bool | None = None
    references: bool = True
    atom_energies: tuple[str, ...] = ()
    split: tuple[float, float, float] = (0.8, 0.1, 0.1)
    split_seed: int = 0
    limit: int | None = None
    batching: BatchingConfig = field(
        default_factory=lambda: BatchingConfig(policy="dynamic", batch_size=32)
    )
    compile: CompileMode = "eager"
    learning_rate: float = 5e-4
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(shape="exponential", factor=0.96, every=10_000)
    )
    epochs: int = 30
    max_steps: int | None = None
    monitor: Monitor | None = None
    patience: int | None = None
    checkpoint_every: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_optimizer()
        self.fit_config(quiet=True)
        check_split(self.split)
        check_choices(self, model=ModelName, loss=LossName)
        check_choices(self, watched=Monitor)
        if self.target or str(self.data) in _DEFAULT_TARGETS:
            # Else forces may be found in the data.
            self.check_monitor()
        if self.learns_derivatives and self.compile != "eager":
            raise ValueError(
                f"compile is {self.compile!r}; torch cannot compile a model whose forces are "
                "learned from outside, so forces need compile = eager"
            )
        if not self.huber_delta > 0:
            raise ValueError(f"huber_delta is {self.huber_delta}; it must be above 0")
        if self.atom_energies and not self.references:
            raise ValueError(
                "atom_energies are references, and references are turned off; add --references"
            )
        if self.atom_energies and self.readout == "mean":
            raise ValueError(
                "atom_energies are added up, and readout is 'mean': train with --readout sum, or "
                "leave out --atom-energies"
            )
        if self.swap is not None and self.swap.epoch > self.epochs:
            raise ValueError(
                f"swap is at epoch {self.swap.epoch}, and there are {self.epochs}; swap earlier"
            )
        check_least(self, learning_rate=0, force_weight=0, energy_weight=0, stress_weight=0)
        check_least(self, split_seed=0, seed=0)
        check_least(self, hidden=2, layers=1, limit=2)

    def settled(
        self, recipe: str = "molecules", earlier: Mapping[str, Any] | None = None
    ) -> StructuresConfig:
        """The same settings with a value for everything that was left open (None).

        Args:
            recipe: `molecules` or `crystals`.
            earlier: the config of a run to go on with, whose choices are taken.
        """
        known: dict[str, Any] = {} if earlier is None else {**BEFORE, **earlier}
        given = {name: getattr(self, name) for name in _OPEN}
        given |= {name: known.get(name) for name in _OPEN if given[name] is None}
        extensive = self.learns_derivatives or self.references
        readout: Pooling = given["readout"] or ("sum" if extensive else "mean")
        kind = self.neighbours.kind or dict(known.get("neighbours") or {}).get("kind")
        if kind is None:
            alone: Kind = "nearest" if recipe == "crystals" else "complete"
            kind = "cutoff" if readout == "sum" else alone
        if given["envelope"] is None:
            # The nearest neighbours are as many everywhere: a mean of theirs is no less local.
            given["envelope"] = readout == "sum" and kind != "nearest"
        return dataclasses.replace(
            self.settled_target(),
            readout=readout,
            envelope=given["envelope"],
            monitor=given["monitor"] or self.watched,
            neighbours=dataclasses.replace(self.neighbours, kind=kind),
        )

    def settled_target(self) -> StructuresConfig:
        """The same with the usual target of a data set of the catalogue, if none was named."""
        usual = _DEFAULT_TARGETS.get(str(self.data), "")
        return self if self.target else dataclasses.replace(self, target=usual)

    def check_monitor(self) -> None:
        """Raise ValueError where the monitored metric belongs to a quantity that is not learned."""
        known = get_args(Monitor) if self.forces is not None else _MONITORS_WITHOUT_FORCES
        known = tuple(dict.fromkeys((*known, *(("validation_loss",) if self.stress else ()))))
        if self.watched not in known:
            raise ValueError(
                f"monitor is {self.monitor!r}; choose from {', '.join(known)}, or learn from "
                "--forces"
            )

    def check_forces(self) -> None:
        """Raise ValueError where forces are to be learned by a model that has no sound ones."""
        if self.learns_derivatives and (reason := self.why_no_forces()):
            name = "stress" if self.forces is None else "forces"
            raise ValueError(f"{name} is {getattr(self, name)!r} and {reason}")

    def why_no_forces(self) -> str:
        """Why such a model has no sound forces, and what to do about it; empty where it has."""
        config = self.settled()
        if config.vector:
            return "the target is a vector, of which forces are no derivative: learn an energy"
        if config.readout == "mean":
            return (
                "readout is 'mean', so the energy does not grow with the structure and two "
                "molecules far apart get half the forces of one: train with --readout sum"
            )
        if config.neighbours.kind == "nearest":
            return (
                "neighbours.kind is 'nearest', so the energy jumps where one neighbour takes the "
                "place of another, and forces are not its gradient: train with --neighbours.kind "
                "cutoff"
            )
        if config.envelope or config.model == "painn":
            return ""
        if config.neighbours.kind == "complete":
            return (
                "envelope is False, so a message is a mean over all atoms of the structure and two "
                "molecules far apart get about half the forces of one: train with --envelope True"
            )
        return (
            f"envelope is False, so the energy jumps where an atom crosses the cutoff of "
            f"{config.neighbours.cutoff:g} Å, and forces are not its gradient: train with "
            "--envelope True"
        )

    @property
    def watched(self) -> Monitor:
        """The metric that decides which weights are kept."""
        return self.monitor or ("validation_loss" if self.learns_derivatives else "validation_mae")

    @property
    def learns_derivatives(self) -> bool:
        """Whether forces or stress are learned from, too."""
        return self.forces is not None or self.stress is not None

    @property
    def targets(self) -> list[str]:
        """Columns that are learned from."""
        return [name for name in (self.target, self.forces, self.stress) if name]

    @property
    def sources(self) -> tuple[str, ...]:
        """The names in `data`: one data set of the catalogue, or paths."""
        return (self.data,) if isinstance(self.data, str) else self.data

    def fit_config(self, *, quiet: bool) -> FitConfig:
        """The settings of the training loop."""
        return FitConfig(
            epochs=self.epochs,
            max_steps=self.max_steps,
            monitor=self.watched,
            patience=self.patience,
            checkpoint_every=self.checkpoint_every,
            log_every=50,
            clip_norm=self.clip_norm,
            ema=self.ema,
            # A compiled graph is made for a number of threads.
            yield_cores=self.compile == "eager",
            counts="structures",
            quiet=quiet,
        )


def check_split(parts: tuple[float, float, float]) -> None:
    """Raise ValueError if these are no fractions for training, validation and test."""
    if not (min(parts) >= 0 and min(parts[:2]) > 0 and sum(parts) <= 1 + 1e-9):
        raise ValueError(
            f"split is {parts}; three fractions that add up to at most 1, those for training and "
            "validation above 0"
        )
