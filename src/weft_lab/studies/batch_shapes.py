"""Shapes and fill of very many batches, from sizes alone: nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.batching import BatchingConfig, GraphSampler
from weft.graphs import Array


@dataclass(frozen=True, kw_only=True)
class ShapeCount:
    """What `steps` batches look like.

    Attributes:
        policy: of batching.
        batch_size: graphs in a batch, as requested.
        budget: padded nodes, edges and graphs where all batches have the same; None otherwise.
        steps: batches looked at.
        epochs: passes over the graphs that they took, the last perhaps in part.
        graphs_per_batch: mean of real graphs.
        node_fill: real nodes among all nodes.
        edge_fill: real edges among all edges.
        shapes: distinct padded (nodes, edges, graphs): compilations with static shapes.
        shapes_without_tails: the same without the last batch of each epoch, which holds what was
            left over.
    """

    policy: str
    batch_size: int
    budget: tuple[int, int, int] | None
    steps: int
    epochs: int
    graphs_per_batch: float
    node_fill: float
    edge_fill: float
    shapes: int
    shapes_without_tails: int


def count_shapes(
    num_nodes: Array, num_edges: Array, config: BatchingConfig, *, steps: int
) -> ShapeCount:
    """Plan `steps` batches of graphs with int [g] nodes and edges, over as many epochs as needed.

    A `packed` epoch has no tail: what is left over is spread over its batches.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}; at least 1 is needed to look at")
    sampler = GraphSampler(num_nodes, num_edges, config)
    done = epochs = 0
    real, padded = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
    every: set[tuple[int, ...]] = set()
    whole: set[tuple[int, ...]] = set()
    while done < steps:
        sampler.set_epoch(epochs)
        plan = sampler.plan()
        tail = len(plan) <= steps - done and not config.rules.packed
        plan = plan[: steps - done]
        graphs = plan.graphs
        real += [sampler.num_nodes[graphs].sum(), sampler.num_edges[graphs].sum(), len(graphs)]
        padded += plan.shapes.sum(axis=0)
        kinds = {tuple(shape) for shape in np.unique(plan.shapes[:-1], axis=0).tolist()}
        last = tuple(plan.shapes[-1].tolist())
        every |= kinds | {last}
        whole |= kinds if tail else kinds | {last}
        done += len(plan)
        epochs += 1
    budget = sampler.budget
    fill = np.where(padded > 0, real / np.maximum(padded, 1), 1.0)
    return ShapeCount(
        policy=config.policy,
        batch_size=config.batch_size,
        budget=None if budget is None else (budget.nodes, budget.edges, budget.graphs),
        steps=done,
        epochs=epochs,
        graphs_per_batch=float(real[2] / done),
        node_fill=float(fill[0]),
        edge_fill=float(fill[1]),
        shapes=len(every),
        shapes_without_tails=len(whole),
    )
