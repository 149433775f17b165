"""Recipe: all that weft knows of a task, in one object; `weft train | predict | plan` go over it.

A task is a folder here with a module `recipe`, and a line in `RECIPES`. A recipe's name, help and
configuration are there without torch: its methods import what they need.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from weft.errors import DataError
from weft.files import read_object

if TYPE_CHECKING:
    from rich.console import Console

    from weft.models.exported_program import Exported
    from weft.parallel.world import World
    from weft.planning.task import PlanTask
    from weft.recipes.planned_runs import PlanOption
    from weft.training import FitResult, Run
    from weft.training.loggers import LoggerName

RECIPES = {
    "molecules": "weft.recipes.structures.recipe:MOLECULES",
    "crystals": "weft.recipes.structures.recipe:CRYSTALS",
    "programs": "weft.recipes.programs.recipe:PROGRAMS",
    "nodes": "weft.recipes.nodes.recipe:NODES",
    "links": "weft.recipes.links.recipe:LINKS",
    "full-graph": "weft.recipes.full_graph.recipe:FULL_GRAPH",
    "citations": "weft.recipes.nodes.recipe:CITATIONS",
}
"""Where the recipes are, by the names that the command line has for them."""

ABOUT = "model.json"
"""File of a run with what its network was made for, beside its config."""
_CONFIG = "config.json"
_MEMBER = "member-{}"

Config = TypeVar("Config")


@cache
def recipe_named(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe is {name!r}; choose from {', '.join(RECIPES)}")
    module, _, attribute = RECIPES[name].partition(":")
    found: Recipe = getattr(import_module(module), attribute)
    return found


def recipe_of_run(run: Path) -> Recipe:
    """The recipe of the run in a folder: by its recorded name, else by what the folder holds.

    Raises:
        DataError: the folder holds no run.
    """
    run = member_folders(run)[0]
    if not (run / _CONFIG).is_file():
        raise DataError(f"{run} holds no run of `weft train` (no {run / _CONFIG})")
    name = read_object(run / _CONFIG).get("recipe")
    if isinstance(name, str) and name in RECIPES:
        return recipe_named(name)
    # Runs of earlier versions: most say of what kind their model is.
    kind = read_object(run / ABOUT).get("kind", "molecules") if (run / ABOUT).exists() else None
    for each in map(recipe_named, RECIPES):
        if each.kind == kind:
            return each
    raise DataError(f"{run} holds a run of a recipe that this weft does not know: {kind}")


def member_folders(run: Path) -> list[Path]:
    """The folders of an ensemble's members in their order; of any other run its own."""
    if (run / _CONFIG).is_file():
        return [run]
    found: list[Path] = []
    while (run / _MEMBER.format(len(found)) / _CONFIG).is_file():
        found.append(run / _MEMBER.format(len(found)))
    return found or [run]


def from_json(kind: type[Config], values: dict[str, Any]) -> Config:
    """A configuration, with those inside it, from the JSON that it was written as."""
    hints = typing.get_type_hints(kind)
    arguments = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in values:
            continue
        value, inner = values[field.name], hints[field.name]
        choices = typing.get_args(inner) or (inner,)
        nested = [c for c in choices if isinstance(c, type) and dataclasses.is_dataclass(c)]
        if isinstance(value, dict) and nested:
            value = from_json(nested[0], value)
        elif isinstance(value, list):
            value = tuple(value)
        arguments[field.name] = value
    return kind(**arguments)


@contextmanager
def reading(run: Path) -> Iterator[None]:
    """Say which run it is that cannot be read: DataError for what its files lack or have wrong."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"the run in {run} cannot be read ({error})") from None


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where data is read from, beside what the configuration says.

    Attributes:
        files: Files or folders to build the data set from, instead of cached or downloaded ones.
        data_dir: The data folder; by default $WEFT_DATA_DIR or the user's cache folder.
    """

    files: tuple[Path, ...] = ()
    data_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What is predicted and where it goes; each recipe takes some of these.

    Attributes:
        out: Write predictions to this file: .csv or .extxyz, for links and nodes .csv or .json.
            By default it is FILE-predicted.csv here, .extxyz with forces. What was found in code
            is printed by default.
        forces: Predict the forces too, minus the gradient of the value in the positions.
        stress: Predict the stress too, the derivative of the value in the cell by its volume.
        threshold: For code: show misuses with at least this probability; by default that of
            --false-alarms 1, and 0.9 with a run that fills slots.
        false_alarms: For code: take the threshold that gave this many false alarms per 1,000 lines
            of the run's validation files.
        all: For code: show every use of a variable.
        format: Show what was found in code as a table, JSON, SARIF for editors, or annotations for
            GitHub Actions; a table by default.
        fail_over: Exit with 1 if a misuse in code has at least this probability.
        exclude: Leave out files of code by patterns of their paths, or of a file's or folder's
            name, such as 'tests' or '*_pb2.py'.
        baseline: Do not report the misuses in code that this file lists.
        write_baseline: Write what is found in code now to the --baseline file, and report nothing.
        changed_since: Report only lines of code that have changed since this git revision.
        inject: Instead, put a misuse into each of this many functions, and count how many are
            found.
        ranks: Processes that share the graph of a full-graph run; 1 by default.
        features: The features .npy [n, f] of a full-graph run's FILE, where it is an edge list.
        data_dir: The data folder of a full-graph run; by default as for training.
        quiet: Show no progress.
    """

    out: Path | None = None
    forces: bool = False
    stress: bool = False
    threshold: float | None = None
    false_alarms: float | None = None
    all: bool = False
    format: Literal["table", "json", "sarif", "github"] | None = None
    fail_over: float | None = None
    exclude: tuple[str, ...] = ()
    baseline: Path | None = None
    write_baseline: bool = False
    changed_since: str | None = None
    inject: int | None = None
    ranks: int | None = None
    features: Path | None = None
    data_dir: Path | None = None
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What an exported model gives; each recipe takes some of these.

    Attributes:
        forces: Forces of structures too, minus the gradient of the energy in the positions.
        stress: Stress of structures too, eV/Å³; runs on crystals have it wherever they have forces.
        int8: Weights as 8-bit integers (.onnx), with the difference printed; not for structures.
        layout: Edges of programs as dense blocks beside the diagonal: a file of dense operators
            and static shapes, with an example of its inputs beside it, NAME-example.npz.
        block: Nodes of a block; by default that of the run's own layout, or 128. Functions with
            edges between nodes further apart do not fit.
    """

    forces: bool = True
    stress: bool = False
    int8: bool = False
    layout: Literal["banded"] | None = None
    block: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """How a run is started.

    Attributes:
        folder: of the run.
        resume: go on with the run that is there.
        init_from: a run or file whose weights to start from.
        source: where data is read from.
        plan: what was requested with --plan and --threads.
        quiet: no progress.
        console: to print to.
        ranks: processes to be started that share every batch; 1 for this one alone, or those that
            torchrun has started; None for what the plan says.
        loggers: what metrics go to beside metrics.jsonl.
        device: where to compute, see `replica_device`.
        seeds: networks to train, each in a folder of its own in `folder` where there are several.
    """

    folder: Path
    resume: bool
    init_from: Path | None
    source: DataOptions
    plan: PlanOption
    quiet: bool
    console: Console
    ranks: int | None = None
    loggers: tuple[LoggerName, ...] = ("tensorboard",)
    device: str = "cpu"
    seeds: int = 1

    def folders(self) -> list[Path]:
        """Of the runs."""
        if self.seeds == 1:
            return [self.folder]
        return [self.folder / _MEMBER.format(number) for number in range(self.seeds)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """A training that has come to its end, or was interrupted.

    Attributes:
        result: how it went.
        show: prints what came out.
        is_first: whether this process is the one that prints.
    """

    result: FitResult
    show: Callable[[], None]
    is_first: bool = True


class Recipe(ABC):
    """A task. Subclasses say what it reads, how it is trained and what is printed about it.

    Attributes:
        name: of the recipe, as the command line has it.
    """

    help: ClassVar[str]
    """What `weft train NAME --help` says: a line, then paragraphs and examples."""
    plan_help: ClassVar[str]
    """The same of `weft plan NAME`."""
    kind: ClassVar[str | None]
    """What the model.json of its runs says under `kind`, for runs that record no recipe."""
    trains: ClassVar[str] = "A network"
    """What it trains, on the page of a run whose settings do not name a model."""
    counts: ClassVar[str] = "graphs"
    """What its `graphs_per_second` counts."""
    config_type: ClassVar[type[Any]]
    """The class of its configuration."""
    source: ClassVar[type[DataOptions]] = DataOptions
    """Options of where its data is read from."""
    common: ClassVar[tuple[str, ...]]
    """Options of its configuration that the help shows first."""
    predicts_with: ClassVar[tuple[str, ...]] = ("out", "quiet")
    """Fields of PredictOptions that its runs take."""
    shares_batches: ClassVar[bool] = False
    """Whether several ranks can share every batch; `weft train` then has --ranks."""
    replaced_by: ClassVar[str] = ""
    """The command to use instead, of a recipe that is kept for older runs."""
    trains_ensembles: ClassVar[bool] = False
    """Whether `weft train` takes --seeds; its configuration then has a `seed`."""
    models_machines: ClassVar[bool] = False
    """Whether `estimate` has a model of machines that are not at hand; `weft plan` then takes
    --machine."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Earlier names of its options, which are still taken, and those of today."""

    def __init__(self, name: str) -> None:
        self.name = name

    def default(self) -> Any:
        """The configuration that a newcomer gets."""
        return self.config_type()

    def run_name(self, config: Any) -> str:
        """Of the run's folder, by default."""
        from weft.recipes.structures.data import file_name_of

        return f"{self.name}-{file_name_of(config.data)}"

    def completed(self, config: Any, console: Console | None) -> Any:
        """The configuration with what the data itself decides, which is printed on the console."""
        return config

    def settled(self, config: Any, earlier: Mapping[str, Any] | None = None) -> Any:
        """The configuration with what was left open decided.

        Args:
            config: as requested.
            earlier: the config of a run to go on with, whose choices are taken.
        """
        return config

    def check(self, config: Any) -> None:  # noqa: B027
        """Raise ValueError where a new run with this configuration would not be sound."""

    @abstractmethod
    def read(self, config: Any, source: Any, *, progress: bool) -> Any:
        """The data, as `prepare` and `plan_task` take it."""

    @abstractmethod
    def plan_task(self, data: Any, config: Any) -> PlanTask:
        """What can be planned of a training on this data."""

    def plan_command(self) -> type[Any] | None:
        """The dataclass of its own `weft plan NAME`; None for the one of all recipes."""
        return None

    def estimate(
        self, machine: str, config: Any, source: Any, console: Console, *, quiet: bool
    ) -> None:
        """Print what would be fastest on a machine that is not at hand, by a model."""
        raise NotImplementedError

    @abstractmethod
    def run(self, asked: Any, start: Start) -> Finished:
        """Read, plan, prepare, train and summarise: the whole of `weft train`."""

    def predict(
        self, run: Path, file: Path | None, options: PredictOptions, console: Console
    ) -> int | None:
        """Apply a run to a file; writes predictions and prints the first. The exit code, if any."""
        raise DataError(
            f"{run} is a run of `weft train {self.name}`, which keeps nothing for predictions"
        )

    def export(self, run: Path, path: Path, options: ExportOptions) -> Exported:
        """Write the model of a run as a program for other runtimes."""
        raise DataError(
            f"{run} is a run of `weft train {self.name}`, which cannot be exported: weft itself "
            "makes what the network reads; use `weft predict`"
        )


class StandardRecipe(Recipe):
    """A recipe whose training is one call with a run: the flow is here, the steps are its own."""

    before: ClassVar[Mapping[str, Any]] = {}
    """Settings that the config.json of older runs lacks, as they were trained."""

    def as_now(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of an older run as it would be recorded today.

        A setting that came later is the default of today, unless `before` says otherwise.
        """
        return _completed({**self.before, **recorded}, asdict(self.default()))

    def note(self, prepared: Any, console: Console, *, quiet: bool = False) -> None:
        """Tell what is worth knowing of what `prepare` gave before the training."""

    @abstractmethod
    def prepare(self, data: Any, config: Any, *, world: World, earlier: Path | None) -> Any:
        """What `train` takes; its attribute `config` is what the run records.

        Args:
            data: that was read.
            config: with the settings of the plan.
            world: this process among those that share the run.
            earlier: folder of the run to go on with; None for a new one.
        """

    def checksums(self, data: Any, config: Any) -> dict[str, str]:
        """Of the parts of the data that a resume has to find as they were; of a table, all."""
        from weft.graphs.checksums import table_checksums

        return table_checksums(data)

    @abstractmethod
    def train(
        self, prepared: Any, *, run: Run, init_from: Path | None, world: World, quiet: bool
    ) -> Any:
        """Train; gives an object with at least `result`."""

    @abstractmethod
    def summary(self, trained: Any, prepared: Any) -> dict[str, Any]:
        """What summary.json holds beside the loop's own, JSON values."""

    @abstractmethod
    def show(self, trained: Any, prepared: Any, folder: Path, console: Console) -> None:
        """Print what came out and where it is."""

    def mean_of(self, members: Sequence[Any], console: Console) -> Any:
        """What `train` gave of an ensemble's members as one, for `show`."""
        raise NotImplementedError

    def run(self, asked: Any, start: Start) -> Finished:
        """Read, plan, prepare, train and summarise: the whole of `weft train`."""
        from weft.parallel.device import replica_device
        from weft.parallel.world import joined_replicas
        from weft.training.launch import is_a_rank

        ranks = start.ranks
        if ranks is None:
            ranks = 1 if is_a_rank() else start.plan.ranks
        device = replica_device(start.device, ranks=ranks if ranks > 1 else None)
        if ranks != 1:
            return _launched(self.name, asked, start, ranks)
        ranks_started = int(os.environ.get("WORLD_SIZE", "1"))
        if ranks_started > 1 and not self.shares_batches:
            raise ValueError(
                f"`weft train {self.name}` runs in one process, and torchrun has started "
                f"{ranks_started}; leave torchrun out"
            )
        plan, console = start.plan, start.console
        if start.seeds < 1:
            raise ValueError(f"seeds is {start.seeds}; it must be at least 1")
        if start.seeds > 1 and (start.folder / _CONFIG).exists():
            raise DataError(f"{start.folder} holds a single run already; choose another folder")
        members: list[Any] = []
        with joined_replicas(device=device) as world:
            first = world.rank == 0
            # The first builds what is cached, and the others find it.
            with world.in_turn():
                data = self.read(asked, start.source, progress=not start.quiet and first)
                settled = plan.settle(
                    asked,
                    lambda: self.plan_task(data, asked),
                    console,
                    data_dir=start.source.data_dir,
                    quiet=start.quiet,
                    silent=not first,
                )
            if start.ranks is None and not is_a_rank() and plan.ranks > 1:
                return _launched(self.name, asked, start, plan.ranks)
            for number, folder in enumerate(start.folders()):
                member = settled if start.seeds == 1 else _reseeded(settled, number)
                with world.in_turn():
                    prepared = self.prepare(
                        data, member, world=world, earlier=folder if start.resume else None
                    )
                    if first and number == 0:
                        self.note(prepared, console, quiet=start.quiet)
                trained = self._train_member(data, prepared, folder, start, world)
                members.append(trained)
                if trained.result.stopped.startswith("interrupted"):
                    break

        def show() -> None:
            shown = trained if start.seeds == 1 else self.mean_of(members, console)
            self.show(shown, prepared, start.folder, console)

        return Finished(result=trained.result, show=show, is_first=first)

    def _train_member(
        self, data: Any, prepared: Any, folder: Path, start: Start, world: World
    ) -> Any:
        """Train one network in its folder; of one process, or of the ranks that share it."""
        from weft.training.ranks import agree, shared_run

        config = prepared.config
        checksums = self.checksums(data, config)
        agree(
            world,
            {f"the option {name}": value for name, value in asdict(config).items()}
            | {f"the data's {name}": value for name, value in checksums.items()},
        )
        with shared_run(
            folder,
            config,
            world,
            data=checksums,
            resume=start.resume,
            tensorboard=False,
            loggers=start.loggers,
            as_now=self.as_now,
            recipe=self.name,
        ) as run:
            start.plan.keep(run)
            if start.resume and not run.resumed and world.rank == 0:
                start.console.print(f"There is no run in {folder} to resume; a new one starts.")
            trained = self.train(
                prepared, run=run, init_from=start.init_from, world=world, quiet=start.quiet
            )
            if not trained.result.stopped.startswith("interrupted"):
                run.summarise(**self.summary(trained, prepared))
        return trained


def _reseeded(config: Any, number: int) -> Any:
    return dataclasses.replace(config, seed=config.seed + number)


def _completed(recorded: Mapping[str, Any], today: Mapping[str, Any]) -> dict[str, Any]:
    """What was recorded, and what is missing in it and in the objects inside it."""
    found = {**today, **recorded}
    for name, value in found.items():
        default = today.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            found[name] = _completed(value, default)
    return found


def _launched(name: str, asked: Any, start: Start, ranks: int) -> Finished:
    """The training on ranks that are started here; rank 0 prints what came out."""
    from weft.recipes.output import way_on
    from weft.training.launch import LaunchStopped, RankError, is_a_rank, launch
    from weft.training.run import LOGS, check_run_folder, summarised_result

    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be at least 1")
    if is_a_rank():
        raise ValueError(f"torchrun has started the ranks: leave out --ranks {ranks}")
    # Before any rank writes its log there.
    for folder in start.folders():
        check_run_folder(folder, resume=start.resume)
    options = {each.name: getattr(start, each.name) for each in fields(start)}
    options |= {"console": None, "ranks": 1}
    arguments = (name, asked, options)
    try:
        answers = launch(_run_rank, arguments, ranks=ranks, logs=start.folder / LOGS)
        result: FitResult = answers[0]
    except RankError as error:
        raise RankError(f"{error}. {way_on(start.folder)}") from None
    except LaunchStopped as stop:
        result = summarised_result(start.folder, stop.signal)
    return Finished(result=result, show=lambda: None)


def _run_rank(name: str, asked: Any, options: Mapping[str, Any]) -> FitResult:
    """One of the ranks that `launch` has started."""
    from rich.console import Console

    from weft.training import prepare_process

    prepare_process()
    options["plan"].set_own_threads()
    start = Start(**{**options, "console": Console(markup=False, emoji=False)})
    finished = recipe_named(name).run(asked, start)
    if finished.is_first and not finished.result.stopped.startswith("interrupted"):
        finished.show()
    return finished.result
