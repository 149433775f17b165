"""Plans of recipes: measured for a task, or followed by a run (`--plan` and `--threads`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from weft.errors import DataError
from weft.files import read_object
from weft.planning.candidate import PROCESSES, THREADS, applied, set_threads
from weft.planning.explain import show_plan
from weft.planning.plan import SCHEMA, Plan
from weft.planning.task import PlanTask, find_plan, made_for, make_plan
from weft.planning.worker import prepare_workers
from weft.recipes.output import notes
from weft.recipes.recipe import DataOptions, recipe_named
from weft.training import Run
from weft.training.run import CONFIG

AUTO = "auto"
"""The word for a plan that is found, or made."""
PLAN = "plan.json"
"""File of a run with the plan that it follows."""

Config = TypeVar("Config")


class PlanOption:
    """The plan of a command, once it is known.

    Attributes:
        plan: None where there is none, or none yet.
    """

    def __init__(
        self,
        recipe: str,
        given: str | None,
        threads: int | None,
        *,
        folder: Path,
        resume: bool,
        ranks: int | None = None,
    ) -> None:
        """Read the plan that is given, or that the run to be resumed has, and set the threads.

        Args:
            recipe: of the command.
            given: a plan's file, `auto`, or None.
            threads: to compute with, whatever the plan says; None for what it says.
            folder: of the run.
            resume: whether a run there is resumed: its plan is then taken.
            ranks: processes of the run; None for what the plan says. They share the machine, so
                that a plan's threads do not hold for them.

        Raises:
            DataError: there is no such plan, or it is for another recipe.
            ValueError: there are several ranks and no plan yet, or threads below 1.
        """
        self._own_threads, self._own_ranks = threads, ranks
        self.set_own_threads()
        self.plan: Plan | None = None
        path = None if given in (None, AUTO) else Path(str(given))
        if resume and (folder / PLAN).exists():
            path = folder / PLAN
        if path is not None:
            self.plan = Plan.load(path)
            if self.plan.recipe != recipe:
                raise DataError(
                    f"{path} is a plan for {self.plan.recipe}, not for {recipe}; make one with "
                    f"`weft plan {recipe} --out {path.name}`"
                )
        self._is_given = path is not None and path != folder / PLAN
        is_run = (folder / CONFIG).exists()
        # A run that was started without a plan continues without one.
        self._wanted = given == AUTO and self.plan is None and not (is_run and resume)
        if self._wanted and ranks is not None and ranks > 1:
            raise ValueError(
                f"--plan auto measures in one process, and there are {ranks} ranks; make a plan "
                f"with `weft plan {recipe}` and give it: --plan plan.json"
            )

    @property
    def ranks(self) -> int:
        """Processes of the run: those requested, else the plan's, else 1."""
        return self._planned_ranks if self._own_ranks is None else self._own_ranks

    @property
    def _planned_ranks(self) -> int:
        return 1 if self.plan is None else int(self.plan.settings.get(PROCESSES, 1))

    def set_own_threads(self) -> None:
        """Give this process the threads of --threads, if they were given."""
        set_threads({THREADS: self._own_threads})

    def applied(self, config: Config) -> Config:
        """The configuration with the plan's settings, and this process with its threads."""
        if self.plan is None:
            return config
        if self._own_threads is None and self.ranks == self._planned_ranks == 1:
            set_threads(self.plan.settings)
        return applied(config, self.plan.settings)

    def settle(
        self,
        config: Config,
        task: Callable[[], PlanTask],
        console: Console,
        *,
        data_dir: Path | None,
        quiet: bool,
        silent: bool = False,
    ) -> Config:
        """The same, once the data is there: finds or makes a plan if `auto` asks for one.

        Says what the plan changes and, where it was made for something else, for what.

        Args:
            config: as requested.
            task: gives what is planned, with its data.
            console: to print to.
            data_dir: the data folder.
            quiet: no progress of planning.
            silent: nothing is printed at all, as on all ranks but the first.
        """
        quiet = quiet or silent
        if self._wanted:
            tell = notes(quiet=quiet).print
            self.plan, new = find_plan(task(), data_dir=data_dir, tell=tell)
            self._wanted = False
            if new and not quiet:
                show_plan(self.plan, console)
        elif self._is_given and self.plan is not None:
            other = made_for(self.plan, task())
            if other and not silent:
                console.print(f"the plan was made for {other}; it is used unchanged")
        settled = self.applied(config)
        if self.plan is not None and not silent:
            console.print(f"plan: {self._changes(config)}", soft_wrap=True)
        return settled

    def keep(self, run: Run) -> None:
        """Write the plan to the run's folder, unless it is from there."""
        if self.plan is not None and not (run.folder / PLAN).exists():
            self.plan.save(run.folder / PLAN)

    def _changes(self, config: Any) -> str:
        assert self.plan is not None
        words = []
        for name, value in self.plan.settings.items():
            before = config
            if name in (THREADS, PROCESSES):
                continue
            for part in name.split("."):
                before = getattr(before, part)
            if before != value:
                words.append(f"{name} {value} (was {before})")
        threads = self._own_threads or self.plan.settings.get(THREADS)
        if self.ranks > 1:
            words.append(f"{self.ranks} ranks")
        elif threads is not None and self._planned_ranks == 1:
            words.append(f"{threads} thread{'s' * (threads != 1)}")
        return ", ".join(words) or "nothing to change"


def read_task(
    recipe: str, config: Any, source: DataOptions | None = None, *, progress: bool = True
) -> PlanTask:
    """What can be planned of a recipe, with its data read as `weft train` reads it.

    Args:
        recipe: its name.
        config: its configuration.
        source: the recipe's options of where data is read from.
        progress: show progress bars while data is read.
    """
    found = recipe_named(recipe)
    config = found.settled(config)
    found.check(config)
    data = found.read(config, source or found.source(), progress=progress)
    return found.plan_task(data, config)


def plan_recipe(
    recipe: str, config: Any, source: DataOptions, *, progress: bool = True, **planning: Any
) -> Plan:
    """Read the data of a recipe (see `read_task`), then `make_plan` with the options `planning`."""
    prepare_workers(__name__)
    task = read_task(recipe, config, source, progress=progress)
    return make_plan(task, data_dir=source.data_dir, **planning)


def check_plan_file(path: Path) -> None:
    """Raise DataError unless there is nothing at `path`, or an earlier plan."""
    if not path.absolute().parent.is_dir():
        raise DataError(f"there is no folder {path.parent} to write {path.name} to")
    if not path.exists():
        return
    try:
        is_plan = read_object(path).get("schema") == SCHEMA
    except DataError:
        is_plan = False
    if not is_plan:
        raise DataError(f"{path} exists already and is not a plan; choose another file: --out")
