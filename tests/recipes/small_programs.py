"""Small graphs with the columns of programs and a rule that can be learned, for several tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.graphs import Graph, GraphTable, table_from_graphs
from weft.recipes.programs.training import ProgramsConfig
from weft.sources.program_graph import EDGE_NAMES, PROGRAM_SCHEMA, VOCABULARY, program_graph


def small_program(rng: np.random.Generator, number: int, *, nodes: int = 10) -> Graph:
    """A chain of tokens; the right candidate is the one that is joined to the slot by type 3."""
    size = int(rng.integers(5, nodes))
    count = int(rng.integers(2, 5))
    slot = int(rng.integers(0, size))
    candidates = list(range(size, size + count))
    right = int(rng.choice(candidates))
    chain = [(1, i, i + 1) for i in range(size - 1)]
    joined = [(3 if node == right else 2, node, slot) for node in candidates]
    subtokens = np.zeros((size + count, 6), dtype=np.int32)
    subtokens[:, 0] = rng.integers(1, 50, size + count)
    graph, _ = program_graph(
        subtokens,
        np.array(chain + joined),
        slot=slot,
        candidates=candidates,
        correct=right,
        recent=int(rng.choice(candidates)),
        file=number // 4,
        line=number + 1,
        column=number % 7,
    )
    return graph


def small_programs(count: int = 240, *, seed: int = 0, nodes: int = 10) -> GraphTable:
    """A table of them, four a file."""
    rng = np.random.default_rng(seed)
    graphs = [small_program(rng, number, nodes=nodes) for number in range(count)]
    return table_of(graphs)


def table_of(graphs: list[Graph]) -> GraphTable:
    """The table of these graphs."""
    files = 1 + max(int(graph.graph["file"]) for graph in graphs)
    metadata = {
        "kind": "programs",
        "edge_types": list(EDGE_NAMES),
        "files": [f"file{number}.py" for number in range(files)],
        "vocabulary": VOCABULARY,
        "order": "rcm",
        "skipped": {},
    }
    return table_from_graphs(graphs, PROGRAM_SCHEMA, metadata=metadata)


def config(**options: Any) -> ProgramsConfig:
    """A network small enough for a test."""
    given: dict[str, Any] = {
        "hidden": 8,
        "steps": 2,
        "start": "bits",
        "dropout": 0.0,
        "nodes": 64,
        "learning_rate": 2e-2,
        "split": (0.7, 0.2, 0.1),
        "epochs": 1,
    }
    return ProgramsConfig(**{**given, **options})
