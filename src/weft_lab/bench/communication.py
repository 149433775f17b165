"""Benchmark: one graph on many ranks: exact, how many bytes, how large, how fast."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable, open_table
from weft.models import GCN, GCNConfig, GraphSAGE, SAGEConfig
from weft.parallel.cost_model import NETWORKS, Machine, Problem, estimate_published
from weft.parallel.grid import Grid, grid_of, grids_for
from weft.parallel.method import PUBLISHED, Method
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard
from weft.parallel.splits import one_graph
from weft.parallel.traffic_formulas import reduced_words
from weft.sources import load, read_edge_list, rmat, shchur
from weft_lab.bench.communication_speed import scale_cases, speed_case
from weft_lab.bench.partitions import balance_case, volume_case
from weft_lab.bench.result import BenchResult, CandidateResult, CaseResult, data_or_error
from weft_lab.bench_settings import CommunicationBench
from weft_lab.grid_training import (
    PreparedTables,
    grid_cells,
    grid_label,
    joined_worlds,
    on_ranks,
    with_random_features,
)

WIDTHS = (128, 128, 16)
"""Of the features, the hidden layer and the classes."""

_NAME = "coauthor-physics"
LESS = "times\nless"
"""Figure: what 1d as published receives, over what this one receives; sums over ranks."""

# How many times less than as published 1D is to receive.
_LESS_BARS = {"reductions": 10, "sparsity-aware": 40}
_RANKS = 64
# The Amazon graph of Tripathy, Yelick and Buluç (2020) with the widths that they trained.
_AMAZON = Problem(nodes=14_249_639, edges=230_788_269, widths=(300, 16, 24))
# GB that a rank receives in an epoch, by grid and replication.
_PUBLISHED = {("1d", None): 20.0, ("1.5d", 4): 7.0, ("1.5d", 8): 7.0, ("2d", None): 9.0}
_REDUCED = 1.8
_APART = 0.03
# Of `exact`: the largest deviation, then what is trained on which graph.
_MOST = 1e-10
_STEPS, _RATE = 5, 0.5
# Fewer features than a grid of 9, 16 or 27 ranks has columns.
_NODES, _EDGES, _FEATURES, _HIDDEN, _CLASSES = 53, 300, 2, 6, 4
_WAYS = (("gcn", Method()), ("gcn", PUBLISHED), ("sage", Method()))

_Trained = dict[str, list[Array]]
"""The loss of each step, gradients of the first, weights after the last."""


def bench_communication(config: CommunicationBench, progress: Progress) -> BenchResult:
    """Run the chosen cases."""
    # First, so that what is wrong with it is known before anything is measured.
    physics: Graph | DataError | None = None
    if {"bytes", "balance", "volume"} & set(config.cases):
        physics = data_or_error(lambda: _edges(config), config.data)
    cases: list[CaseResult] = []
    for name in dict.fromkeys(config.cases):
        if name == "exact":
            cases.append(exact_case(config.exact_ranks, progress))
        elif name == "model":
            cases.append(model_case())
        elif name == "bytes" and isinstance(physics, Graph):
            cases += bytes_cases(physics, config.bytes_ranks, progress)
        elif name == "bytes":
            cases.append(CaseResult.no_data("bytes", physics, unit="bytes"))
        elif name in ("balance", "volume"):
            graphs = {_NAME: physics} if isinstance(physics, Graph) else {}
            if not graphs:
                cases.append(CaseResult.no_data(f"{name}, {_NAME}", physics, unit="ratio"))
            if config.edge_list is not None:
                graphs[config.edge_list.name.split(".")[0]] = _listed(config.edge_list)
            if name == "balance":
                graphs["R-MAT"] = rmat(2**17, 2_000_000)
                cases += [balance_case(*each, progress) for each in graphs.items()]
            else:
                ranks = config.volume_ranks
                cases += [volume_case(*each, ranks, WIDTHS, progress) for each in graphs.items()]
        elif name == "speed":
            cases.append(speed_case(config, progress))
        else:
            cases += scale_cases(config, progress)
    return BenchResult(name="communication", cases=cases)


def _edges(config: CommunicationBench) -> Graph:
    graph = physics_graph(config.data, config.data_dir)
    # Its own features are wide, and not used.
    return Graph(num_nodes=graph.num_nodes, senders=graph.senders, receivers=graph.receivers)


def _listed(path: Path) -> Graph:
    found = read_edge_list(path, columns=("src", "dst"))
    return Graph(num_nodes=found.num_nodes, senders=found.senders, receivers=found.receivers)


def physics_graph(data: Path | None, data_dir: Path | None) -> Graph:
    """The Coauthor Physics graph: from its file, or a folder with it, or the data folder.

    Raises:
        DataError: it is not there.
    """
    if data is None:
        return one_graph(load(_NAME, data_dir=data_dir))
    if not data.exists():
        raise DataError(f"--data {data} does not exist; name {_NAME}.zip or a folder with it")
    if data.is_dir():
        files = [data / f"{_NAME}{suffix}" for suffix in (".zip", ".npz")]
        there = [path for path in files if path.exists()]
        if not there:
            raise DataError(f"{data} has neither {files[0].name} nor {files[1].name}")
        data = there[0]
    return shchur(data)


def bytes_cases(
    graph: Graph, ranks: Sequence[int], progress: Progress, widths: Sequence[int] = WIDTHS
) -> list[CaseResult]:
    """An epoch of a GCN on real ranks, for each number of them and each grid that fits.

    Random features and classes of these widths on the edges of `graph`.
    """
    graph = with_random_features(graph, widths[0], widths[-1])
    task = progress.add_task("bytes", total=len(ranks))
    cases = []
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        tables = PreparedTables(graph, Path(folder), partition="metis")
        for count in ranks:
            progress.update(task, description=f"bytes: {count} ranks")
            cases.append(_bytes_case(tables, count, tuple(widths)))
            progress.advance(task)
    progress.update(task, description="bytes")
    return cases


def _bytes_case(tables: PreparedTables, ranks: int, widths: tuple[int, ...]) -> CaseResult:
    cells = grid_cells(tables, ranks, widths, epochs=2)
    candidates: dict[str, CandidateResult] = {}
    missed = []
    published = 0.0
    for cell in cells:
        label = f"weft {cell.label}: {cell.method}"
        records = cell.records.values()
        samples = [float(each.received) for each in records]
        # The first of all: 1d as published.
        published = published or sum(samples)
        candidates[label] = CandidateResult(
            samples=samples,
            figures={
                "mean": statistics.fmean(samples) / 1e6,
                "most": max(samples) / 1e6,
                "predicted\nmean": cell.mean / 1e6,
                "predicted\nmost": max(cell.predicted) / 1e6,
                LESS: published / sum(samples),
                "once\nmean": statistics.fmean(each.once for each in records) / 1e6,
            },
        )
        if cell.differing:
            missed.append(f"{label}: what was recorded is not what was predicted.")
    for name, least in _LESS_BARS.items():
        times = candidates[f"weft 1d: {name}"].figures[LESS]
        if times < least:
            missed.append(f"1d: {name} receives 1 / {times:.1f} of 1d: published, not 1 / {least}.")
    nodes, edges = tables.graph.num_nodes, tables.graph.num_edges
    shape = "-".join(map(str, widths))
    return CaseResult(
        case=f"bytes, P = {ranks}",
        what=f"MB received by a rank in an epoch, {nodes:,} nodes, {edges:,} edges, GCN {shape}",
        unit="bytes",
        candidates=candidates,
        says=[
            "`times less` is the sum over ranks of 1d: published over the sum of this row. "
            "Sparsity-aware blocks are by METIS, others in the order of the nodes. `once` comes "
            "before the first epoch."
        ],
        missed=missed,
    )


def model_case() -> CaseResult:
    """Bytes received by each of 64 ranks on the Amazon graph, f² terms dropped."""
    machine = Machine(name="any", link=NETWORKS["infiniband-100"])
    found = {}
    for (name, replication), expected in _PUBLISHED.items():
        grid = grid_of(name, _RANKS, replication)
        label = f"weft {grid_label(grid)}: published"
        found[label] = (estimate_published(_AMAZON, grid, machine).bytes, expected)
    words = reduced_words(grid_of("1d", _RANKS), _AMAZON.widths, nodes=_AMAZON.nodes)
    found["weft 1d: reductions"] = (words * _AMAZON.item, _REDUCED)
    candidates, missed = {}, []
    for label, (received, expected) in found.items():
        apart = received / 1e9 / expected - 1
        candidates[label] = CandidateResult(
            samples=[received / 1e9],
            figures={"GB": received / 1e9, "expected": expected, "% apart": 100 * apart},
        )
        if abs(apart) > _APART:
            missed.append(f"{label} is {100 * apart:.1f} % from {expected} GB, not within 3 %.")
    nodes, edges = _AMAZON.nodes, _AMAZON.edges
    return CaseResult(
        case="model",
        what=f"received by a rank in an epoch, by formula: {nodes:,} nodes, {edges:,} nonzeros, "
        f"GCN {'-'.join(map(str, _AMAZON.widths))}, P = {_RANKS}",
        unit="GB",
        candidates=candidates,
        missed=missed,
    )


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
    kinds: dict[str, tuple[Any, Any]] = {"gcn": (GCN, GCNConfig), "sage": (GraphSAGE, SAGEConfig)}
    kind, config = kinds[name]
    layers = config(hidden=(_HIDDEN,), dropout=0.0, input_dropout=0.0)
    model: GCN | GraphSAGE = kind(_FEATURES, _CLASSES, layers).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_()
    return model


def _descend(model: GCN | GraphSAGE, step: Callable[[], float]) -> _Trained:
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    losses: list[Array] = []
    gradients: list[Array] = []
    for number in range(_STEPS):
        losses.append(np.array(step()))
        if number == 0:
            gradients = [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    weights = [p.detach().numpy().copy() for p in model.parameters()]
    return {"loss": losses, "gradients": gradients, "weights": weights}


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
    found = []
    for world in joined_worlds(grids):
        ways = []
        for name, method in _WAYS:
            shard = GraphShard.open(open_table(path), world, method, torch.float64)
            model = _model(name)
            ways.append(_descend(model, partial(GridNetwork(model, shard).step, seed=0)))
        found.append(ways)
    return found


def _deviations(trained: list[_Trained], expected: dict[str, _Trained]) -> dict[str, float]:
    """The largest over the ways of one rank."""
    worst: dict[str, float] = {}
    for (name, _), own in zip(_WAYS, trained, strict=True):
        for what, values in own.items():
            pairs = zip(values, expected[name][what], strict=True)
            # np.max, not max: what is not a number must show.
            found = [float(np.max(np.abs(a - b))) for a, b in pairs]
            worst[what] = float(np.max([worst.get(what, 0.0), *found]))
    return worst
