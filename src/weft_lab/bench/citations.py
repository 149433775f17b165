"""Benchmark: test accuracy of the two-layer GCN on the public splits, over seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from weft.sources import load
from weft_lab.bench.result import BenchResult
from weft_lab.bench.runner import Entry, run_case


@dataclass(frozen=True, kw_only=True)
class CitationsBench:
    """Accuracy in % of `weft train citations` with its default settings.

    Attributes:
        seeds: runs a data set, with seeds 0, 1, ...
        planetoid: folder with the ind.* files; without it they come from the cache or are
            downloaded.
        data_dir: the data folder.
    """

    seeds: int = 10
    planetoid: Path | None = None
    data_dir: Path | None = None


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
                {"weft": Entry(script="weft_citations", peer=False)},
                {"table": str(table.path), "data": name},
                rounds=config.seeds,
                steps=1,
                warmup=0,
                unit="%",
                progress=progress,
            )
        )
    return BenchResult(name="citations", cases=cases)
