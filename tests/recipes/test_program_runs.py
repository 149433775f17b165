"""Training on programs over several ranks, and runs that are killed or stopped and go on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from script_reports import report_of

SCRIPT = str(Path(__file__).with_name("program_runs.py"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = report_of(SCRIPT, tmp_path_factory.mktemp("runs"))
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_give_the_losses_of_one(report, size):
    one, several = report["world1"], report[f"world{size}"]
    assert several["codes"] == [0] * size
    expected = one["ranks"][0]["losses"]
    assert len(expected) > 5
    for rank in several["ranks"]:
        assert np.allclose(rank["losses"], expected, rtol=1e-5, atol=0)
        assert rank["scores"] == pytest.approx(one["ranks"][0]["scores"], rel=1e-4)
    # Every rank had the sum of all gradients, so that they are still alike.
    assert all(r["losses"] == several["ranks"][0]["losses"] for r in several["ranks"])
    for weight, own in zip(several["weights"], one["weights"], strict=True):
        assert np.allclose(weight, own, atol=1e-4)


def test_a_killed_run_resumes_to_the_bit(report):
    whole, run = report["world1"], report["killed"]
    assert run["killed"]["codes"] == [-signal.SIGKILL]
    assert run["resumed"]["codes"] == [0]
    losses = whole["ranks"][0]["losses"]
    # The checkpoint before step 4 is that of step 2.
    assert run["resumed"]["ranks"][0]["losses"] == losses[2:]
    assert run["metrics"] == whole["metrics"]
    assert run["weights"] == whole["weights"]


def test_a_signal_to_one_rank_stops_all_after_the_same_step(report):
    run, whole = report["stopped"], report["world2"]
    losses = whole["ranks"][0]["losses"]
    assert run["stopped"]["codes"] == [0, 0]
    for rank in run["stopped"]["ranks"]:
        assert rank["stopped"] == "interrupted by SIGTERM"
        assert rank["losses"] == losses[:3]
    for rank in run["resumed"]["ranks"]:
        assert rank["losses"] == losses[3:]
    assert run["metrics"] == whole["metrics"]
    assert run["weights"] == whole["weights"]
