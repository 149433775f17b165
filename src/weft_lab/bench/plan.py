"""Benchmark: what the planner chooses, beside every sensible fixed choice, timed by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.progress import Progress

from weft.batching import POLICIES, BatchingConfig
from weft.errors import DataError
from weft.graphs import GraphTable, write_table
from weft.planning.candidate import Candidate
from weft.planning.plan import Measured, Plan
from weft.planning.search import Trial
from weft.planning.task import PlanTask, make_plan, thread_counts
from weft.planning.worker import Work, Worker, WorkerStopped
from weft.recipes.full_graph.candidates import FullGraphTask
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import prepare_links
from weft.recipes.programs.candidates import ProgramsTask
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.data import read_programs
from weft.recipes.sparse_training import SparseTask
from weft.recipes.structures.candidates import StructuresTask
from weft.recipes.structures.config import NeighbourConfig, StructuresConfig
from weft.recipes.structures.data import read_structures, some_of
from weft.sources.synthetic import planted_partition, temporal
from weft.training.compilation import why_not_inductor
from weft_lab.bench.result import BenchResult, CandidateResult, CaseResult
from weft_lab.bench_settings import PlanBench, PlanCase

_WITHIN, _AT_LEAST = 1.10, 1.5
_SHORT = "short"
# For a compiler, at most; a stuck choice must not hang the benchmark.
_PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Case:
    """What is planned, and what it could be instead.

    Attributes:
        what: in words.
        recipe: with its data.
        choices: every sensible fixed one.
        steps: of the run that is planned for.
    """

    what: str
    recipe: PlanTask
    choices: Sequence[Candidate]
    steps: int


def _molecules(batch_size: int, steps: int) -> Callable[[PlanBench, Path], Case]:
    def case(bench: PlanBench, folder: Path) -> Case:
        config = StructuresConfig(
            # As in Speckhard et al.: means over all pairs of atoms.
            readout="mean",
            batching=BatchingConfig(policy="dynamic", batch_size=batch_size),
        )
        what = f"SchNet on QM9, {batch_size} molecules a batch"
        return _structures("molecules", what, config, bench, folder, steps)

    return case


def _crystals(bench: PlanBench, folder: Path) -> Case:
    config = StructuresConfig(
        data="mp-matminer",
        target="formation_energy_per_atom",
        references=False,
        neighbours=NeighbourConfig(kind="nearest", nearest=24, cutoff=6.0),
    )
    what = "SchNet on crystals of the Materials Project, 32 a batch"
    return _structures("crystals", what, config, bench, folder, 20_000)


def _structures(
    name: str, what: str, config: StructuresConfig, bench: PlanBench, folder: Path, steps: int
) -> Case:
    files = [bench.crystals] if name == "crystals" and bench.crystals else []
    some = replace(config, limit=bench.molecules)
    table = read_structures(some, files=files, data_dir=bench.data_dir, progress=False)
    recipe = StructuresTask(name, _on_disk(table, folder), config)
    every, *fewer = thread_counts()

    def choice(policy: str, mode: str, threads: int) -> Candidate:
        return Candidate({"batching.policy": policy, "compile": mode, "threads": threads})

    choices = [choice(policy, "eager", every) for policy in POLICIES]
    choices += [choice(config.batching.policy, "eager", count) for count in fewer]
    if why_not_inductor() is None:
        choices += [choice(policy, "static", every) for policy in ("dynamic", "packed")]
        choices.append(choice("unpadded", "dynamic", every))
    return Case(what, recipe, choices, steps)


def _programs(bench: PlanBench, folder: Path) -> Case:
    config = ProgramsConfig(limit=bench.programs)
    corpus = read_programs("python", files=bench.files, data_dir=bench.data_dir, progress=False)
    table = some_of(corpus, config.limit, config.split_seed)
    recipe = ProgramsTask(_on_disk(table, folder), replace(config, limit=None))
    forms = _first_wave(recipe)
    fewer = thread_counts()[1:]
    choices = [each.but(policy=policy) for each in forms for policy in ("packed", "dynamic")]
    choices += [each.but(threads=count) for each in forms for count in fewer]
    what = "a gated network on programs of Python's standard library"
    return Case(what, recipe, choices, 5_000)


def _full_graph(bench: PlanBench, folder: Path) -> Case:
    graph = planted_partition(
        bench.nodes, 40, mean_degree=14, homophily=0.7, num_features=128, seed=0
    )
    write_table(folder / "graph.weft", [graph])
    config = FullGraphConfig(data=str(folder / "graph.weft"), hidden=(128,), epochs=200)
    recipe = FullGraphTask(config, data_dir=folder)
    ways = _first_wave(recipe)
    edges = f"{graph.num_edges:,} directed edges"
    what = f"a GCN of 128-128-40 on {graph.num_nodes:,} nodes, {edges}"
    choices = [*ways, *(each.but(partition="rcm") for each in ways[:1])]
    return Case(what, recipe, choices, config.epochs)


def _sparse(bench: PlanBench, folder: Path) -> Case:
    config = LinksConfig(
        features=False,
        hidden=(1024, 1024),
        batch_size=1024,
        sparsify="rigl",
        sparsity=0.906,
        update_every=100,
    )
    prepared = prepare_links(temporal(bench.links // 20, bench.links), config)
    recipe = SparseTask("links", prepared)
    what = "an FNN of 16-1024-1024-1 on links, 90.6 % sparse by RigL, 1,024 pairs a batch"
    return Case(what, recipe, _first_wave(recipe), 5_000)


def _on_disk(table: GraphTable, folder: Path) -> GraphTable:
    """Processes map a table on disk; one in memory would be sent to each of them."""
    if table.path is not None:
        return table
    return write_table(folder / "graphs.weft", [table], metadata=table.metadata)


def _first_wave(recipe: PlanTask) -> list[Candidate]:
    """What the planner begins with."""
    return list(next(iter(recipe.waves())))


CASES: Mapping[PlanCase, Callable[[PlanBench, Path], Case]] = {
    "molecules-32": _molecules(32, 20_000),
    "molecules-128": _molecules(128, 10_000),
    "crystals": _crystals,
    "programs": _programs,
    "full-graph": _full_graph,
    "sparse": _sparse,
    "short": _molecules(32, 200),
}


def bench_plan(config: PlanBench, progress: Progress) -> BenchResult:
    """Run the chosen cases."""
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
            return CaseResult.no_data(name, error)
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
    trials = [Trial(each, total_units) for each in candidates]
    task = progress.add_task(f"{name}: timing", total=(2 + config.rounds) * len(trials))
    with ExitStack() as stack:
        for each in trials:
            each.worker = Worker(work, each.candidate)
            stack.callback(each.leave, "")
        for number in range(2 + config.rounds):
            # There and back: nobody always comes after the same one.
            for each in trials[:: -1 if number % 2 else 1]:
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
    return [each.measured() for each in trials]


def full_result(name: str, case: Case, plan: Plan, timed: Sequence[Measured]) -> CaseResult:
    """The planner's choice beside the best and the worst of the fixed ones."""
    ran = [each for each in timed if each.projected_seconds is not None]
    auto = next((each for each in ran if each.settings == plan.settings), None)
    candidates = {}
    for each in sorted(timed, key=_seconds):
        chosen = each.settings == plan.settings
        candidates[f"weft, {'auto: ' if chosen else ''}{each.label}"] = _result(each, auto)
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
    return _case_result(name, case, candidates, says, missed)


def short_result(name: str, case: Case, plan: Plan) -> CaseResult:
    """The plan for few steps, which ought not to compile, and to say why."""
    auto = plan.chosen
    candidates = {
        f"weft, {'auto: ' if each is auto else ''}{each.label}": _result(each, auto)
        for each in plan.measured
        if each.median is not None or each.compiles
    }
    # What became of single candidates is in the table.
    labels = tuple(each.label for each in plan.measured)
    why = [
        f"{reason[0].upper()}{reason[1:]}."
        for reason in plan.reasons
        if "compil" in reason and not reason.startswith(labels)
    ]
    missed = [f"it chose {auto.label}, which compiles"] if auto.compiles else []
    if not why:
        missed.append("it does not say a word about compiling")
    says = [f"Planning took {plan.planning_seconds:.0f} s; chosen: {auto.label}.", *why]
    return _case_result(name, case, candidates, says, missed)


def _case_result(
    name: str,
    case: Case,
    candidates: dict[str, CandidateResult],
    says: list[str],
    missed: list[str],
) -> CaseResult:
    what = f"{case.what}; a run of {case.steps:,} steps"
    return CaseResult(
        case=name, what=what, unit="s", candidates=candidates, says=says, missed=missed
    )


def _result(each: Measured, auto: Measured | None) -> CandidateResult:
    if each.median is None or each.projected_seconds is None:
        return CandidateResult(absent=each.outcome)
    figures = {
        "ms/unit": 1e3 * each.median,
        "start s": each.start_seconds,
        "run s": each.projected_seconds,
    }
    if auto is not None and auto.projected_seconds:
        figures["× auto"] = each.projected_seconds / auto.projected_seconds
    return CandidateResult(samples=list(each.samples), figures=figures)


def _seconds(each: Measured) -> float:
    return float("inf") if each.projected_seconds is None else each.projected_seconds
