"""A recipe's plan measured for real, in worker processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from recipe_cases import papers

from weft.graphs import write_table
from weft.planning import Plan
from weft.planning.task import find_plan, make_plan
from weft.recipes.nodes.config import PUBLISHED
from weft.recipes.nodes.recipe import NodesDataOptions
from weft.recipes.planned_runs import plan_recipe, read_task


@pytest.fixture
def cora(tmp_path):
    write_table(tmp_path / "cora.weft", [papers()])
    return tmp_path


@pytest.mark.usefixtures("short_turns")
def test_a_plan_is_measured_kept_and_found_again(cora):
    config, told = replace(PUBLISHED, epochs=50), []
    plan = plan_recipe(
        "citations",
        config,
        NodesDataOptions(data_dir=cora),
        seconds=6000,
        tell=told.append,
        progress=False,
    )
    assert plan.recipe == "citations"
    assert plan.steps == 50
    assert plan.settings["threads"] >= 1
    assert plan.chosen.median is not None
    assert plan.reasons
    assert told
    (kept,) = (cora / "plans").iterdir()
    assert Plan.load(kept).settings == plan.settings
    recipe = read_task("citations", config, NodesDataOptions(data_dir=cora), progress=False)
    found, new = find_plan(recipe, data_dir=cora)
    assert (found.created, new) == (plan.created, False)


def test_a_plan_made_in_a_hurry_is_not_kept(cora, monkeypatch):
    monkeypatch.setattr("weft.recipes.sparse_training.thread_counts", lambda: [2, 1])
    recipe = read_task(
        "citations", replace(PUBLISHED, epochs=50), NodesDataOptions(data_dir=cora), progress=False
    )
    plan = make_plan(recipe, seconds=1e-3, data_dir=cora)
    assert [each.outcome.partition(":")[0] for each in plan.measured] == ["chosen", "not tried"]
    assert not (cora / "plans").exists()
