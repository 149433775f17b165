"""The GCN benchmark on a small graph, with torch_geometric in its own processes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.progress import Progress

import weft
from weft.errors import DataError
from weft.sources import planted_partition
from weft_lab.bench.epoch_cost import gcn_epoch
from weft_lab.bench.nodes import bench_gcn
from weft_lab.bench_settings import GCNBench

pytestmark = pytest.mark.usefixtures("in_this_process")


def damaged_pubmed(folder: Path) -> Path:
    """A data folder whose PubMed cannot be opened, so that nothing is downloaded."""
    (folder / "pubmed.weft").mkdir(parents=True)
    return folder


def test_small(tmp_path: Path) -> None:
    config = GCNBench(
        nodes=400, degree=5.0, rounds=1, steps=1, data_dir=damaged_pubmed(tmp_path / "data")
    )
    result = bench_gcn(config, Progress(disable=True))
    generated, pubmed = result.to_json()["cases"]
    assert result.name == "gcn"
    graph = planted_partition(400, 40, mean_degree=5.0, homophily=0.7, num_features=128)
    assert generated["what"] == (
        f"epoch, 400 nodes, {graph.num_edges:,} directed edges, 128-128-40"
    )
    names = list(generated["contenders"])
    assert names[:2] == ["weft", "weft, A x not kept"]
    assert len(names) == 7
    for name, candidate in generated["contenders"].items():
        if name.startswith("weft") or find_spec("torch_geometric"):
            assert candidate["absent"] == "", name
            assert len(candidate["samples"]) == 1
            assert candidate["versions"]["torch"]
        else:
            assert candidate["absent"]
    work = generated["contenders"]["weft"]["work"]
    cost = gcn_epoch(400, graph.num_edges + 400, 240, (128, 128, 40), kept=True)
    assert (work["flops"], work["bytes"]) == (cost.flops, cost.bytes)
    assert work["limit_seconds"] < generated["contenders"]["weft"]["median"]
    if find_spec("torch_geometric"):
        assert set(generated["ratios"]["weft"]) == set(names[2:])
    # What is wrong with the second graph is said, and takes nothing from the first.
    assert "pubmed.weft is not a graph table" in pubmed["contenders"]["weft"]["absent"]
    assert pubmed["ratios"] == {"weft": {}}


def test_orders_and_another_version(tmp_path: Path) -> None:
    pytest.importorskip("pymetis")
    config = GCNBench(
        nodes=400,
        degree=5.0,
        rounds=1,
        steps=1,
        cases=("generated", "orders"),
        before=Path(weft.__file__).parents[1],
        data_dir=damaged_pubmed(tmp_path / "data"),
    )
    case, orders = bench_gcn(config, Progress(disable=True)).cases
    assert len(case.candidates["the version before"].samples) == 1
    assert "the version before" in case.ratios("weft")
    assert "the version before" not in case.ratios("weft, A x not kept")
    assert list(orders.candidates) == [f"weft, {o}" for o in ("identity", "degree", "rcm", "metis")]
    assert all(len(each.samples) == 1 and each.work for each in orders.candidates.values())
    with pytest.raises(ValueError, match="which has no folder weft; give the src of a checkout"):
        GCNBench(before=tmp_path)


def test_attention(tmp_path: Path) -> None:
    config = GCNBench(nodes=400, degree=5.0, rounds=1, steps=1, cases=("gat",), data_dir=tmp_path)
    (case,) = bench_gcn(config, Progress(disable=True)).cases
    assert len(case.candidates["weft"].samples) == 1
    if find_spec("torch_geometric"):
        assert list(case.ratios("weft")) == ["torch_geometric"]
    (says,) = case.says
    assert says.startswith("peak memory beyond libraries and data, GB: weft 0.")


def test_nothing_to_time(tmp_path: Path) -> None:
    config = GCNBench(nodes=400, rounds=0, data_dir=tmp_path)
    with pytest.raises(ValueError, match="0 rounds of 2 steps time nothing"):
        bench_gcn(config, Progress(disable=True))


def test_a_graph_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="num_nodes is 10; it must be at least 80"):
        bench_gcn(GCNBench(nodes=10, data_dir=tmp_path), Progress(disable=True))
