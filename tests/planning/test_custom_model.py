"""`weft.plan` for a model of a user's own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import own_model
import pytest
import torch
from own_model import Net, loss

import weft
from weft.batching import GraphLoader, GraphSampler, graph_sizes
from weft.graphs import GraphTable, graph_from_pyg, table_from_graphs, write_table
from weft.planning import Plan
from weft.planning.custom_model import _waves
from weft.planning.plan import Measured
from weft.sources.synthetic import small_graphs
from weft.training import Compilation, FitConfig, fit


@pytest.fixture(scope="module")
def table() -> GraphTable:
    return table_from_graphs(list(small_graphs(200)))


def test_a_plan_is_found_and_used(
    table: GraphTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.planning.search.TURN_SECONDS", 0.1)
    # Both are timed, however busy the machine.
    monkeypatch.setattr("weft.planning.search._LEAST_PATIENCE_SECONDS", 600.0)
    monkeypatch.setattr("weft.planning.search._LEAST_BUDGET_SECONDS", 6000.0)
    stored = write_table(tmp_path / "graphs.weft", [table])
    options: dict[str, Any] = {
        "loss": loss,
        "optimizer": partial(torch.optim.Adam, lr=1e-3),
        "batch_size": 16,
        "policies": ("packed", "unpadded"),
        "compile": ("eager",),
        "threads": (1,),
        "steps": 500,
        "data_dir": tmp_path / "data",
        "quiet": True,
    }
    found = weft.plan(partial(Net, width=4), stored, **options)
    assert isinstance(found, Plan)
    assert found.compile == "eager"
    assert found.total_units == 500 * 16
    assert found.settings["threads"] == 1
    timed = [each for each in found.measured if each.median is not None]
    assert {each.settings["batching.policy"] for each in timed} == {"packed", "unpadded"}
    assert all(each.step_units > 10 for each in timed)
    # The same again is not measured again, another number of steps is.
    assert weft.plan(partial(Net, width=4), stored, **options) == found
    options |= {"steps": 400, "policies": ("packed",)}
    assert weft.plan(partial(Net, width=4), stored, **options).total_units == 400 * 16

    sampler = GraphSampler(*graph_sizes(stored), found.batching(16))
    model = Compilation(found.compile).wrap(Net(width=4))
    optimizer = torch.optim.Adam(model.parameters())
    config = FitConfig(epochs=1, quiet=True)
    result = fit(model, optimizer, GraphLoader(stored, sampler), loss, config=config)
    assert result.steps == len(sampler)


def test_a_table_in_memory_is_fine_and_progress_is_shown(
    table: GraphTable, capfd: pytest.CaptureFixture[str]
) -> None:
    found = weft.plan(
        Net, table, loss=loss, policies=["dynamic"], compile=["eager"], threads=[1], steps=100
    )
    assert found.settings == {"batching.policy": "dynamic", "compile": "eager", "threads": 1}
    written = capfd.readouterr()
    assert written.out == ""
    assert "dynamic" in written.err


def test_a_loss_that_fails_is_named(table: GraphTable) -> None:
    with pytest.raises(ValueError, match="the widget has 3 sides"):
        weft.plan(
            Net,
            table,
            loss=own_model.broken,
            policies=["dynamic"],
            compile=["eager"],
            threads=[1],
            steps=100,
            quiet=True,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_fn": lambda: Net()}, "model_fn cannot be sent .* top level of a module"),
        ({"loss": lambda model, batch: 0}, "loss cannot be sent"),
        ({"optimizer": "adam"}, "optimizer is 'adam'; it must be a function"),
        ({"model_fn": dict}, "model_fn gave dict; it must make a torch.nn.Module"),
        ({"policies": ("full",)}, r"policies is \('full',\); give some of dynamic, static-64"),
        ({"compile": "eager"}, "compile is 'eager'; give some of eager, static, dynamic"),
        ({"threads": (0,)}, r"threads is \(0,\); give whole numbers of at least 1"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"target": "joy"}, "target is 'joy'; it must be time or memory"),
        ({"batch_size": 1}, "batch_size is 1; policy packed needs at least 2"),
        (
            {"policies": ("packed",), "compile": ("dynamic",)},
            "none of the policies packed goes with compile dynamic",
        ),
    ],
)
def test_mistakes(table: GraphTable, changes: dict[str, Any], message: str) -> None:
    options = {"model_fn": Net, "loss": loss, "steps": 100, "quiet": True, **changes}
    model_fn = options.pop("model_fn")
    with pytest.raises(ValueError, match=message):
        weft.plan(model_fn, table, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_data_is_told_how_to_become_a_table() -> None:
    data_of = pytest.importorskip("torch_geometric.data")
    ends = torch.tensor([[0, 1], [1, 0]])
    data = [data_of.Data(x=torch.ones(2, 1), edge_index=ends) for _ in range(9)]
    remedy = (
        r"table is a list; weft.plan takes a GraphTable: "
        r"table_from_graphs\(\[graph_from_pyg\(each\) for each in data\]\) .*weft.graphs"
    )
    with pytest.raises(ValueError, match=remedy):
        weft.plan(Net, data, loss=loss, steps=9, quiet=True)  # type: ignore[arg-type]
    table = table_from_graphs([graph_from_pyg(each) for each in data])
    assert len(table) == 9


def test_a_prompt_is_told_to_use_a_file() -> None:
    script = (
        "import torch, weft\n"
        "from weft.graphs import table_from_graphs\n"
        "from weft.sources.synthetic import small_graphs\n"
        "class Net(torch.nn.Module): pass\n"
        "def loss(model, batch): pass\n"
        "weft.plan(Net, table_from_graphs(list(small_graphs(9))), loss=loss, steps=9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False
    )
    assert "model_fn is defined at a prompt or in a notebook" in done.stderr
    assert "put it into a file" in done.stderr


def measured(policy: str, threads: int, seconds: float) -> Measured:
    settings = {"batching.policy": policy, "compile": "eager", "threads": threads}
    return Measured(label="", settings=settings, outcome="slower", median=seconds)


def test_compilers_are_tried_with_the_best_policies_only() -> None:
    waves = _waves(
        {"packed": 1, "static-64": 40, "unpadded": 99}, ("eager", "static", "dynamic"), (1, 4)
    )
    first = next(waves)
    assert [each.label for each in first] == [
        "packed, eager, 4 threads",
        "static-64, eager, 4 threads",
        "unpadded, eager, 4 threads",
    ]
    results = [measured("unpadded", 4, 1), measured("packed", 4, 2), measured("static-64", 4, 3)]
    second = waves.send(results)
    assert [each.label for each in second] == [
        "unpadded, eager, 1 thread",
        "packed, eager, 1 thread",
    ]
    third = waves.send([measured("unpadded", 1, 0.5), *results])
    assert [each.label for each in third] == [
        "unpadded, compiled (dynamic), 1 thread",
        "packed, compiled (static), 1 thread",
    ]
