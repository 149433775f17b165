"""`weft plan RECIPE`: the ways to train a recipe, measured."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import tyro
from rich.console import Console

from weft.cli.plan_option import PLAN, notes
from weft.cli.train import crystals_config
from weft.errors import DataError
from weft.files import read_object
from weft.planning.plan import SCHEMA, Target
from weft.planning.show import show_plan
from weft.recipes.links.config import LinksConfig
from weft.recipes.nodes.config import CitationsConfig, NodesConfig
from weft.recipes.planned_runs import RecipeName, plan_recipe
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.structures.config import StructuresConfig
from weft.training import prepare_process

Config = TypeVar("Config")


@dataclass(frozen=True, kw_only=True)
class StructuresOptions(StructuresConfig):
    """The recipe's, where `--target` is the plan's.

    Attributes:
        target: the value to learn, a column of the data: --target of `weft train`.
    """

    target: Annotated[str, tyro.conf.arg(name="column")] = "u0"


@dataclass(frozen=True, kw_only=True)
class ProgramsOptions(ProgramsConfig):
    """The recipe's, where `--steps` is the plan's.

    Attributes:
        steps: of the network, rounds of messages: --steps of `weft train`.
    """

    steps: Annotated[int, tyro.conf.arg(name="rounds")] = 6


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Options of all plans.

    Attributes:
        steps: optimizer steps of the run that is planned: compiling has to pay within them. By
            default those that --epochs and --max-steps give.
        target: what is to be least: time or memory.
        budget: seconds that planning may take, about; by default two minutes, or 5% of the run if
            that is more.
        out: file for the plan, for `weft train RECIPE --plan`.
        files: files or folders to build the data set from, instead of cached or downloaded ones.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: no progress.
    """

    steps: int | None = None
    target: str = "time"
    budget: float | None = None
    out: Path = Path(PLAN)
    files: tuple[Path, ...] = ()
    data_dir: Path | None = None
    quiet: bool = False

    def _plan(
        self, recipe: RecipeName, config: Any, console: Console, labels: Path | None = None
    ) -> int:
        target = _target(self.target, recipe)
        for name, value in (("steps", self.steps), ("budget", self.budget)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        check_out(self.out)
        prepare_process()
        plan = plan_recipe(
            recipe,
            config,
            steps=self.steps,
            target=target,
            seconds=self.budget,
            files=self.files,
            labels=labels,
            data_dir=self.data_dir,
            tell=notes(quiet=self.quiet).print,
            progress=not self.quiet,
        )
        plan.save(self.out)
        show_plan(plan, console)
        console.print(
            f"The plan is in {self.out}. Next, with the same options:\n"
            f"  weft train {recipe} --plan {self.out}",
            soft_wrap=True,
        )
        return 0


@dataclass(frozen=True, kw_only=True)
class Molecules(_Options):
    """Measure how to train on molecules fastest: batching, threads, compile modes.

    Each way is trained for a few seconds; nothing is kept of it but its time and memory. Takes the
    options of `weft train molecules`, with --column for its --target. Examples:
      weft plan molecules --data qm9 --batching.batch-size 128 --steps 20000
      weft plan molecules --data water.extxyz --column energy --forces forces --model painn
    """

    config: Annotated[StructuresOptions, tyro.conf.arg(name="")] = field(
        default_factory=StructuresOptions
    )

    def __call__(self, console: Console) -> int:
        """Measure, print the table and the reasons, and write the plan."""
        return self._plan("molecules", _plain(self.config, StructuresConfig), console)


def _crystals_options() -> StructuresOptions:
    return StructuresOptions(**_values(crystals_config()))


@dataclass(frozen=True, kw_only=True)
class Crystals(_Options):
    """Measure how to train on crystals fastest: batching, threads, compile modes.

    Takes the options of `weft train crystals`, with --column for its --target. Example:
      weft plan crystals --files crystals.jsonl.gz --steps 20000
    """

    config: Annotated[StructuresOptions, tyro.conf.arg(name="")] = field(
        default_factory=_crystals_options
    )

    def __call__(self, console: Console) -> int:
        """Measure, print the table and the reasons, and write the plan."""
        return self._plan("crystals", _plain(self.config, StructuresConfig), console)


@dataclass(frozen=True, kw_only=True)
class Programs(_Options):
    """Measure how to train on programs fastest: form of the edges, batching, threads, compiling.

    Takes the options of `weft train programs`, with --rounds for its --steps. Example:
      weft plan programs --limit 20000 --steps 5000
    """

    config: Annotated[ProgramsOptions, tyro.conf.arg(name="")] = field(
        default_factory=ProgramsOptions
    )

    def __call__(self, console: Console) -> int:
        """Measure, print the table and the reasons, and write the plan."""
        return self._plan("programs", _plain(self.config, ProgramsConfig), console)


@dataclass(frozen=True, kw_only=True)
class Citations(_Options):
    """Measure with how many threads a citation graph is trained on fastest.

    Takes the options of `weft train citations`. Example:
      weft plan citations --data pubmed
    """

    config: Annotated[CitationsConfig, tyro.conf.arg(name="")] = field(
        default_factory=CitationsConfig
    )

    def __call__(self, console: Console) -> int:
        """Measure, print the table and the reasons, and write the plan."""
        return self._plan("citations", self.config, console)


@dataclass(frozen=True, kw_only=True)
class Nodes(_Options):
    """Measure how to train on the classes of nodes fastest: dense or sparse layers, threads.

    Takes the options of `weft train nodes`. Example:
      weft plan nodes --data cora --model fnn --hidden 1024 1024 --sparsify rigl

    Attributes:
        labels: for an edge list of your own: a file with the lines node label.
    """

    config: Annotated[NodesConfig, tyro.conf.arg(name="")] = field(default_factory=NodesConfig)
    labels: Path | None = None

    def __call__(self, console: Console) -> int:
        """Measure, print the table and the reasons, and write the plan."""
        return self._plan("nodes", self.config, console, self.labels)


@dataclass(frozen=True, kw_only=True)
class Links(_Options):
    """Measure how to train on a temporal graph's links fastest: dense or sparse layers, threads.

    Takes the options of `weft train links`. Example:
      weft plan links --data my_edges.txt --hidden 1024 1024 --sparsify rigl
    """

    config: Annotated[LinksConfig, tyro.conf.arg(name="")] = field(default_factory=LinksConfig)

    def __call__(self, console: Console) -> int:
        """Measure, print the table and the reasons, and write the plan."""
        return self._plan("links", self.config, console)


def _target(given: str, recipe: RecipeName) -> Target:
    for target in get_args(Target):
        if given == target:
            found: Target = target
            return found
    column = recipe in ("molecules", "crystals")
    raise ValueError(
        f"target is {given!r}; a plan's is {' or '.join(get_args(Target))}"
        + (f" (the value to learn is --column {given} here)" if column else "")
    )


def check_out(path: Path) -> None:
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
        raise DataError(f"{path} is there already and is no plan; choose another file: --out")


def _values(config: Any) -> dict[str, Any]:
    return {each.name: getattr(config, each.name) for each in fields(config)}


def _plain(config: Any, kind: type[Config]) -> Config:
    return kind(**_values(config))
