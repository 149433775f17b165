"""A trained run asked about code: the misused variable comes first, in forms that editors read."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from small_code import WRONG, write_code
from small_programs import config

from weft.errors import DataError
from weft.recipes.programs import data
from weft.recipes.programs.data import read_programs
from weft.recipes.programs.findings import Finding, findings_json, findings_sarif
from weft.recipes.programs.prediction import (
    inspect_code,
    load_programs,
)
from weft.recipes.programs.training import train_programs
from weft.recipes.recipe import recipe_of_run
from weft.sources import CATALOGUE
from weft.sources.python_units import EXTRACTION
from weft.training import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on code with one rule."""
    folder = tmp_path_factory.mktemp("code")
    table = read_programs(str(write_code(folder / "code")), data_dir=folder, progress=False)
    asked = config(start="subtokens", epochs=12, nodes=512, hidden=16, steps=3)
    with Run.create(folder / "run", asked, tensorboard=False) as made:
        trained = train_programs(table, asked, run=made, quiet=True)
    assert trained.scores["validation_accuracy"] > 0.9
    return folder / "run"


def test_tables_of_another_extraction_are_not_taken(tmp_path, monkeypatch):
    code = write_code(tmp_path / "code", files=2)
    first = read_programs(str(code), data_dir=tmp_path, progress=False)
    assert read_programs(str(code), data_dir=tmp_path, progress=False).path == first.path
    monkeypatch.setattr(data, "EXTRACTION", data.EXTRACTION + 1)
    assert read_programs(str(code), data_dir=tmp_path, progress=False).path != first.path
    assert CATALOGUE["python"].table.endswith(f"-{EXTRACTION}")


def test_the_misused_variable_comes_first(run, tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    found = inspect_code(load_programs(run), tmp_path / "wrong.py", progress=False)
    first = found.findings[0]
    assert (first.line, first.column, first.name, first.suggestion) == (2, 21, "first", "second")
    assert first.place == f"{tmp_path / 'wrong.py'}:2:21"
    assert first.probability > 0.5 > first.written
    assert found.suspicious(0.0)[0] == first
    assert found.suspicious(first.probability) == [first]
    assert found.suspicious(first.probability + 1e-6) == []
    assert all(f.probability >= f.written for f in found.suspicious(0.0))
    for finding in found.findings:
        assert finding.name != finding.suggestion
        assert 0 <= finding.probability + finding.written <= 1 + 1e-6
    differences = [f.probability - f.written for f in found.findings]
    assert differences == sorted(differences, reverse=True)


def test_a_variable_without_a_value_is_not_suggested(run, tmp_path):
    (tmp_path / "fine.py").write_text("def f(first):\n    total = first\n    return total\n")
    found = inspect_code(load_programs(run), tmp_path / "fine.py", progress=False)
    assert [(f.line, f.name, f.suggestion) for f in found.findings] == [(3, "total", "first")]


def test_a_folder_with_files_that_cannot_be_read(run, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "wrong.py").write_text(WRONG)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "notes.txt").write_text("no code")
    found = inspect_code(load_programs(run), tmp_path, progress=False)
    assert found.files == 4
    assert found.findings[0].file == str(tmp_path / "sub" / "wrong.py")
    assert {file.removeprefix(f"{tmp_path}/"): why for file, why in found.skipped.items()} == {
        "broken.py": "syntax error",
        "latin.py": "encoding",
    }


def test_a_file_of_fifty_thousand_lines(run, tmp_path):
    functions = [WRONG.replace("add", f"add_{number}") for number in range(200)]
    numbers = "".join(f"x{number} = {number}\n" for number in range(49_400))
    (tmp_path / "long.py").write_text("".join(functions) + numbers)
    found = inspect_code(load_programs(run), tmp_path / "long.py", progress=False)
    assert found.skipped == {
        str(tmp_path / "long.py"): "a function or module of more than 4,000 nodes"
    }
    assert len(found.findings) == 600
    assert {(f.line % 3, f.column) for f in found.findings[:200]} == {(2, 21)}


def test_what_is_said_does_not_depend_on_the_company(run, tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    network = load_programs(run)
    alone = inspect_code(network, tmp_path / "wrong.py", progress=False).findings
    (tmp_path / "wrong.py").write_text(WRONG + WRONG.replace("add", "sum"))
    both = inspect_code(network, tmp_path / "wrong.py", progress=False).findings
    chances = {(f.line, f.column): f.probability for f in both}
    for finding in alone:
        assert chances[finding.line, finding.column] == pytest.approx(finding.probability, rel=1e-4)


FINDING = Finding(
    file="a dir/ö.py", line=3, column=5, name="x", suggestion="yy", probability=0.95, written=0.04
)


def test_sarif_has_the_structure_of_the_standard():
    log = json.loads(findings_sarif([FINDING], {"b.py": "syntax error"}))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (only,) = log["runs"]
    driver = only["tool"]["driver"]
    assert driver["name"] == "weft"
    assert only["columnKind"] == "unicodeCodePoints"
    (result,) = only["results"]
    assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "variable-misuse"
    assert result["level"] == "warning"
    assert result["message"]["text"] == "'yy' is likelier here than 'x' (95.0% against 4.0%)"
    (location,) = result["locations"]
    physical = location["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "a%20dir/%C3%B6.py"}
    region = {"startLine": 3, "startColumn": 5, "endLine": 3, "endColumn": 6}
    assert physical["region"] == region
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["artifactLocation"] == physical["artifactLocation"]
    assert change["replacements"] == [{"deletedRegion": region, "insertedContent": {"text": "yy"}}]
    (invocation,) = only["invocations"]
    assert invocation["executionSuccessful"] is True
    (note,) = invocation["toolExecutionNotifications"]
    assert "syntax error" in note["message"]["text"]
    empty: Any = json.loads(findings_sarif([], {}))
    assert empty["runs"][0]["results"] == []


def test_sarif_of_an_absolute_path():
    finding = Finding(**{**vars(FINDING), "file": "/src/a b.py"})
    (result,) = json.loads(findings_sarif([finding], {}))["runs"][0]["results"]
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "file:///src/a%20b.py"}


def test_sarif_of_a_name_that_is_no_text():
    finding = Finding(**{**vars(FINDING), "file": os.fsdecode(b"src/\xff.py")})
    (result,) = json.loads(findings_sarif([finding], {}))["runs"][0]["results"]
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "src/%FF.py"}


def test_json():
    found = json.loads(findings_json([FINDING], {"b.py": "encoding"}))
    assert found == {"findings": [vars(FINDING)], "skipped": {"b.py": "encoding"}}


def test_runs_that_are_of_something_else(run, tmp_path):
    assert recipe_of_run(run).name == "programs"
    with pytest.raises(DataError, match="holds no run of `weft train`"):
        recipe_of_run(tmp_path)
    with pytest.raises(DataError, match="holds no run of `weft train programs`"):
        load_programs(tmp_path)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "model.json").write_text('{"kind": "programs"}')
    (damaged / "config.json").write_text("{}")
    with pytest.raises(DataError, match="damaged cannot be read"):
        load_programs(damaged)
    with pytest.raises(DataError, match=r"no \.py files in"):
        inspect_code(load_programs(run), damaged, progress=False)
