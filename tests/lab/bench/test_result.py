"""The one JSON schema, and the table that people read."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import weft
from weft.errors import DataError
from weft_lab.bench.epoch_cost import EpochCost, Pass
from weft_lab.bench.result import BenchResult, CandidateResult, CaseResult, print_result


def result(unit: str = "s") -> BenchResult:
    candidates = {
        "weft": CandidateResult(samples=[0.002, 0.001, 0.006], versions={"weft": "1"}),
        "weft, padded": CandidateResult(samples=[0.004]),
        "peer": CandidateResult(samples=[0.01, 0.03, 0.02]),
        "gone": CandidateResult(absent="No module named 'gone'"),
    }
    case = CaseResult(case="small", what="a step", unit=unit, candidates=candidates)
    return BenchResult(name="toy", cases=[case])


def shown(result: BenchResult) -> str:
    stream = io.StringIO()
    print_result(result, Console(file=stream, width=160, markup=False))
    return stream.getvalue()


def row(text: str, name: str) -> list[str]:
    (line,) = (x for x in text.splitlines() if x.startswith(f" {name}  "))
    return re.split(r" {2,}", line.strip())


def test_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["weft", "bench", "toy", "--json", "a b.json"])
    made = result()
    whole = made.to_json()
    machine = made.machine
    assert list(whole) == ["schema", "name", "created", "command", "machine", "versions", "cases"]
    assert whole["schema"] == "weft bench 1"
    assert whole["command"] == "weft bench toy --json 'a b.json'"
    assert whole["versions"] == {"weft": weft.__version__, "python": sys.version.split()[0]}
    assert whole["machine"] == machine
    (case,) = whole["cases"]
    assert list(case) == ["case", "what", "unit", "contenders", "ratios"]
    ours = case["contenders"]["weft"]
    assert ours == {
        "samples": [0.002, 0.001, 0.006],
        "versions": {"weft": "1"},
        "absent": "",
        "failed": False,
        "against": [],
        "median": 0.002,
        "mean": pytest.approx(0.003),
    }
    gone = case["contenders"]["gone"]
    assert gone["samples"] == []
    assert gone["median"] is None
    assert gone["absent"] == "No module named 'gone'"


def test_ratios_are_the_peers_median_over_ours() -> None:
    (case,) = result().to_json()["cases"]
    assert set(case["ratios"]) == {"weft", "weft, padded"}
    for own, ratios in case["ratios"].items():
        medians = {name: c["median"] for name, c in case["contenders"].items()}
        assert ratios == {"peer": medians["peer"] / medians[own]}
    assert case["ratios"]["weft"]["peer"] == pytest.approx(10)


def test_no_ratios_without_us() -> None:
    case = CaseResult(
        case="c",
        what="",
        unit="s",
        candidates={
            "weft": CandidateResult(absent="broken"),
            "peer": CandidateResult(samples=[1.0]),
        },
    )
    assert case.ratios("weft") == {}
    assert "absent" in shown(BenchResult(name="toy", cases=[case]))


def test_saved_whole(tmp_path: Path) -> None:
    made = result()
    made.save(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == made.to_json()
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    with pytest.raises(DataError, match=r"cannot write .*nowhere/r\.json"):
        made.save(tmp_path / "nowhere" / "r.json")


def test_the_table_shows_medians_spread_and_ratios() -> None:
    text = shown(result())
    assert "toy: small" in text
    assert "median ms" in text
    assert row(text, "weft")[1:] == ["2", "1 – 6"]
    assert row(text, "peer")[1:] == ["20", "10 – 30", "10.00", "5.00"]
    assert row(text, "gone") == ["gone", "absent"]
    assert "gone: No module named 'gone'" in text


def test_other_units_are_not_scaled() -> None:
    text = shown(result(unit="%"))
    assert "median %" in text
    assert row(text, "peer")[1] == "0.02"


def test_without_peers_there_are_no_ratios() -> None:
    case = CaseResult(
        case="c", what="", unit="%", candidates={"weft": CandidateResult(samples=[81.5])}
    )
    text = shown(BenchResult(name="toy", cases=[case]))
    assert "× weft" not in text
    assert row(text, "weft")[1] == "81.5"


def test_a_peer_is_compared_with_those_of_ours_that_do_the_same_work() -> None:
    case = CaseResult(
        case="c",
        what="w",
        unit="s",
        candidates={
            "weft": CandidateResult(samples=[1.0]),
            "weft, padded": CandidateResult(samples=[2.0], failed=True),
            "peer": CandidateResult(samples=[4.0], against=["weft, padded"]),
            "other": CandidateResult(samples=[6.0]),
        },
    )
    assert case.ratios("weft") == {"other": 6.0}
    assert case.ratios("weft, padded") == {"peer": 2.0, "other": 3.0}
    assert case.own_failures == ["weft, padded"]


def test_what_a_step_computes_stands_below_its_time() -> None:
    made = result()
    cost = EpochCost(
        passes=(Pass(what="product", flops=10**9, dense=True), Pass(what="copy", bytes=2 * 10**6))
    )
    work = cost.figures(0.002, 1e12, 2e9)
    candidate = replace(made.cases[0].candidates["weft"], work=work)
    made.cases[0].candidates["weft"] = candidate
    assert "limit ms" in shown(made)
    # 1 ms of products and 1 ms of copies, one after another.
    last = [line for line in shown(made).splitlines() if line.startswith(" weft  ")][-1]
    assert re.split(r" {2,}", last.strip()) == ["weft", "1", "50%", "0.002", "50%", "2", "100%"]
    assert made.to_json()["cases"][0]["contenders"]["weft"]["work"] == work
    assert "work" not in made.to_json()["cases"][0]["contenders"]["peer"]
