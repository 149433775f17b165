"""`weft train RECIPE`: one command for every recipe of the registry."""

from __future__ import annotations

import dataclasses
import inspect
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weft.cli.options import print_config
from weft.errors import DataError
from weft.recipes.recipe import (
    RECIPES,
    DataOptions,
    Recipe,
    Start,
    member_folders,
    recipe_named,
)
from weft.training.loggers import LoggerName

if TYPE_CHECKING:
    from rich.console import Console

    from weft.training import FitResult

RENAMED = {"--run-dir": "--out"}
"""Earlier names of options, which are still taken."""


class RecipeCommand:
    """A command of a recipe: its dataclass is made of the recipe's configuration and options.

    Attributes:
        config: the recipe's configuration.
    """

    recipe: ClassVar[Recipe]
    config: Any

    def source(self) -> DataOptions:
        """Where data is read from."""
        kind = self.recipe.source
        names = [each.name for each in dataclasses.fields(kind)]
        return kind(**{name: getattr(self, name) for name in names if hasattr(self, name)})


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Options of a recipe whose batches several processes can share.

    Attributes:
        ranks: Processes that share every batch, started here; by default the plan's, or one. The
            losses are those of a single process. Over several hosts they are started with torchrun
            instead.
        device: Compute on cpu, cuda (with --ranks, a GPU for each of them) or cuda:N. A run may be
            resumed on another device.
    """

    ranks: int | None = None
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class EnsembleOptions:
    """Options of a recipe that can train several networks on the same data.

    Attributes:
        seeds: Train this many networks, with the seeds from --seed on, each in a folder member-N of
            the run: `weft predict` then gives their mean and, for structures, the spread.
    """

    seeds: int = 1


@dataclass(frozen=True, kw_only=True)
class Train(RecipeCommand):
    """`weft train RECIPE`, for any recipe.

    Attributes:
        out: Write metrics, checkpoints and weights to this folder; by default runs/ with a name
            of the recipe and the data.
        resume: Resume the run in that folder where it stopped, with the same settings.
        init_from: Start from the weights of this run folder or file, and nothing else.
        plan: Follow a plan of `weft plan`, or auto: the one kept for this data, model and machine,
            or a new one, found by measuring first.
        threads: Number of threads to compute with; by default the plan's, or one for each core.
        logger: Log metrics to these, beside metrics.jsonl; wandb and mlflow need `pip install
            'weft[loggers]'`, and WANDB_MODE=offline writes to the run's folder.
        quiet: Show no progress.
        print_config: Print the settings as JSON and stop.
    """

    out: Path | None = None
    resume: bool = False
    init_from: Path | None = None
    plan: str | None = None
    threads: int | None = None
    logger: tuple[LoggerName, ...] = ("tensorboard",)
    quiet: bool = False
    print_config: bool = False

    def __call__(self, console: Console) -> int:
        """Train, then print the results and where they are."""
        from weft.recipes.planned_runs import PlanOption
        from weft.training import prepare_process
        from weft.training.launch import is_a_rank
        from weft.training.loggers import make_loggers
        from weft.training.run import check_may_run, recorded_config

        recipe = self.recipe
        first = os.environ.get("RANK", "0") == "0"
        told = console if first and not (self.quiet or self.print_config) else None
        config = recipe.completed(self.config, told)
        folder = self.out or Path("runs") / recipe.run_name(config)
        earlier = recorded_config(member_folders(folder)[0]) if self.resume else None
        shared = self if isinstance(self, RankOptions) else RankOptions()
        asked = recipe.settled(config, earlier)
        plan = PlanOption(
            recipe.name,
            self.plan,
            self.threads,
            folder=folder,
            resume=self.resume,
            ranks=int(os.environ["WORLD_SIZE"]) if is_a_rank() else shared.ranks,
        )
        if self.print_config:
            return print_config(plan.applied(asked), console)
        # Of several hosts, rank 0's alone needs it, and says so if it has none.
        if self.init_from and not is_a_rank() and not self.init_from.exists():
            raise DataError(f"--init-from {self.init_from} does not exist")
        # Before anything long: whether their packages are there.
        make_loggers(self.logger, folder)
        if earlier is None:
            recipe.check(asked)
        if recipe.replaced_by and not self.quiet:
            console.print(
                f"`weft train {recipe.name}` is now `{recipe.replaced_by}`.", soft_wrap=True
            )
        start = Start(
            folder=folder,
            resume=self.resume,
            init_from=self.init_from,
            source=self.source(),
            plan=plan,
            quiet=self.quiet,
            console=console,
            ranks=shared.ranks,
            loggers=self.logger,
            device=shared.device,
            seeds=self.seeds if isinstance(self, EnsembleOptions) else 1,
        )
        if not is_a_rank():
            # Before the data is read, which may take minutes.
            for each in start.folders():
                check_may_run(each, resume=self.resume)
        prepare_process()
        finished = recipe.run(asked, start)
        if finished.result.stopped.startswith("interrupted"):
            return _interrupted(finished.result, folder, console, show=finished.is_first)
        if finished.is_first:
            finished.show()
        return 0


def _interrupted(result: FitResult, folder: Path, console: Console, *, show: bool) -> int:
    """Say how to go on with a run that a signal has stopped; the exit code for that signal."""
    from weft.recipes.output import way_on

    if show:
        then = way_on(folder, before="\n  ")
        console.print(
            f"{result.stopped} after epoch {result.epochs}, step {result.steps}; everything is in "
            f"{folder}. {then}",
            soft_wrap=True,
        )
    return 128 + int(signal.Signals[result.stopped.removeprefix("interrupted by ")])


def recipe_command(
    kind: type[Any], recipe: Recipe, help_text: str, common: tuple[str, ...], *bases: type[Any]
) -> type[Any]:
    """The dataclass of a recipe's command.

    Args:
        kind: what the command does.
        recipe: the recipe.
        help_text: the help.
        common: options that the help shows after the recipe's own common ones.
        *bases: dataclasses of more options.
    """
    return dataclasses.make_dataclass(
        kind.__name__,
        [("config", type(recipe.default()), dataclasses.field(default_factory=recipe.default))],
        bases=(kind, *bases),
        namespace={
            "recipe": recipe,
            "RENAMED": recipe.renamed,
            "COMMON": (*recipe.common, *common),
            "__doc__": inspect.cleandoc(help_text),
            "__module__": kind.__module__,
        },
        frozen=True,
        kw_only=True,
    )


class RecipeCommands(Mapping[str, type[Any]]):
    """The commands of all recipes by their names, each made when it is first needed."""

    def __init__(self, make: Callable[[str], type[Any]]) -> None:
        self._make = make

    def __getitem__(self, name: str) -> type[Any]:
        if name not in RECIPES:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(RECIPES)

    def __len__(self) -> int:
        return len(RECIPES)


def _command(name: str) -> type[Any]:
    recipe = recipe_named(name)
    shared = (RankOptions,) if recipe.shares_batches else ()
    several = (EnsembleOptions,) if recipe.trains_ensembles else ()
    common = ("out", "resume", "quiet")
    return recipe_command(Train, recipe, recipe.help, common, recipe.source, *shared, *several)


COMMANDS = RecipeCommands(_command)
