"""Ranks that wait for one that does not come: not for ever, whatever they wait for."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from rank_processes import answers_of

from weft.parallel.world import joined

# Far less than the ten minutes of a run, which these tests would not sit through. What says that
# they gave up on time, and not because the silent rank left, is that this one stays until they do.
JOIN, ADD = timedelta(seconds=2), timedelta(seconds=8)


def stay_until(folder: str, given_up: int) -> None:
    while len(list(Path(folder).iterdir())) < given_up:
        time.sleep(0.05)


def joining(folder: str) -> None:
    """All but the last rank make the groups of a grid."""
    if int(os.environ["RANK"]) == 3:
        stay_until(folder, 3)
        return
    try:
        with joined("2d", timeout=JOIN):
            pass
    finally:
        Path(folder, os.environ["RANK"]).touch()


def adding(folder: str) -> None:
    """All but the last rank add up, each in its group."""
    with joined("3d", timeout=ADD) as world:
        if world.rank == world.grid.ranks - 1:
            stay_until(folder, 3)
            return
        try:
            world.all_reduce("weights", torch.ones(2), "test")
        except RuntimeError:
            Path(folder, str(world.rank)).touch()
            raise


def test_a_rank_that_does_not_join_is_not_waited_for_long(tmp_path):
    answers = answers_of(4, joining, str(tmp_path))
    assert [answer[0] for answer in answers] == ["error", "error", "error", "result"]


def test_a_rank_that_does_not_answer_is_not_waited_for_long(tmp_path):
    answers = answers_of(8, adding, str(tmp_path))
    waiting = {rank for rank, answer in enumerate(answers) if answer[0] == "error"}
    assert waiting == {2, 3, 6}, answers
