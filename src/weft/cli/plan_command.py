"""`weft plan RECIPE`: measures the ways to train a recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft.cli.train import RecipeCommand, RecipeCommands, recipe_command
from weft.recipes.recipe import recipe_named

if TYPE_CHECKING:
    from rich.console import Console

RENAMED = {"--column": "--target", "--rounds": "--steps", "--json": "--out"}
"""Earlier names of options, which are still taken."""


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Options of a recipe that has a model of other machines.

    Attributes:
        machine: Estimate for an accelerator by a roofline model, instead of measuring here:
            tpu-v2-8, a100, h100, or a JSON file with its figures.
    """

    machine: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan(RecipeCommand):
    """`weft plan RECIPE`, for any recipe.

    Attributes:
        run_steps: Plan for a run of this many optimizer steps, within which compiling has to pay.
            By default they follow from --epochs and --max-steps.
        minimise: Find the least time, or the least memory.
        budget: Seconds that planning may take, approximately; by default two minutes, or 5% of the
            run if that is more.
        out: Write the plan to this file, for `weft train RECIPE --plan`.
        quiet: Show no progress.
    """

    run_steps: int | None = None
    minimise: Literal["time", "memory"] = "time"
    budget: float | None = None
    out: Path = Path("plan.json")
    quiet: bool = False

    def __call__(self, console: Console) -> int:
        """Measure or estimate, print the table and the reasons, and write the plan."""
        if isinstance(self, MachineOptions) and self.machine is not None:
            return self._estimate(self.machine, console)
        from weft.planning.explain import show_plan
        from weft.recipes.output import notes
        from weft.recipes.planned_runs import check_plan_file, plan_recipe
        from weft.training import prepare_process

        for name, value in (("run_steps", self.run_steps), ("budget", self.budget)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        check_plan_file(self.out)
        prepare_process()
        plan = plan_recipe(
            self.recipe.name,
            self.recipe.completed(self.config, None if self.quiet else console),
            self.source(),
            steps=self.run_steps,
            target=self.minimise,
            seconds=self.budget,
            tell=notes(quiet=self.quiet).print,
            progress=not self.quiet,
        )
        plan.save(self.out)
        show_plan(plan, console)
        console.print(
            f"The plan is in {self.out}. Next, with the same options:\n"
            f"  weft train {self.recipe.name} --plan {self.out}",
            soft_wrap=True,
        )
        return 0

    def _estimate(self, machine: str, console: Console) -> int:
        """By a model of another machine; nothing is measured or written."""
        for each in dataclasses.fields(Plan):
            if each.name not in ("config", "quiet") and getattr(self, each.name) != each.default:
                raise ValueError(
                    f"--{each.name.replace('_', '-')} is for what is measured, and --machine "
                    f"{machine} is a model; leave out one"
                )
        self.recipe.estimate(machine, self.config, self.source(), console, quiet=self.quiet)
        return 0


def _command(name: str) -> type[Any]:
    recipe = recipe_named(name)
    own = recipe.plan_command()
    if own is not None:
        return own
    common = ("run_steps", "minimise", "budget", "out", "machine")
    others = (MachineOptions,) if recipe.models_machines else ()
    command = recipe_command(Plan, recipe, recipe.plan_help, common, recipe.source, *others)
    # The plan's own earlier names, where the recipe has no option that is called so.
    known = {each.name for each in dataclasses.fields(recipe.default())}
    earlier = {"steps": "--run-steps", "target": "--minimise"}
    own_names = {f"--{name}": now for name, now in earlier.items() if name not in known}
    command.RENAMED = {**recipe.renamed, **own_names}
    return command


COMMANDS = RecipeCommands(_command)
