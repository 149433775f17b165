"""Small data for the recipes' plans, and a pace that lets a training run for a few steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.graphs import Column, Graph, GraphTable, table_from_columns
from weft.planning import Candidate, Measured, Work
from weft.planning.task import PlanTask
from weft.sources import EdgeList, FullyConnected, planted_partition, with_neighbours
from weft.training.step_hooks import paced


class Enough(Exception):
    """Raised when there were enough steps."""


class Count:
    """A pace of so many steps."""

    def __init__(self, steps: int) -> None:
        self.left, self.graphs = steps, []

    def before_step(self) -> None:
        if not self.left:
            raise Enough

    def after_step(self, graphs: int) -> None:
        self.left -= 1
        self.graphs.append(graphs)


def trained(work: Work, settings: Mapping[str, Any], *, steps: int = 3) -> list[int]:
    """The sizes of the first steps of a training that would not end."""
    pace = Count(steps)
    try:
        with paced(pace):
            work.train(settings)
    except Enough:
        return pace.graphs
    raise AssertionError("the training has ended")


def waves(recipe: PlanTask, speed: Sequence[str] = ()) -> list[list[Candidate]]:
    """All waves, where candidates whose labels hold the earlier words of `speed` are faster."""
    found, results, steps = [], [], recipe.waves()
    try:
        wave = next(steps)  # type: ignore[call-overload]
        while True:
            found.append(list(wave))
            results += [measured(candidate, speed) for candidate in wave]
            results.sort(key=lambda each: each.median or 0.0)
            wave = steps.send(results)  # type: ignore[union-attr]
    except StopIteration:
        return found


def measured(candidate: Candidate, speed: Sequence[str]) -> Measured:
    rank = sum(2.0**-place for place, word in enumerate(speed, start=1) if word in candidate.label)
    return Measured(
        label=candidate.label, settings=candidate.settings, outcome="slower", median=2 - rank
    )


def molecules(count: int = 60, *, largest: int = 6, seed: int = 0) -> GraphTable:
    """Chains of H, C and O with an energy and forces, every pair of atoms joined."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, largest + 1, count)
    total = int(sizes.sum())
    along = np.concatenate([np.arange(size) for size in sizes])
    table = table_from_columns(
        {
            "z": Column(level="node", dtype="uint8"),
            "pos": Column(level="node", dtype="float64", shape=(3,), unit="Å"),
            "forces": Column(level="node", dtype="float32", shape=(3,), unit="eV/Å"),
            "energy": Column(level="graph", dtype="float64", unit="eV"),
        },
        num_nodes=sizes,
        columns={
            "z": rng.choice([1, 6, 8], total).astype(np.uint8),
            "pos": along[:, None] * [1.0, 0.6, 0.3] + rng.uniform(0, 0.3, (total, 3)),
            "forces": rng.normal(size=(total, 3)).astype(np.float32),
            "energy": rng.normal(size=count),
        },
    )
    return with_neighbours(table, FullyConnected(), progress=False)


def messages(nodes: int = 40, edges: int = 800) -> EdgeList:
    """Nodes that write to others of their own group."""
    rng = np.random.default_rng(0)
    senders = rng.integers(nodes, size=edges)
    return EdgeList(
        senders=senders.astype(np.int32),
        receivers=(rng.integers(nodes // 4, size=edges) * 4 + senders % 4).astype(np.int32),
        time=np.arange(edges, dtype=np.float64),
        ids=np.arange(nodes),
    )


def papers(nodes: int = 200) -> Graph:
    """A citation graph in small."""
    graph = planted_partition(nodes, 3, mean_degree=6, homophily=0.9, num_features=16, seed=1)
    return replace(graph, nodes={**graph.nodes, "x": (graph.nodes["x"] > 0).astype(np.float32)})


def code(folder: Path, *, files: int = 12, functions: int = 3) -> Path:
    """A folder of Python files."""
    folder.mkdir()
    for file in range(files):
        text = "".join(
            f"def add_{file}_{n}(first, second):\n    total = first + second\n    return total\n\n"
            for n in range(functions)
        )
        (folder / f"part{file}.py").write_text(text)
    return folder
