"""Planning for one big graph: what is worth timing, and timing it with real ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from weft.cli.main import main
from weft.graphs import write_table
from weft.parallel.method import Method
from weft.planning import Candidate, Plan, applied
from weft.planning.plan import Measured
from weft.planning.task import make_plan
from weft.recipes.full_graph.candidates import FullGraphTask, Way, to_be_timed, ways_to_share
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import full_graph_table
from weft.sources.synthetic import planted_partition
from weft.training.hardware import cores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planning")
    graph = planted_partition(300, 3, mean_degree=6, homophily=0.8, num_features=5, seed=0)
    write_table(folder / "graph.weft", [graph])
    return folder


@pytest.fixture(scope="module")
def config(folder: Path) -> FullGraphConfig:
    return FullGraphConfig(data=str(folder / "graph.weft"), split=(0.5, 0.25, 0.25))


def ways(config: FullGraphConfig, folder: Path) -> list[Way]:
    table, _ = full_graph_table(replace(config, ranks=1, grid="1d"), data_dir=folder)
    return ways_to_share(config, table)


def test_every_way_that_is_left_open(config: FullGraphConfig, folder: Path) -> None:
    found = ways(replace(config, ranks=4), folder)
    assert [way.cost.seconds for way in found] == sorted(way.cost.seconds for way in found)
    threads = max(1, cores() // 4)
    grids = ({"grid": "1d"}, {"grid": "1.5d", "replication": 2}, {"grid": "2d"})
    expected = [
        {"ranks": 4, **grid, "method.exchange": exchange, "threads": threads}
        for grid in grids
        for exchange in ("rows", "blocks")
    ]
    settings = [way.candidate.settings for way in found]
    assert sorted(map(str, settings)) == sorted(map(str, expected))
    assert all(applied(config, each).ranks == 4 for each in settings)


def test_what_is_asked_for_stays(config: FullGraphConfig, folder: Path) -> None:
    asked = replace(config, ranks=4, grid="2d", method=Method(exchange="blocks"))
    (way,) = ways(asked, folder)
    assert way.candidate.settings["grid"] == "2d"
    assert way.candidate.settings["method.exchange"] == "blocks"
    with pytest.raises(ValueError, match="the grid 2d needs q² ranks, not 2"):
        ways(FullGraphConfig(data=config.data, split=config.split, ranks=2, grid="2d"), folder)


def test_one_rank_has_all_threads_or_half_of_them(config: FullGraphConfig, folder: Path) -> None:
    found = ways(replace(config, ranks=1), folder)
    assert {way.candidate.settings["threads"] for way in found} == {
        cores(),
        max(1, cores() // 2),
    }
    assert all("method.exchange" not in way.candidate.settings for way in found)


def test_the_cost_model_leaves_a_handful(config: FullGraphConfig, folder: Path) -> None:
    found = [way for count in (1, 4, 16) for way in ways(replace(config, ranks=count), folder)]
    found.sort(key=lambda way: way.cost.seconds)
    timed = to_be_timed(found)
    assert len(timed) < len(found)
    assert timed[:4] == found[:4]
    # Some it might be wrong about: each kind of grid with most ranks, and one rank.
    kinds = {(way.cost.grid.name, way.cost.grid.ranks) for way in timed}
    assert {("1d", 16), ("1.5d", 16), ("2d", 16), ("1d", 1)} <= kinds
    least = min(way.cost.memory.total for way in found)
    assert all(way.cost.memory.total <= 2 * least for way in to_be_timed(found, 2 * least))
    with pytest.raises(ValueError, match=r"no way .* fits in .* GB a rank: the least is"):
        to_be_timed(found, least / 2)


def test_orders_of_nodes_are_tried_for_the_best(config: FullGraphConfig, folder: Path) -> None:
    recipe = FullGraphTask(replace(config, ranks=2), data_dir=folder)
    waves = recipe.waves()
    first = next(waves)  # type: ignore[call-overload]
    assert all("partition" not in each.settings for each in first)
    best = Measured(label="", settings=first[0].settings, outcome="slower", median=1.0)
    second = waves.send([best])  # type: ignore[union-attr]
    assert second[0] == first[0].but(partition="rcm")
    assert all(each.settings["ranks"] == 2 for each in second)
    # Each partition is timed, or left out for a reason.
    names = {each.settings["partition"] for each in second}
    left_out = {each.settings.get("partition"): each.outcome for each in recipe.known}
    assert {"metis", "volume", "balanced"} <= names | set(left_out)
    assert not names & set(left_out)
    taken = Measured(label="", settings=second[-1].settings, outcome="chosen", median=1.0)
    plan = Plan(
        recipe="full-graph",
        settings=taken.settings,
        target="time",
        units="epochs",
        total_units=1,
        measured=(taken,),
    )
    _, counted, why = recipe.explain(plan)
    assert counted.startswith("partitions on 2 ranks, 1d, an epoch by the cost model, bytes and ")
    assert all(f"{how} " in counted for how in ("contiguous", "balanced"))
    assert why.startswith(f"partition {second[-1].settings['partition']}: ")
    asked = FullGraphTask(replace(config, ranks=2, partition="random"), data_dir=folder)
    waves = asked.waves()
    next(waves)  # type: ignore[call-overload]
    with pytest.raises(StopIteration):
        waves.send([best])  # type: ignore[union-attr]


def test_ranks_are_timed(config: FullGraphConfig, folder: Path) -> None:
    asked = replace(config, ranks=2, partition="random", method=Method(exchange="blocks"))
    recipe = FullGraphTask(asked, data_dir=folder)
    plan = make_plan(recipe, steps=50, data_dir=folder)
    assert plan.recipe == "full-graph"
    assert plan.units == "epochs"
    assert plan.total_units == 50
    assert applied(asked, plan.settings).num_ranks == 2
    chosen = plan.chosen
    assert chosen.steps >= 5
    assert chosen.step_units == 1
    assert chosen.median is not None
    # Two processes with torch in them.
    assert chosen.peak_memory > 2e8
    assert "the cost model left 1 of 1 ways to share the graph to be timed" in plan.reasons


@pytest.mark.usefixtures("short_turns")
def test_a_plan_is_made_and_followed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    data = ["--data", str(folder / "graph.weft"), "--data-dir", str(folder), "--epochs", "3"]
    out = ["--out", str(folder / "plan.json")]
    words = ["plan", "full-graph", "--measure", "--ranks", "1", *data, *out, "--quiet"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "1 rank, 1d" in printed
    assert "weft train full-graph --data" in printed
    plan = Plan.load(folder / "plan.json")
    assert plan.settings["ranks"] == 1
    run = ["--out", str(folder / "run"), "--plan", str(folder / "plan.json"), "--quiet"]
    assert main(["train", "full-graph", *data, *run]) == 0
    assert "plan: ranks 1 (was None)" in capsys.readouterr().out
    assert Plan.load(folder / "run" / "plan.json") == plan
    assert json.loads((folder / "run" / "summary.json").read_text())["epochs"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "9"], "--nodes is for formulas, and --measure times a real graph"),
        ([], "--measure trains on a real graph: name it with --data"),
        (["--data", "cora", "--ranks", "2..4"], "ranks is '2..4'; with --measure it is one number"),
        (["--data", "cora", "--budget", "0"], "budget is 0.0; it must be above 0"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "full-graph", "--measure", *words]) == 2
    assert message in capsys.readouterr().err


def test_candidates_have_names_for_people() -> None:
    settings = {"ranks": 4, "grid": "1.5d", "replication": 2, "method.exchange": "rows"}
    label = Candidate({**settings, "threads": 1, "partition": "rcm"}).label
    assert label == "4 ranks, 1.5d, replication 2, rows, 1 thread, partition rcm"
