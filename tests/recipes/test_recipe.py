"""The registry of recipes, and which of them a run is of."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from weft.errors import DataError
from weft.recipes.links.training import PreparedLinks
from weft.recipes.nodes.training import PreparedNodes
from weft.recipes.planned_runs import PlanOption
from weft.recipes.recipe import (
    RECIPES,
    DataOptions,
    PredictOptions,
    Start,
    recipe_named,
    recipe_of_run,
)


def folder(path: Path, about: dict[str, Any] | None, **config: Any) -> Path:
    """A run, as far as its recipe is concerned."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"config": {}, "sessions": [], **config}))
    if about is not None:
        (path / "model.json").write_text(json.dumps(about))
    return path


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_it_is(name):
    recipe = recipe_named(name)
    assert recipe is recipe_named(name)
    assert recipe.name == name
    assert recipe.help.strip()
    config = recipe.default()
    fields = {each.name for each in dataclasses.fields(config)}
    assert set(recipe.common) <= fields
    assert set(recipe.predicts_with) <= {each.name for each in dataclasses.fields(PredictOptions)}
    assert recipe.run_name(config).startswith(f"{name}-")
    assert recipe.settled(recipe.settled(config)) == recipe.settled(config)
    # The progress in a terminal and a run's page count the same.
    if hasattr(config, "fit_config"):
        assert config.fit_config(quiet=True).counts == recipe.counts


def test_sparse_recipes_count_what_their_steps_do():
    assert recipe_named("nodes").counts == PreparedNodes.units
    assert recipe_named("links").counts == PreparedLinks.units


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_says_its_recipe(tmp_path, name):
    assert recipe_of_run(folder(tmp_path / "run", None, recipe=name)).name == name


@pytest.mark.parametrize(
    ("about", "name"),
    [
        ({"kind": "links"}, "links"),
        ({"kind": "nodes", "classes": []}, "nodes"),
        ({"kind": "programs"}, "programs"),
        ({"kind": "full graph"}, "full-graph"),
        ({"elements": [1], "unit": "eV"}, "molecules"),
        (None, "citations"),
    ],
)
def test_runs_of_earlier_versions_are_known_by_what_they_hold(tmp_path, about, name):
    assert recipe_of_run(folder(tmp_path / "run", about)).name == name


def test_ranks_compute_with_the_threads_that_are_asked_for(tmp_path, monkeypatch):
    before, found = torch.get_num_threads(), []

    def launch(function: Any, arguments: Any, **_: Any) -> Any:
        # As a rank begins.
        torch.set_num_threads(1)
        return [function(*pickle.loads(pickle.dumps(arguments)))]

    def read(*_: Any, **__: Any) -> None:
        found.append(torch.get_num_threads())
        raise DataError("enough")

    recipe = recipe_named("links")
    monkeypatch.setattr("weft.training.launch.launch", launch)
    monkeypatch.setattr(type(recipe), "read", read)
    try:
        for number, threads in enumerate((None, 3)):
            run = tmp_path / str(number)
            plan = PlanOption("links", None, threads, folder=run, resume=False, ranks=2)
            start = Start(
                folder=run,
                resume=False,
                init_from=None,
                source=DataOptions(),
                plan=plan,
                quiet=True,
                console=Console(),
                ranks=2,
            )
            with pytest.raises(DataError, match="enough"):
                recipe.run(recipe.default(), start)
    finally:
        torch.set_num_threads(before)
    assert found == [1, 3]


def test_what_is_no_run(tmp_path):
    with pytest.raises(DataError, match="holds no run of `weft train`"):
        recipe_of_run(tmp_path / "nowhere")
    with pytest.raises(DataError, match="a recipe that this weft does not know: potatoes"):
        recipe_of_run(folder(tmp_path / "run", {"kind": "potatoes"}))
    with pytest.raises(ValueError, match="recipe is 'potatoes'; choose from molecules"):
        recipe_named("potatoes")
