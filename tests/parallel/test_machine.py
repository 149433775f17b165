"""A machine as a file, and what it may not be."""

from __future__ import annotations

import json

import pytest

from weft.errors import DataError
from weft.parallel.cost_model import NETWORKS, Link, Machine, load_machine, save_machine

FAST, SLOW = Link(alpha=1e-6, beta=1e-10), Link(alpha=1e-4, beta=1e-9)


def test_a_machine_comes_back_from_its_file(tmp_path):
    machine = Machine(name="two hosts", link=SLOW, links={"layer": FAST}, flops=3e11)
    save_machine(machine, tmp_path / "machine.json")
    assert load_machine(tmp_path / "machine.json") == machine


def test_a_dimension_has_its_own_link():
    machine = Machine(name="two hosts", link=SLOW, links={"layer": FAST})
    assert machine.along("layer") == FAST
    assert machine.along("row") == SLOW


def test_the_faster_network_is_faster():
    slow, fast = NETWORKS["ethernet-10"], NETWORKS["infiniband-100"]
    assert fast.alpha < slow.alpha
    assert fast.beta < slow.beta


@pytest.mark.parametrize("value", [0, -1e-6, float("nan"), float("inf"), "fast"])
def test_figures_are_positive_numbers(value):
    with pytest.raises(ValueError, match=r"alpha is .*; it must be a positive number"):
        Link(alpha=value, beta=1.0)
    with pytest.raises(ValueError, match=r"flops is .*; it must be a positive number"):
        Machine(name="", link=FAST, flops=value)


def test_a_dimension_that_no_grid_has():
    with pytest.raises(ValueError, match="links has 'diagonal'; a dimension is one of row"):
        Machine(name="", link=FAST, links={"diagonal": FAST})


@pytest.mark.parametrize(
    "change",
    [
        {"link": None},
        {"link": {"alpha": 1}},
        {"link": {"alpha": 1, "beta": 0}},
        {"links": {"diagonal": {"alpha": 1, "beta": 1}}},
        {"colour": "red"},
        {"flops": "many"},
    ],
)
def test_a_file_that_is_no_machine(tmp_path, change):
    path = tmp_path / "machine.json"
    save_machine(Machine(name="", link=FAST), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=r"machine.json does not describe a machine"):
        load_machine(path)
    path.write_text("{")
    with pytest.raises(DataError, match=r"machine.json does not describe a machine"):
        load_machine(path)
