"""The benchmark of typed gated networks on small graphs, the peers in their own processes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.progress import Progress

from weft.errors import DataError
from weft_lab.bench.epoch_cost import gated_step
from weft_lab.bench.programs import bench_programs
from weft_lab.bench_settings import ProgramsBench

pytestmark = pytest.mark.usefixtures("in_this_process")

SOURCE = """
def mean(values, weights):
    total = 0
    for value, weight in zip(values, weights):
        total = total + value * weight
    return total / sum(weights)
"""


def test_small(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mean.py").write_text(SOURCE)
    config = ProgramsBench(
        nodes=300,
        edges=900,
        hidden=8,
        steps_of_model=2,
        complete=(3,),
        form_nodes=30,
        rounds=1,
        files=(tmp_path / "code",),
        data_dir=tmp_path / "data",
    )
    result = bench_programs(config, Progress(disable=True))
    edges, programs, complete = result.to_json()["cases"]
    assert edges["what"].startswith("step, 300 nodes, 900 edges of 20 types, 8 features, 2 rounds")
    for case in (edges, programs):
        assert next(iter(case["contenders"])) == "weft"
        for name, candidate in case["contenders"].items():
            there = name == "weft" or (
                find_spec("torch_geometric") and name.startswith("torch_geometric")
            )
            if there:
                assert candidate["absent"] == "", name
                assert len(candidate["samples"]) == 1
        work = case["contenders"]["weft"]["work"]
        assert work["flops"] > 0
        assert work["limit_share"] > 0
        assert "times as long as its products" in case["says"][0]
    assert complete["case"] == "complete graphs of 3"
    assert [name for name, c in complete["contenders"].items() if not c["absent"]] == [
        "weft, csr",
        "weft, banded",
        "weft, dense",
        "weft, auto",
    ]


def test_the_products_of_a_step_are_counted() -> None:
    # Forward, weights, inputs; the first states have no gradient, and so the first typed products.
    states, messages, typed = 2 * 10 * 4 * 12, 2 * 10 * 4 * 12, 2 * 5 * 4 * 4
    cost = gated_step(nodes=10, rows=5, hidden=4, rounds=2)
    assert cost.flops == 5 * states + 6 * messages + 5 * typed


def test_a_folder_without_programs_is_known_before_anything_is_timed(tmp_path: Path) -> None:
    config = ProgramsBench(files=(tmp_path,), data_dir=tmp_path / "data")
    with pytest.raises(DataError, match=r"\.py"):
        bench_programs(config, Progress(disable=True))
