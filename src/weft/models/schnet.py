"""SchNet (Schütt et al. 2017): continuous-filter convolutions over atoms."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from weft.graphs import GraphBatch
from weft.kernels import radial_filters, shifted_softplus
from weft.kernels.chebyshev import bin_width
from weft.kernels.custom_op import has_loop, is_fusable
from weft.kernels.schnet_interaction import interaction
from weft.kernels.schnet_network import Atoms, Biases, Fixed, Layers, Settings, network
from weft.kernels.schnet_readout import readout
from weft.models.atomistic import (
    Elements,
    NeighbourPairs,
    aggregation_scale,
    edge_pairs_of,
    envelope,
    glorot,
    is_only,
    is_only_linear,
    learns_from_places,
    neighbours_of,
    pool,
)
from weft.models.config import Pooling, SchNetConfig

# The layers of an interaction.
_KINDS = ("basis", "filter", "message", "update", "out")


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
        found = self._in_one(batch)
        return self.layer_by_layer(batch) if found is None else found

    def _in_one(self, batch: GraphBatch) -> Tensor | None:
        """The values from one operator; None where a layer, the batch or autograd needs more."""
        if type(self) is not SchNet or learns_from_places(batch) or not batch.num_nodes:
            return None
        elements: Any = self.elements
        if not is_only(elements, Elements) or not is_only(elements.embedding, nn.Embedding):
            return None
        blocks: list[Any] = list(self.interactions)
        ends: list[Any] = list(self.readout)
        if not blocks or not all(is_only(block, Interaction) for block in blocks):
            return None
        by_kind = [[getattr(block, name) for block in blocks] for name in _KINDS]
        linear = [*chain(*by_kind), *ends]
        embedding = elements.embedding
        weight, config = embedding.weight, self.config
        if not all(map(is_only_linear, linear)) or embedding.max_norm is not None:
            return None
        layers = Layers(*(tuple(layer.weight for layer in kind) for kind in (*by_kind, ends)))
        given = [[layer.bias for layer in kind] for kind in (*by_kind, ends)]
        messages = given.pop(_KINDS.index("message"))
        every = [*chain(*given)]
        has_bias = every[0] is not None
        if any(bias is not None for bias in messages) or any(
            (bias is not None) != has_bias for bias in every
        ):
            return None
        biases = Biases(*map(tuple, given)) if has_bias else None
        pos, shift = batch.nodes["pos"], batch.edges.get("shift")
        if not is_fusable(weight, *chain(*layers), *every) or not has_loop(pos, shift):
            return None
        settings = Settings(
            spacing=config.spacing,
            sharpness=config.sharpness,
            cutoff=config.cutoff or 0.0,
            activate=config.activate_filter,
            mean=config.aggregation == "mean",
            pool_mean=config.readout == "mean",
        )
        atoms = Atoms(batch.nodes["z"], pos, shift, batch.node_offsets)
        plain = partial(self._plain, batch)
        fixed = Fixed(atoms, edge_pairs_of(batch), elements.rows, settings, plain)
        return network(weight, layers, biases, fixed)

    def _plain(self, batch: GraphBatch, *weights: Tensor) -> Tensor:
        """`layer_by_layer` of the weights that `network` has, in its order."""
        count = range(len(self.interactions))
        names = ["elements.embedding.weight"]
        for side in ("weight", "bias"):
            kinds = [kind for kind in _KINDS if side == "weight" or kind != "message"]
            names += [f"interactions.{k}.{kind}.{side}" for kind in kinds for k in count]
            names += [f"readout.{k}.{side}" for k in range(2)]
        given = {f"network.{name}": weight for name, weight in zip(names, weights, strict=False)}
        found: Tensor = functional_call(_LayerByLayer(self), given, (batch,), tie_weights=False)
        return found

    def layer_by_layer(self, batch: GraphBatch) -> Tensor:
        """The same values, an operator for each layer."""
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


class _LayerByLayer(nn.Module):
    """A network without its one operator, for `functional_call`."""

    def __init__(self, network: SchNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: GraphBatch) -> Tensor:
        return self.network.layer_by_layer(batch)


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
