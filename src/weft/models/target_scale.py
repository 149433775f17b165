"""Scales of targets: from the numbers around 0 that a network learns best to the target's unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import DataError
from weft.graphs import Array, GraphBatch, GraphTable
from weft.kernels import segment_sum

_HEAVIEST = 118


class TargetScale(nn.Module):
    """target = std · raw + mean + Σ over the atoms of references[z].

    Float64 throughout: energies are large, their differences small.

    Args:
        mean: in the target's unit.
        std: in the target's unit, above 0.
        references: [119] by atomic number, in the target's unit; zeros by default.
    """

    mean: Tensor
    std: Tensor
    references: Tensor

    def __init__(
        self, mean: float = 0.0, std: float = 1.0, references: Array | None = None
    ) -> None:
        super().__init__()
        if not (0 < std < math.inf and math.isfinite(mean)):
            raise ValueError(f"mean is {mean} and std {std}; both are finite and std is above 0")
        if references is None:
            references = np.zeros(_HEAVIEST + 1)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float64))
        self.register_buffer("references", torch.as_tensor(references, dtype=torch.float64).clone())

    def forward(self, batch: GraphBatch, raw: Tensor) -> Tensor:
        """The target [G], or of a vector [G, 3], float64, of a network's output of that shape."""
        if raw.dim() > 1:
            # A vector turns with its structure: nothing constant can be added.
            return raw.double() * self.std
        atoms = self.references[batch.nodes["z"].long()][:, None]
        base = segment_sum(atoms, batch.node_offsets, batch.node_graph)[:, 0]
        return raw.double() * self.std + self.mean + base

    def of_atoms(self, batch: GraphBatch, raw: Tensor) -> Tensor:
        """Each atom's part [N] of the target, float64, of its part of the output, raw [N]."""
        share = self.mean / batch.node_offsets.diff().clamp(min=1)[batch.node_graph.long()]
        return raw.double() * self.std + share + self.references[batch.nodes["z"].long()]

    def standardise(self, table: GraphTable, target: Array) -> Array:
        """What a network should return for the graphs' `target` [g] or [g, 3]: float32."""
        if target.ndim > 1:
            return (target / float(self.std)).astype(np.float32)
        base = _sums(table, self.references.numpy(force=True)[table.columns["z"]])
        return ((target - base - float(self.mean)) / float(self.std)).astype(np.float32)


class Standardised(nn.Module):
    """A network and the scale of its target: returns values [G] in the target's unit.

    Args:
        network: returns raw values [G] of a batch.
        scale: of the target.
    """

    def __init__(self, network: nn.Module, scale: TargetScale) -> None:
        super().__init__()
        self.network = network
        self.scale = scale

    def forward(self, batch: GraphBatch) -> Tensor:
        """Values [G], float64, in the target's unit; those of padding graphs are meaningless."""
        values: Tensor = self.scale(batch, self.network(batch))
        return values

    def atomic_values(self, batch: GraphBatch) -> Tensor:
        """Each atom's part [N] of the value, float64: their sums are the values of the graphs.

        For networks that add up their atoms, and have `atomic_values` of their own.
        """
        network: Any = self.network
        return self.scale.of_atoms(batch, network.atomic_values(batch))


def learn_scale(
    table: GraphTable,
    graphs: Array,
    target: str,
    *,
    references: bool,
    extensive: bool = False,
    forces: str | None = None,
    known: Mapping[int, float] | None = None,
) -> TargetScale:
    """The scale of `target` over the training graphs; of a vector its root mean square.

    Args:
        table: with the node column `z` and the graph column `target`.
        graphs: int [t], the training graphs.
        target: its name.
        references: learn an energy for each element by least squares, so that the network
            learns only what the composition does not explain. For targets that grow with the
            number of atoms.
        extensive: the network adds up its atoms: all that is taken off the target is then one value
            per atom, so that twice the structure has twice the target, and the scale is the
            per-atom deviation.
        forces: node column with forces; the scale is then their root mean square. The energies per
            atom of a molecule that moves hardly differ, while its forces do.
        known: references by atomic number, which are not learned.
    """
    y = np.asarray(table.column(target)[graphs], dtype=np.float64)
    if not len(y) or not np.isfinite(y).all():
        raise DataError(
            f"'{target}' has {len(y)} training values, {np.count_nonzero(~np.isfinite(y))} of them "
            "not finite; a scale cannot be learned from them"
        )
    if y.ndim > 1:
        return TargetScale(0.0, float(np.sqrt(np.square(y).mean())) or 1.0)
    largest = float(np.abs(y).max())
    by_element = np.zeros(_HEAVIEST + 1)
    if references:
        elements, counts = element_counts(table)
        counts = counts[graphs]
        for z, value in (known or {}).items():
            by_element[z] = value
        y = y - counts @ by_element[elements]
        unknown = ~np.isin(elements, list(known or {}))
        if unknown.any():
            rest = counts[:, unknown].astype(np.float64)
            # The smallest solution where the counts do not determine every element.
            by_element[elements[unknown]] = np.linalg.lstsq(rest, y, rcond=None)[0]
            y = y - rest @ by_element[elements[unknown]]
    mean = float(y.mean())
    if extensive:
        atoms = table.num_nodes[graphs]
        if not references:
            by_element[1:] = y.sum() / atoms.sum()
            y = y - atoms * by_element[1]
        # A constant of a graph would not double with it.
        mean, y = 0.0, y / atoms
    std = float(y.std())
    if forces is not None:
        std = _root_mean_square(table, graphs, forces) or std
    # The rest may be mere rounding: then any scale will do.
    return TargetScale(mean, std if std > 1e-12 * largest else 1.0, by_element)


def _root_mean_square(table: GraphTable, graphs: Array, column: str) -> float:
    """The root mean square of a node column in these graphs."""
    chosen = np.zeros(len(table), dtype=bool)
    chosen[graphs] = True
    values = np.asarray(table.column(column))[np.repeat(chosen, table.num_nodes)]
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


def element_counts(table: GraphTable) -> tuple[Array, Array]:
    """The atomic numbers in the table [k], and int64 [g, k] the atoms of each in each graph."""
    z = np.asarray(table.column("z"), dtype=np.int64)
    elements = np.flatnonzero(np.bincount(z))
    column = np.zeros(_HEAVIEST + 1, dtype=np.int64)
    column[elements] = np.arange(len(elements))
    graph = np.repeat(np.arange(len(table)), table.num_nodes)
    counts = np.bincount(graph * len(elements) + column[z], minlength=len(table) * len(elements))
    return elements, counts.reshape(len(table), len(elements))


def _sums(table: GraphTable, values: Array) -> Array:
    """Sums [g] of node values [N] by graph."""
    # Each by itself: differences of running totals would lose digits to all graphs before.
    graph = np.repeat(np.arange(len(table)), table.num_nodes)
    return np.bincount(graph, weights=values, minlength=len(table))
