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
from weft.batching import BatchingConfig, GraphLoader, GraphSampler, graph_sizes
from weft.graphs import GraphTable, table_from_graphs, write_table
from weft.integrations.custom_model import _batches, _stored, _waves
from weft.planning import Candidate, Plan
from weft.planning.plan import Measured
from weft.sources.synthetic import small_graphs
from weft.training import Compilation, CompileMode, FitConfig, fit


@pytest.fixture(scope="module")
def table() -> GraphTable:
    return table_from_graphs(list(small_graphs(200)))


@pytest.mark.usefixtures("short_turns")
def test_a_plan_is_found_and_used(
    table: GraphTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    settings = {"batching.policy": "dynamic", "compile": "eager", "accelerate": False, "threads": 1}
    assert found.settings == settings
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
        ({"model_fn": partial(torch.nn.LazyLinear, 3)}, "parameters have no shape yet"),
        ({"policies": ("full",)}, r"policies is \('full',\); give some of dynamic, static-64"),
        ({"compile": "eager"}, "compile is 'eager'; give some of eager, static, dynamic"),
        ({"threads": (0,)}, r"threads is \(0,\); give whole numbers of at least 1"),
        ({"steps": 0}, "steps is 0; it must be a whole number of at least 1"),
        ({"steps": 1.5}, "steps is 1.5; it must be a whole number"),
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


@pytest.mark.usefixtures("short_turns")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_data_and_models_of_torch_geometric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch_geometric")
    from own_geometric_model import GeometricNet, geometric_loss, molecules

    # All are timed, however busy the machine.
    monkeypatch.setattr("weft.planning.search._LEAST_PATIENCE_SECONDS", 600.0)
    monkeypatch.setattr("weft.planning.search._LEAST_BUDGET_SECONDS", 6000.0)
    data = molecules(100)
    options: dict[str, Any] = {
        "loss": geometric_loss,
        "batch_size": 16,
        "policies": ("packed", "unpadded"),
        "compile": ("eager",),
        "threads": (1,),
        "steps": 500,
        "data_dir": tmp_path,
        "quiet": True,
    }
    found = weft.plan(partial(GeometricNet, width=4), data, **options)
    timed = {
        (each.settings["batching.policy"], each.settings["accelerate"])
        for each in found.measured
        if each.median is not None
    }
    assert timed == {(policy, on) for policy in ("packed", "unpadded") for on in (True, False)}
    assert all(10 < each.step_units < 16.1 for each in found.measured)
    on = found.settings["accelerate"]
    assert any(
        reason.startswith(f"weft.accelerate {'on' if on else 'off'}") for reason in found.reasons
    )
    assert ("accelerated" in found.chosen.label) == on
    # The same data again, though in another form, is not measured again.
    assert weft.plan(partial(GeometricNet, width=4), tuple(data), **options) == found

    with pytest.raises(
        ValueError, match="data is a int; give a GraphTable, or a data set of torch"
    ):
        weft.plan(GeometricNet, 3, **options)
    with pytest.raises(ValueError, match="data is a dict; give a GraphTable, or a data set of tor"):
        weft.plan(GeometricNet, {"train": data}, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_stored_data_of_torch_geometric_is_the_same(tmp_path: Path) -> None:
    data_of = pytest.importorskip("torch_geometric.data")
    from own_geometric_model import Doubled, molecules

    data = molecules(20)
    whole = data_of.InMemoryDataset()
    whole._data, whole.slices = whole.collate(data)
    whole[3]
    chosen = [5, 2, 11, 7]
    batching = BatchingConfig(policy="unpadded", batch_size=4, shuffle=False)
    for dataset in (
        [data[i] for i in chosen],
        torch.utils.data.Subset(data, chosen),
        torch.utils.data.Subset(whole, chosen),
        whole[chosen],
    ):
        (batch,) = _batches(_stored(dataset, tmp_path), batching)
        found = {each.name: each for each in batch.to_data_list()}
        assert len(found) == len({data[i].name for i in chosen})
        for i in chosen:
            for name in ("x", "edge_index", "y"):
                torch.testing.assert_close(found[data[i].name][name], data[i][name])
    doubled = Doubled(whole, chosen)
    (batch,) = _batches(_stored(doubled, tmp_path), batching)
    assert batch.x.shape == (2 * sum(data[i].num_nodes for i in chosen), 3)
    assert graph_sizes(doubled)[0].tolist() == [2 * data[i].num_nodes for i in chosen]
    del data[3].y
    with pytest.raises(ValueError, match="graph 3 of data has no 'y', which graph 0 has"):
        _stored(data, tmp_path)
    data[3].y = torch.zeros(1, 7)
    with pytest.raises(ValueError, match=r"cannot be joined .* one shape in all"):
        _stored(data, tmp_path)
    whole.transform = lambda graph: graph
    with pytest.raises(ValueError, match=r"data cannot be sent .* top level of a module"):
        _stored(whole, tmp_path)


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


def measured(policy: str, threads: int, seconds: float, accelerate: bool = False) -> Measured:
    candidate = Candidate(
        {
            "batching.policy": policy,
            "compile": "eager",
            "accelerate": accelerate,
            "threads": threads,
        }
    )
    label, settings = candidate.label, candidate.settings
    return Measured(label=label, settings=settings, outcome="slower", median=seconds)


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


def test_accelerated_layers_are_not_compiled() -> None:
    modes: tuple[CompileMode, ...] = ("eager", "static", "dynamic")
    waves = _waves({"packed": 1, "unpadded": 99}, modes, (1, 2), (True, False))
    assert [each.label for each in next(waves)] == [
        "packed, eager, accelerated, 2 threads",
        "packed, eager, 2 threads",
        "unpadded, eager, accelerated, 2 threads",
        "unpadded, eager, 2 threads",
    ]
    results = [
        measured("unpadded", 2, 1, accelerate=True),
        measured("unpadded", 2, 2),
        measured("packed", 2, 3),
        measured("packed", 2, 4, accelerate=True),
    ]
    assert [each.label for each in waves.send(results)] == [
        "unpadded, eager, accelerated, 1 thread",
        "packed, eager, 1 thread",
    ]
    assert [each.label for each in waves.send(results)] == [
        "unpadded, compiled (dynamic), 2 threads",
        "packed, compiled (static), 2 threads",
    ]
