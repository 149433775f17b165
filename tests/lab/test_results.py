"""The JSON files: read by types, other versions refused, those of earlier releases understood."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from weft.errors import DataError
from weft_lab.bench.result import BenchResult, CandidateResult, CaseResult
from weft_lab.results import Provenance, document, from_plain, read_document, to_plain
from weft_lab.results import write_document as write
from weft_lab.studies import (
    STUDIES,
    BatchingStudy,
    CommunicationStudy,
    DenseHardwareStudy,
    SparsificationStudy,
)

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, kw_only=True)
class Inner:
    name: str
    pair: tuple[int, float]

    def derived(self) -> dict[str, str]:
        return {"label": self.name.upper()}


@dataclass(kw_only=True)
class Outer:
    by_rank: dict[int, Inner]
    some: list[Inner] = field(default_factory=list)
    perhaps: Inner | None = None
    value: float = math.nan
    budget: tuple[int, ...] | None = None


def test_values_come_back_by_their_types():
    inner = Inner(name="a", pair=(1, 2.5))
    whole = Outer(by_rank={3: inner}, some=[inner], perhaps=inner, value=1.5, budget=(1, 2, 3))
    plain = json.loads(json.dumps(to_plain(whole)))
    assert plain["some"][0]["label"] == "A"
    assert from_plain(Outer, plain) == whole
    empty = from_plain(Outer, {**plain, "perhaps": None, "budget": None, "value": None})
    assert empty.perhaps is None
    assert math.isnan(empty.value)
    with pytest.raises(KeyError):
        from_plain(Outer, {"by_rank": {}})


def test_a_file_says_where_it_is_from(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["weft", "study", "a b"])
    values = document("weft toy 2", Provenance(machine={"cores": 2}), {"x": 1}, packages=("numpy",))
    assert list(values) == ["schema", "created", "command", "machine", "versions", "x"]
    assert values["command"] == "weft study 'a b'"
    assert list(values["versions"]) == ["weft", "numpy", "python"]
    write(tmp_path / "toy.json", values)
    assert read_document(tmp_path / "toy.json", ["weft toy 2", "weft toy 1"]) == values
    with pytest.raises(DataError, match=r"'weft toy 2', this one reads 'weft toy 3'"):
        read_document(tmp_path / "toy.json", ["weft toy 3"])
    with pytest.raises(ValueError, match="weft toy 2"):
        read_document(tmp_path / "toy.json", ["weft bench 1"])


def test_a_benchmark_is_read_again(tmp_path):
    candidates = {
        "weft": CandidateResult(
            samples=[0.1, 0.2], details=[{"seconds": 0.1, "graphs": 2, "batching": 0.0}] * 2
        ),
        "peer": CandidateResult(samples=[0.3], against=["weft"], figures={"peak": 1.0}),
        "gone": CandidateResult(absent="No module named 'gone'", failed=True),
    }
    case = CaseResult(case="c", what="w", unit="s", candidates=candidates, says=["A sentence."])
    made = BenchResult(name="toy", cases=[case], machine={"cores": 2})
    made.save(tmp_path / "toy.json")
    assert BenchResult.read(tmp_path / "toy.json") == made
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DataError, match="is not the file of a benchmark"):
        BenchResult.read(tmp_path / "other.json")


def test_help_needs_no_torch():
    code = (
        "import sys, weft_lab.commands.bench\n"
        "print([name for name in ('torch', 'scipy', 'matplotlib', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def old_file(name: str, folder: Path) -> dict:
    """A file that version 0.1 wrote, as the one of a study in `folder`; gives its values."""
    text = (DATA / f"{name}.json").read_text()
    (folder / "results.json").write_text(text)
    return json.loads(text)


def settings_of(kind: type, values: dict) -> object:
    plain = values["config"].items()
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in plain})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("batching", BatchingStudy),
        ("communication", CommunicationStudy),
        ("dense-hardware", DenseHardwareStudy),
        ("sparsification", SparsificationStudy),
    ],
)
def test_studies_of_earlier_releases_are_read(tmp_path, name, kind):
    before = old_file(name, tmp_path)
    study = STUDIES[name]
    results = study.results.load(tmp_path, settings_of(kind, before))
    assert study.report(results)
    assert study.plot(results, tmp_path)
    assert study.claims(results, "weft study")
    results.save()
    after = json.loads((tmp_path / "results.json").read_text())
    # Nothing is lost, and what has no place in an earlier file is empty.
    assert {key: after[key] for key in before if key != "versions"} == {
        key: before[key] for key in before if key != "versions"
    }
    assert not any(after[key] for key in set(after) - set(before))


def test_the_first_version_of_sparsification_is_read(tmp_path):
    before = old_file("sparsification", tmp_path)
    before["schema"] = "weft study sparsification 1"
    for run in before["runs"]:
        run["nonzero"] = run.pop("active") - 1
    (tmp_path / "results.json").write_text(json.dumps(before))
    study = STUDIES["sparsification"]
    results = study.results.load(tmp_path, settings_of(SparsificationStudy, before))
    assert [run.active for run in results.runs] == [run["nonzero"] for run in before["runs"]]
    told = [sentence for section in study.report(results) for sentence in section.says]
    assert any("from a file of version 1 are of the weights that were not 0" in s for s in told)
    results.save()
    assert json.loads((tmp_path / "results.json").read_text())["schema"].endswith(" 2")
