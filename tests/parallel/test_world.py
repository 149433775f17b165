"""Ranks that wait for one that does not come: not for ever, whatever they wait for."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
from rank_processes import answers_of

from weft.parallel.world import joined

WAIT = timedelta(seconds=2)


def joining() -> None:
    """All but the last rank make the groups of a grid."""
    if int(os.environ["RANK"]) == 3:
        time.sleep(2 * WAIT.total_seconds())
        return
    with joined("2d", timeout=WAIT):
        pass


def adding() -> None:
    """All but the last rank add up, each in its group."""
    with joined("3d", timeout=WAIT) as world:
        if world.rank == world.grid.ranks - 1:
            time.sleep(2 * WAIT.total_seconds())
        else:
            world.all_reduce("weights", torch.ones(2), "test")


def test_a_rank_that_does_not_join_is_not_waited_for_long():
    answers = answers_of(4, joining)
    assert [answer[0] for answer in answers] == ["error", "error", "error", "result"]
    assert all("timeout" in answer[1].lower() for answer in answers[:3]), answers


def test_a_rank_that_does_not_answer_is_not_waited_for_long():
    answers = answers_of(8, adding)
    waiting = {rank for rank, answer in enumerate(answers) if answer[0] == "error"}
    assert waiting == {2, 3, 6}
    assert all("timed out" in answers[rank][1].lower() for rank in waiting)
