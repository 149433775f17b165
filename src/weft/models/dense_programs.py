"""Networks over programs in dense operators alone: products of static shapes, no index anywhere.

What `GGNN` and `MisuseDetector` compute, with their weights, for hardware that multiplies matrices.
Edges are a banded adjacency; whatever else is looked up or summed by number is a product with a
one-hot matrix, made by comparing numbers: subtokens, the graph of a node, both ends of a pair.

N nodes, K blocks of S, P edge types, G graphs, Q pairs, V subtokens, H features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from weft.graphs import GraphBatch
from weft.layout import BandedAdjacency
from weft.models.exported_program import quiet
from weft.models.ggnn import GGNN
from weft.models.misuse import MisuseDetector
from weft.sources.program_graph import CANDIDATE, MAY_STAND_IN, SLOT, USE

_IRREGULAR = (
    *("gather", "scatter", "index", "embedding", "sparse", "csr", "coo", "take", "put", "nonzero"),
    *("sort", "topk", "unique", "bincount", "searchsorted", "segment", "_local_scalar", "weft"),
)


def irregular_operators(graph: fx.Graph) -> list[str]:
    """Names of operators that index, sort or are sparse, and of those of no static shape."""
    found = set()
    for node in graph.nodes:
        name = str(node.target)
        if node.op == "call_function" and any(word in name for word in _IRREGULAR):
            found.add(name)
        values = node.meta.get("val")
        for value in values if isinstance(values, (list, tuple)) else [values]:
            sizes: Iterable[Any] = value.shape if isinstance(value, Tensor) else ()
            if not all(type(size) is int for size in sizes) or isinstance(value, torch.SymInt):
                found.add(f"{name} of no static shape")
    return sorted(found)


def static_program(model: nn.Module, inputs: Mapping[str, Any]) -> ExportedProgram:
    """The program of a module for inputs of these very shapes, by name, in dense operators."""
    aten = torch.ops.aten
    with torch.no_grad(), quiet():
        program = torch.export.export(model, (), dict(inputs), strict=False)
        if any(node.target is aten.chunk.default for node in program.graph.nodes):
            # Or ONNX has a sequence of tensors for the gates of a unit.
            program = program.run_decompositions({aten.split.Tensor: parts_of})
    irregular = irregular_operators(program.graph)
    assert not irregular, irregular
    return program


def parts_of(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """`torch.split` by slices."""
    return [x.narrow(dim, first, size) for first in range(0, x.shape[dim], size)]


class DenseSlots(nn.Module):
    """The probability of every candidate, as `GGNN` with a softmax over each graph's."""

    def __init__(self, model: GGNN, graphs: int) -> None:
        super().__init__()
        self.model, self.graphs = model, graphs

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """`probability` [N], 0 where a node is no candidate; arguments as of `dense_inputs`."""
        return {"probability": self._logs(inputs).exp()}

    def loss(self, **inputs: Tensor) -> Tensor:
        """The mean over the graphs of the cross-entropy of the right candidate."""
        logs = self._logs(inputs)
        goal = (inputs["correct"] == 1).to(logs.dtype)
        # 0 · -inf would be nan.
        kept = logs.masked_fill(inputs["role"] != CANDIDATE, 0.0)
        return -(goal * kept).sum() / goal.sum()

    def _logs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logarithms of the probabilities [N]."""
        model, is_candidate = self.model, inputs["role"] == CANDIDATE
        bits = _bits(inputs["role"], (SLOT, CANDIDATE), model.config.hidden, model.score.weight)
        start = _started(bits, inputs, model.subtokens)
        scores = model.scores(start, adjacency_of(inputs))
        members = one_hot(inputs["graph"], self.graphs) & is_candidate[:, None]
        logs, _ = log_shares(scores[:, None], members)
        return logs.flatten().masked_fill(~is_candidate, -math.inf)


class _Judged(NamedTuple):
    """Logits of a detector.

    Attributes:
        fit: [Q, 1].
        doubt: [Q, 1], -inf for what is written, and at blanks.
        fine: [G, 1].
        uses: [Q, N], one-hot.
        blank: bool [Q, 1], the use is blank.
    """

    fit: Tensor
    doubt: Tensor
    fine: Tensor
    uses: Tensor
    blank: Tensor


class DenseDetector(nn.Module):
    """What a `MisuseDetector` says of every pair of a use and a variable, and of every graph."""

    def __init__(self, model: MisuseDetector, graphs: int, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.model, self.graphs, self.temperature = model, graphs, temperature

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Probabilities; arguments as of `dense_inputs`.

        Returns:
            `wrong` [Q]: the use is wrong, and this variable belongs there; 0 for the variable that
            is written there. `fine` [G]: nothing is wrong.
        """
        pair_graph, judged = inputs["pair_graph"], self._judged(inputs)
        doubt, fine = judged.doubt / self.temperature, judged.fine / self.temperature
        pairs, graphs = log_shares(doubt, one_hot(pair_graph, self.graphs), fine)
        pairs = pairs.flatten().masked_fill(pair_graph < 0, -math.inf)
        return {"wrong": pairs.exp(), "fine": graphs.flatten().exp()}

    def loss(self, **inputs: Tensor) -> Tensor:
        """The mean over the graphs of the cross-entropies, as `weft.models.misuse_loss`."""
        judged = self._judged(inputs)
        members = one_hot(inputs["pair_graph"], self.graphs)
        doubt, fine = log_shares(judged.doubt, members, judged.fine)
        # The variables of a use that is blank.
        fit, _ = log_shares(judged.fit, judged.uses > 0)
        right, written = (inputs[name][:, None] == 1 for name in ("right", "written"))
        wrong, filled = right & ~judged.blank & ~written, right & judged.blank
        to_graphs = members.to(fit.dtype).mT
        # 0 · -inf would be nan.
        doubt = doubt.masked_fill(~wrong, 0.0)
        misused = to_graphs @ wrong.to(fit.dtype) > 0
        blanks = to_graphs @ filled.to(fit.dtype)
        said = torch.where(misused, to_graphs @ doubt, fine)
        guessed = (to_graphs @ fit.masked_fill(~filled, 0.0)) / blanks.clamp(min=1)
        goal = torch.where(blanks == 0, said, guessed)
        real = inputs["real"][:, None].to(fit.dtype)
        return -(goal * real).sum() / real.sum()

    def _judged(self, inputs: Mapping[str, Tensor]) -> _Judged:
        model, role = self.model, inputs["role"]
        bits = _bits(role, (SLOT, CANDIDATE, USE), model.config.hidden, model.fit.weight)
        start = _started(bits, inputs, model.subtokens)
        h = model.gated(start, adjacency_of(inputs))
        z = torch.tanh(model.mix(torch.cat([h, start], dim=1)))
        uses, variables = (
            one_hot(inputs[name], len(z)).to(z.dtype) for name in ("use", "variable")
        )
        fit = model.fit(torch.tanh(uses @ model.use(z) + variables @ model.variable(z)))
        written = inputs["written"][:, None] == 1
        # How the written variable fits, at every pair of its use; 0 at blanks.
        now = uses.mT @ (fit * written)
        blank = (role == SLOT)[:, None].to(z.dtype)
        own, place, at_blank = (uses @ each for each in (now, model.place(z), blank))
        is_blank = at_blank > 0
        doubt = (fit - own + place).masked_fill(written | is_blank, -math.inf)
        of_graph = (one_hot(inputs["graph"], self.graphs) & (role == USE)[:, None]).to(z.dtype)
        mean = (of_graph.mT @ z) / of_graph.sum(0)[:, None].clamp(min=1)
        return _Judged(fit, doubt, model.fine(mean), uses, is_blank)


def dense_inputs(
    batch: GraphBatch, *, types: int, block: int, graphs: int, pairs: int | None = None
) -> dict[str, Tensor]:
    """A supergraph as `DenseSlots` takes it, or with `pairs` as `DenseDetector` does.

    Args:
        batch: padded to N nodes, a multiple of the block.
        types: P.
        block: S.
        graphs: G, at least the real graphs of the batch.
        pairs: Q, at least the edges MayStandIn of the batch.

    Returns:
        diagonal int8 [K, S, P, S], upper and lower int8 [K - 1, S, P, S], deg int32 [N, P]: C, U, L
        and deg of `BandedAdjacency`. role int8 [N]. graph int32 [N], -1 in the padding. subtokens
        int32 [N, W] where the batch has them. Of pairs use, variable (their nodes) and pair_graph
        int32 [Q], -1 in the padding, and written int8 [Q].

    Raises:
        DataError: an edge is outside the blocks.
    """
    banded = BandedAdjacency.of_batch(batch, types, block)
    graph = batch.node_graph.int().masked_fill(~batch.node_mask, -1)
    found = {"diagonal": banded.C, "upper": banded.U, "lower": banded.L, "deg": banded.deg}
    found |= {"role": batch.nodes["role"], "graph": graph}
    assert batch.num_real_graphs <= graphs
    if pairs is not None:
        ends = {"use": batch.receivers.int(), "variable": batch.senders.int()}
        ends["pair_graph"] = graph[batch.receivers.long()]
        found |= {name: _of_pairs(batch, values, pairs, -1) for name, values in ends.items()}
        found["written"] = _of_pairs(batch, batch.edges["written"], pairs, 0)
    if "subtokens" in batch.nodes:
        found["subtokens"] = batch.nodes["subtokens"].int()
    return found


def dense_answers(batch: GraphBatch, *, graphs: int, pairs: int | None = None) -> dict[str, Tensor]:
    """What a loss needs beside `dense_inputs`.

    Returns:
        correct int8 [N] of slots; of pairs right int8 [Q], and real bool [G].
    """
    if pairs is None:
        return {"correct": batch.nodes["correct"]}
    real = torch.arange(graphs) < batch.num_real_graphs
    return {"right": _of_pairs(batch, batch.edges["right"], pairs, 0), "real": real}


def _of_pairs(batch: GraphBatch, values: Tensor, pairs: int, fill: int) -> Tensor:
    """Values [E] at the edges MayStandIn, [Q]."""
    chosen = values[(batch.edges["type"] == MAY_STAND_IN) & batch.edge_mask]
    assert len(chosen) <= pairs
    return nn.functional.pad(chosen, (0, pairs - len(chosen)), value=fill)


def adjacency_of(inputs: Mapping[str, Tensor]) -> BandedAdjacency:
    """The adjacency of a supergraph, with nothing outside the blocks."""
    parts = {"C": "diagonal", "U": "upper", "L": "lower", "deg": "deg"}
    given = {name: inputs[own] for name, own in parts.items()}
    return BandedAdjacency(**given, spill=None, inside=0, outside=0)


def one_hot(numbers: Tensor, count: int) -> Tensor:
    """bool [n, count], where each of `numbers` [n] or [n, 1] is; nowhere for -1."""
    places = torch.arange(count, dtype=numbers.dtype, device=numbers.device)
    return numbers.reshape(-1, 1) == places


def log_shares(
    values: Tensor, members: Tensor, extra: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Logarithms of the softmax over groups, as `weft.models.misuse.log_shares`.

    Args:
        values: [n, 1].
        members: bool [n, M], the group of each; what is in none gets a number without meaning.
        extra: [M, 1], one more value of each group.

    Returns:
        Of the values [n, 1], and of the extra ones [M, 1], which are zeros without them.
    """
    top = values.detach().masked_fill(~members, -math.inf).amax(0)[:, None]
    if extra is not None:
        top = torch.maximum(top, extra.detach())
    top = top.masked_fill(top == -math.inf, 0.0)
    # All products are of matrices: onnxruntime 1.31 fuses one with a vector into a wrong one.
    weights = members.to(values.dtype)
    shifted = values - weights @ top
    # What is in no group must not overflow.
    own = shifted.masked_fill(weights.sum(1, keepdim=True) == 0, -math.inf).exp()
    total = weights.mT @ own
    others = torch.zeros_like(total)
    if extra is not None:
        others = extra - top
        total = total + others.exp()
    total = total.clamp(min=torch.finfo(values.dtype).tiny).log()
    return shifted - weights @ total, others - total


def _bits(role: Tensor, roles: tuple[int, ...], width: int, like: Tensor) -> Tensor:
    """[N, H] of the dtype of `like`: a column for each role, then zeros."""
    bits = torch.cat([role[:, None] == each for each in roles], dim=1).to(like.dtype)
    return nn.functional.pad(bits, (0, width - len(roles)))


def _started(bits: Tensor, inputs: Mapping[str, Tensor], table: nn.Embedding | None) -> Tensor:
    """States before the first message: bits, and the mean vector of each node's subtokens."""
    if table is None:
        return bits
    subtokens, size = inputs["subtokens"], table.num_embeddings
    words = bits.new_zeros(())
    for place in range(subtokens.shape[1]):
        number = subtokens.narrow(1, place, 1)
        # 0 stands for none.
        words = words + (one_hot(number, size) & (number != 0)).to(bits.dtype)
    count = (subtokens != 0).sum(1, keepdim=True).clamp(min=1)
    return bits + (words @ table.weight) / count
