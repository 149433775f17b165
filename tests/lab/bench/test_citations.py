"""Accuracies over seeds; tests/cli/test_bench.py runs the whole benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.progress import Progress

from weft.errors import DataError
from weft.graphs import open_table, write_table
from weft.recipes.nodes.config import PUBLISHED
from weft.recipes.nodes.training import prepare_nodes
from weft.recipes.sparse_training import train_network
from weft.sources import planted_partition
from weft_lab.bench.nodes import bench_citations
from weft_lab.bench.runner import Candidate, run_case
from weft_lab.bench_settings import CitationsBench

pytestmark = pytest.mark.usefixtures("in_this_process")


def test_each_round_trains_with_the_next_seed(tmp_path: Path) -> None:
    graph = planted_partition(120, 3, mean_degree=5, homophily=0.9, num_features=64)
    table = write_table(tmp_path / "cora.weft", [graph])
    case = run_case(
        "cora",
        "test accuracy",
        {"weft": Candidate(script="weft_steps:citations", peer=False)},
        {"table": str(table.path), "data": "cora"},
        rounds=2,
        steps=1,
        warmup=0,
        progress=Progress(disable=True),
    )
    ours = case.candidates["weft"]
    assert ours.absent == ""
    graph = open_table(tmp_path / "cora.weft")[0]
    expected = [
        100
        * train_network(prepare_nodes(graph, replace(PUBLISHED, seed=seed)), quiet=True)
        .scores["test"]
        .value
        for seed in (0, 1)
    ]
    assert ours.samples == expected


def test_a_folder_without_the_files(tmp_path: Path) -> None:
    config = CitationsBench(planetoid=tmp_path, data_dir=tmp_path / "data")
    with pytest.raises(DataError, match=r"ind\.cora\.\S+ is missing"):
        bench_citations(config, Progress(disable=True))
