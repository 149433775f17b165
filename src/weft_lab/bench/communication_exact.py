"""Case: training on every grid against plain training in one process, to rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from weft.graphs import Array, Graph, GraphTable, open_table
from weft.models import GCN, GCNConfig, GraphSAGE, SAGEConfig
from weft.parallel.grid import Grid, grid_of, grids_for
from weft.parallel.method import PUBLISHED, Method
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard
from weft_lab.bench.result import CandidateResult, CaseResult
from weft_lab.grid_training import grid_label, join_grid, on_ranks

_MOST = 1e-10
_STEPS, _RATE = 5, 0.5
# Fewer features than a grid of 9, 16 or 27 ranks has columns.
_NODES, _EDGES, _FEATURES, _HIDDEN, _CLASSES = 53, 300, 2, 6, 4
_WAYS = (("gcn", Method()), ("gcn", PUBLISHED), ("sage", Method()))


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """Losses of all steps, gradients of the first, weights after the last."""

    losses: Array
    gradients: list[Array]
    weights: list[Array]


def exact_case(ranks: Sequence[int], progress: Progress) -> CaseResult:
    """Five steps of gradient descent in float64 on each grid of so many ranks.

    A directed, weighted graph of 53 nodes, some without edges, whose training nodes sit in the
    first blocks, so that most ranks have none. Beside it, dense matrices and autograd alone.
    """
    task = progress.add_task("exact", total=len(ranks))
    candidates: dict[str, CandidateResult] = {}
    missed = []
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        table = prepare(_graph(), Path(folder) / "graph.weft", blocks=1, dtype="float64")
        expected = {model: _dense(model, table) for model in dict(_WAYS)}
        for count in ranks:
            progress.update(task, description=f"exact: {count} ranks")
            grids = [*grids_for(count), *([grid_of("3x2", 6)] if count == 6 else [])]
            answers = on_ranks(_on_grids, Path(folder) / "graph.weft", grids, ranks=count)
            for number, grid in enumerate(grids):
                found = [_deviations(answer[number], expected) for answer in answers]
                figures = {name: max(each[name] for each in found) for name in found[0]}
                name = f"weft P = {count}, {grid_label(grid)}"
                worst = max(figures.values())
                candidates[name] = CandidateResult(samples=[worst], figures=figures)
                if not worst <= _MOST:
                    missed.append(f"{name} deviates by {worst:.2g}, more than {_MOST:.0e}.")
            progress.advance(task)
    progress.update(task, description="exact")
    return CaseResult(
        case="exact",
        what=f"largest deviation from one process, float64, {_STEPS} steps, a directed weighted "
        f"graph of {_NODES} nodes; GCN, as published too, and GraphSAGE",
        unit="deviation",
        candidates=candidates,
        missed=missed,
    )


def _graph() -> Graph:
    rng = np.random.default_rng(0)
    number = np.arange(_NODES)
    return Graph(
        num_nodes=_NODES,
        senders=rng.integers(_NODES - 13, size=_EDGES),
        receivers=rng.integers(_NODES - 10, size=_EDGES),
        nodes={
            "x": rng.standard_normal((_NODES, _FEATURES)),
            "y": rng.integers(_CLASSES, size=_NODES),
            "train": number < 10,
            "validation": (number >= 10) & (number < 26),
            "test": number >= 26,
        },
        edges={"weight": rng.uniform(0.5, 2, size=_EDGES)},
    )


def _model(name: str) -> GCN | GraphSAGE:
    torch.manual_seed(1)
    model: GCN | GraphSAGE
    if name == "gcn":
        gcn = GCNConfig(hidden=(_HIDDEN,), dropout=0.0, input_dropout=0.0)
        model = GCN(_FEATURES, _CLASSES, gcn)
    else:
        sage = SAGEConfig(hidden=(_HIDDEN,), dropout=0.0, input_dropout=0.0)
        model = GraphSAGE(_FEATURES, _CLASSES, sage)
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_()
    return model


def _descend(model: GCN | GraphSAGE, step: Callable[[], float]) -> _Trained:
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    losses: list[float] = []
    gradients: list[Array] = []
    for number in range(_STEPS):
        losses.append(step())
        if number == 0:
            gradients = [_array(p.grad) for p in model.parameters()]
        optimizer.step()
    weights = [_array(p.detach()) for p in model.parameters()]
    return _Trained(losses=np.array(losses), gradients=gradients, weights=weights)


def _array(values: Tensor | None) -> Array:
    assert values is not None
    copied: Array = values.numpy().copy()
    return copied


def _dense(name: str, table: GraphTable) -> _Trained:
    """The same training with a dense matrix and nothing of the grids' code."""
    graph = table[0]
    matrix = np.zeros((_NODES, _NODES))
    np.add.at(matrix, (graph.receivers, graph.senders), graph.edges["weight"])
    adjacency = torch.from_numpy(matrix)
    x = torch.from_numpy(np.array(graph.nodes["x"], dtype=np.float64))
    y = torch.from_numpy(np.array(graph.nodes["y"]))
    train = torch.from_numpy(np.array(graph.nodes["train"]))
    model = _model(name)
    layers: list[Any] = list(model.layers)

    def step() -> float:
        model.zero_grad()
        h = x
        for number, layer in enumerate(layers):
            h = h.relu() if number else h
            own: Tensor | float = h @ layer.own if name == "sage" else 0.0
            weight = layer.neighbours if name == "sage" else layer.weight
            h = (adjacency @ h) @ weight + own + layer.bias
        loss = torch.nn.functional.cross_entropy(h[train], y[train])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    return _descend(model, step)


def _on_grids(path: Path, grids: list[Grid]) -> list[list[_Trained]]:
    """What one rank has trained, by grid and way."""
    # Joined once for all of them: what is joined inside finds the group, and leaves it there.
    with join_grid(Grid(rows=grids[0].ranks)):
        return [_on_grid(path, grid) for grid in grids]


def _on_grid(path: Path, grid: Grid) -> list[_Trained]:
    ways = []
    with join_grid(grid) as world:
        for name, method in _WAYS:
            shard = GraphShard.open(open_table(path), world, method, torch.float64)
            model = _model(name)
            network = GridNetwork(model, shard)
            ways.append(_descend(model, partial(network.step, seed=0)))
    return ways


def _deviations(trained: list[_Trained], expected: dict[str, _Trained]) -> dict[str, float]:
    """The largest over the ways of one rank."""
    worst = {"loss": 0.0, "gradients": 0.0, "weights": 0.0}
    for (name, _), own in zip(_WAYS, trained, strict=True):
        right = expected[name]
        pairs = {
            "loss": [(own.losses, right.losses)],
            "gradients": zip(own.gradients, right.gradients, strict=True),
            "weights": zip(own.weights, right.weights, strict=True),
        }
        for what, each in pairs.items():
            # np.max, not max: what is not a number must show.
            found = [float(np.max(np.abs(a - b))) for a, b in each]
            worst[what] = float(np.max([worst[what], *found]))
    return worst
