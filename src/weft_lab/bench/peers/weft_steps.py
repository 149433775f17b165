"""weft: what each benchmark times, a function for each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.batching import (
    BatchingConfig,
    GraphLoader,
    GraphSampler,
    PlannedBatch,
    PolicyName,
    graph_sizes,
)
from weft.graphs import Budget, GraphBatch, assemble, open_table
from weft.kernels import node_cross_entropy
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
    energy_and_forces,
    with_first_product,
)
from weft.models.config import GraphNetworkConfig
from weft.parallel import DistributedGraph, GraphNetwork, Grid, alone
from weft.training import prepare_process
from weft.training.config import OptimizerOptions
from weft.training.optimizers import make_optimizer

_VERSIONS = {"weft": weft.__version__, "torch": torch.__version__}


def batches(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One batch a step; case["budget"] pads it, otherwise case["size"] graphs unpadded."""
    table = open_table(case["table"])
    budget = Budget(**case["budget"]) if case["budget"] else None
    policy: PolicyName = "dynamic" if budget else "unpadded"
    config = BatchingConfig(policy=policy, batch_size=case["size"], budget=budget)
    sampler = GraphSampler(*graph_sizes(table), config)

    def batches() -> Iterator[PlannedBatch]:
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            # As the peers do: no batch of what is left over.
            plan = sampler.plan()
            yield from (each for each in plan if budget or len(each.graphs) == case["size"])

    source = batches()

    def step() -> None:
        planned = next(source)
        assemble(table, planned.graphs, planned.budget)

    return step, _VERSIONS


def gcn(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One epoch over the table case["table"]; case["first_product"] keeps A x between epochs."""
    prepare_process()
    torch.manual_seed(0)
    batch = assemble(open_table(case["table"]), [0])
    features = batch.nodes["x"].shape[1]
    if case["first_product"]:
        batch = with_first_product(batch)
    classes = batch.nodes["y"].where(batch.nodes["train"], -1)
    model = GCN(
        features,
        case["classes"],
        GCNConfig(hidden=(case["hidden"],), dropout=0.5, input_dropout=0.0),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        node_cross_entropy(model(batch), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, _VERSIONS


def graph_network(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One epoch of a GAT, alone on the prepared graph case["shared"]."""
    prepare_process()
    torch.manual_seed(0)
    graph = DistributedGraph.open(open_table(case["shared"]), alone(Grid(rows=1), 0))
    hidden = (case["hidden"],)
    config = GraphNetworkConfig(kind="gat", hidden=hidden, heads=case["heads"], dropout=0.5)
    model = GraphNetwork(graph.features, case["classes"], config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        graph.cross_entropy(model(graph, graph.x)).backward()  # type: ignore[no-untyped-call]
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
    torch.set_num_threads(case.get("threads") or torch.get_num_threads())
    torch.manual_seed(0)
    table = open_table(case["table"])
    budget = Budget(**case["budget"]) if case["policy"] == "dynamic" else None
    config = BatchingConfig(policy=case["policy"], batch_size=case["size"], budget=budget)
    loader = GraphLoader(table, GraphSampler(*graph_sizes(table), config))
    model = _model(case)
    optimizer = make_optimizer(OptimizerOptions(), model.parameters(), rate=1e-4, fused=True)

    source = _endless(loader)

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


def forces(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """Energies and forces of a batch, and with case["training"] an update, a step."""
    prepare_process()
    torch.manual_seed(0)
    table = open_table(case["table"])
    config = BatchingConfig(policy="unpadded", batch_size=case["size"])
    loader = GraphLoader(table, GraphSampler(*graph_sizes(table), config))
    elements = tuple(np.unique(np.asarray(table.column("z"))).tolist())
    shape: dict[str, Any] = {"hidden": case["hidden"], "readout": "sum", "elements": elements}
    if case["model"] == "painn":
        model: nn.Module = PaiNN(PaiNNConfig(cutoff=case["cutoff"], **shape))
    else:
        shape |= {"filters": case["hidden"], "cutoff": case["cutoff"], "aggregation": "sum"}
        # The same function as SchNetPack's: its Gaussians, biases, no activation after a filter.
        spacing = case["cutoff"] / 19
        shape |= {"centres": 20, "spacing": spacing, "sharpness": 0.5 / spacing**2}
        model = SchNet(SchNetConfig(bias=True, activate_filter=False, **shape))
    optimizer = make_optimizer(OptimizerOptions(), model.parameters(), rate=1e-4, fused=True)
    source = _endless(loader)

    def step() -> None:
        batch = next(source)
        if not case["training"]:
            energy_and_forces(model, batch)
            return
        optimizer.zero_grad()
        energy, found = energy_and_forces(model, batch, training=True)
        loss = functional.mse_loss(energy, batch.graphs["y"])
        loss = loss + functional.mse_loss(found, batch.nodes["forces"])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, _VERSIONS


def _endless(loader: GraphLoader) -> Iterator[GraphBatch]:
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        yield from loader


def citations(case: dict[str, Any]) -> tuple[Callable[[], float], dict[str, str]]:
    """A step trains on the table case["table"] and returns the test accuracy in %."""
    from weft.recipes.nodes.config import PUBLISHED
    from weft.recipes.nodes.training import prepare_nodes
    from weft.recipes.sparse_training import train_network

    prepare_process()
    prepared = prepare_nodes(open_table(case["table"])[0], PUBLISHED)
    seeds = itertools.count()

    def step() -> float:
        config = replace(prepared.config, data=case["data"], seed=next(seeds))
        trained = train_network(replace(prepared, config=config), quiet=True)
        return 100 * trained.scores["test"].value

    return step, _VERSIONS


def nodes(case: dict[str, Any]) -> tuple[Callable[[], float], dict[str, str]]:
    """A step trains a GCN on the graph case["table"] and returns the test accuracy in %."""
    from weft.recipes.nodes.config import NodesConfig
    from weft.recipes.nodes.training import prepare_nodes
    from weft.recipes.sparse_training import train_network

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
        return 100 * train_network(prepare_nodes(graph, config), quiet=True).scores["test"].value

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
