"""Plans for the recipes of `weft train`: measured, kept in the data folder, found again."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from weft.files import json_text
from weft.planning.cache import cached_plan, keep_plan, plan_key
from weft.planning.halving import search
from weft.planning.plan import NOT_TRIED, UNFINISHED, Plan, Target
from weft.planning.task import Recipe
from weft.planning.worker import prepare_workers
from weft.recipes.links.data import temporal_edges
from weft.recipes.links.training import prepare_links
from weft.recipes.nodes.citation_candidates import CitationsRecipe
from weft.recipes.nodes.training import prepare_nodes
from weft.recipes.programs.candidates import ProgramsRecipe
from weft.recipes.programs.data import read_programs
from weft.recipes.recipe_data import read_labelled_graph, read_structures
from weft.recipes.sparse_candidates import LinksRecipe, NodesRecipe
from weft.recipes.structures.candidates import StructuresRecipe
from weft.recipes.structures.data import some_of
from weft.sources import load
from weft.training.run import first_difference

# A run of half the length, or twice, is much the same.
_SIMILAR = 0.5

RecipeName = Literal["molecules", "crystals", "programs", "citations", "nodes", "links"]


def plan_recipe(
    recipe: RecipeName,
    config: Any,
    *,
    steps: int | None = None,
    target: Target = "time",
    seconds: float | None = None,
    files: Sequence[Path] = (),
    labels: Path | None = None,
    data_dir: Path | None = None,
    tell: Callable[[str], object] = lambda text: None,
    progress: bool = True,
) -> Plan:
    """Read the data of a recipe, then `make_plan`.

    Args:
        recipe: its name.
        config: its configuration.
        steps: of the run that is planned; by default those that the configuration asks for.
        target: the least time, or the least memory.
        seconds: that planning may take, about; by default two minutes or 5% of the run.
        files: files to build the data set from.
        labels: for nodes of an edge list of one's own.
        data_dir: the data folder.
        tell: takes a sentence about each thing that happens.
        progress: show progress bars while data is read.
    """
    prepare_workers(__name__)
    found = read_recipe(
        recipe, config, files=files, labels=labels, data_dir=data_dir, progress=progress
    )
    return make_plan(
        found, steps=steps, target=target, seconds=seconds, data_dir=data_dir, tell=tell
    )


def read_recipe(
    recipe: RecipeName,
    config: Any,
    *,
    files: Sequence[Path] = (),
    labels: Path | None = None,
    data_dir: Path | None = None,
    progress: bool = True,
) -> Recipe:
    """A recipe with its data, read as `weft train` reads it; arguments as of `plan_recipe`."""
    given: dict[str, Any] = {"files": files, "data_dir": data_dir, "progress": progress}
    if recipe in ("molecules", "crystals"):
        config = config.settled(recipe)
        config.check_forces()
        return StructuresRecipe(recipe, read_structures(config, **given), config)
    if recipe == "programs":
        table = read_programs(config.data, **given)
        return ProgramsRecipe(some_of(table, config.limit, config.split_seed), config)
    if recipe == "citations":
        return CitationsRecipe(load(config.data, **given), config)
    if recipe == "nodes":
        graph = read_labelled_graph(config.data, labels=labels, **given)
        return NodesRecipe(prepare_nodes(graph, config))
    if recipe == "links":
        return LinksRecipe(prepare_links(temporal_edges(config.data, **given), config))
    raise ValueError(f"recipe is {recipe!r}; choose from {', '.join(get_args(RecipeName))}")


def key_of(recipe: Recipe, *, steps: int | None = None, target: Target = "time") -> dict[str, Any]:
    """What a plan for this recipe, data, machine and length of training is kept under."""
    return plan_key(
        recipe=recipe.name,
        data=recipe.data,
        config=recipe.config,
        planned=(*recipe.planned, *recipe.idle),
        target=target,
        total_units=round(_steps(recipe, steps) * recipe.step_units),
    )


def make_plan(
    recipe: Recipe,
    *,
    steps: int | None = None,
    target: Target = "time",
    seconds: float | None = None,
    data_dir: Path | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> Plan:
    """Measure the ways to train a recipe and choose the best; the plan is kept for `find_plan`.

    Arguments as of `plan_recipe`. A plan that `seconds` were too few for is not kept.

    Raises:
        DataError: no way of training works.
    """
    count = _steps(recipe, steps)
    plan = search(
        recipe.work,
        recipe.waves(),
        total_units=count * recipe.step_units,
        seconds=seconds,
        target=target,
        tell=tell,
        recipe=recipe.name,
        steps=count,
        explain=lambda plan: [*recipe.explain(plan), *recipe.remarks],
    )
    hurried = seconds is not None and any(
        each.outcome.startswith((NOT_TRIED, UNFINISHED)) for each in plan.measured
    )
    plan = dataclasses.replace(
        plan,
        measured=(*plan.measured, *recipe.known),
        key=key_of(recipe, steps=steps, target=target),
        command=shlex.join(["weft", *sys.argv[1:]]),
    )
    if not hurried:
        keep_plan(plan, data_dir)
    return plan


def find_plan(
    recipe: Recipe,
    *,
    data_dir: Path | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> tuple[Plan, bool]:
    """The plan that was kept for this recipe, data, machine and versions, else a new one.

    Returns:
        The plan, and whether it is new.
    """
    kept = cached_plan(key_of(recipe), data_dir)
    if kept is not None:
        return kept, False
    return make_plan(recipe, data_dir=data_dir, tell=tell), True


def made_for(plan: Plan, recipe: Recipe) -> str:
    """What the plan was made for, in words, where that is other than this recipe; else empty.

    The first difference among data, settings, machine and length of the run.
    """
    asked = json.loads(json_text(key_of(recipe, target=plan.target)))
    if plan.key.get("data") != asked["data"]:
        return "other data"
    for part in ("config", "machine", "versions"):
        found = first_difference(plan.key.get(part), asked[part])
        if found is not None:
            name, before, now = found
            return f"{name} = {before}, and here it is {now}"
    planned, wanted = plan.total_units, asked["total_units"]
    if not _SIMILAR <= wanted / planned <= 1 / _SIMILAR:
        return f"a run of {planned:,.0f} {plan.units}, and this one is of {wanted:,.0f}"
    return ""


def _steps(recipe: Recipe, steps: int | None) -> int:
    count = recipe.steps if steps is None else steps
    if count < 1:
        raise ValueError(f"steps is {count}; a run to be planned has at least 1")
    return count
