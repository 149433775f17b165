"""The machine measured: real ranks, positive figures, no judgement about time."""

from __future__ import annotations

import math

import pytest

from weft.parallel.cost_model import load_machine, save_machine
from weft.training.calibrate import calibrate, local_rates


def test_ranks_give_a_machine(tmp_path):
    found = calibrate(3)
    assert list(found.links) == [2, 3]
    figures = [found.flops, found.spmm_bytes]
    figures += [figure for link in found.links.values() for figure in (link.alpha, link.beta)]
    assert all(0 < figure < math.inf for figure in figures)
    machine = found.machine()
    assert machine.link == found.links[3]
    assert "3 ranks" in machine.name
    save_machine(machine, tmp_path / "machine.json")
    assert load_machine(tmp_path / "machine.json") == machine


def test_one_rank_has_nobody_to_talk_to():
    with pytest.raises(ValueError, match="ranks is 1; a message needs at least 2"):
        calibrate(1)


def test_local_rates_are_positive():
    assert min(local_rates(nodes=2**8, degree=4, width=8)) > 0
