"""Benchmark: what the planner chooses, beside every sensible fixed choice, timed by itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from rich.progress import Progress

from weft.errors import DataError
from weft.planning.candidate import Candidate
from weft.planning.plan import Measured, Plan
from weft.planning.trial import Entrant
from weft.planning.worker import Worker, WorkerStopped
from weft.planning.workload import Work
from weft.recipes.planned_runs import make_plan
from weft_lab.bench.plan_cases import CASES, Case, PlanCase
from weft_lab.bench.result import BenchResult, CaseResult, Contender

_WITHIN, _AT_LEAST = 1.10, 1.5
_SHORT = "short"
# For a compiler, at most; a stuck choice must not hang the benchmark.
_PATIENCE_SECONDS = 900.0


@dataclass(frozen=True, kw_only=True)
class PlanBench:
    """A plan is made for each case; then all fixed choices take turns, and none is dropped.

    Attributes:
        cases: molecules-32, molecules-128: SchNet on QM9, so many a batch; crystals; programs:
            Python's standard library; full-graph: a GCN on a graph that is made; sparse: an FNN
            on links that are made, with RigL; short: molecules for 200 steps, too few to compile.
        molecules: of QM9, and crystals, that take part, drawn at random.
        programs: samples that take part.
        nodes: of the graph of full-graph.
        links: edges of the graph of sparse.
        budget: seconds for a plan.
        rounds: turns of each choice after its first.
        turn: seconds of a turn.
        crystals: the file of the data set mp-matminer, if it is not in the data folder.
        files: Python files, or folders of them, instead of the standard library.
        data_dir: the data folder.
    """

    cases: tuple[PlanCase, ...] = get_args(PlanCase)
    molecules: int = 20_000
    programs: int = 5_000
    nodes: int = 170_000
    links: int = 40_000
    budget: float = 90.0
    rounds: int = 5
    turn: float = 0.7
    crystals: Path | None = None
    files: tuple[Path, ...] = ()
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        if not self.cases or set(self.cases) - set(get_args(PlanCase)):
            raise ValueError(f"cases are {self.cases}; choose from {', '.join(get_args(PlanCase))}")
        for name, low in (("molecules", 200), ("programs", 200), ("nodes", 100), ("links", 200)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        for name in ("budget", "rounds", "turn"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")


def bench_plan(config: PlanBench, progress: Progress) -> BenchResult:
    """Run the cases that were asked for."""
    if config.crystals is not None and not config.crystals.exists():
        raise DataError(f"--crystals {config.crystals} does not exist")
    cases = [_run(name, config, progress) for name in dict.fromkeys(config.cases)]
    return BenchResult(name="plan", cases=cases)


def _run(name: PlanCase, config: PlanBench, progress: Progress) -> CaseResult:
    task = progress.add_task(f"{name}: data", total=None)

    def tell(text: str) -> None:
        progress.update(task, description=f"{name}: {text}")

    with TemporaryDirectory(prefix="weft-bench-") as folder:
        try:
            case = CASES[name](config, Path(folder))
        except DataError as error:
            progress.update(task, total=1, completed=1)
            none = {"weft": Contender(absent=str(error))}
            return CaseResult(case=name, what="no data", unit="s", contenders=none)
        plan = make_plan(
            case.recipe,
            steps=case.steps,
            seconds=config.budget,
            # Not where `--plan auto` looks: these plans are of parts of the data.
            data_dir=Path(folder),
            tell=tell,
        )
        if name == _SHORT:
            result = short_result(name, case, plan)
        else:
            choices = list(dict.fromkeys([*case.choices, plan.chosen.candidate]))
            timed = time_all(case.recipe.work, choices, plan.total_units, config, progress, name)
            result = full_result(name, case, plan, timed)
    progress.update(task, description=name, total=1, completed=1)
    return result


def time_all(
    work: Work,
    candidates: Sequence[Candidate],
    total_units: float,
    config: PlanBench,
    progress: Progress,
    name: str,
) -> list[Measured]:
    """Time all candidates, interleaved, each in a process that sleeps between its turns."""
    entrants = [Entrant(each, total_units) for each in candidates]
    task = progress.add_task(f"{name}: timing", total=(2 + config.rounds) * len(entrants))
    with ExitStack() as stack:
        for each in entrants:
            each.worker = Worker(work, each.candidate)
            stack.callback(each.leave, "")
        for number in range(2 + config.rounds):
            # There and back: nobody always comes after the same one.
            for each in entrants[:: -1 if number % 2 else 1]:
                progress.update(task, description=f"{name}: timing {each.label}", advance=1)
                if each.worker is None:
                    continue
                try:
                    if number == 0:
                        each.worker.ready(patience=_PATIENCE_SECONDS)
                    else:
                        turn = each.worker.turn(
                            steps=2, seconds=config.turn, patience=_PATIENCE_SECONDS
                        )
                        each.add(turn)
                except WorkerStopped as stopped:
                    each.leave(stopped.outcome)
    progress.update(task, description=f"{name}: timed")
    return [each.measured() for each in entrants]


def full_result(name: str, case: Case, plan: Plan, timed: Sequence[Measured]) -> CaseResult:
    """The planner's choice beside the best and the worst of the fixed ones."""
    ran = [each for each in timed if each.projected_seconds is not None]
    auto = next((each for each in ran if each.settings == plan.settings), None)
    contenders = {}
    for each in sorted(timed, key=_seconds):
        chosen = each.settings == plan.settings
        contenders[f"weft, {'auto: ' if chosen else ''}{each.label}"] = _contender(each, auto)
    says = [f"Planning took {plan.planning_seconds:.0f} s: {plan.reasons[0]}."]
    missed = []
    if auto is None:
        missed.append("what the planner chose did not run when it was timed by itself")
    else:
        best, worst = min(ran, key=_seconds), max(ran, key=_seconds)
        to_best = _seconds(auto) / _seconds(best)
        to_worst = _seconds(worst) / _seconds(auto)
        says += [
            f"Chosen: {auto.label}. Best fixed: {best.label}. Worst sensible: {worst.label}.",
            f"auto / best {to_best:.2f} (at most {_WITHIN:.2f}), worst / auto {to_worst:.2f} "
            f"(at least {_AT_LEAST:.2f}).",
        ]
        if to_best > _WITHIN:
            missed.append(f"auto takes {to_best:.2f} times as long as {best.label}")
        if to_worst < _AT_LEAST:
            missed.append(f"the worst choice, {worst.label}, takes only {to_worst:.2f} times auto")
    return CaseResult(
        case=name,
        what=f"{case.what}; a run of {case.steps:,} steps",
        unit="s",
        contenders=contenders,
        says=says,
        missed=missed,
    )


def short_result(name: str, case: Case, plan: Plan) -> CaseResult:
    """The plan for few steps, which ought not to compile, and to say why."""
    auto = plan.chosen
    contenders = {
        f"weft, {'auto: ' if each is auto else ''}{each.label}": _contender(each, auto)
        for each in plan.measured
        if each.median is not None or each.compiles
    }
    # What became of single candidates is in the table.
    labels = tuple(each.label for each in plan.measured)
    why = [
        _sentence(reason)
        for reason in plan.reasons
        if "compil" in reason and not reason.startswith(labels)
    ]
    missed = [f"it chose {auto.label}, which compiles"] if auto.compiles else []
    if not why:
        missed.append("it does not say a word about compiling")
    return CaseResult(
        case=name,
        what=f"{case.what}; a run of {case.steps:,} steps",
        unit="s",
        contenders=contenders,
        says=[f"Planning took {plan.planning_seconds:.0f} s; chosen: {auto.label}.", *why],
        missed=missed,
    )


def _contender(each: Measured, auto: Measured | None) -> Contender:
    if each.median is None or each.projected_seconds is None:
        return Contender(absent=each.outcome)
    figures = {
        "ms/unit": 1e3 * each.median,
        "start s": each.start_seconds,
        "run s": each.projected_seconds,
    }
    if auto is not None and auto.projected_seconds:
        figures["× auto"] = each.projected_seconds / auto.projected_seconds
    return Contender(samples=list(each.samples), figures=figures)


def _seconds(each: Measured) -> float:
    return float("inf") if each.projected_seconds is None else each.projected_seconds


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
