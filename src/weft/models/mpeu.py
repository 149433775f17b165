"""MPEU (Jørgensen, Jacobsen and Schmidt 2018): message passing whose edges have a state too."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.kernels import edge_softplus, gaussian_product, shifted_softplus, spmm
from weft.kernels.custom_op import is_fusable
from weft.kernels.edge_pairs import BatchEdges
from weft.kernels.mpeu_interaction import edge_messages
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
from weft.models.config import MPEUConfig

# Å. See `neighbours_of`.
_STEP = 0.1


class EdgeInteraction(nn.Module):
    """New states of the edges, then of the atoms: h + update(mean of filter(e) · message(h)).

    The first layer of an edge's network sees [h_sender, h_receiver, e]. It is three matrices here,
    so that the atoms' parts are products of N rows instead of E.
    """

    def __init__(self, hidden: int, edge_width: int) -> None:
        super().__init__()
        self.of_sender = nn.Linear(hidden, 2 * hidden, bias=False)
        self.of_receiver = nn.Linear(hidden, 2 * hidden, bias=False)
        self.of_edge = nn.Linear(edge_width, 2 * hidden, bias=False)
        self.edge = nn.Linear(2 * hidden, hidden, bias=False)
        self.filter = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.message = nn.Linear(hidden, hidden, bias=False)
        self.update = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(
        self,
        near: NeighbourPairs,
        h: Tensor,
        state: Tensor,
        scale: Tensor,
        fade: Tensor | None,
        *,
        first: bool,
        last: bool,
    ) -> tuple[Tensor, Tensor]:
        """Atoms [N, H] and edges [E, H].

        Args:
            near: the edges in pairs.
            h: [N, H].
            state: of the edges, [E, H].
            scale: [N, 1] of the sums of messages.
            fade: [E] that messages are multiplied with: all that atoms learn of an edge.
            first: `state` is of_edge applied to it already, a row a pair, [P, 2 H].
            last: nothing asks for the edges' new states, and what is returned for them is anything.
        """
        sums, edge = self._fused(near, h, state, fade, first=first, last=last) or self._plain(
            near, h, state, fade, first=first
        )
        return h + self.out(shifted_softplus(self.update(sums * scale))), edge

    def _plain(
        self, near: NeighbourPairs, h: Tensor, state: Tensor, fade: Tensor | None, *, first: bool
    ) -> tuple[Tensor, Tensor]:
        """Sums of the messages, and the edges' new states."""
        pairs: tuple[Tensor | None, ...] = (None, None, None)
        if first:
            pairs = (near.forward, near.backward, near.of_edge)
        own = state if first else self.of_edge(state)
        ends = (self.of_sender(h), self.of_receiver(h))
        edge = self.edge(edge_softplus(*ends, own, *BatchEdges.of(near.batch), *pairs))
        weight = edge
        for layer in self.filter:
            weight = shifted_softplus(layer(weight))
        if fade is not None:
            weight = weight * fade[:, None]
        return spmm(near.batch, self.message(h), weight), edge

    def _fused(
        self,
        near: NeighbourPairs,
        h: Tensor,
        state: Tensor,
        fade: Tensor | None,
        *,
        first: bool,
        last: bool,
    ) -> tuple[Tensor, Tensor] | None:
        """As `_plain`, in one operator; None where that does not apply."""
        # Training on forces needs second derivatives, which the operator has in plain torch only.
        if learns_from_places(near.batch):
            return None
        layers: list[Any] = [self.of_edge, self.edge, *self.filter]
        if not all(is_only_linear(layer) and layer.bias is None for layer in layers):
            return None
        of_edge, edge, *filters = (layer.weight for layer in layers)
        if len(filters) != 2 or not is_fusable(h, state, of_edge, edge, *filters, fade):
            return None
        before: Tensor | None = None if first else of_edge
        within: Tensor | None = filters[0]
        if last:
            # Between the two there is no activation: one product of E rows instead of two.
            within, edge = None, filters[0] @ edge
        ends = (self.of_sender(h), self.of_receiver(h), self.message(h))
        real = int(near.batch.edge_mask.sum())
        return edge_messages(
            ends, state, (before, edge, within, filters[1]), fade, near.pairs, real
        )


class MPEU(nn.Module):
    """A value for each graph, from atomic numbers and positions; edges have states as atoms do."""

    def __init__(self, config: MPEUConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or MPEUConfig()
        hidden = config.hidden
        self.elements = Elements(config.elements, hidden)
        # The first edge states are Gaussians, the later ones as wide as an atom's.
        self.first = EdgeInteraction(hidden, config.centres)
        self.later = nn.ModuleList(
            EdgeInteraction(hidden, hidden) for _ in range(config.layers - 1)
        )
        self.readout = nn.ModuleList(
            [nn.Linear(hidden, hidden // 2, bias=False), nn.Linear(hidden // 2, 1, bias=False)]
        )
        glorot(self)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Values [G]; those of padding graphs are meaningless."""
        return pool(batch, self.atomic_values(batch), self.config.readout)

    def atomic_values(self, batch: GraphBatch) -> Tensor:
        """Values [N] of the atoms; a graph's value is their sum or mean."""
        first, second = self.readout
        values: Tensor = second(shifted_softplus(first(self.features(batch))))
        return values[:, 0]

    def features(self, batch: GraphBatch) -> Tensor:
        """Features of the atoms after the last interaction, [N, H]."""
        config = self.config
        h: Tensor = self.elements(batch.nodes["z"])
        scale = aggregation_scale(batch, config.aggregation, h)
        near = neighbours_of(batch, step=_STEP, dtype=h.dtype)
        # Gaussians are the same both ways, so the first product has one row per pair.
        edge = gaussian_product(
            near.distance,
            self.first.of_edge.weight.t(),
            spacing=config.spacing,
            sharpness=config.sharpness,
        )
        fade = None
        if config.cutoff is not None:
            fade = envelope(near.distance, config.cutoff).index_select(0, near.of_edge)
        layers: list[Any] = [self.first, *self.later]
        for layer in layers:
            kind = {"first": layer is layers[0], "last": layer is layers[-1]}
            h, edge = layer(near, h, edge, scale, fade, **kind)
        return h
