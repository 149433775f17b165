"""Recipe: a property of molecules or crystals, and their forces, from positions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from weft.batching import BatchingConfig, GraphLoader, GraphSampler, evaluation_sampler
from weft.errors import DataError
from weft.files import json_text, write_atomically
from weft.graphs import GraphBatch, GraphTable
from weft.models import (
    MPEU,
    MPEUConfig,
    PaiNN,
    PaiNNConfig,
    SchNet,
    SchNetConfig,
    energy_and_forces,
)
from weft.models.atoms import Pooling
from weft.models.scaling import Standardised, TargetScale, element_counts, learn_scale
from weft.recipes.structures.data import (
    FORCES,
    LABEL,
    Kind,
    NeighbourConfig,
    Split,
    check_energy,
    check_split,
    labelled,
    split_structures,
)
from weft.training.checkpoint import load_checkpoint, load_weights, put_weights
from weft.training.compilation import Compilation, CompileMode
from weft.training.config import FitConfig, FitResult
from weft.training.loop import fit
from weft.training.randomness import seed_everything
from weft.training.run import Run
from weft.training.schedules import ScheduleConfig, make_scheduler

ABOUT = "model.json"
"""File of a run with what the network was made for, beside its config."""

BEFORE: Mapping[str, Any] = {"envelope": False, "monitor": "validation_mae"}
"""Settings that the config.json of older runs lacks, as they were trained."""

_OPEN = ("readout", "envelope", "monitor")
"""Settings that are decided by others where they are None, beside neighbours.kind."""

ModelName = Literal["schnet", "mpeu", "painn"]
Monitor = Literal[
    "validation_loss",
    "validation_mae",
    "validation_rmse",
    "validation_force_mae",
    "validation_force_rmse",
]
_MONITORS_WITHOUT_FORCES = ("validation_mae", "validation_rmse")


@dataclass(frozen=True, kw_only=True)
class StructuresConfig:
    """A network that predicts one value a structure.

    Attributes:
        data: a data set of `weft data list`, or a file or folder of your own: extxyz, an ASE
            database, crystals as JSON lines, CIF files with their values in id_prop.csv.
        target: the value to learn, a column of the data.
        forces: the column with forces, to learn from them too; the target is then an energy in eV
            and forces are in eV/Å.
        force_weight: what a squared error of the forces counts beside one of the energy.
        model: schnet, mpeu (edges learn too) or painn (atoms have vectors too).
        hidden: features of an atom.
        layers: rounds of messages.
        readout: a structure's value is the sum over its atoms, for what grows with them, or the
            mean; by default the sum with forces or references. Forces need the sum.
        neighbours: which atoms exchange messages.
        envelope: messages of SchNet and MPEU fade to 0 at neighbours.cutoff and are summed, not
            averaged, so that what is far away has no effect and the energy does not jump there; by
            default where the readout is a sum. PaiNN's always do.
        references: learn a value for each element first, by least squares; for what grows with the
            number of atoms, such as an energy.
        split: fractions for training, validation and test.
        split_seed: of that split, and of what `limit` draws.
        limit: use only this many structures, drawn at random.
        batching: how structures become batches.
        compile: eager; static: torch.compile for each shape; dynamic: once for all shapes.
        learning_rate: of Adam.
        schedule: how the learning rate moves.
        epochs: passes over the training structures, at most.
        max_steps: optimizer steps, at most.
        monitor: the metric whose best epoch is kept; by default the loss on the validation
            structures with forces (energy and forces, weighted as in training), else the mean
            absolute error.
        patience: stop after this many epochs without a better value of it.
        checkpoint_every: steps from one checkpoint to the next; 0 for every 30 seconds.
        seed: of the weights and, unless batching has its own, the batches.
    """

    data: str = "qm9"
    target: str = "u0"
    forces: str | None = None
    force_weight: float = 1.0
    model: ModelName = "schnet"
    hidden: int = 64
    layers: int = 3
    readout: Pooling | None = None
    neighbours: NeighbourConfig = field(default_factory=NeighbourConfig)
    envelope: bool | None = None
    references: bool = True
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
        self.fit_config(quiet=True)
        check_split(self.split)
        if self.model not in get_args(ModelName):
            raise ValueError(
                f"model is {self.model!r}; choose from {', '.join(get_args(ModelName))}"
            )
        known = get_args(Monitor) if self.forces is not None else _MONITORS_WITHOUT_FORCES
        if self.watched not in known:
            raise ValueError(
                f"monitor is {self.monitor!r}; choose from {', '.join(known)}"
                + (", or the others with --forces" if self.forces is None else "")
            )
        if self.forces is not None and self.compile != "eager":
            raise ValueError(
                f"compile is {self.compile!r}; torch cannot compile a model whose forces are "
                "learned from outside, so forces need compile = eager"
            )
        for name in ("learning_rate", "force_weight", "split_seed", "seed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        for name, low in (("hidden", 2), ("layers", 1), ("limit", 2)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} is {value}; it must be at least {low}")

    def settled(
        self, recipe: str = "molecules", earlier: Mapping[str, Any] | None = None
    ) -> StructuresConfig:
        """The same with all that was left open (None) decided.

        Args:
            recipe: `molecules` or `crystals`.
            earlier: the config of a run to go on with, whose choices are taken.
        """
        known: dict[str, Any] = {} if earlier is None else {**BEFORE, **earlier}
        given = {name: getattr(self, name) for name in _OPEN}
        given |= {name: known.get(name) for name in _OPEN if given[name] is None}
        extensive = self.forces is not None or self.references
        readout: Pooling = given["readout"] or ("sum" if extensive else "mean")
        kind = self.neighbours.kind or dict(known.get("neighbours") or {}).get("kind")
        if kind is None:
            alone: Kind = "nearest" if recipe == "crystals" else "complete"
            kind = "cutoff" if readout == "sum" else alone
        if given["envelope"] is None:
            # The nearest neighbours are as many everywhere: a mean of theirs is no less local.
            given["envelope"] = readout == "sum" and kind != "nearest"
        return dataclasses.replace(
            self,
            readout=readout,
            envelope=given["envelope"],
            monitor=given["monitor"] or self.watched,
            neighbours=dataclasses.replace(self.neighbours, kind=kind),
        )

    def check_forces(self) -> None:
        """Raise ValueError where forces are to be learned by a model that has no sound ones."""
        if self.forces is not None and (reason := self.why_no_forces()):
            raise ValueError(f"forces is {self.forces!r} and {reason}")

    def why_no_forces(self) -> str:
        """Why such a model has no sound forces, and what to do about it; empty where it has."""
        config = self.settled()
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
        return self.monitor or ("validation_mae" if self.forces is None else "validation_loss")

    @property
    def targets(self) -> list[str]:
        """Columns that are learned from."""
        return [self.target, *([self.forces] if self.forces else [])]

    def fit_config(self, *, quiet: bool) -> FitConfig:
        """What the training loop is asked to do."""
        return FitConfig(
            epochs=self.epochs,
            max_steps=self.max_steps,
            monitor=self.watched,
            patience=self.patience,
            checkpoint_every=self.checkpoint_every,
            log_every=50,
            quiet=quiet,
        )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What `train_structures` gives.

    Attributes:
        model: gives the target in its own unit.
        result: how the training went.
        scores: mean absolute and root mean squared errors by part, in the target's unit (eV/Å for
            forces) and, with forces, the loss.
        counts: structures in each part, those `dropped` for want of a target, and those of the
            training part `skipped` as larger than a batch.
        compilation: what was compiled, when it was.
        batching_share: of this session's time that was spent waiting for training batches.
    """

    model: Standardised
    result: FitResult
    scores: dict[str, float]
    counts: dict[str, int]
    compilation: Compilation
    batching_share: float


def make_network(config: StructuresConfig, elements: tuple[int, ...]) -> nn.Module:
    """The network that `config` describes, for these atomic numbers."""
    config = config.settled()
    common: dict[str, Any] = {
        "hidden": config.hidden,
        "layers": config.layers,
        "readout": config.readout,
        "elements": elements,
    }
    if config.model == "painn":
        return PaiNN(PaiNNConfig(cutoff=config.neighbours.cutoff, **common))
    if config.envelope:
        common |= {"cutoff": config.neighbours.cutoff, "aggregation": "sum"}
    if config.model == "mpeu":
        return MPEU(MPEUConfig(**common))
    return SchNet(SchNetConfig(filters=config.hidden, **common))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Structures that have been found fit for a recipe, before anything is trained or written.

    Attributes:
        table: the structures.
        config: the recipe.
        split: which of them are for what.
        scale: of the target, learned from those for training.
        sampler: makes the batches of training.
    """

    table: GraphTable
    config: StructuresConfig
    split: Split
    scale: TargetScale
    sampler: GraphSampler


def prepare_structures(
    table: GraphTable, config: StructuresConfig, *, resumed: bool = False
) -> Prepared:
    """Look at everything that can be wrong with the data.

    Args:
        table: structures with `z`, `pos`, the target, and their neighbours (see
            `neighbour_table`).
        config: the recipe.
        resumed: the config is that of an existing run, which continues unchanged.

    Raises:
        DataError: the table has no such target or forces, too few structures with them, or one
            that is larger than a batch.
        ValueError: forces are asked for of a model that has no sound ones.
    """
    config = config.settled()
    if not resumed:
        config.check_forces()
    _check_column(table, config.target, "graph", (), "a target is one number a structure")
    if config.forces is not None:
        _check_column(table, config.forces, "node", (3,), "forces are three numbers an atom")
        check_energy(config.target, table.schema[config.target].unit)
    split = split_structures(table, config.targets, parts=config.split, seed=config.split_seed)
    scale = learn_scale(
        table,
        split.train,
        config.target,
        references=config.references,
        extensive=config.readout == "sum",
        forces=config.forces,
    )
    batching = dataclasses.replace(config.batching, seed=config.batching.seed or config.seed)
    sampler = GraphSampler(table.num_nodes, table.num_edges, batching, graphs=split.train)
    return Prepared(table=table, config=config, split=split, scale=scale, sampler=sampler)


def train_structures(
    table: GraphTable,
    config: StructuresConfig,
    *,
    run: Run | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
) -> Trained:
    """`prepare_structures`, then `train_prepared`."""
    prepared = prepare_structures(table, config)
    return train_prepared(prepared, run=run, init_from=init_from, quiet=quiet)


def train_prepared(
    prepared: Prepared,
    *,
    run: Run | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
) -> Trained:
    """Train.

    Args:
        prepared: the structures and the recipe.
        run: folder to log to and to resume from.
        init_from: a run folder or file whose weights, and scale of the target, to start from.
        quiet: no progress.
    """
    table, config, split = prepared.table, prepared.config, prepared.split
    scale, sampler = prepared.scale, prepared.sampler
    seed_everything(config.seed)
    elements, atoms = element_counts(table)
    model = Standardised(make_network(config, tuple(elements.tolist())), scale)
    if run is not None:
        about = {
            "elements": elements.tolist(),
            "trained_elements": elements[atoms[split.train].any(axis=0)].tolist(),
            "unit": table.schema[config.target].unit,
        }
        text = json_text(about, indent=2) + "\n"
        write_atomically(run.folder / ABOUT, lambda file: file.write(text.encode()))
    if init_from is not None:
        load_weights(model, init_from)
    if run is not None and run.checkpoint.exists():
        # The labels, too, are by the scale that the run began with.
        put_weights(model, load_checkpoint(run.checkpoint, "model")["model"], str(run.checkpoint))
    data = labelled(table, config.target, scale, forces=config.forces)
    sizes = (data.num_nodes, data.num_edges)
    train = GraphLoader(data, sampler)
    parts = {
        name: GraphLoader(
            data, evaluation_sampler(*sizes, config.batching, graphs=ids, budget=sampler.budget)
        )
        for name, ids in (("validation", split.validation), ("test", split.test))
        if len(ids)
    }
    compilation = Compilation(config.compile)
    network = compilation.wrap(model.network)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    steps = config.epochs * len(train)
    if config.max_steps is not None:
        steps = min(steps, config.max_steps)

    def errors(part: str) -> dict[str, float]:
        found = measure(model, parts[part], config.target, forces=config.forces is not None)
        if config.forces is not None:
            # What training makes small, over all structures of the part.
            squares = found["rmse"] ** 2 + config.force_weight * found["force_rmse"] ** 2
            found["loss"] = squares / float(scale.std) ** 2
        return {f"{part}_{name}": value for name, value in found.items()}

    began = time.perf_counter()
    result = fit(
        model,
        optimizer,
        train,
        _loss(network, scale, config),
        config=config.fit_config(quiet=quiet),
        evaluate=lambda _: errors("validation"),
        scheduler=make_scheduler(optimizer, config.schedule, max(1, steps)),
        run=run,
    )
    seconds = time.perf_counter() - began
    model.eval()
    scores: dict[str, float] = {}
    if not result.stopped.startswith("interrupted"):
        for part in parts:
            scores |= errors(part)
    return Trained(
        model=model,
        result=result,
        scores=scores,
        counts={
            "train": len(split.train),
            "validation": len(split.validation),
            "test": len(split.test),
            "dropped": split.dropped,
            "skipped": sampler.statistics().skipped,
        },
        compilation=compilation,
        batching_share=train.waiting_seconds / seconds,
    )


def _check_column(
    table: GraphTable, name: str, level: str, shape: tuple[int, ...], rule: str
) -> None:
    table.column(name)
    column = table.schema[name]
    if column.level != level or column.shape != shape:
        raise DataError(
            f"'{name}' is a {column.level} column of shape {list(column.shape)}; {rule}"
        )


def _loss(
    network: nn.Module, scale: TargetScale, config: StructuresConfig
) -> Callable[[Any, GraphBatch], Tensor]:
    """Mean squared error of the standardised target, and of the forces in the same measure."""
    std = float(scale.std)

    def energy_loss(raw: Tensor, batch: GraphBatch) -> Tensor:
        error = (raw - batch.graphs[LABEL]).masked_fill(~batch.graph_mask, 0.0)
        return error.square().sum() / batch.graph_mask.sum()

    def loss(_: Any, batch: GraphBatch) -> Tensor:
        if config.forces is None:
            return energy_loss(network(batch), batch)
        raw, slopes = energy_and_forces(network, batch, training=True)
        wrong = (slopes - batch.nodes[FORCES] / std).masked_fill(~batch.node_mask[:, None], 0.0)
        forces = wrong.square().sum() / (3 * batch.node_mask.sum())
        return energy_loss(raw, batch) + config.force_weight * forces

    return loss


def measure(
    model: Standardised, loader: GraphLoader, target: str, *, forces: bool
) -> dict[str, float]:
    """Mean absolute and root mean squared error over all graphs of `loader`.

    Returns:
        `mae` and `rmse` in the target's unit and, with forces, `force_mae` and `force_rmse` in
        eV/Å.
    """
    sums = {"mae": 0.0, "rmse": 0.0, "force_mae": 0.0, "force_rmse": 0.0}
    graphs = components = 0
    for batch in loader:
        if forces:
            values, slopes = energy_and_forces(model, batch)
            wrong = (slopes.double() - batch.nodes[FORCES].double())[batch.node_mask]
            sums["force_mae"] += float(wrong.abs().sum())
            sums["force_rmse"] += float(wrong.square().sum())
            components += wrong.numel()
        else:
            with torch.no_grad():
                values = model(batch)
        error = (values - batch.graphs[target].double())[batch.graph_mask]
        sums["mae"] += float(error.abs().sum())
        sums["rmse"] += float(error.square().sum())
        graphs += error.numel()
    found = {"mae": sums["mae"] / graphs, "rmse": (sums["rmse"] / graphs) ** 0.5}
    if forces:
        found["force_mae"] = sums["force_mae"] / components
        found["force_rmse"] = (sums["force_rmse"] / components) ** 0.5
    return found
