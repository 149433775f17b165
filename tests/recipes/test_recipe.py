"""The registry of recipes, and which of them a run is of."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from weft.errors import DataError
from weft.recipes.recipe import RECIPES, PredictOptions, recipe_named, recipe_of_run


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


def test_what_is_no_run(tmp_path):
    with pytest.raises(DataError, match="holds no run of `weft train`"):
        recipe_of_run(tmp_path / "nowhere")
    with pytest.raises(DataError, match="a recipe that this weft does not know: potatoes"):
        recipe_of_run(folder(tmp_path / "run", {"kind": "potatoes"}))
    with pytest.raises(ValueError, match="recipe is 'potatoes'; choose from molecules"):
        recipe_named("potatoes")
