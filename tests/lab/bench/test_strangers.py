"""The benchmark of strangers' models on small graphs."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from weft_lab.bench.strangers import bench_strangers
from weft_lab.bench_settings import StrangersBench

pytestmark = pytest.mark.usefixtures("in_this_process")


def test_small() -> None:
    pytest.importorskip("torch_geometric")
    cases = ("sage", "schnet", "own", "loader")
    config = StrangersBench(
        cases=cases, nodes=60, edges=300, sorted=True, width=8, molecules=3, rounds=1, steps=1
    )
    result = bench_strangers(config, Progress(disable=True))
    large, model, small, *inference, loader = result.cases
    assert large.what == "training step, 2 layers, 60 nodes, 300 edges, 8 features"
    assert list(large.candidates) == ["weft", "torch_geometric", "torch_geometric CSR"]
    assert small.what.startswith("training step, 3 layers, 3 molecules")
    for case in result.cases:
        assert all(each.samples and not each.absent for each in case.candidates.values())
    assert [case.case for case in inference] == [f"{name}, inference" for name in cases[:3]]
    assert inference[0].what == large.what.replace("training step", "inference")
    for case in (large, model, small, *inference):
        assert case.says[0].startswith("Peak memory: weft ")
    assert small.says[1].startswith("Training against")
    assert inference[-1].says[1].startswith("Inference against")
    assert "the geometric mean of 3 cases is" in inference[-1].says[1]
    assert loader.what == "20 shuffled batches of 3 molecules with QM9's attributes"


def test_what_times_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="rounds is 0; it must be at least 1"):
        StrangersBench(rounds=0)
