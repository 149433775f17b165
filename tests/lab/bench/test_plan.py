"""The benchmark of the planner on tiny settings: what it times, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress
from small_qm9 import small_qm9

from weft.errors import DataError
from weft.graphs import write_table
from weft.planning.plan import Measured, Plan
from weft.planning.task import thread_counts
from weft_lab.bench.plan import CASES, Case, bench_plan, full_result, short_result
from weft_lab.bench.result import BenchResult, CaseResult, print_result
from weft_lab.bench_settings import PlanBench

QUIET = Progress(disable=True)
MACHINE = {"cpu": "a", "cores": 2, "memory_gib": 8, "gemm_gflop_per_s": 9, "copy_gb_per_s": 9}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with some random molecules as QM9."""
    write_table(tmp_path / "data" / "qm9.weft", [small_qm9(300)])
    return tmp_path / "data"


def measured(
    policy: str, seconds: float | None, *, mode: str = "eager", outcome: str = "slower"
) -> Measured:
    return Measured(
        label=f"{policy}, {mode}",
        settings={"batching.policy": policy, "compile": mode},
        outcome=outcome,
        samples=() if seconds is None else (seconds,),
        median=seconds,
        projected_seconds=None if seconds is None else 100 * seconds,
    )


def plan_of(chosen: Measured, others: Sequence[Measured] = (), reasons: Sequence[str] = ()) -> Plan:
    return Plan(
        recipe="molecules",
        settings=chosen.settings,
        target="time",
        units="structures",
        total_units=100,
        measured=(chosen, *others),
        reasons=tuple(reasons) or ("it is fast",),
    )


CASE = Case(what="a toy", recipe=None, choices=(), steps=10)  # type: ignore[arg-type]


def printed(case: CaseResult) -> str:
    console = Console(width=80, record=True)
    print_result(BenchResult(name="plan", cases=[case], machine=MACHINE), console)
    text = console.export_text()
    assert "…" not in text
    return text


def test_the_best_and_the_worst_are_told() -> None:
    timed = [measured("packed", 1.05), measured("dynamic", 1.0), measured("unpadded", 2.0)]
    failed = measured("static-64", None, outcome="out of memory")
    chosen = measured("packed", 0.9, outcome="chosen")
    case = full_result("toy", CASE, plan_of(chosen), [*timed, failed])
    assert case.missed == []
    assert case.what == "a toy; a run of 10 steps"
    assert list(case.candidates) == [
        "weft, dynamic, eager",
        "weft, auto: packed, eager",
        "weft, unpadded, eager",
        "weft, static-64, eager",
    ]
    assert case.candidates["weft, unpadded, eager"].figures["× auto"] == pytest.approx(2 / 1.05)
    assert case.candidates["weft, static-64, eager"].absent == "out of memory"
    assert not case.own_failures
    assert case.says == [
        "Planning took 0 s: it is fast.",
        "Chosen: packed, eager. Best fixed: dynamic, eager. Worst sensible: unpadded, eager.",
        "auto / best 1.05 (at most 1.10), worst / auto 1.90 (at least 1.50).",
    ]
    text = printed(case)
    assert "auto: packed, eager" in text
    assert "out of memory" in text


def test_bars_that_are_missed_are_named() -> None:
    timed = [measured("packed", 1.2), measured("dynamic", 1.0), measured("unpadded", 1.5)]
    case = full_result("toy", CASE, plan_of(measured("packed", 0.9, outcome="chosen")), timed)
    assert case.missed == [
        "auto takes 1.20 times as long as dynamic, eager",
        "the worst choice, unpadded, eager, takes only 1.25 times auto",
    ]
    assert "Missed: auto takes 1.20 times" in printed(case)
    lost = full_result("toy", CASE, plan_of(measured("static-64", 1, outcome="chosen")), timed)
    assert lost.missed == ["what the planner chose did not run when it was timed by itself"]


def test_a_short_run_should_not_compile() -> None:
    eager = measured("packed", 1.0, outcome="chosen")
    compiled = measured("packed", None, mode="static", outcome="stopped: 7 s of compiling")
    plan = plan_of(eager, [compiled], ["it is fast", "do not compile: it takes longer"])
    case = short_result("short", CASE, plan)
    assert case.missed == []
    assert case.says == [
        "Planning took 0 s; chosen: packed, eager.",
        "Do not compile: it takes longer.",
    ]
    assert case.candidates["weft, packed, static"].absent == "stopped: 7 s of compiling"
    silent = short_result("short", CASE, plan_of(measured("a", 1, mode="static", outcome="chosen")))
    assert silent.missed == [
        "it chose a, static, which compiles",
        "it does not say a word about compiling",
    ]


def test_the_choices_for_molecules(data: Path, tmp_path: Path) -> None:
    case = CASES["molecules-32"](PlanBench(data_dir=data), tmp_path)
    labels = [each.label for each in case.choices]
    threads = f"{thread_counts()[0]} thread{'s' * (thread_counts()[0] > 1)}"
    assert labels[:6] == [
        f"{policy}, eager, {threads}"
        for policy in (
            *("dynamic", "static-64", "static-2^n", "static-constant", "packed", "unpadded"),
        )
    ]
    assert case.steps == 20_000
    assert CASES["short"](PlanBench(data_dir=data), tmp_path / "short").steps == 200
    assert case.recipe.step_units > 25


def test_the_choices_for_one_graph(tmp_path: Path) -> None:
    case = CASES["full-graph"](PlanBench(nodes=200), tmp_path)
    labels = [each.label for each in case.choices]
    assert any(label.startswith("1 rank, 1d") for label in labels)
    assert labels[-1] == f"{labels[0]}, partition rcm"
    assert "128-128-40 on 200 nodes" in case.what


@pytest.mark.usefixtures("short_turns")
def test_all_choices_are_timed() -> None:
    pytest.importorskip("gensim")
    config = PlanBench(cases=("sparse",), links=400, budget=600, rounds=1, turn=0.05)
    (case,) = bench_plan(config, QUIET).cases
    assert case.case == "sparse"
    names = {name.removeprefix("weft, ").removeprefix("auto: ") for name in case.candidates}
    for count in thread_counts():
        threads = f"{count} thread{'s' * (count > 1)}"
        assert {f"dense, {threads}", f"sparse, {threads}"} <= names
    assert sum("auto: " in name for name in case.candidates) == 1
    for candidate in case.candidates.values():
        assert candidate.absent == ""
        assert candidate.figures["run s"] > 0
        assert candidate.samples
    assert "auto / best" in printed(case)


def test_what_is_not_there(tmp_path: Path) -> None:
    (case,) = bench_plan(PlanBench(cases=("crystals",), data_dir=tmp_path), QUIET).cases
    assert "mp-matminer" in case.candidates["weft"].absent
    with pytest.raises(DataError, match=r"--crystals .*none.gz does not exist"):
        bench_plan(PlanBench(cases=("crystals",), crystals=tmp_path / "none.gz"), QUIET)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cases": ()}, r"cases are \(\); choose from molecules-32, .*short"),
        ({"nodes": 9}, "nodes is 9; it must be at least 100"),
        ({"budget": 0}, "budget is 0; it must be above 0"),
    ],
)
def test_mistakes(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanBench(**changes)  # type: ignore[arg-type]
