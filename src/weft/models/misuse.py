"""A detector of misused variables: which use of a function is wrong, and what belongs there.

Every use of a variable and every variable that may stand there are a pair, an edge MayStandIn. One
pass over a function scores all pairs: how well a variable fits a use, and how likely the use is the
one that is wrong. A function's answer is a distribution over "nothing is wrong" and all pairs of
a use with another variable than the written one (Vasic et al. 2019, Allamanis et al. 2021).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.graphs import GraphBatch
from weft.models.config import GGNNConfig
from weft.models.ggnn import Adjacency, GatedGraph, subtoken_embedding, subtoken_means
from weft.sources.program_graph import CANDIDATE, MAY_STAND_IN, SLOT, USE


class Judgement(NamedTuple):
    """What a detector says about a batch.

    Attributes:
        pairs: int [P], the edges MayStandIn of the batch, in its order.
        fit: [P], how well the variable fits the use; a softmax over a use's pairs is a choice.
        doubt: [P], logit of the use being wrong and this variable belonging there; -inf for what is
            written, and at blanks.
        fine: [G], logit of nothing being wrong.
    """

    pairs: Tensor
    fit: Tensor
    doubt: Tensor
    fine: Tensor


class MisuseDetector(nn.Module):
    """A gated graph network over functions whose edges have the columns of MISUSE_SCHEMA."""

    def __init__(self, config: GGNNConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden
        self.subtokens: nn.Embedding | None = None
        if config.start == "subtokens":
            self.subtokens = subtoken_embedding(config)
        self.gated = GatedGraph(
            width,
            config.num_types,
            config.steps,
            dropout=config.dropout,
            recompute=config.recompute,
        )
        self.mix = nn.Linear(2 * width, width)
        self.use, self.variable = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.fit = nn.Linear(width, 1, bias=False)
        self.place = nn.Linear(width, 1)
        self.fine = nn.Linear(width, 1)

    def forward(
        self, batch: GraphBatch, adjacency: Adjacency, pairs: Tensor | None = None
    ) -> Judgement:
        """Scores of all pairs and functions.

        Args:
            batch: functions.
            adjacency: their edges.
            pairs: int [P], the batch's `judged_pairs`, where they are known.
        """
        start = self._start(batch)
        h = self.gated(start, adjacency)
        z = torch.tanh(self.mix(torch.cat([h, start], dim=1)))
        pairs = judged_pairs(batch) if pairs is None else pairs
        uses, variables = (ends[pairs].long() for ends in (batch.receivers, batch.senders))
        both = torch.tanh(self.use(z)[uses] + self.variable(z)[variables])
        fit = self.fit(both)[:, 0]
        written = batch.edges["written"][pairs] == 1
        # How the written variable fits, at every pair of its use; 0 at blanks.
        now = fit.new_zeros(len(z)).index_add(0, uses, fit.masked_fill(~written, 0.0))
        doubt = fit - now[uses] + self.place(z)[uses, 0]
        doubt = doubt.masked_fill(written | (batch.nodes["role"][uses] == SLOT), -math.inf)
        is_use = (batch.nodes["role"] == USE).to(z.dtype)[:, None]
        graph = batch.node_graph.long()
        sums = z.new_zeros(batch.num_graphs, z.shape[1] + 1)
        sums = sums.index_add(0, graph, torch.cat([z * is_use, is_use], dim=1))
        mean = sums[:, :-1] / sums[:, -1:].clamp(min=1)
        return Judgement(pairs, fit, doubt, self.fine(mean)[:, 0])

    def _start(self, batch: GraphBatch) -> Tensor:
        """States [N, H] before the first message: the role as bits, plus names."""
        role = batch.nodes["role"]
        kind = self.fit.weight.dtype
        bits = torch.stack([role == each for each in (SLOT, CANDIDATE, USE)], dim=1).to(kind)
        start = functional.pad(bits, (0, self.config.hidden - bits.shape[1]))
        if self.subtokens is None:
            return start
        return start + subtoken_means(batch, self.subtokens)


def judged_pairs(batch: GraphBatch) -> Tensor:
    """int [P], the edges MayStandIn; their number is that of the batch, not of its shape."""
    return (batch.edges["type"] == MAY_STAND_IN).nonzero()[:, 0]


def log_shares(values: Tensor, groups: Tensor, count: int, extra: Tensor | None = None) -> Tensor:
    """Logarithms of the softmax over each group, [P].

    Args:
        values: [P].
        groups: int [P], from 0 to count - 1.
        count: C.
        extra: [C], one more value of each group.

    Returns:
        [P], or with `extra` [P + C], those of the extra values last.
    """
    if extra is not None:
        values = torch.cat([values, extra])
        groups = torch.cat([groups, torch.arange(count, device=groups.device)])
    top = values.new_full((count,), -math.inf)
    top = top.scatter_reduce(0, groups, values.detach(), "amax")
    top = top.masked_fill(top == -math.inf, 0.0)
    shifted = values - top[groups]
    total = values.new_zeros(count).index_add(0, groups, shifted.exp())
    logs: Tensor = shifted - total.clamp(min=torch.finfo(values.dtype).tiny).log()[groups]
    return logs


class Answers(NamedTuple):
    """The distributions of a judgement.

    Attributes:
        doubt: [P], log-probability that the use is wrong and the variable belongs there.
        fine: [G], log-probability that nothing is wrong.
        fit: [P], log-probability of the variable among those of the use, where it is blank.
    """

    doubt: Tensor
    fine: Tensor
    fit: Tensor


def answers(batch: GraphBatch, judged: Judgement, *, temperature: float = 1.0) -> Answers:
    """Log-probabilities; `temperature` above 1 makes what is said of misuses less certain."""
    uses = batch.receivers[judged.pairs].long()
    graphs = batch.node_graph[uses].long()
    doubt, fine = judged.doubt / temperature, judged.fine / temperature
    logs = log_shares(doubt, graphs, batch.num_graphs, fine)
    split = len(judged.pairs)
    return Answers(logs[:split], logs[split:], log_shares(judged.fit, uses, batch.num_nodes))


class Verdicts(NamedTuple):
    """What is right in a batch, and whether it was said.

    Attributes:
        loss: the sum over the real graphs of the mean cross-entropy of each graph's questions.
        graphs: how many there are.
        right: float [G], 1 where a graph's answer is the right one; of blanks the share.
    """

    loss: Tensor
    graphs: int
    right: Tensor


def misuse_loss(batch: GraphBatch, judged: Judgement, *, smoothing: float = 0.0) -> Verdicts:
    """Cross-entropy of the right answers: the misuse or "nothing", and of each blank.

    Args:
        batch: with the columns of MISUSE_SCHEMA.
        judged: of that batch.
        smoothing: certainty taken from the right answer, shared among all of its question.
    """
    found = answers(batch, judged)
    pairs = judged.pairs
    uses = batch.receivers[pairs].long()
    graphs = batch.node_graph[uses].long()
    count = batch.num_graphs
    right = batch.edges["right"][pairs] == 1
    blank = batch.nodes["role"][uses] == SLOT
    wrong = right & ~blank & (batch.edges["written"][pairs] == 0)
    kind = found.fit.dtype

    def per_graph(values: Tensor) -> Tensor:
        return values.new_zeros(count).index_add(0, graphs, values)

    blanks = per_graph((right & blank).to(kind))
    asked = blanks == 0
    misused = per_graph(wrong.to(kind)) > 0
    possible = found.doubt > -math.inf
    doubt = found.doubt.masked_fill(~possible, 0.0)
    # Where nothing is wrong the answer is `fine`; each graph asks either this or its blanks.
    said = torch.where(misused, per_graph(doubt * wrong), found.fine)
    guessed = per_graph(found.fit * (right & blank)) / blanks.clamp(min=1)
    goal = torch.where(asked, said, guessed)
    if smoothing:
        options = per_graph(possible.to(kind)) + 1
        even = (per_graph(doubt) + found.fine) / options
        choices = per_graph(blank.to(kind)).clamp(min=1)
        even = torch.where(asked, even, per_graph(found.fit * blank) / choices)
        goal = (1 - smoothing) * goal + smoothing * even
    best = found.doubt.detach().new_full((count,), -math.inf)
    best = best.scatter_reduce(0, graphs, found.doubt.detach(), "amax")
    top = per_graph((wrong & (found.doubt.detach() == best[graphs])).to(kind)) > 0
    answered = torch.where(misused, top & (best > found.fine), found.fine > best).to(kind)
    filled = per_graph((right_fits(batch, judged) & blank).to(kind)) / blanks.clamp(min=1)
    real = batch.graph_mask
    loss = -(goal * real).sum()
    return Verdicts(loss, batch.num_real_graphs, torch.where(asked, answered, filled) * real)


def right_fits(batch: GraphBatch, judged: Judgement) -> Tensor:
    """bool [P]: the pair is right and fits its use best; a tie counts as wrong."""
    uses = batch.receivers[judged.pairs].long()
    fit = judged.fit.detach()
    top = fit.new_full((batch.num_nodes,), -math.inf)
    top = top.scatter_reduce(0, uses, fit, "amax")
    best = fit == top[uses]
    ties = fit.new_zeros(batch.num_nodes).index_add(0, uses, best.to(fit.dtype))
    return best & (ties[uses] == 1) & (batch.edges["right"][judged.pairs] == 1)
