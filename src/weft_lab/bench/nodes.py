"""Benchmarks: a full-batch epoch of a two-layer GCN beside torch_geometric's, and its accuracy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.progress import Progress

from weft.graphs import Graph, GraphTable, gcn_weights, write_table
from weft.layout import ORDERS, reordered
from weft.parallel import prepare
from weft.sources import load, planted_partition
from weft_lab.bench.epoch_cost import gcn_epoch
from weft_lab.bench.result import BenchResult, CaseResult, data_or_error
from weft_lab.bench.runner import Candidate, ours, run_case
from weft_lab.bench_settings import CitationsBench, GCNBench
from weft_lab.results import machine


def _torch_geometric(*, csr: bool, cached: bool, **environment: str) -> Candidate:
    return Candidate(
        script="torch_geometric_steps:gcn",
        settings={"csr": csr, "cached": cached},
        environment=environment,
    )


_CANDIDATES = {
    "weft": ours("gcn", first_product=True),
    "weft, A x not kept": ours("gcn", first_product=False),
    "torch_geometric edge_index": _torch_geometric(csr=False, cached=False),
    "torch_geometric edge_index, cached": _torch_geometric(csr=False, cached=True),
    "torch_geometric CSR": _torch_geometric(csr=True, cached=False),
    "torch_geometric CSR, cached": _torch_geometric(csr=True, cached=True),
    # Not what users run, but what is left of the difference once its process keeps memory too.
    "torch_geometric CSR, cached, memory kept": _torch_geometric(
        csr=True, cached=True, MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="2147483647"
    ),
}


def bench_gcn(config: GCNBench, progress: Progress) -> BenchResult:
    """Run it over the generated graph (widths 128-128-40) and PubMed (500-16-3)."""
    cases = []
    if {"generated", "orders", "gat"} & set(config.cases):
        generated = planted_partition(
            config.nodes, 40, mean_degree=config.degree, homophily=0.7, num_features=128, seed=0
        )
    if "generated" in config.cases:
        cases.append(_run("generated", generated, 128, 40, config, progress))
    if "pubmed" in config.cases:
        files = [config.planetoid] if config.planetoid else []
        pubmed = data_or_error(
            lambda: load("pubmed", files=files, data_dir=config.data_dir)[0], files
        )
        if isinstance(pubmed, Graph):
            cases.append(_run("pubmed", pubmed, 16, 3, config, progress))
        else:
            cases.append(CaseResult.no_data("pubmed", pubmed))
    if "orders" in config.cases:
        cases.append(_run("orders", generated, 128, 40, config, progress))
    if "gat" in config.cases:
        cases.append(_gat(generated, config, progress))
    return BenchResult(name="gcn", cases=cases)


def _gat(graph: Graph, config: GCNBench, progress: Progress) -> CaseResult:
    """Two layers of four heads of 32 and of 40, and the memory that an epoch takes."""
    with TemporaryDirectory(prefix="weft-bench-") as place:
        arrays, shared = Path(place) / "graph.npz", Path(place) / "shared.weft"
        _store_arrays(arrays, graph)
        prepare(graph, shared, blocks=1, partition="contiguous", normalisation="none")
        result = run_case(
            "gat",
            f"epoch, {graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges, 4 heads",
            {
                "weft": ours("graph_network"),
                "torch_geometric": Candidate(script="torch_geometric_steps:gat"),
            },
            {
                "arrays": str(arrays),
                "shared": str(shared),
                "hidden": 128,
                "classes": 40,
                "heads": 4,
            },
            rounds=config.rounds,
            steps=config.steps,
            warmup=2,
            progress=progress,
        )
    taken = {
        name: (each.peak_bytes - each.data_bytes) / 1e9
        for name, each in result.candidates.items()
        if each.data_bytes
    }
    words = ", ".join(f"{name} {gigabytes:.2f}" for name, gigabytes in taken.items())
    says = [f"peak memory beyond libraries and data, GB: {words}"] if taken else []
    return replace(result, says=says)


def _store_arrays(path: Path, graph: Graph) -> None:
    """The graph for the peers, which normalise by themselves: without self-loops and weights."""
    columns: dict[str, Any] = {name: graph.nodes[name] for name in ("x", "y", "train")}
    np.savez(path, senders=graph.senders, receivers=graph.receivers, **columns)


def _run(
    name: str, graph: Graph, hidden: int, classes: int, config: GCNBench, progress: Progress
) -> CaseResult:
    widths = (graph.nodes["x"].shape[1], hidden, classes)
    with TemporaryDirectory(prefix="weft-bench-") as place:
        arrays, path = Path(place) / "graph.npz", Path(place) / "graph.weft"
        _store_arrays(arrays, graph)
        table = write_table(path, [gcn_weights(graph)])
        candidates = _in_orders(table, Path(place)) if name == "orders" else _candidates(config)
        result = run_case(
            name,
            f"epoch, {graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges, "
            f"{'-'.join(map(str, widths))}",
            candidates,
            {"arrays": str(arrays), "table": str(path), "hidden": hidden, "classes": classes},
            rounds=config.rounds,
            steps=config.steps,
            warmup=2,
            progress=progress,
        )
    speeds = machine()
    flops, bandwidth = 1e9 * speeds["gemm_gflop_per_s"], 1e9 * speeds["copy_gb_per_s"]
    entries, training = int(table.num_edges.sum()), int(graph.nodes["train"].sum())
    for label in result.own:
        candidate, kept = result.candidates[label], candidates[label].settings["first_product"]
        if candidate.median is not None:
            cost = gcn_epoch(graph.num_nodes, entries, training, widths, kept=kept)
            figures = cost.figures(candidate.median, flops, bandwidth)
            result.candidates[label] = replace(candidate, work=figures)
    return result


def _candidates(config: GCNBench) -> dict[str, Candidate]:
    """All candidates, and the other version of weft if one is given."""
    if not config.before:
        return _CANDIDATES
    # Its own step: it may not have all that ours takes.
    before = config.before.absolute()
    other = replace(
        ours("gcn", first_product=True),
        script=f"{before / 'weft_lab' / 'bench' / 'peers' / 'weft_steps'}:gcn",
        environment={"PYTHONPATH": str(before)},
        against=("weft",),
    )
    return {**_CANDIDATES, "the version before": other}


def _in_orders(table: GraphTable, place: Path) -> dict[str, Candidate]:
    """Ours on the same graph, its nodes in each order."""
    return {
        f"weft, {order}": ours(
            "gcn", first_product=True, table=str(reordered(table, place, order).path)
        )
        for order in ORDERS
    }


def bench_citations(config: CitationsBench, progress: Progress) -> BenchResult:
    """Train on Cora, CiteSeer and PubMed."""
    cases = []
    files = [config.planetoid] if config.planetoid else []
    for name in ("cora", "citeseer", "pubmed"):
        table = load(name, files=files, data_dir=config.data_dir)
        cases.append(
            run_case(
                name,
                f"test accuracy, public split, {config.seeds} seeds",
                {"weft": ours("citations")},
                {"table": str(table.path), "data": name},
                rounds=config.seeds,
                unit="%",
                progress=progress,
            )
        )
    return BenchResult(name="citations", cases=cases)
