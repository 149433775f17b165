"""Ranks that share every batch train as one process does, and stop and go on together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data_parallel_cases
import numpy as np
import pytest
from data_parallel_cases import Case, nodes, train

from weft.parallel.grid import Grid
from weft.parallel.world import alone
from weft.training import read_metrics
from weft.training.launch import launch

STRESS = {
    "stress": "stress",
    "forces": "forces",
    "loss": "huber",
    "huber_delta": 0.5,
    "per_atom": True,
    "atom_energies": ("Cu=-1", "Au=-2"),
}
CASES: list[Case] = [
    ("molecules", "structures", {}, 0),
    ("forces", "structures", {"forces": "forces", "readout": "sum", "model": "painn"}, 0),
    ("stress", "structures", STRESS, 0),
    ("links", "links", {"momentum": 0.5, "ema": 0.9}, 0),
    ("rigl", "links", {"sparsify": "rigl", "sparsity": 0.5}, 0),
    ("admm", "links", {"sparsify": "admm", "sparsity": 0.5}, 0),
    ("nodes", "nodes", {}, 0),
]
ELSEWHERE: list[Case] = [(f"{name}-there", *case) for name, *case in (CASES[1], CASES[4], CASES[6])]
STOPPED: list[Case] = [("cut", "structures", {}, 5), ("cut", "structures", {}, 0)]
NAMES = [case[0] for case in CASES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data-parallel")


@pytest.fixture(scope="module")
def two(folder: Path) -> list[list[dict[str, Any]]]:
    """What each of two ranks has of all cases; one start of ranks serves them all."""
    task = (folder / "two", [*CASES, *STOPPED])
    return launch(data_parallel_cases.train, task, ranks=2, logs=folder / "logs")


@pytest.fixture(scope="module")
def two_elsewhere(folder: Path) -> list[list[dict[str, Any]]]:
    """The same of some cases, on a device that is not the CPU."""
    task = (folder / "two", ELSEWHERE)
    return launch(data_parallel_cases.train_elsewhere, task, ranks=2, logs=folder / "there")


@pytest.mark.parametrize("number", range(len(ELSEWHERE)))
def test_two_ranks_train_on_another_device(folder, two, two_elsewhere, number):
    here = two[0][NAMES.index(ELSEWHERE[number][0].removesuffix("-there"))]
    first, second = (rank[number] for rank in two_elsewhere)
    assert first["weights"] == second["weights"]
    alike(here, first, rtol=1e-3)


def alike(one: dict[str, Any], other: dict[str, Any], *, rtol: float) -> None:
    assert one["steps"] == other["steps"]
    for name, value in one["metrics"].items():
        assert other["metrics"][name] == pytest.approx(value, rel=rtol, abs=rtol), name
    for weights, same in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(same, weights, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one_process(folder, two, name):
    number = NAMES.index(name)
    (one,) = train(folder / "one", [CASES[number]])
    first, second = (rank[number] for rank in two)
    assert first["weights"] == second["weights"]
    alike(one, first, rtol=2e-4)
    lines = [read_metrics(folder / ranks / name) for ranks in ("one", "two")]
    assert [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]]
    for line, other in zip(*lines, strict=True):
        if "train_loss" in line:
            assert other["train_loss"] == pytest.approx(line["train_loss"], rel=1e-4)


def test_a_signal_to_one_rank_stops_both_and_they_go_on_to_the_bit(two):
    whole = two[0][NAMES.index("molecules")]
    for rank in two:
        stopped, again = rank[len(CASES) :]
        assert stopped["stopped"] == "interrupted by SIGTERM"
        assert stopped["steps"] == 5
        assert again["weights"] == whole["weights"]
        assert again["metrics"] == whole["metrics"]


def test_what_ranks_cannot_share():
    world = alone(Grid(rows=2), 0)
    for options, words in (
        ({"sparsify": "rigl", "form": "sparse"}, "train with form = dense"),
        ({"sparsify": "random", "form": "sparse"}, "train with form = dense"),
    ):
        with pytest.raises(ValueError, match=words):
            nodes(None, world, **options)  # type: ignore[arg-type]


def test_ranks_with_other_options_or_data(tmp_path):
    for rank in range(2):
        edges = [f"{n % 30} {7 * n % 29 + rank} {n}\n" for n in range(600)]
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "edges.txt").write_text("".join(edges))
    first, second = launch(
        data_parallel_cases.disagree, (tmp_path,), ranks=2, logs=tmp_path / "logs"
    )
    assert first == second
    options, data = first
    assert options.startswith("ranks do not agree on the option seed: it is 1 on rank 1 and 0 on ")
    assert data.startswith("ranks do not agree on the data's edges: it is ")
    assert not (tmp_path / "run").exists()
