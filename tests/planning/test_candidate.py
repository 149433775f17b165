"""Candidates: their words, and a configuration with their settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from weft.batching import BatchingConfig
from weft.planning import Candidate, applied, set_threads


@dataclass(frozen=True, kw_only=True)
class Config:
    batching: BatchingConfig = field(
        default_factory=lambda: BatchingConfig(policy="dynamic", batch_size=16)
    )
    compile: str = "eager"
    grid: Any = None


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        (
            {"batching.policy": "packed", "compile": "eager", "threads": 2},
            "packed, eager, 2 threads",
        ),
        ({"compile": "static", "threads": 1}, "compiled (static), 1 thread"),
        ({"ranks": 4, "grid": [2, 2], "replication": 2}, "4 ranks, grid 2x2, replication 2"),
        ({}, "as it is"),
    ],
)
def test_labels(settings, label):
    assert Candidate(settings).label == label


def test_equal_settings_are_one_candidate():
    a, b = Candidate({"compile": "eager"}), Candidate({"compile": "eager"})
    assert len({a, b}) == 1
    assert a.but(compile="static", batching__policy="packed") == Candidate(
        {"compile": "static", "batching.policy": "packed"}
    )
    assert a.but(compile="static").compiles
    assert not a.compiles


def test_settings_reach_nested_configurations_and_nothing_else():
    config = applied(
        Config(), {"batching.policy": "packed", "compile": "static", "threads": 7, "grid": [2, 2]}
    )
    assert config == Config(
        batching=BatchingConfig(policy="packed", batch_size=16), compile="static", grid=(2, 2)
    )


@pytest.mark.parametrize("name", ["policy", "batching.colour", "batching.policy.more"])
def test_a_setting_that_is_not_there_is_named(name):
    with pytest.raises(ValueError, match=f"'{name}'"):
        applied(Config(), {name: "packed"})


def test_a_value_that_the_configuration_refuses():
    with pytest.raises(ValueError, match="policy"):
        applied(Config(), {"batching.policy": "purple"})


def test_threads():
    before = torch.get_num_threads()
    try:
        set_threads({"threads": 1})
        assert torch.get_num_threads() == 1
        set_threads({})
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    for wrong in (0, "two", True, 1.5):
        with pytest.raises(ValueError, match="threads is"):
            set_threads({"threads": wrong})
