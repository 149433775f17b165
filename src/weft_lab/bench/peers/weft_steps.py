"""weft: what each benchmark times, a function for each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.batching import BatchingConfig, GraphLoader, GraphSampler, graph_sizes
from weft.graphs import Array, Budget, GraphBatch, GraphTable, assemble, open_table
from weft.layout import LayoutConfig, adjacency_of
from weft.models import (
    GCN,
    MPEU,
    GatedGraph,
    GCNConfig,
    MPEUConfig,
    PaiNN,
    PaiNNConfig,
    SchNet,
    SchNetConfig,
    with_first_product,
)
from weft.training import prepare_process

_VERSIONS = {"weft": weft.__version__, "torch": torch.__version__}


def _slices(order: Array, size: int) -> Iterator[Array]:
    for first in range(0, len(order) - size + 1, size):
        yield order[first : first + size]


def _greedy(table: GraphTable, order: Array, budget: Budget) -> Iterator[Array]:
    """Consecutive graphs of `order` as long as they fit: the rule of dynamic batching."""
    nodes, edges = np.cumsum(table.num_nodes[order]), np.cumsum(table.num_edges[order])
    first, node_base, edge_base = 0, 0, 0
    while first < len(order):
        stop = min(
            int(np.searchsorted(nodes, node_base + budget.nodes - 1, side="right")),
            int(np.searchsorted(edges, edge_base + budget.edges, side="right")),
            first + budget.graphs - 1,
        )
        yield order[first:stop]
        first, node_base, edge_base = stop, int(nodes[stop - 1]), int(edges[stop - 1])


def batches(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One batch a step; case["budget"] pads it, otherwise case["size"] graphs unpadded."""
    table = open_table(case["table"])
    rng = np.random.default_rng(0)
    budget = Budget(**case["budget"]) if case["budget"] else None

    def batches() -> Iterator[Array]:
        while True:
            order = rng.permutation(len(table))
            yield from _greedy(table, order, budget) if budget else _slices(order, case["size"])

    source = batches()

    def step() -> None:
        assemble(table, next(source), budget)

    return step, _VERSIONS


def gcn(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One epoch over the table case["table"]; case["first_product"] keeps A x between epochs."""
    prepare_process()
    torch.manual_seed(0)
    batch = assemble(open_table(case["table"]), [0])
    features = batch.nodes["x"].shape[1]
    if case["first_product"]:
        batch = with_first_product(batch)
    y, train = batch.nodes["y"], batch.nodes["train"]
    model = GCN(
        features,
        case["classes"],
        GCNConfig(hidden=(case["hidden"],), dropout=0.5, input_dropout=0.0),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(batch)[train], y[train]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, _VERSIONS


def gated(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """Rounds over all graphs of case["table"] in the form case["form"], forward, backward, Adam."""
    prepare_process()
    torch.manual_seed(0)
    table = open_table(case["table"])
    batch = assemble(table, range(len(table)))
    config = LayoutConfig(form=case["form"], hidden=case["hidden"])
    adjacency = adjacency_of(batch, case["types"], config)
    start = torch.randn(batch.num_nodes, case["hidden"])
    layer = GatedGraph(case["hidden"], case["types"], case["rounds_of_messages"])
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        layer(start, adjacency).square().mean().backward()
        optimizer.step()

    return step, _VERSIONS


def _model(case: dict[str, Any]) -> nn.Module:
    if case["model"] == "schnet":
        return SchNet(SchNetConfig())
    if case["model"] == "mpeu":
        return MPEU(MPEUConfig())
    return PaiNN(PaiNNConfig(hidden=case["hidden"], cutoff=case["cutoff"]))


def molecules(case: dict[str, Any]) -> tuple[Callable[[], dict[str, float]], dict[str, str]]:
    """A batch by case["policy"] and an update of case["model"] a step."""
    prepare_process()
    torch.manual_seed(0)
    table = open_table(case["table"])
    budget = Budget(**case["budget"]) if case["policy"] == "dynamic" else None
    config = BatchingConfig(policy=case["policy"], batch_size=case["size"], budget=budget)
    loader = GraphLoader(table, GraphSampler(*graph_sizes(table), config))
    model = _model(case)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def batches() -> Iterator[GraphBatch]:
        for epoch in itertools.count():
            loader.set_epoch(epoch)
            yield from loader

    source = batches()

    def step() -> dict[str, float]:
        before, waited = loader.seconds, loader.waiting_seconds
        batch = next(source)
        optimizer.zero_grad()
        error = (model(batch) - batch.graphs["y"]) * batch.graph_mask
        graphs = batch.num_real_graphs
        (error.square().sum() / graphs).backward()
        optimizer.step()
        # All the work of batching, also what a thread did during the update; what the step lost
        # to it is the wait.
        return {
            "graphs": graphs,
            "batching": loader.seconds - before,
            "waiting": loader.waiting_seconds - waited,
        }

    return step, _VERSIONS


def citations(case: dict[str, Any]) -> tuple[Callable[[], float], dict[str, str]]:
    """A step trains on the table case["table"] and returns the test accuracy in %."""
    from weft.recipes.nodes.citations import citation_batch, train_citations
    from weft.recipes.nodes.config import CitationsConfig

    prepare_process()
    batch = citation_batch(open_table(case["table"]))
    seeds = itertools.count()

    def step() -> float:
        config = CitationsConfig(data=case["data"], seed=next(seeds))
        return 100 * train_citations(batch, config, quiet=True)[2]["test_accuracy"]

    return step, _VERSIONS


def nodes(case: dict[str, Any]) -> tuple[Callable[[], float], dict[str, str]]:
    """A step trains a GCN on the graph case["table"] and returns the test accuracy in %."""
    from weft.recipes.nodes.config import NodesConfig
    from weft.recipes.nodes.training import prepare_nodes, train_nodes

    prepare_process()
    graph = open_table(case["table"])[0]
    seeds = itertools.count()

    def step() -> float:
        config = NodesConfig(
            sparsify=case["sparsify"],
            sparsity=case["sparsity"],
            epochs=case["epochs"],
            seed=next(seeds),
        )
        return 100 * train_nodes(prepare_nodes(graph, config), quiet=True).scores["test"].value

    return step, _VERSIONS


def walks(case: dict[str, Any]) -> tuple[Callable[[], float], dict[str, str]]:
    """A step walks over case["table"], from its edges as they are to the last node."""
    from weft.walks import temporal_walks

    table = open_table(case["table"])

    def step() -> float:
        start = time.perf_counter()
        found = temporal_walks(table, walks=case["walks"], length=case["length"])
        seconds = time.perf_counter() - start
        # Where a walk begins, no step has been taken.
        return float((found[:, 1:] >= 0).sum()) / seconds

    return step, _VERSIONS
