"""`weft study all`: four tiny studies on one page; one that cannot be made is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from weft.cli.main import parse
from weft_lab.commands import study_all

TINY = {
    "dense-hardware": [
        *("--blocks", "16", "--nodes", "300", "--shares", "0.9", "--hidden", "4", "--steps", "1"),
        *("--training-nodes", "300", "--epochs", "1", "--evaluations", "1", "--iterations", "1"),
        *("--types", "1", "--form-blocks", "4", "--densities", "0.1", "1.0", "--form-nodes", "30"),
        *("--rounds", "1", "--data", "project"),
    ],
    "communication": [
        *("--ranks", "2", "4", "--real-ranks", "1", "--simulated", "2", "--widths", "4", "4", "2"),
        *("--timed-epochs", "1", "--accuracy-ranks", "1", "--epochs", "3", "--hidden", "4"),
        *("--nodes", "100"),
    ],
    "sparsification": [
        *("--sparsities", "0.75", "--curve-sparsity", "0.75", "--epochs", "4"),
        *(
            "--nodes-epochs",
            "4",
            "--gcn-epochs",
            "4",
            "--repeats",
            "1",
            "--edges",
            "300",
            "--nodes",
            "60",
        ),
        *("--networks", "6-8-3x4", "--time-sparsities", "0.9", "--rounds", "1"),
    ],
    "batching": [
        *("--models", "schnet", "--batch-sizes", "4", "--policies", "dynamic", "static-64"),
        *("--structures", "20", "--hidden", "4", "--rounds", "1", "--steps", "1"),
        *("--planned-steps", "10", "--repeats", "2", "--repeat-batch-size", "8"),
        *("--repeat-structures", "16", "--repeat-epochs", "1"),
    ],
}

MODULE = """
def grow(values, start):
    result = start
    for value in values:
        result = result + value * {number}
    return result
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The four studies with settings of a test."""
    (tmp_path / "project").mkdir()
    for number in range(8):
        (tmp_path / "project" / f"module_{number}.py").write_text(MODULE.format(number=number))

    def small(name):
        command = parse("study", [name, *TINY[name]])
        return lambda **options: replace(command, **{**options, "quick": False})

    studies = {
        name: replace(study, command=small(name)) for name, study in study_all._STUDIES.items()
    }
    monkeypatch.setattr(study_all, "_STUDIES", studies)


def test_four_studies_on_one_page(weft, mistake, tmp_path, tiny, small_qm9):
    said = weft("study", "all", "--quick", "--quiet")
    assert said.code == 0, said
    page = (tmp_path / "studies" / "four-papers.html").read_text()
    assert str(tmp_path / "studies" / "four-papers.html").endswith(said.out.split()[-1])
    for author in ("Balog", "Tripathy", "Peng", "Speckhard"):
        assert author in page
    for name in TINY:
        assert f"weft study {name} --quick" in page
        assert (tmp_path / "studies" / name / "results.json").exists()
    assert "16 of 16 entries equal to every printed digit" in page
    assert "bytes received equal the formulas" in page
    assert "RigL against SLR: AUC of links" in page
    assert "pairs of policies differ" in page
    assert "go on with it (--resume)" in mistake("study", "all", "--quick", "--quiet")
    before = (tmp_path / "studies" / "batching" / "results.json").read_text()
    assert weft("study", "all", "--quick", "--quiet", "--resume").code == 0
    after = (tmp_path / "studies" / "batching" / "results.json").read_text()
    assert json.loads(after) == json.loads(before)


def test_a_study_without_its_data_leaves_the_others(weft, tmp_path, tiny, monkeypatch):
    studies = study_all._STUDIES
    some = {name: studies[name] for name in ("dense-hardware", "sparsification")}
    monkeypatch.setattr(study_all, "_STUDIES", some)
    for path in (tmp_path / "project").iterdir():
        path.unlink()
    (tmp_path / "project").rmdir()
    said = weft("study", "all", "--quick", "--quiet")
    assert said.code == 2
    assert "--data project does not exist" in said.out
    page = (tmp_path / "studies" / "four-papers.html").read_text()
    assert "weft study dense-hardware could not be made" in page
    assert "Peng" in page
