"""`weft report`: from a command that trains to a page, and mistakes."""

from __future__ import annotations

import json

import pytest

TRAINED = (
    *("train", "programs", "--data", "code", "--epochs", "1", "--nodes", "256", "--hidden", "8"),
    *("--steps", "1", "--out", "run", "--quiet"),
)

FILE = """
def add{number}(first, second):
    total = first + second
    return total


def twice{number}(value):
    again = value
    return add{number}(value, again)
"""


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(24):
        text = FILE.format(number=number)
        (folder / f"file{number}.py").write_text(text, encoding="utf-8")
    return folder


def test_from_training_to_the_page(weft, code, tmp_path):
    said = weft(*TRAINED)
    assert said.code == 0, said
    spy = json.loads((tmp_path / "run" / "spy.json").read_text())
    before, after = spy["orders"]
    assert sum(map(sum, before["counts"])) == sum(map(sum, after["counts"])) == spy["edges"]
    assert after["bandwidth"] <= before["bandwidth"]
    fill = json.loads((tmp_path / "run" / "summary.json").read_text())["fill"]
    assert 0 < fill["node_fill"] <= 1
    said = weft("report", "run")
    assert said.code == 0, said
    assert said.out.strip() == "run/report.html"
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for words in (
        "Gated graph network on code",
        "order of the text: bandwidth",
        "nodes of a batch that are not padding",
        "weft train programs --data code",
        "test accuracy",
    ):
        assert words in page
    # A page in the folder does not keep the run from going on.
    assert weft(*TRAINED, "--resume").code == 0


def test_out_and_several(weft, code, tmp_path):
    assert weft(*TRAINED).code == 0
    said = weft("report", "run", "run", "--out", "both.html")
    assert said.out.strip() == "both.html"
    assert "2 runs compared" in (tmp_path / "both.html").read_text(encoding="utf-8")
    assert weft("report", "run", "run").out.strip() == "report.html"


def test_mistakes(weft, mistake, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "plan.json").write_text('{"schema": "weft plan 2"}')
    for words, said in (
        (("empty",), "empty is neither a run (a folder with config.json), a study"),
        (("nowhere",), "nowhere does not exist"),
        (("plan.json",), "its fields are not those of one"),
        (("plan.json", "--out", "none/page.html"), "there is no folder none"),
        (("plan.json", "--out", "empty"), "--out empty is a folder"),
    ):
        assert said in mistake("report", *words)
    assert weft("report").code == 2
    assert not (tmp_path / "report.html").exists()
