"""What can be asked of a graph that ranks share, and the same in plain torch over all edges."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn.functional import leaky_relu

from weft.graphs import open_table
from weft.parallel import DistributedGraph
from weft.parallel.method import Method
from weft.parallel.world import joined

HEADS, CHANNELS = 3, 2
WIDTH = HEADS * CHANNELS


def heads(x):
    return x.view(len(x), HEADS, CHANNELS)


def own_messages(graph, x):
    """Messages that no shipped layer has."""
    messages = torch.tanh(graph.gather(x) - 2 * graph.gather(x, "receivers"))
    return graph.reduce(messages) + graph.reduce(messages.square(), "mean")


def scored(graph, x, **options):
    return graph.attend_additively(
        heads(x), heads(x.sin()).sum(2), senders=heads(x.cos()).sum(2), **options
    )


OPERATIONS = {
    "sum": lambda graph, x: graph.propagate(x),
    "edges": lambda graph, x: graph.propagate(x, "ones"),
    "mean": lambda graph, x: graph.propagate(x, "ones", reduce="mean"),
    "symmetric": lambda graph, x: graph.propagate(x, "symmetric"),
    "max": lambda graph, x: graph.propagate(x, reduce="max"),
    "wide max": lambda graph, x: graph.propagate(x.repeat(1, 50), reduce="max"),
    "dot": lambda graph, x: graph.attend(heads(x), heads(x.sin()), heads(x.cos())),
    "dot, loops": lambda graph, x: graph.attend(
        heads(x), heads(x.sin()), heads(x.cos()), scale=0.7, self_loops=True
    ),
    "scores": scored,
    "scores, no loops": lambda graph, x: scored(graph, x, self_loops=False, slope=0.4),
    "joint scores": lambda graph, x: graph.attend_additively(
        heads(x), heads(x.sin()), vector=torch.ones(HEADS, CHANNELS, dtype=x.dtype) / 3
    ),
    "messages": own_messages,
    "largest message": lambda graph, x: graph.reduce(graph.gather(x).sin(), "max"),
    "all nodes": lambda graph, x: x * graph.over_nodes(x.square()),
    "dropout": lambda graph, x: graph.dropout(x, 0.4),
}


class PlainGraph:
    """The same operations over all edges, in torch's own indexing."""

    def __init__(self, graph):
        self.senders, self.receivers = map(torch.from_numpy, (graph.senders, graph.receivers))
        self.nodes = graph.num_nodes
        self.weight = torch.from_numpy(graph.edges["weight"])

    def gather(self, x, end="senders"):
        return x[self.senders if end == "senders" else self.receivers]

    def reduce(self, messages, how="sum", receivers=None):
        receivers = self.receivers if receivers is None else receivers
        index = receivers.view(-1, *[1] * (messages.ndim - 1)).expand_as(messages)
        zeros = messages.new_zeros(self.nodes, *messages.shape[1:])
        name = {"sum": "sum", "mean": "mean", "max": "amax"}[how]
        return zeros.scatter_reduce(0, index, messages, name, include_self=False)

    def propagate(self, x, weight="matrix", *, reduce="sum"):
        if weight == "symmetric":
            return self.symmetric() @ x
        values = self.weight[:, None] if weight == "matrix" and reduce == "sum" else 1
        return self.reduce(values * x[self.senders], reduce)

    def symmetric(self):
        matrix = torch.zeros(self.nodes, self.nodes, dtype=self.weight.dtype)
        matrix.index_put_((self.receivers, self.senders), self.weight, accumulate=True)
        matrix += torch.diag((matrix.diagonal() == 0).to(matrix.dtype))
        scale = matrix.sum(1).rsqrt()
        return scale[:, None] * matrix * scale

    def edges(self, self_loops):
        if not self_loops:
            return self.senders, self.receivers
        other, every = self.senders != self.receivers, torch.arange(self.nodes)
        return torch.cat([self.senders[other], every]), torch.cat([self.receivers[other], every])

    def softmax_sum(self, scores, values, senders, receivers):
        weights = scores.exp()
        sums = self.reduce(weights, receivers=receivers)
        return self.reduce(
            (weights / sums[receivers])[..., None] * values[senders], "sum", receivers
        )

    def attend(self, queries, keys, values, *, scale=None, self_loops=False):
        senders, receivers = self.edges(self_loops)
        scale = CHANNELS**-0.5 if scale is None else scale
        scores = scale * (queries[receivers] * keys[senders]).sum(-1)
        return self.softmax_sum(scores, values, senders, receivers)

    def attend_additively(
        self, values, receiving, *, senders=None, vector=None, slope=0.2, self_loops=True
    ):
        j, i = self.edges(self_loops)
        if vector is None:
            scores = leaky_relu(senders[j] + receiving[i], slope)
        else:
            scores = (leaky_relu(values[j] + receiving[i], slope) * vector).sum(-1)
        return self.softmax_sum(scores, values, j, i)

    def over_nodes(self, values):
        return values.sum(0)


@dataclass(frozen=True, kw_only=True)
class GridCase:
    """A grid, a graph and what is asked of it."""

    table: str
    grid: str
    replication: int | None = None
    method: Method = field(default_factory=Method)
    operations: tuple[str, ...] = tuple(OPERATIONS)


def inputs_of(nodes):
    """Features of all nodes, and what their outputs are multiplied with."""
    torch.manual_seed(5)
    return torch.randn(nodes, WIDTH, dtype=torch.float64), torch.randn(nodes, dtype=torch.float64)


def run_operation(graph, name, x, weights):
    """Outputs and the gradient to x of a loss over all nodes, or why it is refused."""
    x = x.clone().requires_grad_()
    torch.manual_seed(7)
    try:
        out = OPERATIONS[name](graph, x).flatten(1)
    except ValueError as error:
        return str(error)
    loss = (out.sin() * weights[:, None]).sum()
    if isinstance(graph, DistributedGraph):
        loss = graph.total(loss)
    loss.backward()
    return {"out": out.detach(), "grad": x.grad, "loss": loss.item()}


def on_grids(cases):
    """Ids of this rank's nodes, and the result of each operation, for each case in turn."""
    answers = []
    for case in cases:
        with joined(case.grid, case.replication) as world:
            graph = DistributedGraph.open(
                open_table(case.table), world, case.method, dtype=torch.float64
            )
            x, weights = (values[graph.ids] for values in inputs_of(graph.num_nodes))
            results = {name: run_operation(graph, name, x, weights) for name in case.operations}
            answers.append((graph.ids, results))
    return answers
