"""`weft study`: settings, user errors, and tiny studies from the command to files and one page.

Every study is run once, for all tests that look at what it leaves.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from command_fixtures import Said, is_one_sentence, papers
from small_molecules import molecule_table

from weft.cli import main
from weft.cli.main import parse
from weft.graphs import write_table
from weft.sources import temporal
from weft.training.launch import LaunchStopped
from weft_lab.commands import study

TINY = {
    "batching": [
        *("--models", "schnet", "--batch-sizes", "4", "--policies", "dynamic", "unpadded"),
        *("--structures", "20", "--hidden", "4", "--rounds", "1", "--steps", "1"),
        *("--planned-steps", "10", "--repeats", "2", "--repeat-batch-size", "8"),
        *("--repeat-structures", "16", "--repeat-epochs", "1", "--quiet"),
    ],
    "dense-hardware": [
        *("--blocks", "16", "--nodes", "300", "--shares", "0.9", "--hidden", "4", "--steps", "1"),
        *("--training-nodes", "300", "--epochs", "1", "--evaluations", "1", "--iterations", "1"),
        *("--types", "1", "--form-blocks", "4", "--densities", "0.1", "1.0", "--form-nodes", "30"),
        *("--rounds", "1", "--quiet"),
    ],
    "communication": [
        *("--ranks", "2", "4", "--real-ranks", "2", "--simulated", "2", "--widths", "4", "4", "2"),
        *("--timed-epochs", "1", "--accuracy-ranks", "2", "--epochs", "3", "--hidden", "4"),
        *("--nodes", "100", "--quiet"),
    ],
    "sparsification": [
        *("--sparsities", "0.75", "--curve-sparsity", "0.75", "--epochs", "4"),
        *("--nodes-epochs", "4", "--gcn-epochs", "4", "--repeats", "1", "--edges", "300"),
        *("--nodes", "60", "--networks", "6-8-3x4", "--time-sparsities", "0.9"),
        *("--rounds", "1", "--quiet"),
    ],
}
DATA = {
    "batching": [],
    "dense-hardware": ["--data", "project"],
    "communication": ["--data", "cora"],
    "sparsification": ["--links", "edges.txt", "--classes", "cora"],
}
PHRASES = {
    "batching": ("is fastest", "Welch"),
    "dense-hardware": ("most recent use", "auto is within 10%"),
    "communication": (
        "cora: 300 nodes",
        "Recorded bytes equal the predicted ones",
        "Accuracies are the same on every grid",
    ),
    "sparsification": (
        *("edges.txt: ", "cora: 300 nodes"),
        *("16 of 16 entries agree", "Faster than dense: "),
    ),
}
PLOTS = {
    "batching": {"time.svg", "fill.svg", "error.svg"},
    "dense-hardware": {
        *("bandwidth.svg", "supergraphs.svg", "accuracy.svg", "crossover.svg", "spy.png"),
    },
    "communication": {"bytes.svg", "times.svg", "accuracy.svg"},
    "sparsification": {
        *("accuracy.svg", "epochs.svg", "times-training.svg", "times-inference.svg"),
    },
}
MODULE = """
def grow(values, start):
    result = start
    for value in values:
        result = result + value * {number}
    return result


def shrink(values, start):
    least = start
    for value in values:
        if value < least:
            least = value - start
    return least
"""


def write_project(folder: Path) -> Path:
    folder.mkdir()
    for number in range(8):
        (folder / f"module_{number}.py").write_text(MODULE.format(number=number))
    return folder


class Place:
    """A folder with the data of all studies, and the commands that are run in it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, patch
        write_project(folder / "project")
        edges = temporal(50, 300, seed=1)
        lines = zip(edges.senders, edges.receivers, edges.time, strict=True)
        (folder / "edges.txt").write_text("".join(f"{a} {b} {t:.3f}\n" for a, b, t in lines))
        (folder / "data").mkdir()
        write_table(folder / "data" / "cora.weft", [papers()])
        write_table(folder / "data" / "qm9.weft", [molecule_table(24)])
        patch.setenv("WEFT_DATA_DIR", str(folder / "data"))
        patch.setenv("COLUMNS", "200")
        patch.chdir(folder)

    def run(self, *words: str) -> Said:
        self._patch.setattr("sys.argv", ["weft", *words])
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(list(words))
        return Said(code, out.getvalue(), err.getvalue())

    def error(self, *words: str) -> str:
        said = self.run(*words)
        assert is_one_sentence(said), said
        return said.err

    def results(self, name: str) -> dict:
        return json.loads((self.folder / "studies" / name / "results.json").read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield Place(tmp_path_factory.mktemp("place"), patch)


@pytest.fixture(scope="module")
def said(place):
    """What each study said when it was run, by its name."""
    return {name: place.run("study", name, *TINY[name], *DATA[name]) for name in TINY}


@pytest.mark.parametrize("name", TINY)
def test_from_the_command_to_the_files(place, said, name):
    assert said[name].code == 0, said[name]
    assert all(phrase in said[name].out for phrase in PHRASES[name])
    folder = place.folder / "studies" / name
    files = {"results.json", "results.md", *PLOTS[name]}
    assert {path.name for path in folder.iterdir()} == files
    before = place.results(name)
    assert before["machine"]["cores"] >= 1
    assert before["command"].startswith(f"weft study {name} {TINY[name][0]} {TINY[name][1]}")
    page = (folder / "results.md").read_text()
    assert before["command"] in page
    assert all(plot in page for plot in PLOTS[name])
    words = ("study", name, *TINY[name], *DATA[name])
    assert "resume it (--resume)" in place.error(*words)
    assert place.run(*words, "--resume").code == 0
    assert place.results(name) == before
    if name == "dense-hardware":
        assert before["data"]["files"] == 8


@pytest.fixture
def tiny(monkeypatch):
    """`weft study all` with settings of a test."""

    def small(name):
        command = parse("study", [name, *TINY[name], *DATA[name]])
        return lambda **options: replace(command, **{**options, "quick": False})

    monkeypatch.setattr(study, "_EACH", {name: small(name) for name in study._EACH})


def test_four_studies_on_one_page(place, said, tiny):
    assert "resume it (--resume)" in place.error("study", "all", "--quick", "--quiet")
    before = {name: place.results(name) for name in TINY}
    told = place.run("study", "all", "--quick", "--quiet", "--resume")
    assert told.code == 0, told
    page = (place.folder / "studies" / "four-papers.html").read_text()
    assert str(place.folder / "studies" / "four-papers.html").endswith(told.out.split()[-1])
    for author in ("Balog", "Tripathy", "Peng", "Speckhard"):
        assert author in page
    for name in TINY:
        assert f"weft study {name} --quick" in page
    assert "16 of 16 entries equal to every printed digit" in page
    assert "bytes received equal the formulas" in page
    assert "RigL against SLR: AUC of links" in page
    assert "pairs of policies differ" in page
    assert {name: place.results(name) for name in TINY} == before


def test_a_study_without_its_data_leaves_the_others(weft, tmp_path, tiny, monkeypatch):
    generated = parse("study", ["sparsification", *TINY["sparsification"]])
    some = {
        "dense-hardware": study._EACH["dense-hardware"],
        "sparsification": lambda **options: replace(generated, **{**options, "quick": False}),
    }
    monkeypatch.setattr(study, "_EACH", some)
    told = weft("study", "all", "--quick", "--quiet")
    assert told.code == 2
    assert "--data project does not exist" in told.out
    assert (tmp_path / "studies" / "sparsification" / "results.json").exists()
    page = (tmp_path / "studies" / "four-papers.html").read_text()
    assert "weft study dense-hardware could not be made" in page
    assert "Peng" in page


@pytest.mark.parametrize(
    ("name", "given", "whole", "small"),
    [
        (
            "batching",
            ("--rounds", 3),
            {"batch_sizes": [16, 32, 64, 128]},
            {"batch_sizes": [32, 128], "rounds": 3},
        ),
        (
            "dense-hardware",
            ("--rounds", 3),
            {"graphs": None, "types": [1, 20]},
            {"graphs": 2500, "rounds": 3},
        ),
        (
            "communication",
            ("--epochs", 3),
            {"ranks": [1, 2, 4, 8, 9, 16, 27, 36, 64], "real_ranks": 16},
            {"real_ranks": 4, "epochs": 3},
        ),
        (
            "sparsification",
            ("--epochs", 5),
            {"epochs": 40},
            {"sparsities": [0.5, 0.75, 0.906, 0.969], "epochs": 5},
        ),
    ],
)
def test_print_config(weft, tmp_path, name, given, whole, small):
    printed = json.loads(weft("study", name, "--print-config").out)
    assert printed.items() >= whole.items()
    if name == "sparsification":
        assert len(printed["sparsities"]) == 10
    printed = json.loads(weft("study", name, "--quick", *given, "--print-config").out)
    assert printed.items() >= small.items()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "stopped"),
    [
        ("batching", "batching.CellTimer.turn"),
        ("dense-hardware", "dense_hardware.train_slice"),
        ("communication", "communication.train_on_ranks"),
        ("sparsification", "sparsification.train_kind"),
    ],
)
def test_ctrl_c_tells_how_to_go_on(weft, tmp_path, small_qm9, monkeypatch, name, stopped):
    def interrupted(*_: object, **__: object) -> None:
        raise LaunchStopped("SIGINT") if name == "communication" else KeyboardInterrupt

    monkeypatch.setattr(f"weft_lab.studies.{stopped}", interrupted)
    words = [*TINY[name]]
    if name == "dense-hardware":
        words += ["--data", str(write_project(tmp_path / "project"))]
    said = weft("study", name, *words)
    assert said.code == 130
    assert f"weft study {name} {' '.join(words)} --resume" in said.out
    assert (tmp_path / "studies" / name / "results.json").exists()


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("option", ["--out", "--folder"])
def test_a_file_where_a_folder_should_be(mistake, tmp_path, name, option):
    (tmp_path / "taken").write_text("")
    assert "taken is a file" in mistake("study", name, *TINY[name], option, "taken")


def test_user_errors_of_batching(mistake, tmp_path, small_qm9):
    words = ("study", "batching", *TINY["batching"])
    said = mistake(*words, "--crystals", "nowhere.jsonl")
    assert "--crystals nowhere.jsonl does not exist" in said
    assert "rounds is 0" in mistake("study", "batching", "--rounds", 0)


def test_user_errors_of_dense_hardware(mistake, tmp_path):
    words = ("study", "dense-hardware", *TINY["dense-hardware"])
    assert "--data nowhere does not exist" in mistake(*words, "--data", "nowhere")
    assert "rounds is 0" in mistake("study", "dense-hardware", "--rounds", 0)
    (tmp_path / "empty").mkdir()
    assert "no .py files" in mistake(*words, "--data", "empty")
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "one.py").write_text(MODULE.format(number=1))
    mistake(*words, "--data", lone)
    assert not (tmp_path / "studies").exists()


def test_user_errors_of_communication(mistake, tmp_path):
    words = ("study", "communication", *TINY["communication"])
    assert "nowhere is neither a file nor a graph" in mistake(*words, "--data", "nowhere")
    assert "name it with --data" in mistake(*words, "--files", "some.zip")
    assert "qm9 is molecules, not one graph" in mistake(*words, "--data", "qm9")
    (tmp_path / "taken").write_text("")
    assert "taken is no graph table and no npz" in mistake(*words, "--data", "taken")
    assert "64 ranks for 20 nodes" in mistake("study", "communication", "--nodes", "20", "--quiet")
    assert not (tmp_path / "studies").exists()


def test_user_errors_of_sparsification(mistake, tmp_path):
    words = ("study", "sparsification", *TINY["sparsification"])
    assert "'nowhere' is neither a file nor a data set" in mistake(*words, "--links", "nowhere")
    assert "nowhere is no data set" in mistake(*words, "--classes", "nowhere")
    assert "name it with --links" in mistake(*words, "--links-files", "some.txt")
    assert "name it with --classes" in mistake(*words, "--classes-files", "some.txt")
    assert "is not of the form" in mistake("study", "sparsification", "--networks", "64", "--quiet")
    assert not (tmp_path / "studies").exists()
