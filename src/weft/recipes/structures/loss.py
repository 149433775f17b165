"""The loss of energies, forces and stresses, and the errors of a trained network in them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.batching import GraphLoader
from weft.graphs import Array, GraphBatch, GraphTable
from weft.models.properties import properties_of
from weft.models.target_scale import Standardised, TargetScale
from weft.recipes.structures.config import StructuresConfig
from weft.recipes.structures.data import FORCES, LABEL, STRESS
from weft.training.step import Mean


class StructureLoss:
    """Means of the errors' penalties, weighted: of the target, the forces and the stress.

    All are measured in units of the scale of the target, so that its size does not matter.

    Args:
        config: which terms there are, their weights and the penalty.
        scale: of the target.
    """

    def __init__(self, config: StructuresConfig, scale: TargetScale) -> None:
        self.config = config
        self.std = float(scale.std)

    def penalty(self, error: Tensor) -> Tensor:
        """What each standardised error costs."""
        if self.config.loss == "mse":
            return error.square()
        if self.config.loss == "mae":
            return error.abs()
        delta = self.config.huber_delta / self.std
        return functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)

    def energy_weight(self, epoch: int) -> float:
        """The weight of the target in an epoch, counted from 0."""
        swap = self.config.swap
        if swap is not None and epoch + 1 >= swap.epoch:
            return swap.energy_weight
        return self.config.energy_weight

    def final_weights(self) -> dict[str, float]:
        """The weights at the end of the training by kind of error, see `errors_of`."""
        config = self.config
        weights = {"": config.energy_weight if config.swap is None else config.swap.energy_weight}
        weights |= {} if config.forces is None else {"force_": config.force_weight}
        return weights | ({} if config.stress is None else {"stress_": config.stress_weight})

    def __call__(
        self, network: Callable[[GraphBatch], Tensor], batch: GraphBatch, epoch: int
    ) -> Tensor | list[Mean]:
        """The loss of a batch, ready for backward()."""
        config = self.config
        weight = self.energy_weight(epoch)
        if not config.learns_derivatives:
            return weight * self._energy(network(batch), batch)
        forces, stress = config.forces is not None, config.stress is not None
        found = properties_of(network, batch, forces=forces, stress=stress, training=True)
        terms = [Mean(weight * self._energy(found.energy, batch))]
        if found.forces is not None:
            wrong = found.forces - batch.nodes[FORCES] / self.std
            wrong = wrong.masked_fill(~batch.node_mask[:, None], 0.0)
            components = 3 * batch.node_mask.sum()
            mean = self.penalty(wrong).sum() / components
            terms.append(Mean(config.force_weight * mean, components))
        if found.stress is not None:
            wrong = found.stress - batch.graphs[STRESS] / self.std
            wrong = wrong.masked_fill(~batch.graph_mask[:, None, None], 0.0)
            mean = self.penalty(wrong).sum() / (9 * batch.graph_mask.sum())
            terms.append(Mean(config.stress_weight * mean))
        return terms

    def _energy(self, raw: Tensor, batch: GraphBatch) -> Tensor:
        error = raw - batch.graphs[LABEL]
        mask = batch.graph_mask
        if self.config.per_atom and error.dim() == 1:
            error = error / batch.node_offsets.diff().clamp(min=1)
        if error.dim() > 1:
            error = error.masked_fill(~mask[:, None], 0.0)
            return self.penalty(error).sum() / (error.shape[1] * mask.sum())
        return self.penalty(error.masked_fill(~mask, 0.0)).sum() / mask.sum()


def errors_of(
    model: Standardised, batch: GraphBatch, config: StructuresConfig
) -> dict[str, Tensor]:
    """Errors of the real structures of a batch, float64, in the units of the data.

    Returns:
        Of the target "" [g], of the forces `force_` [n, 3], of the stress `stress_` [g, 3, 3].
    """
    forces, stress = config.forces is not None, config.stress is not None
    found = properties_of(model, batch, forces=forces, stress=stress)
    wrong = {"": (found.energy - batch.graphs[config.target].double())[batch.graph_mask]}
    if found.forces is not None:
        force = found.forces.double() - batch.nodes[FORCES].double()
        wrong["force_"] = force[batch.node_mask]
    if found.stress is not None:
        wrong["stress_"] = (found.stress.double() - batch.graphs[STRESS].double())[batch.graph_mask]
    return wrong


class ErrorSums:
    """Sums of absolute and of squared errors, and how many there are, by name."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}

    def add(self, name: str, error: Tensor) -> None:
        """Count these errors."""
        parts = (float(error.abs().sum()), float(error.square().sum()), error.numel())
        known = self.sums.setdefault(name, [0.0, 0.0, 0.0])
        self.sums[name] = [total + part for total, part in zip(known, parts, strict=True)]

    def add_by_element(self, z: Tensor, error: Tensor) -> None:
        """Count errors of atoms [n, ...] by their atomic numbers z [n]."""
        for number in torch.unique(z).tolist():
            self.add(str(number), error[z == number])

    def maes(self) -> dict[int, float]:
        """Mean absolute errors by atomic number."""
        return {int(name): sums[0] / sums[2] for name, sums in self.sums.items()}

    def metrics(self) -> dict[str, float]:
        """Mean absolute and root mean squared errors: `mae` and `rmse`, with {} for the name."""
        found: dict[str, float] = {}
        for name, (absolute, squares, count) in self.sums.items():
            if count:
                found[name.format("mae")] = absolute / count
                found[name.format("rmse")] = (squares / count) ** 0.5
        return found


def measure(
    model: Standardised, loader: GraphLoader, config: StructuresConfig
) -> tuple[dict[str, float], dict[int, float]]:
    """Errors over all structures of `loader`.

    Returns:
        `mae` and `rmse` in the target's unit and, where they are learned, `force_mae` and
        `force_rmse` in eV/Å and `stress_mae` and `stress_rmse` in eV/Å³; where atoms are summed,
        `mae_per_atom` and `rmse_per_atom`; with forces or stress `loss`, with the weights at the
        end of the training. And the mean absolute error of the forces by atomic number.
    """
    sums, forces, penalties = ErrorSums(), ErrorSums(), ErrorSums()
    loss = StructureLoss(config, model.scale)
    for batch in loader:
        atoms = batch.node_offsets.diff()[batch.graph_mask]
        for kind, error in errors_of(model, batch, config).items():
            sums.add(f"{kind}{{}}", error)
            counted = error
            if not kind and config.readout == "sum" and error.dim() == 1:
                sums.add("{}_per_atom", error / atoms)
                counted = error / atoms if config.per_atom else error
            if config.learns_derivatives:
                penalties.add(f"{kind}{{}}", loss.penalty(counted / loss.std))
            if kind == "force_":
                forces.add_by_element(batch.nodes["z"][batch.node_mask].long(), error)
    found = dict(sorted(sums.metrics().items(), key=lambda each: each[0].endswith("atom")))
    if config.learns_derivatives:
        means = penalties.metrics()
        weights = loss.final_weights()
        found["loss"] = sum(weight * means[f"{kind}mae"] for kind, weight in weights.items())
    return found, forces.maes()


def trivial_errors(
    data: GraphTable, graphs: Array, scale: TargetScale, config: StructuresConfig
) -> tuple[dict[str, float], dict[int, float]]:
    """Errors, as `measure` gives them but without the loss, of what needs no network.

    That is the mean, or the energies of the atoms, for the target; no forces; and no stress.

    Args:
        data: a table as `labelled` makes it.
        graphs: int [k], the structures.
        scale: of the target.
        config: what is learned.
    """
    sums, elements = ErrorSums(), ErrorSums()
    error = np.asarray(data.column(LABEL)[graphs], dtype=np.float64) * float(scale.std)
    sums.add("{}", torch.from_numpy(error))
    if config.readout == "sum" and error.ndim == 1:
        sums.add("{}_per_atom", torch.from_numpy(error / data.num_nodes[graphs]))
    chosen = np.zeros(len(data), dtype=bool)
    chosen[graphs] = True
    if config.forces is not None:
        atoms = np.repeat(chosen, data.num_nodes)
        forces = torch.from_numpy(np.asarray(data.column(FORCES))[atoms].astype(np.float64))
        z = torch.from_numpy(np.asarray(data.column("z"))[atoms].astype(np.int64))
        sums.add("force_{}", forces)
        elements.add_by_element(z, forces)
    if config.stress is not None:
        stress = np.asarray(data.column(STRESS))[graphs]
        sums.add("stress_{}", torch.from_numpy(stress.astype(np.float64)))
    return sums.metrics(), elements.maes()
