"""Dipole moments from PaiNN's features: charges and dipoles of atoms, as in SchNetPack."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.kernels import segment_mean, segment_sum
from weft.kernels.segment_ops import gather
from weft.models.atomistic import glorot
from weft.models.config import PaiNNConfig
from weft.models.painn import PaiNN

# Added to the square of a vector's length: the root of 0 has no finite gradient.
_EPSILON = 1e-8


class GatedBlock(nn.Module):
    """Scalars and vectors of an atom from others: vectors are scaled by what scalars say.

    Args:
        width: scalars and vectors that go in.
        width_out: those that come out.
        last: the scalars that come out have no activation.
    """

    def __init__(self, width: int, width_out: int, *, last: bool) -> None:
        super().__init__()
        self.vectors = nn.Linear(width, 2 * width_out, bias=False)
        self.context = nn.Sequential(
            nn.Linear(width + width_out, width), nn.SiLU(), nn.Linear(width, 2 * width_out)
        )
        self.activation = nn.Identity() if last else nn.SiLU()

    def forward(self, q: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """Scalars [N, K] and vectors [N, 3, K] of q [N, F] and mu [N, 3, F]."""
        left, right = self.vectors(mu).chunk(2, dim=-1)
        norm = (left.square().sum(1) + _EPSILON).sqrt()
        scalars, gate = self.context(torch.cat([q, norm], dim=-1)).chunk(2, dim=-1)
        return self.activation(scalars), gate[:, None] * right


class DipolePaiNN(PaiNN):
    """The dipole moment [G, 3] of each neutral molecule: Σ qᵢ rᵢ + μᵢ over its atoms.

    The charges qᵢ of a molecule add up to 0, so that its place does not matter; the dipole
    turns with it. Reads what PaiNN reads.
    """

    def __init__(self, config: PaiNNConfig | None = None) -> None:
        super().__init__(config)
        hidden = self.config.hidden
        half = max(1, hidden // 2)
        del self.readout
        self.gates = nn.ModuleList(
            [GatedBlock(hidden, half, last=False), GatedBlock(half, 1, last=True)]
        )
        glorot(self.gates)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Dipoles [G, 3] in the charge's unit times Å; those of padding graphs are meaningless."""
        q, mu = self.features(batch)
        for gate in self.gates:
            q, mu = gate(q, mu)
        offsets, graph = batch.node_offsets, batch.node_graph
        charge = q - gather(segment_mean(q, offsets, graph), graph, offsets, None)
        moments: Tensor = charge * batch.nodes["pos"] + mu[:, :, 0]
        return segment_sum(moments, offsets, graph)
