"""What models of molecules and crystals share: elements, neighbours, envelopes, pooling."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.checked_indices import right_pairs, trust
from weft.graphs import GraphBatch
from weft.kernels import gather_receivers, gather_senders, segment_mean, segment_sum
from weft.kernels.custom_op import is_plain
from weft.kernels.edge_pairs import EdgePairs, Pairs, pair_spmm, sorted_pairs
from weft.kernels.message_passing import matrix_of
from weft.kernels.segment_ops import Matrix
from weft.models.config import Pooling

# Å². Padding edges have length 0, where the square root has no finite gradient.
_TINY = 1e-12
_HEAVIEST = 118


class Elements(nn.Module):
    """Embeds atomic numbers: a learned row for each element that the model knows.

    Args:
        known: atomic numbers.
        width: features.
    """

    rows: Tensor

    def __init__(self, known: Sequence[int], width: int) -> None:
        super().__init__()
        if not known or not all(1 <= z <= _HEAVIEST for z in known) or len(set(known)) < len(known):
            raise ValueError(
                f"elements are {list(known)}; pass different atomic numbers from 1 to {_HEAVIEST}"
            )
        # Atomic number 0 is padding: any row will do. An unknown element has none, so that torch
        # refuses it.
        rows = torch.full((_HEAVIEST + 1,), -1, dtype=torch.int64)
        rows[list(known)] = torch.arange(len(known))
        rows[0] = 0
        self.register_buffer("rows", rows, persistent=False)
        self.embedding = nn.Embedding(len(known), width)

    def forward(self, z: Tensor) -> Tensor:
        """Features [N, width] of atomic numbers z [N]."""
        features: Tensor = self.embedding(self.rows[z.long()])
        return features


def edge_vectors(batch: GraphBatch, edges: Tensor | None = None) -> Tensor:
    """From receiver to sender, [E, 3] in Å, across the cell where the neighbour is an image.

    Args:
        batch: with the node column `pos` and, where anything is periodic, the edge column `shift`.
        edges: int [P], only these edges, each once.
    """
    pos, shift = batch.nodes["pos"], batch.edges.get("shift")
    if pos.requires_grad:
        # The gradient of index_select would add up a node's edges with atomics on a GPU.
        vectors = gather_senders(batch, pos) - gather_receivers(batch, pos)
    else:
        vectors = pos.index_select(0, batch.senders) - pos.index_select(0, batch.receivers)
    vectors = vectors if shift is None else vectors + shift
    return vectors if edges is None else vectors.index_select(0, edges)


def lengths(vectors: Tensor) -> Tensor:
    """Lengths [E] of vectors [E, 3]; at least 1e-6 Å, with zero derivative there."""
    return (vectors * vectors).sum(-1).clamp(min=_TINY).sqrt()


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighbourPairs:
    """P pairs of edges with their distances, nearest first where d needs no gradient.

    Attributes:
        batch: whose edges they are.
        distance: [P], Å.
        forward: int [P], one edge of each pair.
        backward: int [P], its reverse, or the same edge.
        of_edge: int [E], the pair of each edge.
    """

    batch: GraphBatch
    distance: Tensor
    forward: Tensor
    backward: Tensor
    of_edge: Tensor

    def spmm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Sum over incoming edges of weight[pair] · x[sender], [N, F]; weight [P, F], x [N, F]."""
        matrix, pairs = self._edges()
        out: Tensor = pair_spmm(x, weight, *matrix, *pairs)
        return out

    def of(self, batch: GraphBatch) -> GraphBatch:
        """The batch with its pairs in this order."""
        pairs = {"forward": self.forward, "backward": self.backward, "of_edge": self.of_edge}
        return batch.replace(pairs=pairs)

    @functools.cached_property
    def pairs(self) -> EdgePairs:
        """The edges, for operators that take them as one."""
        return EdgePairs(*self._edges())

    def _edges(self) -> tuple[Matrix, Pairs]:
        return matrix_of(self.batch), Pairs(self.forward, self.backward, self.of_edge)


def neighbours_of(batch: GraphBatch, *, step: float, dtype: torch.dtype) -> NeighbourPairs:
    """The pairs of `batch` by distance, in steps of `step` Å; distances are given as `dtype`.

    Where edges have no reverse each is a pair by itself.
    """
    pos, shift = batch.nodes["pos"], batch.edges.get("shift")
    edges = (batch.senders, batch.receivers)
    places = (pos.detach(), None if shift is None else shift.detach())
    distance, forward, backward, of_edge = sorted_pairs(*places, *edges, *_pairs(batch), step)
    if learns_from_places(batch):
        distance = lengths(edge_vectors(batch, forward))
    distance = distance.to(dtype)
    return NeighbourPairs(
        batch=batch, distance=distance, forward=forward, backward=backward, of_edge=of_edge
    )


def learns_from_places(batch: GraphBatch) -> bool:
    """Whether gradients in the atoms' places are requested, as forces are."""
    shift = batch.edges.get("shift")
    # A shift needs a gradient where the cell does: that gives the stress.
    return batch.nodes["pos"].requires_grad or (shift is not None and shift.requires_grad)


def edge_pairs_of(batch: GraphBatch) -> EdgePairs:
    """The edges in the pairs that the batch has; where it has none each is a pair by itself."""
    return EdgePairs(matrix_of(batch), Pairs(*_pairs(batch)))


def _pairs(batch: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
    if batch.pairs:
        return batch.pairs["forward"], batch.pairs["backward"], batch.pairs["of_edge"]
    alone = torch.arange(batch.num_edges, dtype=batch.senders.dtype, device=batch.senders.device)
    # Tensors of a tracer have nothing to check.
    if is_plain(alone):
        trust(right_pairs, (alone, alone, alone), batch.num_edges)
    return alone, alone, alone


def envelope(d: Tensor, cutoff: float) -> Tensor:
    """Half a cosine of distances d, Å: 1 at 0; from `cutoff` on 0, with zero derivative there."""
    return 0.5 * (torch.cos(d * (math.pi / cutoff)) + 1) * (d < cutoff)


def aggregation_scale(batch: GraphBatch, how: Pooling, like: Tensor) -> Tensor:
    """What a sum of messages is multiplied with, [N, 1]: 1 / neighbours for a mean, or 1."""
    if how == "sum":
        return like.new_ones(1, 1)
    return batch.in_offsets.diff().clamp(min=1).to(like.dtype).reciprocal()[:, None]


def is_only_linear(layer: nn.Module) -> bool:
    """Whether calling the layer is nothing but a product with its weight and its bias added."""
    return is_only(layer, nn.Linear)


def is_only(module: nn.Module, kind: type) -> bool:
    """Whether the module is of this very class, and nothing hooks into calls of it."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def glorot(model: nn.Module) -> None:
    """Weights of all linear layers uniform after Glorot and Bengio (2010), biases 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def pool(batch: GraphBatch, values: Tensor, how: Pooling) -> Tensor:
    """A value for each graph, [G], from one for each node, [N] or [N, 1]."""
    reduce = segment_sum if how == "sum" else segment_mean
    return reduce(values.reshape(-1, 1), batch.node_offsets, batch.node_graph)[:, 0]
