"""PaiNN (Schütt, Unke and Gastegger 2021): messages of scalars and of vectors between atoms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.graphs import GraphBatch
from weft.kernels import gaussian_basis
from weft.kernels.custom_op import is_fusable
from weft.kernels.painn_energy import Dense, Radial, painn_energies
from weft.kernels.painn_message import painn_message
from weft.kernels.painn_mixing import invariants, update
from weft.models.atomistic import (
    Elements,
    edge_pairs_of,
    edge_vectors,
    envelope,
    glorot,
    is_only,
    is_only_linear,
    learns_from_places,
    lengths,
    pool,
)
from weft.models.config import PaiNNConfig, Pooling

# Added to the square of a vector feature's length: the root of 0 has no finite gradient.
EPSILON = 1e-8
_PERCEPTRON = (nn.Linear, nn.SiLU, nn.Linear)


class Mixing(nn.Module):
    """Mixes the scalars and vectors of each atom."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.vectors = nn.Linear(hidden, 2 * hidden, bias=False)
        self.context = _perceptron(2 * hidden, hidden, 3 * hidden)

    def forward(self, q: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """New scalars [N, F] and vectors [N, 3, F]."""
        context, dot, right = invariants(self.vectors(mu), q, EPSILON)
        new_q, new_mu = update(q, mu, self.context(context), dot, right)
        return new_q, new_mu


class PaiNN(nn.Module):
    """A value for each graph, from atomic numbers and positions.

    Reads the node columns `z` and `pos` [N, 3] in Å and, where anything is periodic, the edge
    column `shift` [E, 3] in Å. Where a batch has `pairs`, filters are computed once a pair. Can be
    differentiated twice in `pos`, so that forces can be trained on.
    """

    def __init__(self, config: PaiNNConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PaiNNConfig()
        hidden = config.hidden
        self.elements = Elements(config.elements, hidden)
        self.filters = nn.Linear(config.radial, config.layers * 3 * hidden)
        self.contexts = nn.ModuleList(
            _perceptron(hidden, hidden, 3 * hidden) for _ in range(config.layers)
        )
        self.mixings = nn.ModuleList(Mixing(hidden) for _ in range(config.layers))
        self.readout = _perceptron(hidden, hidden // 2, 1)
        glorot(self)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Values [G]; those of padding graphs are meaningless."""
        return pool(batch, self.atomic_values(batch), self.config.readout)

    def atomic_values(self, batch: GraphBatch) -> Tensor:
        """Values [N] of the atoms; a graph's value is their sum or mean."""
        if (fused := self._fused(batch)) is not None:
            return fused
        q, _ = self.features(batch)
        values: Tensor = self.readout(q)[:, 0]
        return values

    def _fused(self, batch: GraphBatch) -> Tensor | None:
        """Values [N] in one operator, or None where that does not apply."""
        layers = self._dense()
        # Forces to train on need second derivatives, which the operator has in the weights only.
        if layers is None or learns_from_places(batch):
            return None
        pos, shift = batch.nodes["pos"], batch.edges.get("shift")
        filters = (self.filters.weight, self.filters.bias)
        embedding = self.elements.embedding.weight
        weights = [t for layer in layers for t in (layer.vectors, *layer.mixing, *layer.after)]
        if not is_fusable(embedding, *filters, *weights, pos, shift):
            return None
        config = self.config
        return painn_energies(
            self._start(batch),
            filters,
            layers,
            (pos, shift, batch.edge_mask),
            edge_pairs_of(batch),
            Radial(config.spacing, config.sharpness, config.cutoff),
            EPSILON,
        )

    def _dense(self) -> list[Dense] | None:
        """Weights of the layers of nodes; None where one of them computes something else."""
        mixings: list[Any] = list(self.mixings)
        after: list[Any] = [*self.contexts[1:], self.readout]
        for mixing in mixings:
            if not (is_only(mixing, Mixing) and is_only_linear(mixing.vectors)):
                return None
        if not is_only_linear(self.filters):
            return None
        if not all(map(_is_perceptron, (*after, *(mixing.context for mixing in mixings)))):
            return None
        return [
            Dense(
                mixing.vectors.weight, perceptron_weights(mixing.context), perceptron_weights(own)
            )
            for mixing, own in zip(mixings, after, strict=True)
        ]

    def features(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """Scalars q [N, F] and vectors μ [N, 3, F] after the last layer.

        When the atoms turn, q stays and μ turns with them.
        """
        basis, direction = self._geometry(batch)
        first, *others = self.filter_weights()
        first = first[:, : 2 * self.config.hidden]
        filters = [basis @ weight for weight in (first, *others)]
        return self.features_of(batch, filters, direction)

    def features_of(
        self, batch: GraphBatch, filters: Sequence[Tensor], direction: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `features`, with the filters of each layer [P, 3 F] and the edges' directions [E, 3].

        The first layer's filters are [P, 2 F].
        """
        q, x = self._start(batch)
        dq, mu = painn_message(batch, x, None, filters[0], direction)
        q, mu = self.mixings[0](q + dq, mu)
        for weight, context, mixing in zip(
            filters[1:], self.contexts[1:], self.mixings[1:], strict=True
        ):
            dq, dmu = painn_message(batch, context(q), mu, weight, direction)
            q, mu = mixing(q + dq, mu + dmu)
        return q, mu

    def _start(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """Scalars [N, F], and what the atoms send in the first layer, [N, 2 F]."""
        rows = self.elements.rows[batch.nodes["z"].long()]
        embedding = self.elements.embedding.weight
        # Until the first message atoms of an element are alike and vectors are 0: the context is
        # computed by element, and without the part that would multiply the vectors.
        sent = self.contexts[0](embedding)[:, : 2 * self.config.hidden]
        return functional.embedding(rows, embedding), functional.embedding(rows, sent)

    def filter_weights(self) -> tuple[Tensor, ...]:
        """By layer [R + 1, 3 F], the bias as last row.

        Laid out so that the gradient is basisᵀ G, which is faster than Gᵀ basis.
        """
        layers, radial = self.config.layers, self.config.radial
        weight = self.filters.weight.view(layers, -1, radial).transpose(1, 2)
        return torch.cat([weight, self.filters.bias.view(layers, 1, -1)], dim=1).unbind(0)

    def _geometry(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """Radial functions times the cutoff, [P, R + 1] (without pairs [E, ...]), and directions.

        The cutoff is the last column, so that one product is (basis W + bias) · cutoff.
        """
        vectors = edge_vectors(batch)
        length = lengths(vectors)
        d = length.index_select(0, batch.pairs["forward"]) if batch.pairs else length
        config = self.config
        fade = envelope(d, config.cutoff)
        basis = gaussian_basis(d, config.radial, config.spacing, config.sharpness, fade)
        return basis, vectors / length[:, None]


def _perceptron(width_in: int, hidden: int, width_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width_in, hidden), nn.SiLU(), nn.Linear(hidden, width_out))


def _is_perceptron(layers: Any) -> bool:
    """Whether calling it is what `_perceptron` says and nothing else."""
    if not is_only(layers, nn.Sequential) or tuple(map(type, layers)) != _PERCEPTRON:
        return False
    first, activation, second = layers
    if not (is_only_linear(first) and is_only(activation, nn.SiLU) and is_only_linear(second)):
        return False
    return first.bias is not None and second.bias is not None


def perceptron_weights(layers: Any) -> list[Tensor]:
    """Weight and bias of the first layer, and of the second."""
    first, _, second = layers
    return [first.weight, first.bias, second.weight, second.bias]


# Our names by SchNetPack's, for layer number {}.
_LAYER_NAMES = {
    "interactions.{}.interatomic_context_net.0": "contexts.{}.0",
    "interactions.{}.interatomic_context_net.1": "contexts.{}.2",
    "mixing.{}.intraatomic_context_net.0": "mixings.{}.context.0",
    "mixing.{}.intraatomic_context_net.1": "mixings.{}.context.2",
    "mixing.{}.mu_channel_mix": "mixings.{}.vectors",
}


def painn_from_schnetpack(
    state: Mapping[str, Tensor], *, cutoff: float, readout: Pooling = "sum"
) -> PaiNN:
    """The PaiNN with SchNetPack's weights, which returns the same values.

    Args:
        state: state_dict of its NeuralNetworkPotential with representation PaiNN, Gaussian radial
            functions from 0 to the cutoff, and Atomwise as first output module.
        cutoff: of its CosineCutoff, Å.
        readout: `mean` where its Atomwise has aggregation_mode "avg".
    """
    prefix = "representation."
    weights: dict[str, Any] = {}

    def take(theirs: str, ours: str) -> None:
        for kind in ("weight",) if theirs.endswith("mu_channel_mix") else ("weight", "bias"):
            if f"{theirs}.{kind}" not in state:
                raise ValueError(
                    f"the state has no '{theirs}.{kind}': it must be the state_dict of "
                    "SchNetPack's NeuralNetworkPotential with PaiNN and an Atomwise of two layers"
                )
            weights[f"{ours}.{kind}"] = state[f"{theirs}.{kind}"]

    take(prefix + "filter_net", "filters")
    take("output_modules.0.outnet.0", "readout.0")
    take("output_modules.0.outnet.1", "readout.2")
    layers = len({name.split(".")[2] for name in state if name.startswith(f"{prefix}mixing.")})
    for layer in range(layers):
        for theirs, ours in _LAYER_NAMES.items():
            take(prefix + theirs.format(layer), ours.format(layer))
    centres = state.get(prefix + "radial_basis.offsets")
    embedding = state.get(prefix + "embedding.weight")
    if embedding is None or centres is None:
        raise ValueError("the state has no nuclear embedding by element or no Gaussians to read")
    # Row 0 stands for no element.
    weights["elements.embedding.weight"] = embedding[1:]
    model = PaiNN(
        PaiNNConfig(
            hidden=embedding.shape[1],
            layers=layers,
            radial=len(centres),
            cutoff=cutoff,
            elements=tuple(range(1, len(embedding))),
            readout=readout,
        )
    )
    given = torch.linspace(0, cutoff, len(centres), dtype=centres.dtype, device=centres.device)
    if not torch.allclose(centres, given, atol=1e-5):
        raise ValueError(
            f"the Gaussians' centres go from {float(centres[0]):g} to {float(centres[-1]):g} Å; "
            f"only evenly spaced ones from 0 to the cutoff, {cutoff:g} Å, can be taken over"
        )
    widths = state.get(prefix + "radial_basis.widths")
    if widths is not None and not torch.allclose(widths, centres[1] - centres[0], atol=1e-5):
        raise ValueError(
            f"the Gaussians are {widths.tolist()} Å wide; only those as wide as their centres are "
            f"apart, {float(centres[1] - centres[0]):g} Å, can be taken over"
        )
    if len(weights["filters.bias"]) == 3 * embedding.shape[1]:
        # shared_filters: the same ones in every layer.
        for kind in ("weight", "bias"):
            parts = [weights[f"filters.{kind}"]] * layers
            weights[f"filters.{kind}"] = torch.cat(parts)
    # Before the weights go in: float32 would round them.
    model.to(embedding.dtype).load_state_dict(weights)
    return model
