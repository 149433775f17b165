"""Recipe: a property of molecules or crystals, and their forces, from positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from weft.batching import GraphLoader, GraphSampler, evaluation_sampler
from weft.errors import DataError
from weft.graphs import Array, GraphTable
from weft.models import MPEU, DipolePaiNN, MPEUConfig, PaiNN, PaiNNConfig, SchNet, SchNetConfig
from weft.models.target_scale import Standardised, TargetScale, element_counts, learn_scale
from weft.recipes.structures.atom_energies import (
    SYMBOLS,
    AtomEnergies,
    add_binding_energy,
    atom_energies,
)
from weft.recipes.structures.config import StructuresConfig
from weft.recipes.structures.data import (
    check_energy,
    labelled,
    split_structures,
    stress_matrices,
    usable_structures,
)
from weft.recipes.structures.fine_tuning import earlier_run, start_from_run
from weft.recipes.structures.loss import StructureLoss, measure, trivial_errors
from weft.recipes.table_training import Trained, describe_run, train_on_table
from weft.training.checkpoint import put_weights, shared_checkpoint
from weft.training.compilation import Compilation
from weft.training.free_cores import products_keep_bits
from weft.training.randomness import seed_everything
from weft.training.ranks import SharedLoader, gpu_of
from weft.training.run import Run
from weft.training.step import LossStep, rank0_metrics

if TYPE_CHECKING:
    from weft.parallel.world import World


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
        kind = DipolePaiNN if config.vector else PaiNN
        return kind(PaiNNConfig(cutoff=config.neighbours.cutoff, **common))
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
        split: numbers of those for train, validation and test.
        scale: of the target, learned from those for training.
        atoms: what is known of isolated atoms.
        sampler: makes the batches of training.
    """

    table: GraphTable
    config: StructuresConfig
    split: dict[str, Array]
    scale: TargetScale
    atoms: AtomEnergies
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
        ValueError: forces are requested of a model that has no sound ones.
    """
    config = config.settled()
    if not resumed:
        config.check_forces()
    table.column(config.target)
    column = table.schema[config.target]
    if (column.level, column.shape) == ("graph", (3,)):
        config = _for_vectors(table, config)
    else:
        _check_column(table, config.target, "graph", (), "a target is one number a structure")
        config = dataclasses.replace(config, vector=False)
    config.check_monitor()
    if config.forces is not None:
        _check_column(table, config.forces, "node", (3,), "forces are three numbers an atom")
    if config.stress is not None:
        stress_matrices(table, config.stress)
    if config.learns_derivatives:
        check_energy(config.target, table.schema[config.target].unit)
    atoms, split = split_of(table, config)
    scale = learn_scale(
        table,
        split["train"],
        config.target,
        references=config.references,
        extensive=config.readout == "sum",
        forces=config.forces,
        known=atoms.energies,
    )
    if atoms.energies:
        add_binding_energy(scale, table, split["train"], config.target)
    batching = dataclasses.replace(config.batching, seed=config.batching.seed or config.seed)
    sampler = GraphSampler(table.num_nodes, table.num_edges, batching, graphs=split["train"])
    return Prepared(
        table=table, config=config, split=split, scale=scale, atoms=atoms, sampler=sampler
    )


def unit_of(table: GraphTable, config: StructuresConfig) -> str:
    """The unit of the target; empty where it is not known."""
    # Forces and stress are derivatives of an energy in eV.
    return table.schema[config.target].unit or ("eV" if config.learns_derivatives else "")


def split_of(table: GraphTable, config: StructuresConfig) -> tuple[AtomEnergies, dict[str, Array]]:
    """What is known of isolated atoms, and the split of all other structures by `config`."""
    config = config.settled()
    atoms = atom_energies(table, config)
    seed, left_out = config.split_seed, atoms.isolated
    return atoms, split_structures(
        table, config.targets, parts=config.split, seed=seed, leave_out=left_out
    )


def train_structures(table: GraphTable, config: StructuresConfig, **session: Any) -> Trained:
    """`prepare_structures`, then `train_prepared` with the options `session`."""
    return train_prepared(prepare_structures(table, config), **session)


def train_prepared(
    prepared: Prepared,
    *,
    run: Run | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
    world: World | None = None,
) -> Trained:
    """Train.

    Args:
        prepared: the structures and the recipe.
        run: folder to log to and to resume from.
        init_from: a run folder or file whose weights, and scale of the target, to start from.
        quiet: no progress.
        world: ranks that share every batch; they give the same losses as one process.
    """
    table, config, split = prepared.table, prepared.config, prepared.split
    if init_from is not None and config.atom_energies:
        raise ValueError(
            f"atom_energies is {' '.join(config.atom_energies)}, and the references of {init_from} "
            "are taken over; leave out --atom-energies or --init-from"
        )
    scale, sampler = prepared.scale, prepared.sampler
    seed_everything(config.seed)
    present, atoms = element_counts(table)
    earlier = earlier_run(init_from, world)
    # A run that goes on has what it began with, whether or not its origin is named again.
    own = earlier_run(None if run is None else run.folder, world)
    elements = sorted({*present.tolist(), *earlier.elements, *own.elements})
    model = Standardised(make_network(config, tuple(elements)), scale)
    if run is not None:
        trained_on = present[atoms[split["train"]].any(axis=0)].tolist()
        about = {
            "elements": elements,
            "trained_elements": sorted({*trained_on, *earlier.trained, *own.trained}),
            "unit": unit_of(table, config),
        }
        describe_run(run, about)
    if init_from is not None:
        start_from_run(
            model,
            init_from,
            earlier,
            elements,
            world,
            references=lambda old: _references(prepared, old, earlier.elements),
            quiet=quiet,
        )
    saved = shared_checkpoint(None if run is None else run.checkpoint, world, "model")
    if saved is not None:
        # The labels, too, are by the scale that the run began with.
        put_weights(model, saved[1]["model"], saved[0])
    data = labelled(table, config.target, scale, forces=config.forces, stress=config.stress)
    device = gpu_of(world)
    model.to(device)
    sizes = (data.num_nodes, data.num_edges)
    if world is None:
        train = GraphLoader(data, sampler)
    else:
        train = SharedLoader(data, sampler, world, device=device, static=True)
    parts = {
        name: GraphLoader(
            data,
            evaluation_sampler(*sizes, config.batching, graphs=ids, budget=sampler.budget),
            device=device,
        )
        for name, ids in split.items()
        if len(ids) and name != "train"
    }
    counts = {name: len(ids) for name, ids in split.items()}
    usable = usable_structures(table, config.targets)
    counts["dropped"] = int((~usable & ~prepared.atoms.isolated).sum())
    counts["skipped"] = sampler.statistics().skipped
    compilation = Compilation(config.compile)
    network = compilation.wrap(model.network)
    loss = StructureLoss(config, scale)
    step = LossStep(lambda _, batch: loss(network, batch, step.epoch), world, config.precision)
    by_element: dict[str, dict[int, float]] = {}

    def errors(part: str) -> dict[str, float]:
        found, by_element[part] = measure(model, parts[part], config)
        return found

    trained = train_on_table(
        model,
        train,
        step,
        config=config,
        schedule=config.schedule,
        parts=parts,
        measure=lambda part: rank0_metrics(world, lambda: errors(part)),
        counts=counts,
        compilation=compilation,
        run=run,
        quiet=quiet,
        world=world,
        # Training on forces is torch's products in part; a resumed run has the same bits.
        yields=not (config.forces or config.stress) or products_keep_bits(),
    )
    details: dict[str, Any] = {"trivial": {}, "force_mae_by_element": {}}
    for part, found in by_element.items():
        details["trivial"][part], trivial = trivial_errors(data, split[part], scale, config)
        if found:
            details["force_mae_by_element"][part] = {
                SYMBOLS[z]: {"mae": found[z], "trivial": trivial[z]} for z in sorted(found)
            }
    return dataclasses.replace(trained, details=details)


def _for_vectors(table: GraphTable, config: StructuresConfig) -> StructuresConfig:
    """The configuration for a target of three numbers."""
    if config.model != "painn":
        raise DataError(
            f"'{config.target}' is a vector, and model is '{config.model}', whose atoms have none: "
            "train with --model painn"
        )
    if "pbc" in table.schema and (periodic := np.asarray(table.column("pbc")).any(axis=1)).any():
        raise DataError(
            f"'{config.target}' is a vector and structure {int(np.argmax(periodic))} is periodic; "
            "a dipole moment is that of a molecule: remove such structures"
        )
    found = dataclasses.replace(config, vector=True)
    found.check_forces()
    return found


def _references(prepared: Prepared, old: Tensor, known: Sequence[int]) -> Tensor:
    """The references [119] of a run with those of elements that are new, by least squares."""
    config = prepared.config
    scale = learn_scale(
        prepared.table,
        prepared.split["train"],
        config.target,
        references=config.references,
        extensive=config.readout == "sum",
        # Not those of isolated atoms: the others are as low as atoms in structures are.
        known={z: float(old[z]) for z in known},
    )
    return scale.references if config.references else old


def _check_column(
    table: GraphTable, name: str, level: str, shape: tuple[int, ...], rule: str
) -> None:
    table.column(name)
    column = table.schema[name]
    if column.level != level or column.shape != shape:
        raise DataError(
            f"'{name}' is a {column.level} column of shape {list(column.shape)}; {rule}"
        )
