"""`weft study dense-hardware`: settings, mistakes, and a tiny study from the command to files."""

from __future__ import annotations

import json

import pytest

TINY = [
    *("--blocks", "16", "--nodes", "300", "--shares", "0.9", "--hidden", "4", "--steps", "1"),
    *("--training-nodes", "300", "--epochs", "1", "--evaluations", "1", "--iterations", "1"),
    *("--types", "1", "--form-blocks", "4", "--densities", "0.1", "1.0", "--form-nodes", "30"),
    *("--rounds", "1", "--quiet"),
]

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


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    for number in range(8):
        (folder / f"module_{number}.py").write_text(MODULE.format(number=number))
    return folder


def test_print_config(weft, tmp_path):
    whole = json.loads(weft("study", "dense-hardware", "--print-config").out)
    assert (whole["graphs"], whole["types"]) == (None, [1, 20])
    words = ("study", "dense-hardware", "--quick", "--rounds", 3, "--print-config")
    small = json.loads(weft(*words).out)
    assert (small["graphs"], small["rounds"]) == (2500, 3)
    assert list(tmp_path.iterdir()) == []


def test_from_the_command_to_the_files(weft, mistake, tmp_path, project):
    words = ("study", "dense-hardware", *TINY, "--data", project)
    said = weft(*words)
    assert said.code == 0, said
    assert "most recent use" in said.out
    assert "auto is within 10%" in said.out
    folder = tmp_path / "studies" / "dense-hardware"
    assert {path.name for path in folder.iterdir()} == {
        "results.json",
        "results.md",
        "bandwidth.svg",
        "supergraphs.svg",
        "accuracy.svg",
        "crossover.svg",
        "spy.png",
    }
    before = json.loads((folder / "results.json").read_text())
    assert before["data"]["files"] == 8
    assert before["machine"]["cores"] >= 1
    assert "spy.png" in (folder / "results.md").read_text()
    assert "go on with it (--resume)" in mistake(*words)
    assert weft(*words, "--resume").code == 0
    assert json.loads((folder / "results.json").read_text()) == before


def test_ctrl_c_tells_how_to_go_on(weft, tmp_path, project, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft_lab.studies.dense_hardware.train_slice", interrupted)
    said = weft("study", "dense-hardware", *TINY, "--data", project)
    assert said.code == 130
    assert f"weft study dense-hardware {' '.join(TINY)} --data {project} --resume" in said.out
    assert (tmp_path / "studies" / "dense-hardware" / "results.json").exists()


def test_mistakes(mistake, tmp_path, project):
    words = ("study", "dense-hardware", *TINY)
    assert "--data nowhere does not exist" in mistake(*words, "--data", "nowhere")
    (tmp_path / "taken").write_text("")
    assert "taken is a file" in mistake(*words, "--folder", "taken")
    assert "rounds is 0" in mistake("study", "dense-hardware", "--rounds", 0)
    (tmp_path / "empty").mkdir()
    assert "no .py files" in mistake(*words, "--data", "empty")
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "one.py").write_text(MODULE.format(number=1))
    mistake(*words, "--data", lone)
    assert not (tmp_path / "studies").exists()
