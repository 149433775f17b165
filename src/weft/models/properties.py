"""Energies and what follows from them by differentiation: forces and stress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.errors import DataError
from weft.graphs import GraphBatch
from weft.kernels import gather_receivers
from weft.kernels.segment_ops import gather
from weft.models.atomistic import pool
from weft.models.potential import derivatives, has_fast_forces
from weft.models.target_scale import Standardised


@dataclass(frozen=True, kw_only=True, eq=False)
class Properties:
    """What a potential says of the structures of a batch.

    Attributes:
        energy: [G].
        atomic: [N], each atom's part of the energy; None if not requested.
        forces: -dE/dpos [N, 3] in the energy's unit per Å; None if not requested.
        stress: dE/dstrain / volume [G, 3, 3], symmetric, in the energy's unit per Å³, positive
            where the structure is stretched (as in ASE); None if not requested.
    """

    energy: Tensor
    atomic: Tensor | None = None
    forces: Tensor | None = None
    stress: Tensor | None = None


def properties_of(
    model: Callable[[GraphBatch], Tensor],
    batch: GraphBatch,
    *,
    forces: bool = True,
    stress: bool = False,
    atoms: bool = False,
    training: bool = False,
) -> Properties:
    """Energies, forces and stress of the structures in `batch`.

    Args:
        model: returns an energy for each graph.
        batch: the structures; for the stress with the graph column `cell` [G, 3, 3] in Å. A
            structure without a volume gets a stress of 0.
        forces: whether to compute forces.
        stress: whether to compute the stress.
        atoms: whether to give each atom's part of the energy; the model has `atomic_values`.
        training: keep the graph of the derivatives, so that a loss can use them.
    """
    if stress and "cell" not in batch.graphs:
        raise DataError("stress is a derivative in the cell, and the structures have none")
    if type(model) is Standardised:
        wanted = {"forces": forces, "stress": stress, "atoms": atoms, "training": training}
        raw = properties_of(model.network, batch, **wanted)
        std = model.scale.std
        parts = None if raw.atomic is None else model.scale.of_atoms(batch, raw.atomic)
        # Energies are large, their differences small: atoms are added up in float64.
        energy = model.scale(batch, raw.energy)
        network: Any = model.network
        if parts is not None and not training and network.config.readout == "sum":
            energy = pool(batch, parts, "sum")
        return Properties(
            energy=energy,
            atomic=parts,
            forces=None if raw.forces is None else raw.forces * std.to(raw.forces.dtype),
            stress=None if raw.stress is None else raw.stress * std.to(raw.stress.dtype),
        )
    if not (forces or stress):
        with torch.set_grad_enabled(training and torch.is_grad_enabled()):
            energy, parts = _energy(model, batch, atoms)
            return Properties(energy=energy, atomic=parts)
    if has_fast_forces(model, batch):
        found = derivatives(model, batch, strain=stress, training=training)
        dtype = batch.nodes["pos"].dtype
        return Properties(
            energy=found.energy,
            atomic=found.atomic.detach() if atoms else None,
            forces=-found.positions.to(dtype) if forces else None,
            stress=None if found.strain is None else _over_volume(found.strain.to(dtype), batch),
        )
    # Inference mode would make the derivatives zero: it records nothing, even for requires_grad.
    with torch.inference_mode(False), torch.enable_grad():
        pos = batch.nodes["pos"].detach().clone().requires_grad_(forces)
        strain = pos.new_zeros(batch.num_graphs, 3, 3).requires_grad_() if stress else None
        moved = batch.replace(nodes={**batch.nodes, "pos": pos})
        moved = moved if strain is None else _strained(moved, strain)
        energy, parts = _energy(model, moved, atoms)
        # Padding has no forces, but its zero-length edges would put noise there.
        total = energy.masked_fill(~batch.graph_mask, 0.0).sum()
        inputs = [*([pos] if forces else []), *([] if strain is None else [strain])]
        if total.requires_grad:
            gradients = torch.autograd.grad(
                total, inputs, create_graph=training, allow_unused=True, materialize_grads=True
            )
        else:
            gradients = tuple(torch.zeros_like(t) for t in inputs)
        virial = gradients[-1] if stress else None
        return Properties(
            energy=energy if training else energy.detach(),
            atomic=None if parts is None else parts.detach(),
            forces=-gradients[0] if forces else None,
            stress=None if virial is None else _over_volume(virial, batch),
        )


def _energy(model: Any, batch: GraphBatch, atoms: bool) -> tuple[Tensor, Tensor | None]:
    """Energies [G] and, if wanted, each atom's part [N]."""
    if not atoms:
        return model(batch), None
    parts = model.atomic_values(batch)
    return pool(batch, parts, model.config.readout), parts


def energy_and_forces(
    model: Callable[[GraphBatch], Tensor], batch: GraphBatch, *, training: bool = False
) -> tuple[Tensor, Tensor]:
    """Energies [G] and the forces -dE/dpos [N, 3] in the energy's unit per Å.

    Args:
        model: returns an energy for each graph.
        batch: the structures.
        training: keep the graph of the forces, so that a loss can use them.
    """
    found = properties_of(model, batch, training=training)
    assert found.forces is not None
    return found.energy, found.forces


def _strained(batch: GraphBatch, strain: Tensor) -> GraphBatch:
    """The batch with positions and images stretched by 1 + strain, which is symmetrised."""
    # A turn of the whole structure costs no energy, so only the symmetric part is a strain.
    symmetric = 0.5 * (strain + strain.transpose(1, 2))
    stretch = gather(symmetric.flatten(1), batch.node_graph, batch.node_offsets, None)
    pos = _stretched(batch.nodes["pos"], stretch)
    moved = batch.replace(nodes={**batch.nodes, "pos": pos})
    if (shift := batch.edges.get("shift")) is None:
        return moved
    images = _stretched(shift, gather_receivers(batch, stretch))
    return moved.replace(edges={**batch.edges, "shift": images})


def _stretched(vectors: Tensor, stretch: Tensor) -> Tensor:
    """Vectors [M, 3] plus each times its own matrix, stretch [M, 9]."""
    return vectors + (vectors[:, :, None] * stretch.view(-1, 3, 3)).sum(1)


def _over_volume(virial: Tensor, batch: GraphBatch) -> Tensor:
    """Derivatives in the strain [G, 3, 3] by volume; 0 where there is none."""
    a, b, c = batch.graphs["cell"].to(virial.dtype).unbind(1)
    # Not torch.linalg.det, which not every runtime of an exported model has.
    volume = (torch.linalg.cross(a, b) * c).sum(1).abs()
    return virial * torch.where(volume > 0, 1 / volume.clamp(min=1e-30), 0.0)[:, None, None]
