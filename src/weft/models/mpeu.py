"""MPEU (Jørgensen, Jacobsen and Schmidt 2018): message passing whose edges have a state too."""

from __future__ import annotations

from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.kernels import edge_softplus, gaussian_product, shifted_softplus, spmm
from weft.kernels.edge_pairs import BatchEdges
from weft.models.atomistic import (
    Elements,
    NeighbourPairs,
    aggregation_scale,
    envelope,
    glorot,
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
        batch: GraphBatch,
        near: NeighbourPairs | None,
        h: Tensor,
        own: Tensor,
        scale: Tensor,
        fade: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Atoms [N, H] and edges [E, H].

        Args:
            batch: the graphs.
            near: the pairs that `own` has a row for; None where each edge has its own.
            h: [N, H].
            own: of_edge applied to the edges' states, [P or E, 2 H].
            scale: [N, 1] of the sums of messages.
            fade: [E, 1] that messages are multiplied with: all that atoms learn of an edge.
        """
        pairs: tuple[Tensor | None, ...] = (None, None, None)
        if near is not None:
            pairs = (near.forward, near.backward, near.of_edge)
        ends = (self.of_sender(h), self.of_receiver(h))
        active = edge_softplus(*ends, own, *BatchEdges.of(batch), *pairs)
        edge = self.edge(active)
        weight = edge
        for layer in self.filter:
            weight = shifted_softplus(layer(weight))
        if fade is not None:
            weight = weight * fade
        messages = spmm(batch, self.message(h), weight) * scale
        return h + self.out(shifted_softplus(self.update(messages))), edge


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
        own = gaussian_product(
            near.distance,
            self.first.of_edge.weight.t(),
            spacing=config.spacing,
            sharpness=config.sharpness,
        )
        fade = None
        if config.cutoff is not None:
            fade = envelope(near.distance, config.cutoff).index_select(0, near.of_edge)[:, None]
        h, edge = self.first(batch, near, h, own, scale, fade)
        for layer in self.later:
            assert isinstance(layer, EdgeInteraction)
            h, edge = layer(batch, None, h, layer.of_edge(edge), scale, fade)
        return h
