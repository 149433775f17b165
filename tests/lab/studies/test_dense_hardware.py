"""The study of dense hardware on made-up programs: measured, kept, resumed and told."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace

import pytest
from rich.console import Console
from study_programs import small_program_table

from weft.errors import DataError
from weft_lab.report import print_report
from weft_lab.studies import DENSE_HARDWARE, DenseHardwareStudy, quick
from weft_lab.studies.dense_hardware import DenseResults
from weft_lab.study import write_markdown

TINY = DenseHardwareStudy(
    blocks=(32, 64),
    nodes=(500,),
    shares=(0.9,),
    hidden=4,
    steps=1,
    training_nodes=400,
    epochs=2,
    evaluations=3,
    iterations=2,
    types=(1, 2),
    form_blocks=(4,),
    densities=(0.1, 1.0),
    form_nodes=40,
    rounds=2,
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return small_program_table(tmp_path_factory.mktemp("programs"))


def run(config, table, folder, **options) -> DenseResults:
    return DENSE_HARDWARE.run(config, table, folder, quiet=True, **options)


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    run(TINY, table, folder, machine={"cpu": "abacus", "cores": 2, "memory_gib": 1.0})
    return folder


def test_everything_is_in_the_file(folder, table):
    found = json.loads((folder / "results.json").read_text())
    assert found["machine"]["cpu"] == "abacus"
    assert found["config"] == json.loads(json.dumps(asdict(TINY)))
    assert found["data"]["graphs"] == len(table)
    assert [figures["order"] for figures in found["orders"]] == [
        "random",
        "text",
        "degree",
        "metis",
        "rcm",
    ]
    assert [count["block"] for count in found["supergraphs"]] == [32, 64]
    assert len(found["cells"]) == 4
    assert all(len(cell["measured"]["auto"]) == 2 for cell in found["cells"])
    assert set(found["baselines"]) == {"random", "recent", "graphs"}
    for each in found["slices"]:
        assert each["skipped"] == {}
        assert {form: len(s) for form, s in each["iteration"].items()} == {"banded": 2, "csr": 2}
        assert each["iteration"].keys() == each["graphs_per_iteration"].keys()


def test_slices_see_as_many_graphs_and_steps(folder):
    results = DenseResults.load(folder, TINY)
    assert [each.by for each in results.slices] == ["all data", "bandwidth", "order"]
    whole = results.slices[0]
    for each in results.slices:
        assert len(each.curve) == 3
        seen, steps, accuracy = each.curve[-1]
        assert 2 * whole.graphs <= seen < 2 * whole.graphs + 20
        assert steps == pytest.approx(whole.curve[-1][1], rel=0.15)
        assert 0 <= accuracy <= 1
        assert each.seconds > 0
        assert each.milliseconds_a_graph("banded") > 0
    assert whole.milliseconds_a_graph("dense") is None


def test_same_seed_same_curve(folder, table, tmp_path):
    again = run(TINY, table, tmp_path)
    before = DenseResults.load(folder, TINY)
    assert [each.curve for each in again.slices] == [each.curve for each in before.slices]


def test_the_report_says_it_in_words(folder, tmp_path):
    results = DenseResults.load(folder, TINY)
    sections = DENSE_HARDWARE.report(results)
    assert all(len(row) == len(s.headings) for s in sections for row in s.rows)
    titles = [section.title for section in sections]
    assert [title.split()[0] for title in titles] == [
        "Bandwidth",
        "Programs",
        "Graphs",
        "Validation",
        "Cost",
        "Banded",
        "From",
    ]
    accuracy = sections[3]
    assert accuracy.rows[0][4].endswith("(78.9)")
    assert [row[1] for row in accuracy.rows[-2:]] == ["random candidate", "most recent use"]
    assert accuracy.rows[-1][4] == f"{results.baselines['recent']:.1%}"
    assert "standard error" in accuracy.says[0]
    assert sections[4].rows[0][-1] == "1.00 (18.6)"
    assert "cases; at worst" in sections[5].says[1]
    assert "Reverse Cuthill-McKee" in " ".join(sections[0].says)
    write_markdown(results, sections, tmp_path / "results.md")
    page = (tmp_path / "results.md").read_text()
    assert page.startswith("# Study of dense hardware")
    assert all(f"## {title}" in page for title in titles)
    console = Console(width=100, file=io.StringIO())
    print_report(sections, console)
    assert "most recent use" in console.file.getvalue()
    assert "…" not in console.file.getvalue()


def test_what_was_left_out_is_told(folder):
    results = DenseResults.load(folder, TINY)
    results.slices[0].skipped["banded"] = "too large"
    results.slices[0].iteration["banded"] = []
    results.slices[0].graphs_per_iteration["banded"] = []
    results.cells[0].skipped, results.cells[0].measured = "too many", {}
    sections = {s.title.split()[0]: s for s in DENSE_HARDWARE.report(results)}
    assert "all data: banded was not timed: too large." in sections["Cost"].says
    assert "Not measured" in sections["Banded"].says[-1]
    assert len(sections["From"].rows) == 1


def test_plots(folder, tmp_path):
    written = DENSE_HARDWARE.plot(DenseResults.load(folder, TINY), tmp_path)
    assert [path.name for path in written] == [
        "bandwidth.svg",
        "supergraphs.svg",
        "accuracy.svg",
        "crossover.svg",
        "spy.png",
    ]
    assert all(path.read_bytes().lstrip().startswith(b"<?xml") for path in written[:4])
    assert written[4].read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_study_goes_on(table, tmp_path, monkeypatch):
    from weft_lab.studies import dense_hardware

    trained = []
    train_slice = dense_hardware.train_slice

    def interrupted(slice_, *arguments, **options):
        trained.append(slice_.name)
        if len(trained) == 2:
            raise KeyboardInterrupt
        train_slice(slice_, *arguments, **options)

    monkeypatch.setattr(dense_hardware, "train_slice", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(TINY, table, tmp_path)
    before = json.loads((tmp_path / "results.json").read_text())
    assert [bool(each["curve"]) for each in before["slices"]] == [True, False, False]
    with pytest.raises(DataError, match="holds a study already"):
        run(TINY, table, tmp_path)
    monkeypatch.setattr(dense_hardware, "time_forms", None)
    monkeypatch.setattr(dense_hardware, "time_iterations", None)
    after = run(TINY, table, tmp_path, resume=True)
    assert len(trained) == 4
    assert after.created == before["created"]
    assert [list(point) for point in after.slices[0].curve] == before["slices"][0]["curve"]
    assert all(each.curve for each in after.slices)


def test_iterations_go_on_where_they_were(table, tmp_path, monkeypatch):
    config = replace(TINY, epochs=0)
    first = run(config, table, tmp_path)
    kept = {form: samples[:1] for form, samples in first.slices[0].iteration.items()}
    for each in first.slices:
        for values in (each.iteration, each.graphs_per_iteration):
            for form in values:
                del values[form][1:]
    first.save()
    again = run(config, table, tmp_path, resume=True)
    assert {form: s[:1] for form, s in again.slices[0].iteration.items()} == kept
    assert all(len(s) == 2 for each in again.slices for s in each.iteration.values())
    assert "Validation" not in " ".join(s.title for s in DENSE_HARDWARE.report(again))


def test_another_study_is_not_gone_on_with(folder, table, tmp_path):
    with pytest.raises(DataError, match="rounds = 2, not 7"):
        run(replace(TINY, rounds=7), table, folder, resume=True)
    with pytest.raises(DataError, match="holds a study of"):
        run(TINY, table.select(range(30)), folder, resume=True)
    (tmp_path / "results.json").write_text('{"schema": "weft study batching 1"}')
    with pytest.raises(DataError, match="not the file of a study of dense hardware"):
        run(TINY, table, tmp_path, resume=True)


def test_programs_of_one_file_leave_nothing_behind(table, tmp_path):
    one = table.select([i for i, file in enumerate(table.column("file")) if file == 0])
    with pytest.raises(DataError, match="file"):
        run(TINY, one, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("blocks", ()),
        ("form_blocks", (0,)),
        ("shares", (1.5,)),
        ("densities", (0.0,)),
        ("graphs", 1),
        ("epochs", -1),
        ("rounds", 0),
        ("hidden", 1),
        ("steps", 0),
    ],
)
def test_settings_that_cannot_be(name, value):
    with pytest.raises(ValueError, match=name):
        DenseHardwareStudy(**{name: value})


def test_quick_keeps_what_was_given():
    assert quick(DenseHardwareStudy()).graphs == 2500
    found = quick(DenseHardwareStudy(epochs=7))
    assert (found.epochs, found.graphs) == (7, 2500)
