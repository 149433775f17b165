"""Recipe: a property of molecules or crystals, and their forces, from positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weft.batching import GraphLoader, GraphSampler, evaluation_sampler
from weft.errors import DataError
from weft.graphs import Array, GraphBatch, GraphTable
from weft.models import (
    MPEU,
    MPEUConfig,
    PaiNN,
    PaiNNConfig,
    SchNet,
    SchNetConfig,
    energy_and_forces,
)
from weft.models.target_scale import Standardised, TargetScale, element_counts, learn_scale
from weft.recipes.structures.config import StructuresConfig
from weft.recipes.structures.data import (
    FORCES,
    LABEL,
    check_energy,
    labelled,
    split_structures,
    usable_structures,
)
from weft.recipes.table_training import Trained, describe_run, start_from, train_on_table
from weft.training.checkpoint import put_weights, shared_checkpoint
from weft.training.compilation import Compilation
from weft.training.randomness import seed_everything
from weft.training.ranks import SharedLoader, gpu_of
from weft.training.run import Run
from weft.training.step import LossStep, Mean, rank0_metrics

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
        split: numbers of those for train, validation and test.
        scale: of the target, learned from those for training.
        sampler: makes the batches of training.
    """

    table: GraphTable
    config: StructuresConfig
    split: dict[str, Array]
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
        split["train"],
        config.target,
        references=config.references,
        extensive=config.readout == "sum",
        forces=config.forces,
    )
    batching = dataclasses.replace(config.batching, seed=config.batching.seed or config.seed)
    sampler = GraphSampler(table.num_nodes, table.num_edges, batching, graphs=split["train"])
    return Prepared(table=table, config=config, split=split, scale=scale, sampler=sampler)


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
    scale, sampler = prepared.scale, prepared.sampler
    seed_everything(config.seed)
    elements, atoms = element_counts(table)
    model = Standardised(make_network(config, tuple(elements.tolist())), scale)
    if run is not None:
        about = {
            "elements": elements.tolist(),
            "trained_elements": elements[atoms[split["train"]].any(axis=0)].tolist(),
            "unit": table.schema[config.target].unit,
        }
        describe_run(run, about)
    start_from(model, init_from, world)
    saved = shared_checkpoint(None if run is None else run.checkpoint, world, "model")
    if saved is not None:
        # The labels, too, are by the scale that the run began with.
        put_weights(model, saved[1]["model"], saved[0])
    data = labelled(table, config.target, scale, forces=config.forces)
    device = gpu_of(world)
    model.to(device)
    sizes = (data.num_nodes, data.num_edges)
    if world is None:
        train = GraphLoader(data, sampler)
    else:
        train = SharedLoader(data, sampler, world, device=device)
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
    counts["dropped"] = int((~usable_structures(table, config.targets)).sum())
    counts["skipped"] = sampler.statistics().skipped
    compilation = Compilation(config.compile)
    network = compilation.wrap(model.network)

    def errors(part: str) -> dict[str, float]:
        found = measure(model, parts[part], config.target, forces=config.forces is not None)
        if config.forces is not None:
            # What training makes small, over all structures of the part.
            squares = found["rmse"] ** 2 + config.force_weight * found["force_rmse"] ** 2
            found["loss"] = squares / float(scale.std) ** 2
        return found

    return train_on_table(
        model,
        train,
        LossStep(_loss(network, scale, config), world, config.precision),
        config=config,
        schedule=config.schedule,
        parts=parts,
        measure=lambda part: rank0_metrics(world, lambda: errors(part)),
        counts=counts,
        compilation=compilation,
        run=run,
        quiet=quiet,
        world=world,
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
) -> Callable[[Any, GraphBatch], Tensor | list[Mean]]:
    """Mean squared error of the standardised target, and of the forces in the same measure."""
    std = float(scale.std)

    def energy_loss(raw: Tensor, batch: GraphBatch) -> Tensor:
        error = (raw - batch.graphs[LABEL]).masked_fill(~batch.graph_mask, 0.0)
        return error.square().sum() / batch.graph_mask.sum()

    def loss(_: Any, batch: GraphBatch) -> Tensor | list[Mean]:
        if config.forces is None:
            return energy_loss(network(batch), batch)
        raw, predicted = energy_and_forces(network, batch, training=True)
        wrong = (predicted - batch.nodes[FORCES] / std).masked_fill(~batch.node_mask[:, None], 0.0)
        components = 3 * batch.node_mask.sum()
        forces = wrong.square().sum() / components
        return [Mean(energy_loss(raw, batch)), Mean(config.force_weight * forces, components)]

    return loss


def measure(
    model: Standardised, loader: GraphLoader, target: str, *, forces: bool
) -> dict[str, float]:
    """Mean absolute and root mean squared error over all graphs of `loader`.

    Returns:
        `mae` and `rmse` in the target's unit and, with forces, `force_mae` and `force_rmse` in
        eV/Å.
    """
    # Of each kind of error: its absolute values, its squares, how many there are.
    sums = {kind: [0.0, 0.0, 0.0] for kind in (("", "force_") if forces else ("",))}
    for batch in loader:
        errors = {}
        if forces:
            values, predicted = energy_and_forces(model, batch)
            wrong = predicted.double() - batch.nodes[FORCES].double()
            errors["force_"] = wrong[batch.node_mask]
        else:
            with torch.no_grad():
                values = model(batch)
        errors[""] = (values - batch.graphs[target].double())[batch.graph_mask]
        for kind, error in errors.items():
            parts = (float(error.abs().sum()), float(error.square().sum()), error.numel())
            sums[kind] = [total + part for total, part in zip(sums[kind], parts, strict=True)]
    found: dict[str, float] = {}
    for kind, (absolute, squares, count) in sums.items():
        found |= {f"{kind}mae": absolute / count, f"{kind}rmse": (squares / count) ** 0.5}
    return found
