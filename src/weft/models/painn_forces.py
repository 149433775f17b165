"""PaiNN's energy, its gradient in the edges, and its derivative along a direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.graphs import GraphBatch
from weft.kernels.painn_mixing_tangents import tangent_invariants, tangent_update
from weft.kernels.painn_potential import Layer, painn_values
from weft.kernels.painn_tangents import painn_tangent_message
from weft.kernels.tangents import tangent_silu
from weft.models.atomistic import edge_vectors, lengths, neighbours_of, pool
from weft.models.painn import EPSILON, PaiNN, perceptron_weights
from weft.models.radial import (
    aligned_width,
    at_distances,
    envelope_with_slope,
    gaussians_with_slopes,
    linear_tangents,
)


class PaiNNForces:
    """One evaluation of a PaiNN on a batch; see `weft.models.potential.Evaluation`."""

    def __init__(self, model: PaiNN, batch: GraphBatch) -> None:
        self.model = model
        config = model.config
        dtype = model.elements.embedding.weight.dtype
        width = aligned_width(config.sharpness, config.cutoff)
        self.near = near = neighbours_of(batch, step=width, dtype=dtype)
        vectors = edge_vectors(batch)
        self.distances = lengths(vectors)[:, None].to(dtype)
        self.directions = vectors.to(dtype) / self.distances
        # Its own pairs are sorted by distance, as the filters are.
        self.batch = near.of(batch)
        rows = at_distances(
            near.distance,
            model,
            [model.filters.weight, model.filters.bias],
            self._tables,
            centres=config.radial,
            spacing=config.spacing,
            sharpness=config.sharpness,
            cutoff=config.cutoff,
        )
        # The first layer has no vectors to multiply.
        used = 2 * config.hidden
        first, *others = rows[: config.layers]
        first_slope, *other_slopes = rows[config.layers :]
        self.filters = [first[:, :used], *others]
        self.slopes = [first_slope[:, :used], *other_slopes]

    def energy_and_gradient(self) -> tuple[Tensor, Tensor, Tensor]:
        """Energies [G], each atom's part [N], and the derivative in the edges' vectors [E, 3]."""
        model, batch, near = self.model, self.batch, self.near
        rows = model.elements.rows[batch.nodes["z"].long()]
        embedding = model.elements.embedding.weight
        sent = model.contexts[0](embedding)[:, : 2 * model.config.hidden]
        q, x = (functional.embedding(rows, t).detach() for t in (embedding, sent))
        mixings: list[Any] = list(model.mixings)
        layers = [
            Layer(
                perceptron_weights(context),
                mixing.vectors.weight,
                perceptron_weights(mixing.context),
            )
            for context, mixing in zip(model.contexts, mixings, strict=True)
        ]
        seeds = batch.graph_mask[batch.node_graph.long()].to(embedding.dtype)
        if model.config.readout == "mean":
            seeds = seeds / batch.node_offsets.diff()[batch.node_graph.long()]
        atomic, by_distance, turning = painn_values(
            (q, x),
            layers,
            perceptron_weights(model.readout),
            (self.filters, self.slopes),
            (self.directions, batch.edge_mask),
            seeds,
            near.pairs,
            EPSILON,
        )
        energy = pool(batch, atomic, model.config.readout)
        along = (self.directions * turning).sum(1, keepdim=True)
        gradient = (turning - along * self.directions) / self.distances
        forward = near.forward.long()
        gradient[forward] += by_distance[:, None] * self.directions[forward]
        return energy, atomic, gradient

    def gradients(
        self, tangents: Tensor, to_energy: Tensor | None, learned: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """See `weft.models.potential.Evaluation`."""
        with torch.enable_grad():
            energy, along = self._directional(tangents)
            total = along.masked_fill(~self.batch.graph_mask, 0.0).sum()
            if to_energy is not None:
                total = total + (energy * to_energy).sum()
        return torch.autograd.grad(total, learned, retain_graph=True, allow_unused=True)

    def _directional(self, tangents: Tensor) -> tuple[Tensor, Tensor]:
        """Energies [G] and their derivatives along the edges' tangents [E, 3]."""
        model, batch, near = self.model, self.batch, self.near
        along = (self.directions * tangents).sum(1, keepdim=True)
        turn = (tangents - along * self.directions) / self.distances
        push = along[near.forward.long(), 0]
        around = (self.directions, turn, batch.edge_mask)
        rows = model.elements.rows[batch.nodes["z"].long()]
        embedding = model.elements.embedding.weight
        q = _still(functional.embedding(rows, embedding))
        used = 2 * model.config.hidden
        x: Tensor = functional.embedding(rows, model.contexts[0](embedding)[:, :used])
        x, mu = _still(x), None
        for number, (context, mixing) in enumerate(zip(model.contexts, model.mixings, strict=True)):
            x = x if number == 0 else _perceptron(context, q)
            filters = (self.filters[number], self.slopes[number], push)
            dq, dmu = painn_tangent_message(x, mu, filters, around, near.pairs)
            q, mu = _mix(mixing, q + dq, dmu if mu is None else mu + dmu)
        values, moved = _perceptron(model.readout, q).chunk(2)
        how = model.config.readout
        return pool(batch, values, how), pool(batch, moved, how)

    def _tables(self, d: Tensor) -> Tensor:
        """Filters of all layers and then their derivatives at distances d [R]: [2 L, R, 3 F]."""
        config = self.model.config
        basis, slope = gaussians_with_slopes(d, config.radial, config.spacing, config.sharpness)
        fade, fall = envelope_with_slope(d, config.cutoff)
        values = torch.cat([basis * fade, fade], dim=1)
        slopes = torch.cat([slope * fade + basis * fall, fall], dim=1)
        weights = torch.stack(self.model.filter_weights())
        made = torch.cat([values, slopes]) @ weights
        count, width = len(weights), weights.shape[2]
        tables = made.view(count, 2, len(d), width).transpose(0, 1)
        return tables.reshape(2 * count, len(d), width)


def _still(x: Tensor) -> Tensor:
    """Values that no position moves, with their tangents 0."""
    return torch.cat([x, torch.zeros_like(x)])


def _perceptron(layers: Any, x: Tensor) -> Tensor:
    return linear_tangents(layers[2], tangent_silu(linear_tangents(layers[0], x)))


def _mix(mixing: Any, q: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    mixed = functional.linear(mu, mixing.vectors.weight)
    context, dot, right = tangent_invariants(mixed, q, EPSILON)
    return tangent_update(q, mu, _perceptron(mixing.context, context), dot, right)
