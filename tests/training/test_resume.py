"""Runs that are killed, in processes of their own, and go on to the same bits."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from script_reports import report_of


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    entries = report_of("killed_runs.py", tmp_path_factory.mktemp("runs"))
    return {entry["case"]: entry for entry in entries}


@pytest.mark.parametrize("case", ["full", "loader", "generator", "stateful"])
def test_a_killed_run_resumes_to_the_bit(report: dict[str, Any], case: str) -> None:
    whole, runs = report[case]["whole"], report[case]["runs"]
    steps = [line["step"] for line in whole["metrics"] if "loss" in line]
    assert steps == list(range(1, 13))
    assert len({line["loss"] for line in whole["metrics"] if "loss" in line}) == 12
    assert runs
    for run in runs:
        # JSON floats are exact here, so equality is equality of the bits.
        assert run["metrics"] == whole["metrics"], (run["way"], run["step"])
        assert run["model"] == whole["model"], (run["way"], run["step"])
        assert run["stored"] == whole["model"], (run["way"], run["step"])
        assert run["resumed"] == 0


def test_they_were_really_killed(report: dict[str, Any]) -> None:
    for entry in report.values():
        for run in entry["runs"]:
            if run["way"].startswith("kill"):
                assert run["ended"] == -signal.SIGKILL
                assert run["reason"] is None
            else:
                assert run["ended"] == 0
                assert run["reason"] == f"interrupted by {run['way']}"


def test_a_write_cut_short_leaves_only_a_partial_file(report: dict[str, Any]) -> None:
    runs = [run for entry in report.values() for run in entry["runs"]]
    assert all(run["left"] for run in runs if run["way"] == "kill in write")
    assert not any(run["left"] for run in runs if run["way"] != "kill in write")
