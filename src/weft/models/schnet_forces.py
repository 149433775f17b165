"""SchNet's energy, its gradient in the edges, and its derivative along a direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.graphs import GraphBatch
from weft.kernels.filter_tables import TableSettings, filter_tables
from weft.kernels.schnet_potential import Layer, Potential, Readout
from weft.models.atomistic import edge_vectors, neighbours_of, pool
from weft.models.radial import (
    aligned_width,
    at_distances,
)
from weft.models.schnet import SchNet


class SchNetForces:
    """One evaluation of a SchNet on a batch; see `weft.models.potential.Evaluation`."""

    def __init__(self, model: SchNet, batch: GraphBatch) -> None:
        self.model, self.batch = model, batch
        config = model.config
        dtype = model.elements.embedding.weight.dtype
        first, second = self._ends()
        self._weights = [Layer(*layer.weights()) for layer in self._layers()]
        self._readout = Readout(first.weight, first.bias, second.weight, second.bias)
        width = aligned_width(config.sharpness, config.cutoff)
        self.near = near = neighbours_of(batch, step=width, dtype=dtype)
        self.vectors = edge_vectors(batch, near.forward)
        self.units = (self.vectors / near.distance[:, None]).to(dtype)
        self._radial = [
            weight
            for layer in self._layers()
            for part in (layer.basis, layer.filter)
            for weight in part.parameters()
        ]
        rows = at_distances(
            near.distance,
            model,
            self._radial,
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
        self._potential = potential = Potential(
            self.model.elements(batch.nodes["z"]).detach(),
            self._weights,
            self._readout,
            self.filters,
            self.slopes,
            self._by_atom(batch.graph_mask),
            near.pairs,
            mean=config.aggregation == "mean",
        )
        energy = pool(batch, potential.atomic, config.readout)
        gradient = self.units.new_zeros(batch.num_edges, 3)
        gradient[near.forward.long()] = potential.by_distance[:, None] * self.units
        return energy, potential.atomic, gradient

    def gradients(
        self, tangents: Tensor, to_energy: Tensor | None, learned: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """See `weft.models.potential.Evaluation`."""
        batch = self.batch
        push = (self.units * tangents[self.near.forward.long()]).sum(1)
        if to_energy is None:
            to_energy = push.new_zeros(batch.num_graphs)
        found = self._potential.learned(push, self._by_atom(to_energy))
        # By identity: tensors are slow to hash.
        known: dict[int, Tensor] = {}

        def take(weights: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> None:
            for weight, grad in zip(weights, grads, strict=True):
                if grad is not None:
                    # Layers may share a weight.
                    before = known.get(id(weight))
                    known[id(weight)] = grad if before is None else before + grad

        for layer, grads in zip(self._weights, found.layers, strict=True):
            take(layer, grads)
        take(self._readout, found.readout)
        rows = self.model.elements.rows[batch.nodes["z"].long()]
        embedding = self.model.elements.embedding.weight
        summed = torch.ops.aten.embedding_dense_backward(found.h, rows, len(embedding), -1, False)
        take([embedding], [summed])
        of_filters = set(map(id, self._radial))
        radial = [weight for weight in learned if id(weight) in of_filters]
        if radial:
            outputs = (*self.filters, *self.slopes)
            upper = (*found.filters, *found.slopes)
            take(radial, torch.autograd.grad(outputs, radial, upper, retain_graph=True))
        return [known.get(id(weight)) for weight in learned]

    def _by_atom(self, of_graph: Tensor) -> Tensor:
        """Of a value for each graph [G], that of each atom's part [N]."""
        batch = self.batch
        seeds = of_graph.to(self.units.dtype)[batch.node_graph.long()]
        if self.model.config.readout == "mean":
            seeds = seeds / batch.node_offsets.diff()[batch.node_graph.long()]
        return seeds

    def _layers(self) -> list[Any]:
        return list(self.model.interactions)

    def _ends(self) -> list[Any]:
        return list(self.model.readout)

    def _tables(self, d: Tensor) -> Tensor:
        """Filters of all layers and then their derivatives at distances d [R]: [2 L, R, F]."""
        config, layers = self.model.config, self._layers()
        settings = TableSettings(
            config.spacing, config.sharpness, config.cutoff or 0.0, config.activate_filter
        )
        first, second = ([getattr(layer, kind) for layer in layers] for kind in ("basis", "filter"))
        return filter_tables(
            d,
            [part.weight for part in first],
            [part.bias for part in first if config.bias],
            [part.weight for part in second],
            [part.bias for part in second if config.bias],
            settings,
        )
