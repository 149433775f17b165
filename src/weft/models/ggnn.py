"""Gated graph networks with edge types (Li et al. 2016), and the choice among candidates on top."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from weft.graphs import GraphBatch
from weft.kernels import dropout, gru, segment_max, segment_sum
from weft.kernels.custom_op import require
from weft.kernels.segment_ops import gather
from weft.layout import TypedEdges
from weft.models.config import GGNNConfig
from weft.sources.program_graph import CANDIDATE, SLOT


class Adjacency(Protocol):
    """What a form of the adjacency does, see `weft.layout`."""

    def propagate(self, h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Σ over incoming edges of h[sender] @ weight[type] + bias[type], [N, O]."""
        ...


class GatedGraph(nn.Module):
    """T times h = GRU(Σ over incoming edges of h[sender] W[type] + b[type], h), one set of weights.

    Args:
        hidden: H, features of a node.
        num_types: P, edge types.
        steps: T.
        dropout: of the messages, at each step.
        recompute: keep only the states between steps, and compute the gates again on the way back:
            a sixth of the memory for a third more time.
    """

    def __init__(
        self,
        hidden: int,
        num_types: int,
        steps: int,
        *,
        dropout: float = 0.0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("hidden", hidden), ("num_types", num_types), ("steps", steps)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; it must be at least 0 and below 1")
        self.steps, self.dropout, self.recompute = steps, dropout, recompute
        self.weight = nn.Parameter(torch.empty(num_types, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(num_types, hidden))
        self.cell = nn.GRUCell(hidden, hidden)
        bound = math.sqrt(3 / hidden)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, h: Tensor, adjacency: Adjacency) -> Tensor:
        """New states [N, H] of h [N, H]."""
        for _ in range(self.steps):
            if self.recompute and torch.is_grad_enabled():
                h = checkpoint(self._step, h, adjacency, use_reentrant=False)
            else:
                h = self._step(h, adjacency)
        return h

    def from_edges(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """`forward` for edges as torch_geometric has them; an edge that is there twice counts once.

        Args:
            x: [N, H].
            edge_index: int [2, E], senders and receivers.
            edge_type: int [E].

        Raises:
            DataError: an edge to a node or of a type that is not there.
        """
        right = edge_index.ndim == 2 and edge_index.shape[0] == 2 and edge_type.ndim == 1
        right = right and not (edge_index.is_floating_point() or edge_type.is_floating_point())
        needed = "edge_index int [2, E] and edge_type int [E] needed"
        require(right, needed, edge_index, edge_type)
        senders, receivers = edge_index.cpu().numpy()
        types, num_types = edge_type.cpu().numpy(), self.weight.shape[0]
        adjacency = TypedEdges.of(senders, receivers, types, x.shape[0], num_types)
        out: Tensor = self(x, adjacency.to(x.device))
        return out

    def _step(self, h: Tensor, adjacency: Adjacency) -> Tensor:
        messages = adjacency.propagate(h, self.weight, self.bias)
        messages = dropout(messages, self.dropout, self.training)
        cell = self.cell
        return gru(messages, h, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)


def subtoken_embedding(config: GGNNConfig) -> nn.Embedding:
    """A vector for each subtoken; that of number 0, which stands for none, is zero."""
    found = nn.Embedding(config.vocabulary, config.hidden, padding_idx=0)
    nn.init.normal_(found.weight, std=0.3)
    with torch.no_grad():
        found.weight[0] = 0
    return found


def subtoken_means(batch: GraphBatch, embedding: nn.Embedding) -> Tensor:
    """The mean vector [N, H] of each node's subtokens."""
    names = batch.nodes["subtokens"].long()
    count = (names != 0).sum(1, keepdim=True).clamp(min=1)
    total = functional.embedding_bag(names, embedding.weight, mode="sum", padding_idx=0)
    return total / count


class GGNN(nn.Module):
    """A score for every node; those of a graph's candidates are its choice.

    Batches have the node column `role` (0, SLOT or CANDIDATE) and, to start from names,
    `subtokens` int [N, W], 0 where there is none.
    """

    def __init__(self, config: GGNNConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or GGNNConfig()
        self.subtokens: nn.Embedding | None = None
        if config.start == "subtokens":
            self.subtokens = subtoken_embedding(config)
        self.gated = GatedGraph(
            config.hidden,
            config.num_types,
            config.steps,
            dropout=config.dropout,
            recompute=config.recompute,
        )
        # The state says what a node has become, the start what it was: both, as in a readout of Li
        # et al. The last is without a bias, which a choice among candidates does not see.
        self.mix = nn.Linear(2 * config.hidden, config.hidden)
        self.score = nn.Linear(config.hidden, 1, bias=False)

    def forward(self, batch: GraphBatch, adjacency: Adjacency) -> Tensor:
        """A score [N] a node; only those of candidates mean anything."""
        return self.scores(self.start(batch), adjacency)

    def start(self, batch: GraphBatch) -> Tensor:
        """States [N, H] before the first message: [is slot, is candidate, 0...] plus names."""
        role = batch.nodes["role"]
        width, kind = self.config.hidden, self.score.weight.dtype
        bits = torch.stack([role == SLOT, role == CANDIDATE], dim=1).to(kind)
        start = functional.pad(bits, (0, width - 2))
        if self.subtokens is None:
            return start
        return start + subtoken_means(batch, self.subtokens)

    def scores(self, start: Tensor, adjacency: Adjacency) -> Tensor:
        """A score [N] a node, from states [N, H]; nothing here is sparse or indexed."""
        h = self.gated(start, adjacency)
        score: Tensor = self.score(torch.tanh(self.mix(torch.cat([h, start], dim=1))))
        return score.flatten()


def candidate_log_probabilities(batch: GraphBatch, scores: Tensor) -> Tensor:
    """Logarithm of the probability of each candidate of its graph, [N]; -inf for other nodes."""
    candidate = batch.nodes["role"] == CANDIDATE
    offsets, graph = batch.node_offsets, batch.node_graph
    masked = scores.masked_fill(~candidate, -math.inf)[:, None]
    top = segment_max(masked.detach(), offsets)
    # A padding graph has no candidate: 0 avoids the nan of -inf - -inf.
    top = top.masked_fill(top == -math.inf, 0.0)
    shifted = masked - top.index_select(0, graph)
    total = segment_sum(shifted.exp(), offsets, graph).clamp(min=torch.finfo(scores.dtype).tiny)
    logs: Tensor = gather(total.log(), graph, offsets, None)
    return (shifted - logs)[:, 0]


def candidate_loss(
    batch: GraphBatch, scores: Tensor, *, smoothing: float = 0.0
) -> tuple[Tensor, int]:
    """Cross-entropy of the right candidates, summed over the graphs, and how many graphs there are.

    Divide by the graphs of the whole step, over all ranks: never by supergraphs.

    Args:
        batch: with the node column `correct`.
        scores: [N].
        smoothing: of the certainty that a graph's right candidate is right, shared among all its
            candidates.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing is {smoothing}; it must be at least 0 and below 1")
    logs = candidate_log_probabilities(batch, scores)
    candidate = batch.nodes["role"] == CANDIDATE
    goal = (batch.nodes["correct"] == 1).to(scores.dtype)
    if smoothing:
        graph = batch.node_graph
        count = segment_sum(candidate.to(scores.dtype)[:, None], batch.node_offsets, graph)
        share = count.clamp(min=1).reciprocal().index_select(0, graph)[:, 0]
        goal = (1 - smoothing) * goal + smoothing * share * candidate
    # 0 · -inf would be nan.
    loss = -(goal * logs.masked_fill(~candidate, 0.0)).sum()
    return loss, batch.num_real_graphs


def right_choices(batch: GraphBatch, scores: Tensor) -> Tensor:
    """bool [G]: whether the candidate with the highest score of each graph is the right one."""
    candidate = batch.nodes["role"] == CANDIDATE
    masked = scores.detach().masked_fill(~candidate, -math.inf)[:, None]
    top = segment_max(masked, batch.node_offsets)
    best = (masked == top.index_select(0, batch.node_graph))[:, 0] & candidate
    right = best & (batch.nodes["correct"] == 1)
    counts = torch.stack([best, right], dim=1).to(torch.float32)
    sums = segment_sum(counts, batch.node_offsets, batch.node_graph)
    # A tie counts as wrong: a model that says nothing is not right by luck.
    return (sums[:, 1] == 1) & (sums[:, 0] == 1)
