"""Benchmark: a full-batch training epoch of a two-layer GCN, against torch_geometric's GCNConv."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.progress import Progress

from weft.errors import DataError
from weft.graphs import Graph, gcn_weights, write_table
from weft.sources import load, planted_partition
from weft_lab.bench.result import BenchResult, CaseResult, Contender
from weft_lab.bench.runner import Entry, run_case

_ENTRIES = {
    "weft": Entry(script="weft_gcn", peer=False, settings={"first_product": True}),
    "weft, A x not kept": Entry(script="weft_gcn", peer=False, settings={"first_product": False}),
    "torch_geometric edge_index": Entry(
        script="torch_geometric_gcn", settings={"csr": False, "cached": False}
    ),
    "torch_geometric edge_index, cached": Entry(
        script="torch_geometric_gcn", settings={"csr": False, "cached": True}
    ),
    "torch_geometric CSR": Entry(
        script="torch_geometric_gcn", settings={"csr": True, "cached": False}
    ),
    "torch_geometric CSR, cached": Entry(
        script="torch_geometric_gcn", settings={"csr": True, "cached": True}
    ),
    # Not what users run, but what is left of the difference once its process keeps memory too.
    "torch_geometric CSR, cached, memory kept": Entry(
        script="torch_geometric_gcn",
        settings={"csr": True, "cached": True},
        environment={"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647"},
    ),
}


@dataclass(frozen=True, kw_only=True)
class GCNBench:
    """One training epoch: forward, backward, Adam.

    Attributes:
        nodes: size of the generated graph.
        degree: its neighbours a node; 170,000 nodes of 13.53 have 2.3 million directed edges.
        rounds: times each contender gets its turn.
        steps: epochs a turn.
        planetoid: folder with the ind.pubmed.* files; without it PubMed comes from the cache or
            is downloaded.
        data_dir: the data folder.
    """

    nodes: int = 170_000
    degree: float = 13.53
    rounds: int = 5
    steps: int = 2
    planetoid: Path | None = None
    data_dir: Path | None = None


def bench_gcn(config: GCNBench, progress: Progress) -> BenchResult:
    """Run it over the generated graph (widths 128-128-40) and PubMed (500-16-3)."""
    generated = planted_partition(
        config.nodes, 40, mean_degree=config.degree, homophily=0.7, num_features=128, seed=0
    )
    cases = [_run("generated", generated, 128, 40, config, progress)]
    files = [config.planetoid] if config.planetoid else []
    try:
        pubmed = load("pubmed", files=files, data_dir=config.data_dir)[0]
    except DataError as error:
        if files:
            raise
        absent = {"weft": Contender(absent=f"{error}")}
        cases.append(CaseResult(case="pubmed", what="no data", unit="s", contenders=absent))
    else:
        cases.append(_run("pubmed", pubmed, 16, 3, config, progress))
    return BenchResult(name="gcn", cases=cases)


def _run(
    name: str, graph: Graph, hidden: int, classes: int, config: GCNBench, progress: Progress
) -> CaseResult:
    widths = f"{graph.nodes['x'].shape[1]}-{hidden}-{classes}"
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        return run_case(
            name,
            f"epoch, {graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges, {widths}",
            _ENTRIES,
            {**_store(Path(folder), graph), "hidden": hidden, "classes": classes},
            rounds=config.rounds,
            steps=config.steps,
            warmup=2,
            progress=progress,
        )


def _store(folder: Path, graph: Graph) -> dict[str, str]:
    """The same graph for both: a table for weft, plain arrays for the peers."""
    # The peers normalise by themselves, so they get the edges without self-loops and weights.
    np.savez(
        folder / "graph.npz",
        x=graph.nodes["x"],
        y=graph.nodes["y"],
        train=graph.nodes["train"],
        senders=graph.senders,
        receivers=graph.receivers,
    )
    write_table(folder / "graph.weft", [gcn_weights(graph)])
    return {"arrays": str(folder / "graph.npz"), "table": str(folder / "graph.weft")}
