"""Ranks that are late, missing or of another version; and which collectives wait for the stream."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import meeting_cases
import pytest
import torch

import weft
from weft.parallel.grid import Grid
from weft.parallel.world import World
from weft.training.launch import launch


def test_late_ranks_are_waited_for_and_other_versions_named_on_every_rank(tmp_path):
    (told, said, sums), (nothing, heard, same) = launch(
        meeting_cases.arriving, ranks=2, logs=tmp_path
    )
    assert re.match(r"waiting for 1 of 2 ranks to join: 1 \(\d+ s of 120 s\)", told[0])
    assert nothing == []
    assert sums == same == [2.0, 2.0, 2.0]
    assert said[0] == heard[0]
    assert said[0].startswith("rank 1 on ")
    assert "has weft 0.0, rank 0 on " in said[0]
    assert said[0].endswith(f"has {weft.__version__}; install the same on all hosts")
    assert said[1].startswith("1 of 2 ranks did not join within 2 s: 1; see whether their hosts")


def test_only_a_timed_recorder_waits_for_the_stream(tmp_path):
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert World(Grid(rows=1), 0, {}, cpu).recorder.timed
    assert not World(Grid(rows=1), 0, {}, gpu).recorder.timed
    for (waits, *timed), (none, *untimed) in launch(
        meeting_cases.timed_or_not, ranks=2, logs=tmp_path
    ):
        # Before and after each of three collectives, or never; nothing else differs.
        assert (waits, none) == (6, 0)
        assert timed == untimed
        assert [kind for kind, _ in timed[0]] == ["all_reduce", "reduce_scatter", "broadcast"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted by Linux")
def test_no_thread_of_gloo_outlives_its_group(tmp_path):
    # One that lets go of its last tensors while Python ends aborts the process.
    for inside, after in launch(meeting_cases.threads_left, ranks=4, logs=tmp_path):
        assert inside > 0
        assert after == 0


def test_no_function_of_torch_has_the_group_as_a_default():
    code = "import sys, weft.parallel.world; print('torch.distributed.nn' in sys.modules)"
    look = [sys.executable, "-c", code]
    done = subprocess.run(look, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
