"""The benchmark of communication on small graphs: real ranks, and what its figures mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress

from weft.errors import DataError
from weft.sources import planted_partition
from weft_lab.bench.communication import (
    LESS,
    bench_communication,
    bytes_cases,
    physics_graph,
)
from weft_lab.bench.result import print_result
from weft_lab.bench_settings import CommunicationBench

QUIET = Progress(disable=True)


def run(**settings):
    return bench_communication(CommunicationBench(**settings), QUIET)


def shchur_file(path, graph):
    """A graph as an npz of Shchur et al."""
    order = np.argsort(graph.senders, kind="stable")
    starts = np.searchsorted(graph.senders[order], np.arange(graph.num_nodes + 1))
    one = np.ones(graph.num_nodes)
    numbers = np.arange(graph.num_nodes + 1)
    np.savez(
        path,
        adj_data=np.ones(graph.num_edges),
        adj_indices=graph.receivers[order],
        adj_indptr=starts,
        adj_shape=[graph.num_nodes] * 2,
        attr_data=one,
        attr_indices=numbers[:-1] % 3,
        attr_indptr=numbers,
        attr_shape=[graph.num_nodes, 3],
        labels=graph.nodes["y"],
    )
    return path


def test_every_grid_agrees_with_one_process():
    (case,) = run(cases=("exact",), exact_ranks=(1, 4)).cases
    assert list(case.candidates) == [
        "weft P = 1, 1d",
        "weft P = 4, 1d",
        "weft P = 4, 1.5d(c=2)",
        "weft P = 4, 2d",
    ]
    for candidate in case.candidates.values():
        assert set(candidate.figures) == {"loss", "gradients", "weights"}
        assert candidate.samples == [max(candidate.figures.values())]
        assert candidate.samples[0] <= 1e-10
    # Sums in another order are not the same to the last bit: something was compared.
    assert any(c.samples[0] > 0 for c in case.candidates.values())
    assert case.missed == []


def test_formulas_are_those_of_the_literature():
    (case,) = run(cases=("model",)).cases
    assert case.missed == []
    assert len(case.candidates) == 5
    for candidate in case.candidates.values():
        found, expected, apart = candidate.figures.values()
        assert apart == pytest.approx(100 * (found / expected - 1))
        assert abs(apart) <= 3


def test_bytes_are_recorded_as_predicted_and_less_than_published():
    graph = planted_partition(600, 4, mean_degree=8, homophily=0.97, num_features=2, seed=0)
    (case,) = bytes_cases(graph, (4,), QUIET, widths=(32, 32, 4))
    grids = ("1d", "1.5d(c=2)", "2d")
    methods = ("published", "reductions", "sparsity-aware")
    assert list(case.candidates) == [f"weft {g}: {m}" for g in grids for m in methods]
    base = case.candidates["weft 1d: published"]
    for candidate in case.candidates.values():
        assert len(candidate.samples) == 4
        figures = candidate.figures
        assert figures["predicted\nmean"] == figures["mean"]
        assert figures["predicted\nmost"] == figures["most"] == max(candidate.samples) / 1e6
        assert figures[LESS] == sum(base.samples) / sum(candidate.samples)
    # As published 32 + 32 and 32 + 4 features of each node travel; then 2 times 4.
    rows = 600 * 3
    weights = 4 * 2 * 3 * (32 * 32 + 32 + 32 * 4 + 4)
    loss = 4 * 2 * 3
    assert sum(base.samples) == rows * (64 + 36) * 4 + weights + loss
    reduced = case.candidates["weft 1d: reductions"]
    assert sum(reduced.samples) == rows * 8 * 4 + weights + loss
    for grid in grids:
        times = [case.candidates[f"weft {grid}: {method}"].figures[LESS] for method in methods]
        assert times == sorted(times)
    # The weights of so small a graph weigh too much for the bars.
    assert case.missed == [
        f"1d: reductions receives 1 / {reduced.figures[LESS]:.1f} of 1d: published, not 1 / 10.",
        f"1d: sparsity-aware receives 1 / "
        f"{case.candidates['weft 1d: sparsity-aware'].figures[LESS]:.1f} of 1d: published, "
        "not 1 / 40.",
    ]


def test_partitions_are_counted(tmp_path):
    graph = planted_partition(3000, 4, mean_degree=8, homophily=0.9, num_features=2, seed=0)
    file = shchur_file(tmp_path / "coauthor-physics.npz", graph)
    listed = tmp_path / "list.txt"
    listed.write_text("# src dst\n" + "".join(f"{k} {k * k % 97}\n" for k in range(97)))
    settings = {"data": file, "edge_list": listed, "volume_ranks": (4,)}
    for case in run(cases=("volume",), **settings).cases:
        plain, ours = (case.candidates[f"weft P = 4, {how}"] for how in ("metis", "volume"))
        assert ours.figures["rows"] <= plain.figures["rows"]
        assert ours.figures["of metis"] == ours.figures["rows"] / plain.figures["rows"]
        assert ours.figures["mean MB"] == pytest.approx(np.mean(ours.samples) / 1e6)


def test_speed_is_broken_down():
    result = run(cases=("speed",), nodes=400, degree=5.0, rounds=2, steps=1)
    (case,) = result.cases
    assert case.what.startswith("ms an epoch, 400 nodes")
    for name, candidate in case.candidates.items():
        assert len(candidate.samples) == 2
        figures = candidate.figures
        assert figures["fastest"] <= figures["epoch"] <= figures["slowest"]
        assert 0 < figures["compute"] <= figures["slowest"]
        assert (figures["waiting"] > 0) == (name == "weft, 2 ranks, 1 thread each")
    assert "1 / 2 = 0.500" in case.says[0]
    console = Console(width=80, record=True)
    print_result(result, console)
    said = console.export_text()
    assert "2 ranks, 1 thread each" in said
    assert "…" not in said


def test_scale_from_nothing_to_an_epoch(tmp_path):
    seconds, memory = run(
        cases=("scale",), scale_nodes=500, scale_edges=3000, scale_ranks=2, scratch=tmp_path
    ).cases
    assert list(tmp_path.iterdir()) == []
    stages = list(seconds.candidates)
    assert stages[:2] == ["weft generating", "weft features"]
    assert "weft partition: random, 2 blocks" in stages
    assert stages[-4:] == [
        "weft ranks: opening",
        "weft ranks: first product",
        "weft ranks: epoch",
        "weft ranks: of it communication",
    ]
    assert all(c.samples[0] > 0 for c in seconds.candidates.values())
    assert list(memory.candidates) == ["weft rank 0", "weft rank 1"]
    for candidate in memory.candidates.values():
        figures = candidate.figures
        assert figures["peak beyond"] == pytest.approx(figures["peak"] - figures["before"])
        assert figures["peak"] * 1e6 == candidate.samples[0]
        assert 0 < figures["own pages"] <= figures["peak"]
        # Half of 3500 edges, each 8 bytes here and 8 in the transpose, and the features.
        assert figures["predicted"] * 1e6 > 3000 / 2 * 16 + 250 * 32 * 4
    assert memory.missed == []
    assert "In all at most" in memory.says[0]


def test_physics_from_its_file_or_folder(tmp_path):
    graph = planted_partition(40, 2, mean_degree=4, homophily=0.9, num_features=2, seed=0)
    path = shchur_file(tmp_path / "coauthor-physics.npz", graph)
    for data in (path, tmp_path):
        found = physics_graph(data, None)
        assert (found.num_nodes, found.num_edges) == (40, graph.num_edges)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"neither coauthor-physics\.zip nor"):
        physics_graph(tmp_path / "empty", None)
    with pytest.raises(DataError, match="does not exist"):
        physics_graph(tmp_path / "nowhere", None)


def test_without_data_the_rest_is_measured(tmp_path):
    absent, model = run(cases=("bytes", "model"), data_dir=tmp_path).cases
    assert "name it with --files" in absent.candidates["weft"].absent
    assert model.missed == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cases": ()}, "cases are"),
        ({"cases": ("bits",)}, "choose from exact, bytes"),
        ({"exact_ranks": (0,)}, "exact_ranks are"),
        ({"bytes_ranks": (1, 4)}, "each at least 2"),
        ({"rounds": 0}, "rounds is 0"),
        ({"scale_widths": (3,)}, "give at least 2"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(ValueError, match=words):
        CommunicationBench(**settings)


def test_what_is_missed_is_in_the_file_and_printed(monkeypatch, tmp_path):
    monkeypatch.setattr("weft_lab.bench.communication._REDUCED", 1.0)
    result = run(cases=("model",))
    (missed,) = result.to_json()["cases"][0]["missed"]
    assert "not within 3 %" in missed
    assert math.isclose(result.cases[0].candidates["weft 1d: reductions"].figures["expected"], 1)
    console = Console(width=200, record=True)
    print_result(result, console)
    assert f"Missed: {missed}" in console.export_text()
