"""The study of sparsification in small: trained, timed, kept, resumed, told."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from weft.errors import DataError
from weft.sparsify import slr_training_share, sparse_training_share
from weft_lab.report import print_report
from weft_lab.studies import SPARSIFICATION, SparsificationStudy, quick
from weft_lab.studies.sparsification import (
    FORMS,
    SparsificationData,
    SparsificationResults,
    TimeCell,
    faster_from,
    generated_edges,
    generated_nodes,
)
from weft_lab.study import write_markdown
from weft_lab.study_settings import Network

TINY = SparsificationStudy(
    sparsities=(0.5,),
    curve_sparsity=0.75,
    epochs=4,
    nodes_epochs=4,
    gcn_epochs=6,
    repeats=2,
    edges=400,
    nodes=80,
    networks=("6-8-3x4", "12-16-16-4x8"),
    time_sparsities=(0.5, 0.75),
    rounds=2,
)


@pytest.fixture(scope="module")
def data():
    return SparsificationData(
        links_name="stream",
        edges=generated_edges(TINY),
        nodes_name="planted",
        graph=generated_nodes(TINY),
    )


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    about = {"cpu": "abacus", "cores": 2, "memory_gib": 1.0}
    SPARSIFICATION.run(TINY, data, folder, machine=about, quiet=True)
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return SparsificationResults.load(folder, TINY)


def test_everything_is_in_the_file(folder, data):
    found = json.loads((folder / "results.json").read_text())
    assert found["machine"]["cpu"] == "abacus"
    assert found["config"] == json.loads(json.dumps(asdict(TINY)))
    assert found["data"]["links"] == {"name": "stream", "nodes": 80, "edges": 400}
    # Dense, and three ways at two sparsities, on dense input; two ways on sparse input, which the
    # GCN does not have; two seeds.
    assert len(found["runs"]) == 2 * (3 * 7 + 2 * 5)
    assert len(found["cells"]) == 2 * 2 * 2


def test_weights_are_as_many_as_asked(results):
    for run in results.runs:
        kept = run.active / run.weights
        assert kept == pytest.approx(1 - run.kind.sparsity, abs=2 / run.weights)
        assert 0 <= run.score <= 1
        assert len(run.curve) == (6 if run.kind.task == "gcn" else 4)
        assert run.seconds > 0


def test_flops_are_those_of_the_formulas(results):
    widths = {"links": (16, 128, 1), "nodes": (64, 256, 128, 10)}
    for run in results.runs:
        if run.kind.task == "gcn" or run.kind.embedding == "sparse":
            continue
        of = widths[run.kind.task]
        sparsity = 1 - run.active / run.weights
        assert run.inference_flops == pytest.approx(1 - sparsity)
        if run.kind.way in ("slr", "oneshot"):
            share = slr_training_share(of, sparsity, phases=(2, 1, 1))
            assert run.training_flops == pytest.approx(share)
        elif run.kind.way == "rigl":
            # And RigL's dense gradients, which the paper leaves out.
            assert run.training_flops > sparse_training_share(of, sparsity)
        else:
            assert run.training_flops == pytest.approx(1)


def test_sparse_inputs_need_less(results):
    assert results.densities["gcn"] == 1
    assert 0.1 < results.densities["links"] < 0.6
    by_kind = {run.kind: run for run in results.runs}
    pairs = [
        (run, by_kind[replace(kind, embedding="dense")])
        for kind, run in by_kind.items()
        if kind.embedding == "sparse"
    ]
    assert len(pairs) == 20
    assert all(a.training_flops < b.training_flops for a, b in pairs)
    dense = next(a for a, _ in pairs if (a.kind.task, a.kind.way) == ("links", "dense"))
    first = 16 / 17
    assert dense.training_flops == pytest.approx(first * results.densities["links"] + 1 - first)


def test_times(results):
    for cell in results.cells:
        assert tuple(cell.measured) == FORMS[cell.mode]
        assert all(len(turns) == 2 and min(turns) > 0 for turns in cell.measured.values())
        assert cell.flops == pytest.approx(1 / (1 - cell.sparsity), rel=0.1)
        assert 0 <= cell.chosen <= cell.layers == len(Network.read(cell.network).widths) - 1


def cell(sparsity, sparse):
    return TimeCell(
        network="2-2x1",
        sparsity=sparsity,
        mode="training",
        measured={"dense": [1.0, 1.0], "sparse": [sparse, sparse]},
    )


def test_crossover():
    rise = [cell(0.5, 2.0), cell(0.9, 0.5)]
    # As much slower before as faster after: halfway between the logarithms of the densities.
    assert faster_from(rise, "sparse") == pytest.approx(1 - math.sqrt(0.5 * 0.1))
    assert faster_from(rise[::-1], "sparse") == faster_from(rise, "sparse")
    assert faster_from([cell(0.5, 2.0)], "sparse") == "never"
    assert faster_from([cell(0.5, 0.9), cell(0.9, 0.5)], "sparse") == "always"


def test_the_report(results, tmp_path):
    sections = SPARSIFICATION.report(results)
    titles = [section.title for section in sections]
    assert len(titles) == 3 * 3 + 1 + 2 * 2
    scores, costs, epochs = sections[:3]
    assert [row[0] for row in scores.rows] == ["0 (dense)", "0.5", "0.75"]
    assert "±" in scores.rows[0][1]
    assert "At 0.75, points from dense on the same input: pruned once " in scores.says[0]
    assert {"training FLOPs / dense", "training time / dense, masks"} < set(costs.headings)
    assert "save nothing" in costs.says[0]
    assert [row[0] for row in epochs.rows] == ["1", "2", "3", "4"]
    (table,) = (section for section in sections if "Table II" in section.title)
    assert table.rows[0] == (
        *("ia-email", "0.77344", "0.773", "0.05554", "0.056"),
        *("0.09375", "0.094", "0.00673", "0.0067"),
    )
    assert table.says[0].startswith("16 of 16 entries agree")
    training = sections[-4]
    assert {"FLOPs, times less", "sparse, times faster", "masks ms"} < set(training.headings)
    assert training.says[0].startswith("Faster than dense: masks ")
    narrow = Console(file=io.StringIO(), width=80)
    print_report(sections, narrow)
    assert "FNN 12-16-16-4, batch 8" in narrow.file.getvalue()
    plots = SPARSIFICATION.plot(results, tmp_path)
    assert [path.name for path in plots] == [
        *("accuracy.svg", "epochs.svg"),
        *("times-training.svg", "times-inference.svg"),
    ]
    assert all("<svg" in path.read_text() for path in plots)
    write_markdown(results, sections, tmp_path / "results.md", plots=plots)
    assert "](times-training.svg)" in (tmp_path / "results.md").read_text()


def test_a_busy_machine_is_told(results):
    for factor, told in ((1.2, False), (3.0, True)):
        cells = [
            replace(cell, measured={form: [1.0, factor] for form in cell.measured})
            for cell in results.cells
        ]
        says = SPARSIFICATION.report(replace(results, cells=cells))[-1].says
        assert any("3.0 times as long in another turn" in each for each in says) == told


def test_what_is_measured_is_kept(folder, data, tmp_path):
    before = json.loads((folder / "results.json").read_text())
    cut = {**before, "runs": before["runs"][:-1], "cells": before["cells"][:-1]}
    (tmp_path / "results.json").write_text(json.dumps(cut))
    with pytest.raises(DataError, match="--resume"):
        SPARSIFICATION.run(TINY, data, tmp_path, quiet=True)
    SPARSIFICATION.run(TINY, data, tmp_path, resume=True, quiet=True)
    after = json.loads((tmp_path / "results.json").read_text())
    assert after["runs"][:-1] == before["runs"][:-1]
    assert after["cells"][:-1] == before["cells"][:-1]
    assert len(after["cells"]) == len(before["cells"])
    # The same seed trains the same model.
    assert after["runs"][-1]["curve"] == before["runs"][-1]["curve"]
    assert after["runs"][-1]["score"] == before["runs"][-1]["score"]
    other = replace(data, links_name="other")
    with pytest.raises(DataError, match="choose another folder"):
        SPARSIFICATION.run(TINY, other, tmp_path, resume=True, quiet=True)
    with pytest.raises(DataError, match="epochs = 4, not 5"):
        SparsificationResults.load(tmp_path, replace(TINY, epochs=5))
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(DataError, match="not the file of a study of sparsification"):
        SparsificationResults.load(tmp_path, TINY)


def test_quick_keeps_what_was_given():
    small = quick(SparsificationStudy(epochs=7))
    assert (small.epochs, small.repeats, small.rounds) == (7, 3, 5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tasks": ("edges",)}, "'edges' is none of links, nodes, gcn"),
        ({"sparsities": (0.5, 1.0)}, "each is above 0 and below 1"),
        ({"time_sparsities": (-0.5,)}, "each is above 0 and below 1"),
        ({"curve_sparsity": 1.0}, "curve_sparsity is 1.0"),
        ({"links_keep": 0.0}, "links_keep is 0.0"),
        ({"epochs": 3}, "epochs is 3; it must be at least 4"),
        ({"networks": ("64-256",)}, "'64-256' is not of the form"),
        ({"networks": ("64x512",)}, "'64x512' is not of the form"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(ValueError, match=words):
        SparsificationStudy(**settings)
