"""The benchmark of sparse networks on tiny sizes: what its figures mean, and what it says."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from weft.errors import DataError
from weft.graphs import Graph, table_from_graphs, write_table
from weft_lab.bench.result import BenchResult, CandidateResult, CaseResult, print_result
from weft_lab.bench.sparse import (
    Network,
    _missed,
    bench_sparse,
    crossover_words,
    online_case,
    random_masks_of,
    random_weights_of,
    step_case,
)
from weft_lab.bench.sparse_cases import accuracy_case, memory_case, temporal_graph
from weft_lab.bench.sparse_structures import fan_in_case
from weft_lab.bench_settings import SparseBench

pytestmark = pytest.mark.usefixtures("in_this_process")

QUIET = Progress(disable=True)
TINY = {"wide": (12, 16, 3), "wide_batch": 8, "narrow": (6, 8, 3), "narrow_batch": 4}


def run(**settings):
    return bench_sparse(SparseBench(**TINY | settings), QUIET)


def printed(result):
    console = Console(width=80, record=True)
    print_result(result, console)
    text = console.export_text()
    assert "…" not in text
    return text


def test_masks_are_exact_and_weights_follow():
    masks = random_masks_of((10, 20, 5), 0.9)
    assert [mask.shape for mask in masks] == [(20, 10), (5, 20)]
    assert [int(mask.sum()) for mask in masks] == [20, 10]
    for mask, weight in zip(masks, random_weights_of(masks), strict=True):
        assert torch.equal(weight != 0, mask)
    assert all(
        torch.equal(a, b) for a, b in zip(masks, random_masks_of((10, 20, 5), 0.9), strict=True)
    )


def test_a_step_of_everyone():
    network = Network(widths=(12, 16, 3), batch=8, bars={0.906: 1.8})
    case = step_case(SparseBench(rounds=2, steps=3, update_every=2), network, 0.75, QUIET)
    assert case.case == "step, 12-16-3, 75 % sparse"
    assert list(case.candidates) == [
        "weft",
        "weft, RigL",
        "torch, dense",
        "sparseprop",
        "rigl-torch",
    ]
    for name, candidate in case.candidates.items():
        if name not in ("sparseprop", "rigl-torch") or find_spec(name.replace("-", "_")):
            assert candidate.absent == "", name
            assert len(candidate.samples) == 6
        else:
            assert "No module" in candidate.absent
    assert "weft, RigL" in case.says[0]
    # Neither a bar for this sparsity nor one for the peers.
    assert case.missed == []
    assert "× weft" in printed(BenchResult(name="sparse", cases=[case]))


def test_a_pass_online():
    network = Network(widths=(12, 16, 3), batch=8, bars={})
    case = online_case(SparseBench(rounds=1, steps=1), network, 1, QUIET)
    assert case.case == "online, 12-16-3, batch 1"
    assert list(case.candidates) == ["weft", "torch, dense", "torch, CSR", "sparseprop"]
    for name in ("weft", "torch, dense", "torch, CSR"):
        assert len(case.candidates[name].samples) == 10
    # So small a network says nothing of the bar, but is told of.
    assert all("weft" in words for words in case.missed)


def timed(**milliseconds):
    candidates = {name: CandidateResult(samples=[value]) for name, value in milliseconds.items()}
    names = {"dense": "torch, dense", "rigl": "weft, RigL", "theirs": "rigl-torch"}
    against = {"sparseprop": ["weft"], "theirs": ["weft, RigL"]}
    return CaseResult(
        case="step",
        what="",
        unit="s",
        candidates={
            names.get(name, name): CandidateResult(
                samples=each.samples, against=list(against.get(name, ()))
            )
            for name, each in candidates.items()
        },
    )


def test_bars_of_a_step():
    network = Network(widths=(4, 2), batch=1, bars={0.95: 3.0})
    good = timed(weft=1, rigl=2, dense=3, sparseprop=1.1, theirs=2.5)
    assert _missed(good, network, 0.95) == []
    bad = timed(weft=1, rigl=2, dense=2.9, sparseprop=0.9, theirs=1.5)
    assert _missed(bad, network, 0.95) == [
        "torch, dense takes 2.90 times as long as weft, not 3 times.",
        "sparseprop takes 0.90 times as long as weft, and ought to be slower.",
        "rigl-torch takes 0.75 times as long as weft, RigL, and ought to be slower.",
    ]
    assert _missed(bad, network, 0.5) == []


def test_accelerate_over_sparsities():
    result = run(cases=("accelerate",), accelerate_sparsities=(0.0, 0.9), rounds=1, steps=4)
    assert [case.case for case in result.cases] == ["accelerate, 12-16-3", "accelerate, 6-8-3"]
    for case in result.cases:
        assert list(case.candidates) == ["weft at 0", "weft at 0.9", "torch, dense"]
        assert case.candidates["weft at 0"].figures["sparse\nlayers"] == 0
        assert [len(c.samples) for c in case.candidates.values()] == [4, 4, 8]
        assert case.says[0].startswith("Crossover: ")
        for sparsity in ("0", "0.9"):
            times = case.candidates[f"weft at {sparsity}"].figures["dense /\naccelerated"]
            told = any(text.startswith(f"At {sparsity} ") for text in case.missed)
            assert told == (times < 1 / 1.05)
    printed(result)


def test_units_and_a_constant_fan_in():
    config = SparseBench(wide=(12, 16, 20, 3), rounds=1, steps=2)
    (units,) = run(cases=("units",), wide=(12, 16, 20, 3), rounds=1, steps=2).cases
    assert units.case == "units, 12-16-20-3, 75 % of the units removed"
    assert [len(c.samples) for c in units.candidates.values()] == [2] * 5
    # 4 and 5 units are left.
    left = (12 + 1) * 4 + (4 + 1) * 5 + (5 + 1) * 3
    share = left / ((12 + 1) * 16 + (16 + 1) * 20 + (20 + 1) * 3)
    assert units.says == [f"The compacted network has {share:.1%} of the weights."]
    fan_in = fan_in_case(config, (30, 20, 10), QUIET)
    assert list(fan_in.candidates)[-1] == "weft, batch 16"
    figures = fan_in.candidates["weft, batch 1"].figures
    assert list(figures)[1:] == [
        f"{name} /\nfan-in" for name in ("dense", "SparseLinear", "torch CSR")
    ]
    for case in (units, fan_in):
        assert all("times as" in sentence for sentence in case.missed)
    printed(BenchResult(name="sparse", cases=[units, fan_in]))


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([0.4, 0.9, 1.5], "between 0.5 and 0.9 sparse"),
        ([0.4, 1.1, 0.9], "none; sparse layers are not faster at 0.9"),
        ([1.4, 0.9, 1.5], "between 0.5 and 0.9 sparse"),
        ([1.1, 1.2, 1.3], "below 0;"),
    ],
)
def test_crossover(ratios, words):
    assert words in crossover_words((0.0, 0.5, 0.9), ratios)


def test_memory_falls_with_the_weights_that_are_there():
    case = memory_case(SparseBench(wide=(200, 400, 10), accelerate_sparsities=(0.5, 0.9)), QUIET)
    assert list(case.candidates) == ["torch, dense", "weft at 0.5", "weft at 0.9"]
    dense, half, tenth = (c.figures for c in case.candidates.values())
    assert dense["weights\nthere"] == 200 * 400 + 400 * 10
    assert half["weights\nthere"] == dense["weights\nthere"] / 2
    assert tenth["weights\nthere"] == dense["weights\nthere"] / 10
    assert dense["weights\nMB"] == round(4 * (84_000 + 410) / 1e6, 3)
    assert dense["pattern\nMB"] == 0 < tenth["pattern\nMB"] < half["pattern\nMB"]
    # Adam has two numbers a parameter, and a step count for each of four tensors.
    assert dense["Adam\nMB"] == round((8 * 84_410 + 4 * 4) / 1e6, 3)
    assert tenth["all\nMB"] < half["all\nMB"]
    assert tenth["all\nMB"] < dense["all\nMB"]
    assert "weft at 0.9" in case.says[0]


def test_an_edge_list_is_read_in_a_process_of_its_own(tmp_path):
    result = run(cases=("edges",), lines=3000, rounds=2, scratch=tmp_path)
    (case,) = result.cases
    assert list(tmp_path.iterdir()) == []
    figures = case.candidates["weft"].figures
    assert case.what.startswith("3,000 lines")
    assert len(case.candidates["weft"].samples) == 2
    assert figures["lines / s"] > 0
    assert 0 < figures["before MB"] <= figures["peak MB"]
    assert "lines / s" in printed(result)


def test_walks(tmp_path):
    edges = [f"{i % 20} {(i * 7 + 1) % 20} {i}\n" for i in range(300)]
    file = tmp_path / "sx-mathoverflow.txt.gz"
    file.write_text("".join(edges))
    assert temporal_graph(file, tmp_path / "other").total_edges == 300
    (case,) = run(cases=("walks",), rounds=1, temporal=tmp_path, data_dir=tmp_path / "data").cases
    assert "20 nodes, 300 edges" in case.what
    assert list(case.candidates) == ["weft, 10 walks a node", "weft, 100 walks a node"]
    speed = case.candidates["weft, 10 walks a node"].samples[0]
    assert (speed < 5e6) == bool(case.missed)


def test_accuracy_with_intervals(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    senders = rng.integers(120, size=500)
    graph = Graph(
        num_nodes=120,
        senders=senders,
        receivers=(senders + 3 * rng.integers(40, size=500)) % 120,
        nodes={"x": rng.random((120, 30)).astype(np.float32), "y": y},
    )
    table = write_table(tmp_path / "graph.weft", table_from_graphs([graph]))
    case = accuracy_case(SparseBench(seeds=2, epochs=10), table, QUIET)
    assert list(case.candidates) == [
        "weft, dense",
        "weft, RigL at 90 %",
        "weft, RigL at 97 %",
        "weft, SET at 97 %",
        "weft, static random at 97 %",
    ]
    dense = case.candidates["weft, dense"].samples
    for candidate in case.candidates.values():
        assert candidate.absent == ""
        figures = candidate.figures
        assert figures["mean"] == pytest.approx(np.mean(candidate.samples))
        assert figures["low"] <= figures["mean"] <= figures["high"]
        assert figures["below dense"] == pytest.approx(np.mean(dense) - figures["mean"])
    below = case.candidates["weft, RigL at 90 %"].figures["below dense"]
    assert (below > 1.5) == bool(case.missed)


def test_data_that_was_named_must_be_there(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        run(cases=("walks",), temporal=tmp_path / "nowhere", data_dir=tmp_path)
    with pytest.raises(DataError):
        run(cases=("accuracy",), planetoid=tmp_path / "nowhere", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cases": ()}, "cases are"),
        ({"cases": ("speed",)}, "choose from step, online, accelerate"),
        ({"sparsities": (1.0,)}, "sparsities are"),
        ({"accelerate_sparsities": (0.9, 0.5)}, "must ascend"),
        ({"wide": (8,)}, "at least 2 numbers"),
        ({"rounds": 0}, "rounds is 0"),
        ({"update_every": 1}, "update_every is 1"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(ValueError, match=words):
        SparseBench(**settings)


def test_a_scratch_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="--scratch"):
        SparseBench(scratch=tmp_path / "nowhere")
