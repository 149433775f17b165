"""Benchmark: sparse weights: speed, memory, accuracy; edge lists and walks."""

from __future__ import annotations

from rich.progress import Progress

from weft.graphs import GraphTable
from weft.sources import load
from weft_lab.bench.result import BenchResult, CaseResult, data_or_error
from weft_lab.bench.sparse_cases import (
    accuracy_case,
    edges_case,
    memory_case,
    temporal_graph,
    walks_case,
)
from weft_lab.bench.sparse_speed import Network, accelerate_case, step_case
from weft_lab.bench_settings import SparseBench

# How often the sparse step must fit into the dense one's time, by sparsity.
_WIDE, _NARROW = {0.906: 1.8, 0.95: 3.0}, {0.906: 1.2, 0.95: 1.5}


def _networks(config: SparseBench) -> tuple[Network, Network]:
    return (
        Network(widths=config.wide, batch=config.wide_batch, bars=_WIDE),
        Network(widths=config.narrow, batch=config.narrow_batch, bars=_NARROW),
    )


def bench_sparse(config: SparseBench, progress: Progress) -> BenchResult:
    """Run the cases that were asked for."""
    # First, so that what is wrong with them is known before anything is measured.
    named = {"walks": config.temporal, "accuracy": config.planetoid}
    tables = {
        "walks": lambda: temporal_graph(config.temporal, config.data_dir),
        "accuracy": lambda: _cora(config),
    }
    found = {n: data_or_error(tables[n], named[n]) for n in config.cases if n in tables}
    cases: list[CaseResult] = []
    for name in dict.fromkeys(config.cases):
        table = found.get(name)
        if name == "step":
            cases += [
                step_case(
                    network,
                    sparsity,
                    rounds=config.rounds,
                    steps=config.steps,
                    update_every=config.update_every,
                    progress=progress,
                )
                for network in _networks(config)
                for sparsity in config.sparsities
            ]
        elif name == "accelerate":
            cases += [
                accelerate_case(
                    network,
                    config.accelerate_sparsities,
                    steps=config.rounds * config.steps,
                    progress=progress,
                )
                for network in _networks(config)
            ]
        elif name == "memory":
            above = [each for each in config.accelerate_sparsities if each]
            cases.append(memory_case(config.wide, above, progress))
        elif name == "edges":
            cases.append(
                edges_case(
                    config.lines,
                    rounds=config.rounds,
                    scratch=config.scratch,
                    progress=progress,
                )
            )
        elif not isinstance(table, GraphTable):
            cases.append(CaseResult.no_data(name, table, unit=""))
        elif name == "walks":
            cases.append(walks_case(table, rounds=config.rounds, progress=progress))
        else:
            cases.append(
                accuracy_case(table, seeds=config.seeds, epochs=config.epochs, progress=progress)
            )
    return BenchResult(name="sparse", cases=cases)


def _cora(config: SparseBench) -> GraphTable:
    files = [config.planetoid] if config.planetoid else []
    return load("cora", files=files, data_dir=config.data_dir, progress=False)
