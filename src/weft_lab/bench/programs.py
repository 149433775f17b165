"""Benchmark: typed gated networks against ptgnn and torch_geometric; forms of the adjacency."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.progress import Progress

from weft.graphs import Graph, GraphTable, assemble, table_from_graphs, write_table
from weft.layout import TypedEdges
from weft.recipes.programs.data import read_programs
from weft.sources.program_graph import NUM_TYPES
from weft_lab.bench.epoch_cost import gated_step
from weft_lab.bench.result import BenchResult, CaseResult
from weft_lab.bench.runner import Candidate, ours, run_case
from weft_lab.bench_settings import ProgramsBench
from weft_lab.results import machine

_PTGNN, _GEOMETRIC = "ptgnn GatedMessagePassing", "torch_geometric RGCNConv + GRUCell"
_PEERS = {
    "weft": ours("gated", form="csr"),
    _PTGNN: Candidate(script="ptgnn_steps:gated"),
    # Its FastRGCNConv makes a matrix an edge: 5 GB a round of messages here.
    _GEOMETRIC: Candidate(script="torch_geometric_steps:rgcn"),
}
# How often our step ought to fit into a peer's, and how often the limit of its products may fit
# into our step.
_BARS, _DISTANCE = {_PTGNN: 2.0, _GEOMETRIC: 4.0}, 1.35
_FORMS = {f"weft, {form}": ours("gated", form=form) for form in ("csr", "banded", "dense", "auto")}


def bench_programs(config: ProgramsBench, progress: Progress) -> BenchResult:
    """A random typed graph and a supergraph of programs beside the peers; then the forms."""
    # First, so that what is wrong with it is known before anything is timed.
    corpus = read_programs("python", files=config.files, data_dir=config.data_dir)
    graphs = {"random edges": _random(config), "programs": _supergraph(corpus, config.nodes)}
    cases = [
        _beside_limit(_run(name, table, NUM_TYPES, _PEERS, config, progress), table, config)
        for name, table in graphs.items()
    ]
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
    candidates: dict[str, Candidate],
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
            candidates,
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


def _beside_limit(case: CaseResult, table: GraphTable, config: ProgramsBench) -> CaseResult:
    """The case with what our step computes, its share of the machine's speeds, and what it missed.

    The products alone are counted: gathered rows and elementwise work are the distance to them.
    """
    own = case.candidates["weft"]
    if own.median is None:
        return case
    batch = assemble(table, range(len(table)))
    rows = TypedEdges.of_batch(batch, NUM_TYPES).counts.shape[0]
    cost = gated_step(batch.num_nodes, rows, config.hidden, config.steps_of_model)
    speeds = machine()
    work = cost.figures(own.median, 1e9 * speeds["gemm_gflop_per_s"], 1e9 * speeds["copy_gb_per_s"])
    distance = 1 / work["limit_share"]
    missed = [
        f"{peer} takes {times:.2f} times as long as weft, not {_BARS[peer]:g} times."
        for peer, times in case.ratios("weft").items()
        if times < _BARS[peer]
    ]
    if distance > _DISTANCE:
        missed.append(
            f"The step takes {distance:.2f} times as long as its products at the machine's speed, "
            f"more than {_DISTANCE:g} times."
        )
    says = [f"A step takes {distance:.2f} times as long as its products at the machine's speed."]
    candidates = {**case.candidates, "weft": replace(own, work=work)}
    return replace(case, candidates=candidates, says=says, missed=missed)
