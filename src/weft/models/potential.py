"""Forces and stress to learn from, without second derivatives in the positions.

A loss of energies, forces and stress needs its gradient in the weights alone. With the gradients of
the loss in energy, forces and stress given, that is the gradient of the energy and of its
derivative along one direction of all positions and cells, which is taken forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.kernels import (
    gather_receivers,
    gather_senders,
    segment_sum,
    sum_to_receivers,
    sum_to_senders,
)
from weft.kernels.custom_op import is_fusable
from weft.kernels.segment_ops import gather
from weft.models.atomistic import Elements, edge_vectors
from weft.models.painn import Mixing, PaiNN
from weft.models.painn_forces import PaiNNForces
from weft.models.schnet import Interaction, SchNet
from weft.models.schnet_forces import SchNetForces


class Evaluation(Protocol):
    """A potential on one batch."""

    def energy_and_gradient(self) -> tuple[Tensor, Tensor, Tensor]:
        """Energies [G], each atom's part [N], and the derivative in the edges' vectors [E, 3]."""

    def gradients(
        self, tangents: Tensor, to_energy: Tensor | None, learned: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Gradients in the weights `learned`, after `energy_and_gradient`.

        They are of Σ to_energy · energy, where to_energy [G] is not None, and of the derivative of
        the energies of real graphs along tangents [E, 3] of the edges' vectors.
        """


_FAST: dict[type, Callable[[Any, GraphBatch], Evaluation]] = {
    SchNet: SchNetForces,
    PaiNN: PaiNNForces,
}


def has_fast_forces(model: Any, batch: GraphBatch) -> bool:
    """Whether `derivatives` takes this model and batch, here and now."""
    pos, shift = batch.nodes["pos"], batch.edges.get("shift")
    if type(model) not in _FAST or not pos.is_cpu:
        return False
    weights = _plain_weights(model)
    if weights is None or not is_fusable(*weights):
        return False
    # A hook on a weight would see its gradient twice.
    if any(weight._backward_hooks for weight in weights):
        return False
    return not (pos.requires_grad or (shift is not None and shift.requires_grad))


_PERCEPTRON = (nn.Linear, nn.SiLU, nn.Linear)
_PARTS = {SchNet, PaiNN, Interaction, Mixing, Elements, nn.ModuleList, *_PERCEPTRON, nn.Embedding}


def _plain_weights(model: nn.Module) -> list[Tensor] | None:
    """All weights, if nothing but them is computed with; None with a hook or another layer."""
    weights: list[Tensor] = []
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return None
        if module._backward_hooks or module._backward_pre_hooks:
            return None
        # By type, not by class: whoever derives from a layer computes something else.
        if isinstance(module, nn.Sequential):
            layers: Any = list(module)
            if tuple(map(type, layers)) != _PERCEPTRON:
                return None
            if layers[0].bias is None or layers[2].bias is None:
                return None
        elif type(module) not in _PARTS or (
            isinstance(module, Interaction) and module.weights() is None
        ):
            return None
        weights += [weight for weight in module._parameters.values() if weight is not None]
    return weights


class Derivatives(NamedTuple):
    """Energies [G], each atom's part [N], derivatives in positions [N, 3] and strain [G, 3, 3].

    The last is None where it is not wanted. A loss does not see the parts.
    """

    energy: Tensor
    atomic: Tensor
    positions: Tensor
    strain: Tensor | None


def derivatives(model: Any, batch: GraphBatch, *, strain: bool, training: bool) -> Derivatives:
    """Energies and their derivatives; with `training` a loss can use them."""
    make = _FAST[type(model)]
    # Inference mode would record nothing.
    with torch.inference_mode(False):
        if not training:
            with torch.no_grad():
                return _derivatives(make(model, batch), batch, strain)
        # As model.parameters() gives them, in a fraction of its time.
        every = (weight for each in model.modules() for weight in each._parameters.values())
        by_id = {id(weight): weight for weight in every if weight is not None}
        learned = [weight for weight in by_id.values() if weight.requires_grad]
        with torch.enable_grad():
            evaluation = make(model, batch)
            found = _Learned.apply(evaluation, batch, strain, *learned)  # type: ignore[no-untyped-call]
    return Derivatives(*found)


def _derivatives(evaluation: Evaluation, batch: GraphBatch, strain: bool) -> Derivatives:
    energy, atomic, gradient = evaluation.energy_and_gradient()
    positions = sum_to_senders(batch, gradient) - sum_to_receivers(batch, gradient)
    if not strain:
        return Derivatives(energy, atomic, positions, None)
    products = edge_vectors(batch)[:, :, None] * gradient[:, None, :]
    # Edges are sorted by receiver, and nodes by graph.
    offsets = batch.in_offsets[batch.node_offsets.long()]
    virial = segment_sum(products.flatten(1), offsets).view(-1, 3, 3)
    return Derivatives(energy, atomic, positions, 0.5 * (virial + virial.transpose(1, 2)))


class _Learned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, evaluation: Evaluation, batch: GraphBatch, strain: bool, *learned: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        ctx.given = evaluation, batch, learned
        ctx.save_for_backward(*learned)
        ctx.set_materialize_grads(False)
        found = _derivatives(evaluation, batch, strain)
        ctx.mark_non_differentiable(found.atomic)
        return found

    @staticmethod
    def backward(
        ctx: Any,
        to_energy: Tensor | None,
        _: Tensor | None,
        to_positions: Tensor | None,
        to_strain: Tensor | None,
    ) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "forces to learn from can be differentiated once; for higher derivatives, "
                "differentiate model(batch) in the positions with create_graph=True"
            )
        evaluation, batch, learned = ctx.given
        # Read although it is not needed: torch refuses weights that were changed meanwhile.
        _ = ctx.saved_tensors
        tangents = torch.zeros_like(batch.nodes["pos"][batch.senders.long()])
        if to_positions is not None:
            tangents = gather_senders(batch, to_positions) - gather_receivers(batch, to_positions)
        if to_strain is not None:
            symmetric = 0.5 * (to_strain + to_strain.transpose(1, 2))
            by_node = gather(symmetric.flatten(1), batch.node_graph, batch.node_offsets, None)
            stretch = gather_receivers(batch, by_node).view(-1, 3, 3)
            tangents = tangents + (edge_vectors(batch)[:, :, None] * stretch).sum(1)
        grads = evaluation.gradients(tangents, to_energy, learned)
        return None, None, None, *grads
