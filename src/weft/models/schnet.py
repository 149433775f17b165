"""SchNet (Schütt et al. 2017): continuous-filter convolutions over atoms."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.kernels import radial_filters, shifted_softplus
from weft.kernels.chebyshev import bin_width
from weft.kernels.custom_op import is_fusable
from weft.kernels.schnet_interaction import interaction
from weft.kernels.schnet_readout import readout
from weft.models.atomistic import (
    Elements,
    NeighbourPairs,
    aggregation_scale,
    envelope,
    glorot,
    is_only_linear,
    learns_from_places,
    neighbours_of,
    pool,
)
from weft.models.config import Pooling, SchNetConfig


class Interaction(nn.Module):
    """h + update(Σ or mean over neighbours of filter(d) · message(h_sender))."""

    def __init__(self, config: SchNetConfig) -> None:
        super().__init__()
        self.basis = nn.Linear(config.centres, config.filters, bias=config.bias)
        self.filter = nn.Linear(config.filters, config.filters, bias=config.bias)
        self.message = nn.Linear(config.hidden, config.filters, bias=False)
        self.update = nn.Linear(config.filters, config.hidden, bias=config.bias)
        self.out = nn.Linear(config.hidden, config.hidden, bias=config.bias)
        self.aggregation = config.aggregation

    def forward(self, near: NeighbourPairs, h: Tensor, weight: Tensor) -> Tensor:
        """New features [N, H] of h [N, H]; weight [P, F], a row for each pair."""
        weights = self.weights()
        # Training on forces needs second derivatives, which the operator does not have.
        if (
            weights is not None
            and not learns_from_places(near.batch)
            and is_fusable(h, weight, *weights)
        ):
            return interaction(h, weight, *weights, near.pairs, mean=self.aggregation == "mean")
        scale = aggregation_scale(near.batch, self.aggregation, h)
        messages = near.spmm(self.message(h), weight) * scale
        changed: Tensor = h + self.out(shifted_softplus(self.update(messages)))
        return changed

    def weights(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None] | None:
        """Those of `interaction`, or None where a layer is another one or more than its weights."""
        layers: tuple[Any, ...] = (self.message, self.update, self.out)
        message, update, out = layers
        if not all(map(is_only_linear, layers)) or message.bias is not None:
            return None
        return message.weight, update.weight, update.bias, out.weight, out.bias


class SchNet(nn.Module):
    """A value for each graph, from atomic numbers and positions.

    The filters depend on distances alone, so they are computed once for a pair of atoms, and the
    networks of all layers are one operator (see `radial_filters`).
    """

    def __init__(self, config: SchNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or SchNetConfig()
        self.elements = Elements(config.elements, config.hidden)
        self.interactions = nn.ModuleList(Interaction(config) for _ in range(config.layers))
        half = config.hidden // 2
        self.readout = nn.ModuleList(
            [nn.Linear(config.hidden, half, bias=config.bias), nn.Linear(half, 1, bias=config.bias)]
        )
        glorot(self)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Values [G]; those of padding graphs are meaningless."""
        h = self.features(batch)
        layers: Any = self.readout
        first, second = layers
        if is_only_linear(first) and is_only_linear(second) and not learns_from_places(batch):
            weights = (first.weight, first.bias, second.weight, second.bias)
            if is_fusable(h, *weights):
                mean = self.config.readout == "mean"
                return readout(h, *weights, batch.node_offsets, mean=mean)
        return pool(batch, second(shifted_softplus(first(h))), self.config.readout)

    def atomic_values(self, batch: GraphBatch) -> Tensor:
        """Values [N] of the atoms; a graph's value is their sum or mean."""
        first, second = self.readout
        values: Tensor = second(shifted_softplus(first(self.features(batch))))
        return values[:, 0]

    def features(self, batch: GraphBatch) -> Tensor:
        """Features of the atoms after the last interaction, [N, H]."""
        h: Tensor = self.elements(batch.nodes["z"])
        near = neighbours_of(batch, step=bin_width(self.config.sharpness), dtype=h.dtype)
        for layer, weight in zip(self.interactions, self._filters(near.distance), strict=True):
            h = layer(near, h, weight)
        return h

    def _filters(self, d: Tensor) -> list[Tensor]:
        """Filters [P, F] of each layer for distances d [P]."""
        config = self.config
        layers: list[Any] = list(self.interactions)
        filters = radial_filters(
            d,
            [layer.basis.weight for layer in layers],
            [layer.basis.bias for layer in layers] if config.bias else None,
            [layer.filter.weight for layer in layers],
            [layer.filter.bias for layer in layers] if config.bias else None,
            spacing=config.spacing,
            sharpness=config.sharpness,
            activate=config.activate_filter,
        )
        if config.cutoff is None:
            return filters
        fade = envelope(d, config.cutoff)[:, None]
        return [part * fade for part in filters]


# Our layers by the names of torch_geometric's.
_LAYERS = {
    "mlp.0": "basis",
    "mlp.2": "filter",
    "conv.lin1": "message",
    "conv.lin2": "update",
    "lin": "out",
}


def schnet_from_torch_geometric(model: Any) -> SchNet:
    """torch_geometric's SchNet (`torch_geometric.nn.SchNet`) as weft's: the same values.

    Edges are the batch's own: build them with the model's cutoff. A mean and standard deviation
    that it carries become part of the last layer.

    Raises:
        ValueError: it predicts a dipole moment, adds atomic references, or reads out by something
            else than a sum or a mean.
    """
    if model.dipole or model.atomref is not None or model.scale is not None:
        raise ValueError(
            "this SchNet has a dipole, atomref or scale, which weft's does not; take one without"
        )
    centres = model.distance_expansion.offset
    state = {
        f"interactions.{number}.{ours}.{name}": value
        for number, block in enumerate(model.interactions)
        for theirs, ours in _LAYERS.items()
        for name, value in block.get_submodule(theirs).state_dict().items()
    }
    for number, layer in enumerate((model.lin1, model.lin2)):
        state |= {f"readout.{number}.{name}": value for name, value in layer.state_dict().items()}
    if model.mean is not None and model.std is not None:
        state["readout.1.weight"] = state["readout.1.weight"] * model.std
        state["readout.1.bias"] = state["readout.1.bias"] * model.std + model.mean
    # Theirs has a row for padding, atomic number 0.
    embedding = model.embedding.weight[1:]
    state["elements.embedding.weight"] = embedding
    ways: dict[str, Pooling] = {"SumAggregation": "sum", "MeanAggregation": "mean"}
    pooling = ways.get(type(model.readout).__name__)
    if pooling is None:
        raise ValueError(f"this SchNet reads out by {model.readout}; weft's by a sum or a mean")
    ours = SchNet(
        SchNetConfig(
            hidden=model.hidden_channels,
            filters=model.num_filters,
            layers=model.num_interactions,
            centres=len(centres),
            spacing=float(centres[-1] - centres[0]) / (len(centres) - 1),
            sharpness=-float(model.distance_expansion.coeff),
            cutoff=float(model.cutoff),
            activate_filter=False,
            bias=True,
            aggregation="sum",
            readout=pooling,
            elements=tuple(range(1, len(embedding) + 1)),
        )
    )
    ours.to(embedding.dtype).load_state_dict(state)
    return ours
