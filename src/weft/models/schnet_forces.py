"""SchNet's energy, its gradient in the edges, and its derivative along a direction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.graphs import GraphBatch
from weft.kernels import shifted_softplus
from weft.kernels.schnet_interaction import interaction
from weft.kernels.tangents import row_dots, tangent_softplus, tangent_spmm
from weft.models.atomistic import edge_vectors, neighbours_of, pool
from weft.models.radial import (
    aligned_width,
    at_distances,
    envelope_with_slope,
    gaussians_with_slopes,
    linear_tangents,
    with_bias,
)
from weft.models.schnet import SchNet


class SchNetForces:
    """One evaluation of a SchNet on a batch; see `weft.models.potential.Evaluation`."""

    def __init__(self, model: SchNet, batch: GraphBatch) -> None:
        self.model, self.batch = model, batch
        config = model.config
        dtype = model.elements.embedding.weight.dtype
        width = aligned_width(config.sharpness, config.cutoff)
        self.near = near = neighbours_of(batch, step=width, dtype=dtype)
        self.vectors = edge_vectors(batch, near.forward)
        self.units = (self.vectors / near.distance[:, None]).to(dtype)
        rows = at_distances(
            near.distance,
            model,
            [
                weight
                for layer in self._layers()
                for part in (layer.basis, layer.filter)
                for weight in part.parameters()
            ],
            self._tables,
            centres=config.centres,
            spacing=config.spacing,
            sharpness=config.sharpness,
            cutoff=config.cutoff,
        )
        self.filters, self.slopes = rows[: config.layers], rows[config.layers :]

    def energy_and_gradient(self) -> tuple[Tensor, Tensor, Tensor]:
        """Energies [G], each atom's part [N], and the derivative in the edges' vectors [E, 3]."""
        config, batch, near = self.model.config, self.batch, self.near
        mean = config.aggregation == "mean"
        leaves = [weight.detach().requires_grad_() for weight in self.filters]
        h = self.model.elements(batch.nodes["z"]).detach()
        with torch.enable_grad():
            for layer, weight in zip(self._layers(), leaves, strict=True):
                message, update, update_bias, out, out_bias = _detached(*layer.weights())
                layers = (message, update, update_bias, out, out_bias)
                h = interaction(h, weight, *layers, near.pairs, mean=mean)
            first, second = self._readout()
            weights = (first.weight, first.bias, second.weight, second.bias)
            one, one_bias, two, two_bias = _detached(*weights)
            inner = shifted_softplus(functional.linear(h, one, one_bias))
            atomic = functional.linear(inner, two, two_bias)[:, 0]
            energy = pool(batch, atomic, config.readout)
            total = energy.masked_fill(~batch.graph_mask, 0.0).sum()
            grads = torch.autograd.grad(total, leaves)
        by_distance = row_dots(list(grads), [slope.detach() for slope in self.slopes])
        gradient = self.units.new_zeros(batch.num_edges, 3)
        gradient[near.forward.long()] = by_distance[:, None] * self.units
        return energy.detach(), atomic.detach(), gradient

    def directional(self, tangents: Tensor) -> tuple[Tensor, Tensor]:
        """Energies [G] and their derivatives along the edges' tangents [E, 3]."""
        model, batch, near = self.model, self.batch, self.near
        push = (self.units * tangents[near.forward.long()]).sum(1)
        h = model.elements(batch.nodes["z"])
        h = torch.cat([h, torch.zeros_like(h)])
        scale = None
        if model.config.aggregation == "mean":
            counts = batch.in_offsets.diff().clamp(min=1).to(h.dtype)
            scale = counts.reciprocal()[:, None].repeat(2, 1)
        layers = zip(self._layers(), self.filters, self.slopes, strict=True)
        for layer, weight, slope in layers:
            sent = functional.linear(h, layer.message.weight)
            sums = tangent_spmm(sent, weight, slope, push, near.pairs)
            sums = sums if scale is None else sums * scale
            inner = tangent_softplus(linear_tangents(layer.update, sums))
            h = h + linear_tangents(layer.out, inner)
        first, second = self._readout()
        atoms = linear_tangents(second, tangent_softplus(linear_tangents(first, h)))
        values, moved = atoms.chunk(2)
        how = model.config.readout
        return pool(batch, values, how), pool(batch, moved, how)

    def _layers(self) -> list[Any]:
        return list(self.model.interactions)

    def _readout(self) -> list[Any]:
        return list(self.model.readout)

    def _tables(self, d: Tensor) -> Tensor:
        """Filters of all layers and then their derivatives at distances d [R]: [2 L, R, F]."""
        config, rows = self.model.config, len(d)
        layers = self._layers()
        count, width = len(layers), config.filters
        basis = torch.cat(
            gaussians_with_slopes(d, config.centres, config.spacing, config.sharpness)
        )
        inner = basis @ torch.cat([layer.basis.weight for layer in layers]).t()
        if config.bias:
            inner = with_bias(inner, torch.cat([layer.basis.bias for layer in layers]))
        inner = tangent_softplus(inner).view(2 * rows, count, width).transpose(0, 1)
        outer = inner @ torch.stack([layer.filter.weight for layer in layers]).transpose(1, 2)
        values = outer.view(count, 2, rows, width).transpose(0, 1)
        if config.bias:
            bias = torch.stack([layer.filter.bias for layer in layers])[:, None]
            values = torch.stack([values[0] + bias, values[1]])
        if config.activate_filter:
            values = tangent_softplus(values.reshape(2 * count, rows * width))
            values = values.view(2, count, rows, width)
        if config.cutoff is not None:
            fade, fall = envelope_with_slope(d, config.cutoff)
            one, slope = values
            values = torch.stack([one * fade, slope * fade + one * fall])
        return values.reshape(2 * count, rows, width)


def _detached(*weights: Tensor | None) -> Any:
    return [None if weight is None else weight.detach() for weight in weights]
