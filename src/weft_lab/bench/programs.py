"""Benchmark: typed gated networks against ptgnn and torch_geometric; forms of the adjacency."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.progress import Progress

from weft.graphs import Graph, GraphTable, assemble, table_from_graphs, write_table
from weft.recipes.programs.data import read_programs
from weft.sources.program_graph import NUM_TYPES
from weft_lab.bench.result import BenchResult, CaseResult
from weft_lab.bench.runner import Entry, run_case

_PEERS = {
    "weft": Entry(script="weft_gated", peer=False, settings={"form": "csr"}),
    "ptgnn GatedMessagePassing": Entry(script="ptgnn_gated"),
    # Its FastRGCNConv makes a matrix an edge: 5 GB a round of messages here.
    "torch_geometric RGCNConv + GRUCell": Entry(script="torch_geometric_rgcn"),
}
_FORMS = {
    f"weft, {form}": Entry(script="weft_gated", peer=False, settings={"form": form})
    for form in ("csr", "banded", "dense", "auto")
}


@dataclass(frozen=True, kw_only=True)
class ProgramsBench:
    """One training step: rounds of messages forward, backward, Adam.

    Attributes:
        nodes: of the random graph and, about, of the supergraph of programs.
        edges: of the random graph, of 20 types.
        hidden: features of a node.
        steps_of_model: rounds of messages.
        complete: sizes of the complete graphs over which forms are compared.
        form_nodes: nodes of each batch of complete graphs.
        rounds: times each contender gets its turn.
        steps: training steps a turn.
        files: Python files, or folders of them, instead of the standard library.
        data_dir: the data folder.
    """

    nodes: int = 20_000
    edges: int = 75_000
    hidden: int = 128
    steps_of_model: int = 8
    complete: tuple[int, ...] = (4, 9, 18, 36, 144)
    form_nodes: int = 4_000
    rounds: int = 5
    steps: int = 1
    files: tuple[Path, ...] = ()
    data_dir: Path | None = None


def bench_programs(config: ProgramsBench, progress: Progress) -> BenchResult:
    """A random typed graph and a supergraph of programs beside the peers; then the forms."""
    # First, so that what is wrong with it is known before anything is timed.
    corpus = read_programs("python", files=config.files, data_dir=config.data_dir)
    cases = [_run("random edges", _random(config), NUM_TYPES, _PEERS, config, progress)]
    programs = _supergraph(corpus, config.nodes)
    cases.append(_run("programs", programs, NUM_TYPES, _PEERS, config, progress))
    for size in config.complete:
        table = table_from_graphs([_complete(size)] * max(1, config.form_nodes // size))
        cases.append(_run(f"complete graphs of {size}", table, 1, _FORMS, config, progress))
    return BenchResult(name="programs", cases=cases)


def _random(config: ProgramsBench) -> GraphTable:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, config.nodes, (2, config.edges))
    types = rng.integers(0, NUM_TYPES, config.edges).astype(np.int8)
    graph = Graph(num_nodes=config.nodes, senders=ends[0], receivers=ends[1], edges={"type": types})
    return table_from_graphs([graph])


def _supergraph(table: GraphTable, nodes: int) -> GraphTable:
    """Graphs of `table`, drawn at random, of as many nodes in all."""
    order = np.random.default_rng(0).permutation(len(table))
    fitting = np.cumsum(table.num_nodes[order]) <= nodes
    # A corpus of one large function is better than none.
    return table.select(order[: max(1, int(fitting.sum()))])


def _complete(size: int) -> Graph:
    receivers, senders = np.nonzero(~np.eye(size, dtype=bool))
    types = np.zeros(len(senders), np.int8)
    return Graph(num_nodes=size, senders=senders, receivers=receivers, edges={"type": types})


def _run(
    name: str,
    table: GraphTable,
    types: int,
    entries: dict[str, Entry],
    config: ProgramsBench,
    progress: Progress,
) -> CaseResult:
    batch = assemble(table, range(len(table)))
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        arrays = Path(folder) / "graph.npz"
        np.savez(
            arrays,
            senders=batch.senders.numpy(),
            receivers=batch.receivers.numpy(),
            types=batch.edges["type"].numpy(),
            nodes=batch.num_nodes,
        )
        write_table(Path(folder) / "graphs.weft", table)
        return run_case(
            name,
            f"step, {batch.num_nodes:,} nodes, {batch.num_edges:,} edges of {types} types, "
            f"{config.hidden} features, {config.steps_of_model} rounds of messages",
            entries,
            {
                "arrays": str(arrays),
                "table": f"{folder}/graphs.weft",
                "types": types,
                "hidden": config.hidden,
                "rounds_of_messages": config.steps_of_model,
            },
            rounds=config.rounds,
            steps=config.steps,
            warmup=2,
            progress=progress,
        )
