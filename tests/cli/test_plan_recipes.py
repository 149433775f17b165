"""`weft plan RECIPE` and `weft train RECIPE --plan`: measured, then followed by a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.planning import Measured, Plan
from weft.planning.task import key_of
from weft.recipes.nodes.config import PUBLISHED
from weft.recipes.nodes.recipe import NodesDataOptions
from weft.recipes.planned_runs import read_task
from weft.recipes.structures.training import StructuresConfig
from weft.training.hardware import cores

SHORT = ("--hidden", 4, "--layers", 1, "--batching.batch-size", 4)


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made(recipe: str, settings: dict[str, Any], key: Any = None) -> Plan:
    """A plan that nobody has measured."""
    chosen = Measured(
        label="this one", settings=settings, outcome="chosen", median=1e-3, low=9e-4, high=2e-3
    )
    return Plan(
        recipe=recipe,
        settings=settings,
        target="time",
        units="graphs",
        total_units=100,
        measured=(chosen,),
        key=key or {},
    )


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["config"]
    return found


@pytest.mark.usefixtures("short_turns")
def test_a_plan_is_measured_and_followed(weft: Callable[..., Any], tmp_path, small_molecules):
    words = ("--data", small_molecules, *SHORT)
    # A plan is kept for the next time unless its budget was too small.
    asked = ("--target", "energy", "--epochs", 2, "--budget", 6000)
    said = weft("plan", "molecules", *words, *asked)
    assert said.code == 0, said
    assert "eager" in said.out
    assert "real rows of nodes and of edges" in said.out.replace("\n", " ")
    assert "weft train molecules --plan plan.json" in said.out
    assert "planning takes at most" in said.err
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.recipe == "molecules"
    assert plan.command.startswith("weft plan molecules")
    # Ranks of this machine are tried too, each with its share of the cores.
    ranks = [each for each in plan.measured if each.settings.get("processes", 1) > 1]
    assert {each.settings["processes"] for each in ranks} == {cores(), cores() // 2} - {0, 1}
    assert not [each.outcome for each in ranks if each.outcome.startswith("failed")]
    # So few steps do not wait for a compiler.
    assert plan.settings["compile"] == "eager"
    train = ("train", "molecules", "--target", "energy", "--epochs", 2, *words, "--quiet")
    followed = weft(*train, "--out", "run", "--plan", "plan.json")
    assert followed.code == 0, followed
    assert "plan: " in followed.out
    assert "made for" not in followed.out
    assert config_of(tmp_path / "run")["batching"]["policy"] == plan.settings["batching.policy"]
    assert Plan.load(tmp_path / "run" / "plan.json").created == plan.created
    # The one in the data folder is found by itself.
    found = weft(*train, "--out", "auto", "--plan", "auto")
    assert found.code == 0, found
    assert Plan.load(tmp_path / "auto" / "plan.json").created == plan.created


@pytest.mark.usefixtures("short_turns")
def test_auto_measures_first(weft: Callable[..., Any], tmp_path, small_cora):
    words = ("train", "citations", "--epochs", 3, "--out", "run", "--plan", "auto")
    said = weft(*words)
    assert said.code == 0, said
    assert "planning takes at most" in said.err
    plan = Plan.load(tmp_path / "run" / "plan.json")
    count = plan.settings["threads"]
    assert f"plan: {count} thread" in said.out
    assert torch.get_num_threads() == count
    again = weft(*words, "--resume")
    assert again.code == 0, again
    assert "planning" not in again.err
    taken = weft(*words)
    assert "run holds a run already; resume it (--resume)" in taken.err
    assert "planning" not in taken.err


def test_a_run_without_a_plan_goes_on_without(weft, tmp_path, small_cora):
    words = ("train", "citations", "--epochs", 3, "--out", "run", "--quiet")
    assert weft(*words).code == 0
    assert weft(*words, "--plan", "auto", "--resume").code == 0
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_run_is_resumed_with_its_plan(weft, mistake, tmp_path, small_molecules):
    settings = {"batching.policy": "packed", "compile": "eager", "threads": 1}
    made("molecules", settings).save(tmp_path / "mine.json")
    words = ("train", "molecules", "--data", small_molecules, "--target", "energy", *SHORT)
    words = (*words, "--epochs", 2, "--out", "run", "--quiet")
    said = weft(*words, "--plan", "mine.json")
    assert said.code == 0, said
    assert "the plan was made for other data; it is used unchanged" in said.out
    assert "plan: batching.policy packed (was dynamic), 1 thread" in said.out
    assert torch.get_num_threads() == 1
    (tmp_path / "mine.json").unlink()
    resumed = weft(*words, "--resume")
    assert resumed.code == 0, resumed
    assert config_of(tmp_path / "run")["batching"]["policy"] == "packed"
    printed = weft(*words, "--resume", "--print-config")
    assert json.loads(printed.out)["batching"]["policy"] == "packed"


def test_a_plan_with_ranks_is_followed_by_ranks(weft, tmp_path, small_molecules):
    settings = {"batching.policy": "packed", "compile": "eager", "threads": 1, "processes": 2}
    made("molecules", settings).save(tmp_path / "mine.json")
    words = ("train", "molecules", "--data", small_molecules, "--target", "energy", *SHORT)
    words = (*words, "--epochs", 2, "--quiet", "--plan", "mine.json")
    # A process of its own, as the first of the ranks prints.
    command = [sys.executable, "-m", "weft", *map(str, words), "--out", "shared"]
    shared = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "plan: batching.policy packed (was dynamic), 2 ranks" in shared.stdout
    alone = weft(*words, "--out", "alone", "--ranks", 1)
    assert alone.code == 0, alone
    assert not (tmp_path / "alone" / "logs").exists()
    assert "plan: batching.policy packed (was dynamic)" in alone.out
    found = []
    for run in ("shared", "alone"):
        lines = (tmp_path / run / "metrics.jsonl").read_text().splitlines()
        found.append([m["validation_mae"] for m in map(json.loads, lines) if "validation_mae" in m])
    assert found[0]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_plan_for_other_settings_says_so(weft, tmp_path, small_cora):
    recipe = read_task(
        "citations",
        replace(PUBLISHED, epochs=3),
        NodesDataOptions(data_dir=tmp_path / "data"),
        progress=False,
    )
    made("citations", {"threads": 1}, key_of(recipe)).save(tmp_path / "mine.json")
    words = ("train", "citations", "--quiet", "--plan", "mine.json", "--model.hidden", 8)
    said = weft(*words, "--epochs", 3)
    assert said.code == 0, said
    assert "the plan was made for hidden = [16], and here it is [8]" in said.out


def test_threads_of_ones_own(weft, tmp_path, small_cora):
    made("citations", {"threads": 2}).save(tmp_path / "mine.json")
    words = ("train", "citations", "--epochs", 1, "--quiet", "--threads", 1)
    assert weft(*words, "--out", "a").code == 0
    assert torch.get_num_threads() == 1
    said = weft(*words, "--out", "b", "--plan", "mine.json")
    assert "plan: 1 thread" in said.out
    assert torch.get_num_threads() == 1


def test_links_and_programs_follow_plans(weft, tmp_path):
    pytest.importorskip("gensim")
    lines = [f"u{i % 7} u{(3 * i + i // 5) % 30} {i}\n" for i in range(300)]
    (tmp_path / "edges.txt").write_text("".join(lines))
    made("links", {"form": "sparse", "threads": 1}).save(tmp_path / "links.json")
    words = ("--data", "edges.txt", "--sparsify", "rigl", "--epochs", 1, "--quiet")
    said = weft("train", "links", *words, "--plan", "links.json")
    assert said.code == 0, said
    assert "plan: form sparse (was dense), 1 thread" in said.out
    (tmp_path / "code").mkdir()
    for file in range(12):
        text = f"def add_{file}(first, second):\n    total = first + second\n    return total\n"
        (tmp_path / "code" / f"part{file}.py").write_text(text)
    settings = {"layout.form": "banded", "layout.block": 128, "policy": "dynamic"}
    made("programs", {**settings, "compile": "eager", "threads": 1}).save(tmp_path / "code.json")
    small = ("--hidden", 8, "--steps", 2, "--nodes", 256, "--epochs", 1, "--quiet")
    said = weft("train", "programs", "--data", "code", *small, "--plan", "code.json")
    assert said.code == 0, said
    assert (
        "plan: layout.form banded (was csr), layout.block 128 (was None), policy dynamic (was "
        "packed), 1 thread"
    ) in said.out
    again = weft("train", "programs", "--data", "code", *small, "--resume")
    assert again.code == 0, again


def test_mistakes_of_training_with_a_plan(mistake, tmp_path, small_cora, monkeypatch):
    words = ("train", "citations", "--epochs", 1, "--quiet", "--plan")
    assert "cannot read the plan nowhere.json" in mistake(*words, "nowhere.json")
    (tmp_path / "thesis.txt").write_text("words")
    assert "thesis.txt is not JSON" in mistake(*words, "thesis.txt")
    made("molecules", {"threads": 1}).save(tmp_path / "other.json")
    assert "is a plan for molecules, not for citations" in mistake(*words, "other.json")
    made("citations", {"colour": "red"}).save(tmp_path / "odd.json")
    assert "a plan sets 'colour'" in mistake(*words, "odd.json")
    said = mistake("train", "citations", "--epochs", 1, "--quiet", "--threads", 0)
    assert "threads is 0; it must be a whole number of at least 1" in said
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    said = mistake("train", "programs", "--plan", "auto")
    assert "make a plan with `weft plan programs` and give it" in said


def test_mistakes_of_planning(weft, mistake, tmp_path, small_cora):
    words = ("plan", "citations")
    assert "run_steps is 0; it must be above 0" in mistake(*words, "--run-steps", 0)
    assert "budget is -1.0; it must be above 0" in mistake(*words, "--budget", -1)
    said = weft(*words, "--minimise", "speed")
    assert said.code == 2
    assert all(word in said.err for word in ("--minimise", "speed", "time", "memory"))
    (tmp_path / "thesis.json").write_text("{}")
    said = mistake(*words, "--out", "thesis.json")
    assert "thesis.json exists already and is not a plan" in said
    assert "there is no folder nowhere" in mistake(*words, "--out", "nowhere/plan.json")
    assert (tmp_path / "thesis.json").read_text() == "{}"


def test_options_are_the_recipes_own():
    from weft.cli.main import parse
    from weft.recipes.structures.recipe import CRYSTALS

    command: Any = parse("plan", ["crystals", "--target", "gap", "--minimise", "memory"])
    assert command.config.target == "gap"
    assert command.minimise == "memory"
    assert command.config.neighbours == CRYSTALS.default().neighbours
    molecules: Any = parse("plan", ["molecules"])
    assert molecules.config.target == StructuresConfig().target
    programs: Any = parse("plan", ["programs", "--steps", "3", "--run-steps", "50"])
    assert (programs.config.steps, programs.run_steps) == (3, 50)


def test_earlier_names_of_options_are_taken():
    from weft.cli.main import parse

    command: Any = parse("plan", ["molecules", "--column=gap"])
    assert command.config.target == "gap"
    programs: Any = parse("plan", ["programs", "--rounds", "3"])
    assert programs.config.steps == 3
    molecules: Any = parse("plan", ["molecules", "--steps", "200"])
    assert molecules.run_steps == 200
    links: Any = parse("plan", ["links", "--target", "memory"])
    assert links.minimise == "memory"
    shared: Any = parse("plan", ["full-graph", "--target", "memory", "--json", "a.json"])
    assert (shared.minimise, shared.out) == ("memory", Path("a.json"))
    train: Any = parse("train", ["links", "--run-dir", "here"])
    assert train.out == Path("here")
