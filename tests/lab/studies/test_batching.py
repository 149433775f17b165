"""The batching study on made-up molecules: everything measured, kept, resumed and told."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from small_molecules import molecule_table

from weft.errors import DataError
from weft.graphs import Column, table_from_columns
from weft_lab.report import print_report
from weft_lab.studies import (
    BATCHING,
    BatchingStudy,
    batching_report,
    crystals,
    molecules,
    quick,
    study_batching,
)
from weft_lab.studies.batching import BatchingResults, CellTimer
from weft_lab.study import write_markdown

TINY = BatchingStudy(
    models=("schnet",),
    batch_sizes=(4,),
    policies=("dynamic", "static-64", "unpadded"),
    structures=24,
    hidden=4,
    rounds=2,
    steps=3,
    planned_steps=20,
    repeats=2,
    repeat_batch_size=8,
    repeat_structures=20,
    repeat_epochs=1,
)


@pytest.fixture(scope="module")
def data():
    return [molecules(molecule_table(30))]


def run(config, data, folder, **options) -> BatchingResults:
    return study_batching(config, data, folder, quiet=True, **options)


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    run(TINY, data, folder, machine={"cpu": "abacus", "cores": 2, "memory_gib": 1.0})
    return folder


def test_every_cell_has_its_samples(folder):
    found = json.loads((folder / "results.json").read_text())
    assert [cell["cell"]["policy"] for cell in found["cells"]] == list(TINY.policies)
    for cell in found["cells"]:
        assert cell["rounds"] == 2
        assert len(cell["batching"]) == len(cell["update"]) == len(cell["graphs"]) == 6
        assert min(cell["batching"] + cell["update"]) > 0
        combined = np.add(cell["batching"], cell["update"])
        summary = cell["summary"]
        assert summary["combined_mean_ms"] == pytest.approx(1e3 * combined.mean())
        assert summary["combined_median_ms"] == pytest.approx(1e3 * np.median(combined))
        rate = 1 / np.median(combined / np.array(cell["graphs"]))
        assert summary["graphs_per_second"] == pytest.approx(rate)
        assert cell["compilation"]["compilations"] == 0
    unpadded = found["cells"][2]
    assert unpadded["graphs"] == [4] * 6
    assert unpadded["epoch"]["node_fill"] == 1.0


def test_the_file_tells_where_and_how(folder):
    found = json.loads((folder / "results.json").read_text())
    assert found["machine"]["cpu"] == "abacus"
    assert set(found["versions"]) == {"weft", "torch", "numpy", "python"}
    assert found["config"] == json.loads(json.dumps(asdict(TINY)))
    assert found["data"] == {"qm9": {"structures": 30, "target": "u0", "unit": ""}}
    assert found["shapes"]["qm9"][0]["budget"][2] == 4
    assert {policy: len(values) for policy, values in found["errors"]["qm9"].items()} == {
        "dynamic": 2,
        "static-64": 2,
        "unpadded": 2,
    }
    assert len(found["comparisons"]["qm9"]) == 3
    assert all(c["corrected"] >= c["p"] for c in found["comparisons"]["qm9"])


def test_the_report_says_it_in_words(folder, tmp_path):
    results = BatchingResults.load(folder, TINY)
    sections = batching_report(results)
    titles = [section.title for section in sections]
    assert titles[0].startswith("Shapes and fill of qm9")
    assert titles[1] == "schnet on qm9: a training step, times in ms"
    assert titles[-1] == "Do the errors on qm9 differ? Welch's t-tests, corrected by Holm"
    assert all(len(row) == len(s.headings) for s in sections for row in s.rows)
    (sentence,) = sections[1].says
    best = max(results.cells, key=lambda cell: cell.graphs_per_second).cell.policy
    assert sentence.startswith(f"schnet on qm9, B = 4, eager: {best} is fastest")
    assert "Of 3 comparisons" in sections[-1].says[0]
    write_markdown(results, sections, tmp_path / "results.md", plots=[Path("time.svg")])
    page = (tmp_path / "results.md").read_text()
    assert "abacus" in page
    assert "![time](time.svg)" in page
    assert all(f"## {title}" in page for title in titles)
    console = Console(width=80, file=io.StringIO())
    print_report(sections, console)
    assert "static-64" in console.file.getvalue()
    assert "…" not in console.file.getvalue()


def test_plots(folder, tmp_path):
    written = BATCHING.plot(BatchingResults.load(folder, TINY), tmp_path)
    assert [path.name for path in written] == ["time.svg", "fill.svg", "error.svg"]
    assert all(path.read_bytes().lstrip().startswith(b"<?xml") for path in written)


def test_published_figures_stand_beside_their_own_kind(folder):
    results = BatchingResults.load(folder, TINY)
    count = results.shapes["qm9"][1]
    assert count.policy == "static-64"
    published = replace(count, batch_size=16, steps=100_000)
    fewer = replace(published, steps=20)
    results.shapes["qm9"] = [published, fewer]
    rows = batching_report(results)[0].rows
    assert rows[0][7].endswith("(60)")
    assert "(" not in rows[1][7]


def test_compiling_is_paid_for_every_shape_of_an_epoch(folder):
    results = BatchingResults.load(folder, TINY)
    eager = results.cells[1]
    assert eager.cell.policy == "static-64"
    account = {"compilations": 2, "recompiles": 1, "compile_seconds": 10.0}
    compiled = replace(
        eager,
        cell=replace(eager.cell, mode="static"),
        update=[seconds / 2 for seconds in eager.update],
        epoch={**eager.epoch, "distinct_shapes": 6},
        compilation=account,
    )
    results.cells.append(compiled)
    section = next(s for s in batching_report(results) if s.title.startswith("Does compiling"))
    (row,) = section.rows
    assert row[:5] == ("qm9/schnet/4", "static-64", "static", "6", "30.0")
    assert "2 of 2 rounds" in section.says[0]


def test_an_interrupted_study_goes_on(data, tmp_path, monkeypatch):
    turns = []
    turn = CellTimer.turn

    def interrupted_turn(timer: CellTimer, steps: int) -> None:
        turns.append(str(timer.timings.cell))
        if len(turns) == 5:  # in the second of two rounds of three cells
            raise KeyboardInterrupt
        turn(timer, steps)

    monkeypatch.setattr(CellTimer, "turn", interrupted_turn)
    with pytest.raises(KeyboardInterrupt):
        run(TINY, data, tmp_path)
    before = json.loads((tmp_path / "results.json").read_text())
    assert [cell["rounds"] for cell in before["cells"]] == [1, 1, 1]
    assert before["errors"] == {}
    with pytest.raises(DataError, match="holds a study already"):
        run(TINY, data, tmp_path)
    after = run(TINY, data, tmp_path, resume=True)
    assert len(turns) == 5 + 3
    for old, new in zip(before["cells"], after.cells, strict=True):
        assert new.rounds == 2
        assert new.update[:3] == old["update"]
        assert len(new.update) == 6
    assert after.created == before["created"]


def test_trainings_already_done_are_kept(folder, data, monkeypatch):
    monkeypatch.setattr("weft_lab.studies.batching.train_structures", None)
    monkeypatch.setattr(CellTimer, "turn", None)
    before = (folder / "results.json").read_text()
    run(TINY, data, folder, resume=True)
    assert (folder / "results.json").read_text() == before


def test_same_seed_same_error(data, folder, tmp_path):
    config = replace(TINY, policies=("dynamic",), rounds=1, steps=1)
    again = run(config, data, tmp_path)
    assert (
        again.errors["qm9"]["dynamic"]
        == BatchingResults.load(folder, TINY).errors["qm9"]["dynamic"]
    )


def test_compiled_cells(data, tmp_path):
    config = replace(
        TINY,
        policies=("dynamic", "unpadded"),
        compile=("eager", "static"),
        max_compilations=2,
        rounds=1,
        repeats=0,
    )
    results = run(config, data, tmp_path, backend="aot_eager")
    by_cell = {str(t.cell): t for t in results.cells}
    compiled = by_cell["qm9/schnet/4/dynamic/static"]
    assert compiled.compilation["compilations"] == 1
    assert compiled.compilation["compile_seconds"] > 0
    assert len(compiled.graphs) == 3
    left_out = by_cell["qm9/schnet/4/unpadded/static"]
    assert left_out.graphs == []
    assert "shapes would be compiled, max_compilations is 2" in left_out.skipped
    says = [sentence for section in batching_report(results) for sentence in section.says]
    verdict = next(s for s in says if s.startswith("qm9/schnet/4/dynamic/static: "))
    assert "compile: " in verdict
    assert any("qm9/schnet/4/unpadded/static was not measured" in s for s in says)


def test_all_models_and_crystals_without_a_target(tmp_path):
    molecules_only = molecule_table(12)
    cells = np.tile(6 * np.eye(3), (12, 1, 1))
    u0 = molecules_only.columns["u0"].copy()
    u0[3] = np.nan
    table = table_from_columns(
        {
            "z": molecules_only.schema["z"],
            "pos": molecules_only.schema["pos"],
            "cell": Column(level="graph", dtype="float64", shape=(3, 3)),
            "pbc": Column(level="graph", dtype="bool", shape=(3,)),
            "energy": Column(level="graph", dtype="float64", missing=True),
        },
        num_nodes=molecules_only.num_nodes,
        columns={
            "z": molecules_only.columns["z"],
            "pos": molecules_only.columns["pos"],
            "cell": cells,
            "pbc": np.ones((12, 3), dtype=bool),
            "energy": u0,
        },
    )
    config = replace(
        TINY, models=("schnet", "mpeu", "painn"), policies=("packed",), rounds=1, steps=1, repeats=0
    )
    results = run(config, [crystals(table, target="energy")], tmp_path)
    assert [t.cell.model for t in results.cells] == ["schnet", "mpeu", "painn"]
    assert all(t.epoch["graphs"] == 11 and t.rounds == 1 for t in results.cells)
    assert results.shapes == {}


def test_another_study_is_not_gone_on_with(folder, data):
    with pytest.raises(DataError, match=r"rounds = 2, not 7; resume it with the same settings"):
        run(replace(TINY, rounds=7), data, folder, resume=True)
    with pytest.raises(DataError, match="holds a study of qm9, not of other"):
        run(TINY, [molecules(data[0].table, name="other")], folder, resume=True)


def test_a_file_that_is_none(data, tmp_path):
    (tmp_path / "results.json").write_text('{"schema": "something else"}')
    with pytest.raises(DataError, match="not the file of a batching study"):
        run(TINY, data, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("models", ("gcn",)),
        ("policies", ()),
        ("compile", ("always",)),
        ("batch_sizes", (1,)),
        ("rounds", 0),
        ("repeats", -1),
        ("hidden", 1),
    ],
)
def test_settings_that_cannot_be(name, value):
    with pytest.raises(ValueError, match=name):
        BatchingStudy(**{name: value})


def test_quick_keeps_what_was_given():
    assert quick(BatchingStudy()).models == ("schnet",)
    found = quick(BatchingStudy(models=("painn",), rounds=3))
    assert (found.models, found.rounds) == (("painn",), 3)
    assert found.batch_sizes == (32, 128)
