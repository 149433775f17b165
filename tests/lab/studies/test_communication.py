"""The study of communication on a small graph: real and simulated ranks, kept, resumed, told."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from weft.errors import DataError
from weft.parallel.grid import grid_of, grids_for
from weft.parallel.method import Method
from weft.sources import planted_partition
from weft_lab.grid_training import METHODS, GridRun, train_on_ranks
from weft_lab.report import print_report
from weft_lab.studies import COMMUNICATION, CommunicationStudy, quick
from weft_lab.studies.communication import CommunicationResults, NamedGraph, largest_difference
from weft_lab.study import write_markdown

TINY = CommunicationStudy(
    ranks=(1, 4, 9),
    real_ranks=4,
    simulated=3,
    widths=(8, 8, 3),
    timed_epochs=2,
    accuracy_ranks=(4, 9),
    epochs=12,
    hidden=(6,),
)


@pytest.fixture(scope="module")
def graph():
    return planted_partition(150, 3, mean_degree=6, homophily=0.9, num_features=5, seed=1)


def study(config, graph, folder, *, name="graph", **options) -> CommunicationResults:
    data = NamedGraph(name=name, graph=graph)
    return COMMUNICATION.run(config, data, folder, quiet=True, **options)


@pytest.fixture(scope="module")
def folder(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    about = {"cpu": "abacus", "cores": 2, "memory_gib": 1.0}
    study(TINY, graph, folder, name="little", machine=about)
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return CommunicationResults.load(folder, TINY)


def test_everything_is_in_the_file(folder, graph):
    found = json.loads((folder / "results.json").read_text())
    assert found["machine"]["cpu"] == "abacus"
    assert found["config"] == json.loads(json.dumps(asdict(TINY)))
    assert found["data"] == {"name": "little", "nodes": 150, "edges": graph.num_edges}
    grids = [grid for ranks in TINY.ranks for grid in grids_for(ranks)]
    assert len(found["cells"]) == len(grids) * len(METHODS)
    assert [run["grid"]["rows"] for run in found["accuracies"]] == [1, 4, 2, 2]


def test_ranks_record_what_is_predicted(results):
    for cell in results.cells:
        assert len(cell.predicted) == cell.ranks
        assert cell.real == (cell.ranks <= 4)
        assert list(cell.records) == ([0, 4, 8] if cell.ranks == 9 else list(range(cell.ranks)))
        assert cell.differing == []
        assert sum(cell.predicted) > 0 or cell.ranks == 1
        for record in cell.records.values():
            assert len(record.seconds) == (2 if cell.real else 1)
            assert all(value >= 0 for value in record.communication)


def test_methods_receive_less_and_less(results):
    cells = {(cell.grid, cell.method): cell.mean for cell in results.cells if cell.ranks > 1}
    for grid in {grid for grid, _ in cells}:
        published, reductions, rows = (cells[grid, method] for method in METHODS)
        assert published > reductions >= rows


def test_partitions_are_counted_as_ranks_receive(results):
    counted = {(cell.ranks, cell.how): cell for cell in results.partitions}
    assert len(counted) == 10
    for cell in results.cells:
        if cell.method == "sparsity-aware" and cell.grid.name == "1d" and cell.ranks > 1:
            assert counted[cell.ranks, "metis"].received == cell.predicted
    for ranks in (4, 9):
        rows = {how: cell.rows for (p, how), cell in counted.items() if p == ranks}
        assert rows["volume"] <= rows["metis"] < rows["random"]


def test_every_grid_learns_the_same(results):
    serial, *others = results.accuracies
    assert serial.label == "1 process"
    assert serial.losses[-1] < serial.losses[0]
    assert len(others) == 3
    for run in others:
        assert run.scores["test_accuracy"] == serial.scores["test_accuracy"]
        assert largest_difference(run, serial) < 1e-10


def test_times_add_up(results):
    for cell in results.cells:
        if cell.real:
            parts = cell.seconds("compute"), cell.seconds("communication")
            assert min(parts) >= 0
            assert (parts[1] > 0) == (cell.ranks > 1)
            assert cell.seconds("epoch") > 0


def test_the_report(results, tmp_path):
    volumes, kinds, partitions, times, accuracies = COMMUNICATION.report(results)
    assert [row[:2] for row in volumes.rows] == [
        ("4", "1d"),
        ("4", "1.5d(c=2)"),
        ("4", "2d"),
        ("9", "1d"),
        ("9", "1.5d(c=3)"),
        ("9", "2d"),
    ]
    # Of 12 real cells 3 are of one process: 3 + 9 * 4 ranks; of 9 simulated ones 3 ranks each.
    assert "all 39 real and 27 simulated ranks" in volumes.says[0]
    assert volumes.says[1].startswith("Least on 9 ranks: published on ")
    assert set(kinds.headings[2:]) >= {"all reduce", "all to all", "broadcast"}
    ways = ("contiguous", "random", "balanced", "metis", "volume")
    assert [row[:2] for row in partitions.rows] == [(p, how) for p in "49" for how in ways]
    assert "balanced is the most even (1.0" in partitions.says[0]
    assert len(times.rows) == 12
    assert "Accuracies are the same on every grid" in accuracies.says[0]
    narrow = Console(file=io.StringIO(), width=80)
    print_report([volumes, kinds, partitions, times, accuracies], narrow)
    assert "1.5d(c=3)" in narrow.file.getvalue()
    plots = COMMUNICATION.plot(results, tmp_path)
    assert [path.name for path in plots] == ["bytes.svg", "times.svg", "accuracy.svg"]
    assert all("<svg" in path.read_text() for path in plots)
    write_markdown(results, COMMUNICATION.report(results), tmp_path / "results.md", plots=plots)
    page = (tmp_path / "results.md").read_text()
    assert "its busiest rank" in page
    assert "](bytes.svg)" in page


def test_a_difference_is_told(results):
    cells = [
        replace(cell, predicted=[n + 1 for n in cell.predicted]) for cell in results.cells[-1:]
    ]
    said = COMMUNICATION.report(replace(results, cells=[*results.cells[:-1], *cells]))[0].says[0]
    assert "differ in 1 of 21 cases, first on 2d of 9 ranks, sparsity-aware, rank 0" in said


def test_what_is_measured_is_kept(folder, graph, tmp_path):
    before = json.loads((folder / "results.json").read_text())
    cut = {**before, "cells": [c for c in before["cells"] if len(c["predicted"]) < 9]}
    (tmp_path / "results.json").write_text(json.dumps(cut))
    with pytest.raises(DataError, match="--resume"):
        study(TINY, graph, tmp_path, name="little")
    study(TINY, graph, tmp_path, name="little", resume=True)
    after = json.loads((tmp_path / "results.json").read_text())
    assert after["accuracies"] == before["accuracies"]
    assert after["cells"][:12] == before["cells"][:12]
    assert [c["predicted"] for c in after["cells"]] == [c["predicted"] for c in before["cells"]]
    with pytest.raises(DataError, match="choose another folder"):
        study(TINY, graph, tmp_path, name="other", resume=True)
    with pytest.raises(DataError, match="epochs = 12, not 13"):
        CommunicationResults.load(tmp_path, replace(TINY, epochs=13))
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(DataError, match="not the file of a study of communication"):
        CommunicationResults.load(tmp_path, TINY)


def test_quick_keeps_what_was_given():
    small = quick(CommunicationStudy(epochs=7))
    assert (small.epochs, small.real_ranks, small.ranks[-1]) == (7, 4, 64)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ranks": ()}, r"ranks are \(\)"),
        ({"ranks": (0, 2)}, "each at least 1"),
        ({"real_ranks": 0}, "real_ranks is 0"),
        ({"widths": (3,)}, "at least 2 numbers"),
        ({"partition": "chance"}, "choose from contiguous"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(ValueError, match=words):
        CommunicationStudy(**settings)


def test_more_ranks_than_nodes(graph, tmp_path):
    with pytest.raises(ValueError, match="200 ranks for 150 nodes"):
        study(replace(TINY, ranks=(200,)), graph, tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_runs_start_together(tmp_path):
    runs = [
        GridRun(table=tmp_path, grid=grid_of("1d", ranks), method=Method(), hidden=())
        for ranks in (1, 2)
    ]
    with pytest.raises(ValueError, match="the same number"):
        train_on_ranks(runs)


def test_metis_without_its_package(graph, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(DataError, match=r"weft\[partition\]"):
        study(replace(TINY, ranks=(4,)), graph, tmp_path)
