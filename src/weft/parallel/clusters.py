"""Steps on some clusters of a graph at a time, for activations that do not fit (Cluster-GCN).

A table that was cut into clusters, without normalisation, is the source: a batch is the nodes of
some clusters and the edges among them, normalised as a graph of its own (Chiang et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from weft.graphs import Array, Graph, GraphTable
from weft.parallel.grid import Grid
from weft.parallel.method import Method
from weft.parallel.module_network import network_of
from weft.parallel.prepare import described_table, normalised_weights, sort_edges
from weft.parallel.shard import KIND, GraphShard, read_blocks, read_nodes
from weft.parallel.shard_loops import equals_transpose
from weft.parallel.splits import PARTS
from weft.parallel.targets import Target, target_of
from weft.parallel.world import World, alone


def cluster_table(table: GraphTable, clusters: Sequence[int], normalisation: str) -> GraphTable:
    """The graph of some clusters, prepared in memory for one rank.

    Args:
        table: the graph as `prepare` cuts it into clusters, one a block, with normalisation `none`.
        clusters: numbers of the clusters, each once.
        normalisation: of the edges among them, see `prepare`.
    """
    offsets = table.metadata["partition"]["offsets"]
    spans = [(offsets[number], offsets[number + 1]) for number in sorted(clusters)]

    def nodes(name: str) -> Array:
        found: Array = torch.cat([read_nodes(table, name, *span) for span in spans]).numpy()
        return found

    starts = np.cumsum([0, *(stop - first for first, stop in spans)])
    held = table.column("weight").dtype
    dtype = torch.float32 if held == np.float32 else torch.float64
    senders, receivers, weights = [], [], []
    for row, span in enumerate(spans):
        blocks = read_blocks(table, *span, spans, transposed=False, dtype=dtype)
        for column, block in enumerate(blocks):
            rows = np.arange(starts[row], starts[row + 1], dtype=np.int32)
            receivers.append(np.repeat(rows, np.diff(block.offsets.numpy())))
            senders.append(block.columns.numpy() + np.int32(starts[column]))
            weights.append(block.weights.numpy())
    graph = Graph(
        num_nodes=int(starts[-1]),
        senders=np.concatenate(senders),
        receivers=np.concatenate(receivers),
        nodes={name: nodes(name) for name in ("x", "y", *PARTS)},
        edges={"weight": np.concatenate(weights)},
    )
    order = np.arange(graph.num_nodes)
    edges = sort_edges(graph, order, loops=normalisation == "symmetric")
    edges = replace(edges, weights=normalised_weights(edges, normalisation, held.name))
    symmetric = equals_transpose(edges.senders, edges.receivers, edges.weights, edges.out_order)
    found = described_table(graph, order, edges, symmetric)
    of_whole = ("classes", "target", "target_scale")
    about = {name: table.metadata[name] for name in of_whole if name in table.metadata}
    metadata = {
        **about,
        "kind": KIND,
        "normalisation": normalisation,
        "symmetric_values": symmetric,
        "partition": {"how": "contiguous", "blocks": 1, "offsets": [0, graph.num_nodes]},
        "counts": {name: int(np.count_nonzero(graph.nodes[name])) for name in PARTS},
    }
    # What is dropped depends on the node, not on its place in the batch.
    columns = {**found.columns, "id": nodes("id")}
    return replace(found, columns=columns, metadata=metadata)


class ClusterSteps:
    """Training steps on clusters that are drawn again in every epoch, each of them once.

    Each rank takes a batch of its own, and what travels are gradients alone.

    Args:
        table: the graph in clusters, see `cluster_table`.
        model: what is trained, the same on every rank.
        target: of the whole graph, for the weights of its classes.
        world: the ranks.
        per_step: clusters that a rank takes together, with the edges among them.
        normalisation: of a batch.
        seed: of the order of the clusters.
    """

    def __init__(
        self,
        table: GraphTable,
        model: nn.Module,
        target: Target,
        world: World,
        *,
        per_step: int,
        normalisation: str,
        seed: int,
    ) -> None:
        self.table, self.model, self.world, self.seed = table, model, world, seed
        self.per_step, self.normalisation = per_step, normalisation
        self.dtype, self.class_weights = target.shard.dtype, target.class_weights
        self.clusters = int(table.metadata["partition"]["blocks"])
        self._alone = alone(Grid(rows=1), 0, world.device)

    def __len__(self) -> int:
        """Steps of an epoch."""
        return math.ceil(self.clusters / (self.per_step * self.world.ranks))

    def own(self, epoch: int, number: int) -> list[int]:
        """The clusters of this rank in a step of an epoch, both counted from 0."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.clusters)
        first = (number * self.world.ranks + self.world.rank) * self.per_step
        found: list[int] = order[first : first + self.per_step].tolist()
        return found

    def step(self, epoch: int, number: int, seed: int) -> tuple[float, int]:
        """The loss of the training nodes of all ranks' batches, and how many there are.

        Its gradients are left in `.grad`.

        Args:
            epoch: from 0.
            number: of the step in the epoch.
            seed: of the dropped activations.
        """
        own, count, loss, nodes = self.own(epoch, number), 0.0, 0.0, 0
        if own:
            batch = cluster_table(self.table, own, self.normalisation)
            nodes = batch.metadata["counts"]["train"]
            shard = GraphShard.open(batch, self._alone, Method(), self.dtype)
        self.model.zero_grad(set_to_none=True)
        if nodes:
            network = network_of(
                self.model, shard, lambda rows: target_of(rows, rows.classes, self.class_weights)
            )
            count = network.target.count
            loss = network.step(seed) if count else 0.0
        totals = torch.tensor([count, loss * count, nodes], dtype=torch.float64)
        self.world.reduce(totals)
        total, summed, everyone = totals.tolist()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(count / total)
        self.world.add_gradients(self.model.parameters(), "weights")
        self._average_buffers()
        return summed / total if total else 0.0, int(everyone)

    def _average_buffers(self) -> None:
        """Give every rank the mean of what norms have seen on each."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        if self.world.ranks == 1 or not buffers:
            return
        flat = torch.cat([buffer.flatten() for buffer in buffers]) / self.world.ranks
        self.world.all_reduce("world", flat, "norms")
        means = torch.split(flat, [buffer.numel() for buffer in buffers])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean.view_as(buffer))
