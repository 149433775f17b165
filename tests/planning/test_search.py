"""The search: who is chosen, what becomes of the others, and that it ends."""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from works import FOR_EVER, Recompiler, Sleeper, TinyFit

from weft.errors import DataError
from weft.planning import Candidate, Measured, Plan, Turn, best_plan
from weft.planning import search as searching
from weft.planning.search import Trial
from weft.planning.worker import Worker

BUDGET = 60.0


class Planned:
    """The clock of the search: every look at it takes `tick` seconds, usually none."""

    now = tick = 0.0

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Nobody is out because the machine was busy: only what sleeps for ever takes too long."""
    clock = Planned()
    monkeypatch.setattr(searching, "time", clock)
    monkeypatch.setattr(searching, "TURN_SECONDS", 0.1)
    monkeypatch.setattr(searching, "_FIRST_START_SECONDS", 600.0)
    monkeypatch.setattr(searching, "_START_SECONDS", 600.0)
    monkeypatch.setattr(searching, "_LEAST_PATIENCE_SECONDS", 600.0)
    return clock


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Any:
    threads = threading.active_count()
    yield
    assert multiprocessing.active_children() == []
    assert threading.active_count() == threads


def policies(*names: str, **more: Any) -> list[Candidate]:
    return [Candidate({"batching.policy": name, **more}) for name in names]


def outcomes(plan: Plan) -> dict[str, str]:
    return {each.label: each.outcome for each in plan.measured}


def test_the_fastest_is_chosen_and_trouble_is_reported():
    times = {"slow": 0.015, "fast": 0.01, "slowest": 0.1, "raises": 0.01, "killed": 0.01}
    told: list[str] = []
    plan = best_plan(
        Sleeper(times),
        [policies(*times)],
        total_units=50_000,
        seconds=BUDGET,
        tell=told.append,
        recipe="sleep",
        explain=lambda plan: [f"it is called {plan.settings['batching.policy']}"],
    )
    assert plan.settings == {"batching.policy": "fast"}
    assert outcomes(plan) == {
        "fast": "chosen",
        "slow": "slower",
        "slowest": "dropped",
        "raises": "failed: the widget has 3 sides; it must have 4",
        "killed": "out of memory",
    }
    assert [each.label for each in plan.measured[:3]] == ["fast", "slow", "slowest"]
    fast = plan.chosen
    assert 0.001 <= fast.low <= fast.median <= fast.high
    assert fast.projected_seconds == pytest.approx(50_000 * fast.median, rel=0.05)
    assert fast.step_units == 10
    assert fast.peak_memory > 0
    assert fast.steps > plan.measured[2].steps, "whoever does well is measured longer"
    assert "raises: failed: the widget has 3 sides; it must have 4" in plan.reasons
    assert plan.reasons[-1] == "it is called fast"
    assert any("times as fast as slow, and" in each for each in plan.reasons)
    assert (plan.recipe, plan.units, plan.target) == ("sleep", "graphs", "time")
    assert told[0] == "planning takes at most about 60 s"


@pytest.mark.parametrize(("units", "chosen"), [(500, "eager"), (1_000_000, "static")])
def test_compiling_pays_in_long_runs_only(monkeypatch, units, chosen):
    def waves() -> Generator[Sequence[Candidate], Sequence[Measured], None]:
        found = yield policies("slow", "fast", compile="eager")
        assert [each.label for each in found] == ["fast, eager", "slow, eager"]
        if chosen == "eager":
            monkeypatch.setattr(searching, "_LEAST_PATIENCE_SECONDS", 1.0)
        # The one that is known already is not measured again.
        yield [found[0].candidate, found[0].candidate.but(compile="static")]

    plan = best_plan(
        Sleeper(
            {"slow": 0.02, "fast": 0.01}, compile_seconds=FOR_EVER if chosen == "eager" else 3.0
        ),
        waves(),
        total_units=units,
        seconds=BUDGET,
        steps=units // 10,
    )
    assert plan.settings == {"batching.policy": "fast", "compile": chosen}
    assert len(plan.measured) == 3
    compiled = next(each for each in plan.measured if each.compiles)
    words = "\n".join(plan.reasons)
    if chosen == "static":
        assert compiled.compilations == 1
        assert compiled.compile_seconds == 3.0
        assert compiled.start_seconds == pytest.approx(3.0)
        assert "compile: it takes" in words
        assert "steps on)" in words
    else:
        # 50 steps take half a second: it was not worth the wait for the compiler.
        assert compiled.outcome.startswith("stopped: ")
        assert "s of compiling, the whole run takes" in compiled.outcome
        assert compiled.outcome.endswith("without")
        assert compiled.median is None
        assert "do not compile" in words


def test_one_that_hangs_costs_half_of_the_time_left_at_most(monkeypatch):
    given: dict[str, float] = {}
    turn = Worker.turn

    def noted(self: Worker, *, patience: float, **asked: Any) -> Turn:
        given[self.candidate.label] = patience
        return turn(self, patience=patience, **asked)

    def waves() -> Generator[Sequence[Candidate], Sequence[Measured], None]:
        yield policies("fast")
        monkeypatch.setattr(searching, "_LEAST_PATIENCE_SECONDS", 1.0)
        monkeypatch.setattr(Worker, "turn", noted)
        yield policies("hangs")

    plan = best_plan(
        Sleeper({"hangs": 0.01, "fast": 0.01}), waves(), total_units=10**6, seconds=3.0
    )
    assert plan.settings == {"batching.policy": "fast"}
    assert outcomes(plan)["hangs"].startswith("unfinished: ")
    assert "of starting, more than there is for planning" in outcomes(plan)["hangs"]
    assert given["hangs"] == 1.5


def test_a_compiler_that_is_not_done_in_time_says_nothing_about_compiling(monkeypatch):
    def waves() -> Generator[Sequence[Candidate], Sequence[Measured], None]:
        yield policies("fast", compile="eager")
        monkeypatch.setattr(searching, "_LEAST_PATIENCE_SECONDS", 1.0)
        yield policies("fast", compile="static")

    plan = best_plan(
        Sleeper({"fast": 0.01}, compile_seconds=FOR_EVER),
        waves(),
        total_units=10**6,
        seconds=2.0,
    )
    assert plan.settings["compile"] == "eager"
    compiled = plan.measured[1]
    assert compiled.outcome.startswith("unfinished: ")
    assert compiled.outcome.endswith("s of compiling, more than there is for planning")
    words = "\n".join(plan.reasons)
    assert "do not compile" not in words
    assert "whether compiling pays is not known" in words


def test_what_is_slow_to_get_ready_says_nothing_about_compiling(monkeypatch):
    def waves() -> Generator[Sequence[Candidate], Sequence[Measured], None]:
        yield policies("fast", compile="eager")
        monkeypatch.setattr(searching, "_START_SECONDS", 0.5)
        monkeypatch.setattr(searching, "_MOST_PATIENCE_SECONDS", 0.5)
        yield policies("sleeps before", compile="static")

    plan = best_plan(
        Sleeper({"fast": 0.01, "sleeps before": 0.01}), waves(), total_units=100, seconds=BUDGET
    )
    assert plan.measured[1].outcome.startswith("unfinished: ")
    assert "of getting ready" in plan.measured[1].outcome
    assert not any("do not compile" in each for each in plan.reasons)


def test_one_disturbed_turn_is_forgiven():
    # Its first turn is twice as long as the other's, and then some.
    times = {"fast": 0.01, "disturbed": 0.006}
    plan = best_plan(Sleeper(times), [policies(*times)], total_units=10**5, seconds=BUDGET)
    assert plan.settings == {"batching.policy": "disturbed"}


def test_long_steps_are_waited_for_when_time_is_short():
    race = searching.Search(Sleeper({}), 1000, 1e-3, "time", lambda text: None, None)
    entrants = [Trial(candidate, 1000) for candidate in policies("a", "b")]
    steps = {"start": (), "compile_seconds": 0.0, "compilations": 0, "eager_calls": 0}
    for entrant, worker in zip(entrants, (SimpleNamespace(spent=1.0), None), strict=True):
        entrant.worker = worker
        entrant.add(Turn(samples=((30.0, 1), (31.0, 1)), peak_memory=1.0, **steps))
    race.entrants = entrants
    # One that was timed is not thrown out because its next step comes after the end.
    assert race.patience(entrants[0]) > 1 + 3 * 31


def test_an_interrupted_search_leaves_nothing():
    def tell(text: str) -> None:
        if text.startswith("fast"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        best_plan(
            Sleeper({"fast": 0.01, "slow": 0.02}),
            [policies("fast", "slow")],
            total_units=1000,
            seconds=BUDGET,
            tell=tell,
        )


def test_what_there_was_no_time_for_is_named(clock):
    clock.tick = 0.01
    plan = best_plan(
        Sleeper({"a": 0.02, "b": 0.01}), [policies("a", "b")], total_units=10**6, seconds=0.01
    )
    # At least one is measured, however little time there is.
    assert outcomes(plan) == {
        "a": "chosen",
        "b": "not tried: the 10 ms for planning were used up",
    }
    assert "b: not tried: the 10 ms for planning were used up" in plan.reasons


def test_more_candidates_than_there_may_be_processes(monkeypatch):
    monkeypatch.setattr(searching, "_MOST_ALIVE", 2)
    times = {"a": 0.02, "b": 0.018, "c": 0.016, "d": 0.008, "e": 0.02}
    plan = best_plan(Sleeper(times), [policies(*times)], total_units=1000, seconds=BUDGET)
    assert plan.settings == {"batching.policy": "d"}
    assert all(each.median is not None for each in plan.measured)


def test_nothing_to_choose_from():
    with pytest.raises(DataError, match=r"raises: failed: the widget.*; memory: out of memory"):
        best_plan(
            Sleeper({"raises": 0.01, "memory": 0.01}),
            [policies("raises", "memory")],
            total_units=100,
            seconds=BUDGET,
        )
    with pytest.raises(DataError, match="no candidates"):
        best_plan(Sleeper({}), [], total_units=100)
    with pytest.raises(ValueError, match="total_units is 0"):
        best_plan(Sleeper({}), [], total_units=0)


def test_the_limit_of_compilations_is_an_outcome():
    plan = best_plan(
        Recompiler(),
        [[Candidate({"compile": "static"}), Candidate({"compile": "eager"})]],
        total_units=10**6,
        seconds=BUDGET,
    )
    assert outcomes(plan) == {"eager": "chosen", "compiled (static)": "recompile limit"}


def test_memory_as_the_target():
    plan = best_plan(
        Sleeper({"fast": 0.01, "holds": 0.002, "slow": 0.015}),
        [policies("fast", "holds", "slow")],
        total_units=10_000,
        seconds=BUDGET,
        target="memory",
    )
    assert plan.settings == {"batching.policy": "fast"}
    assert outcomes(plan) == {"fast": "chosen", "holds": "larger", "slow": "slower"}
    assert any("holds holds" in each for each in plan.reasons)


def test_a_limit_of_memory_is_an_outcome():
    plan = best_plan(
        Sleeper({"fast": 0.02, "holds": 0.01}),
        [policies("fast", "holds")],
        total_units=10_000,
        seconds=BUDGET,
        memory_limit=5e8,
    )
    assert outcomes(plan) == {"fast": "chosen", "holds": "out of memory"}


def test_a_real_training():
    small, large = Candidate({"width": 8, "threads": 1}), Candidate({"width": 2048, "threads": 1})
    plan = best_plan(TinyFit(), [[large, small]], total_units=10**5, seconds=BUDGET)
    assert plan.settings == {"width": 8, "threads": 1}
    assert plan.chosen.step_units == 8


def test_new_shapes_that_keep_coming_are_expected_to_come():
    def turn(*start: float) -> Turn:
        return Turn(
            samples=((0.1, 10),) * 9,
            start=tuple((seconds, 10) for seconds in start),
            compile_seconds=sum(start),
            compilations=len(start),
            eager_calls=0,
            peak_memory=1.0,
        )

    once, ever = (Trial(Candidate({"compile": "static"}), 10_000) for _ in range(2))
    for entrant in (once, ever):
        entrant.add(turn(5.1))
        assert entrant.projected[0] == pytest.approx(5 + 100)
    once.add(turn())
    assert once.projected[0] == pytest.approx(5 + 100)
    ever.add(turn(5.1))
    # Two turns of 100 units, 5 s of compiling in each.
    assert ever.projected[0] == pytest.approx(10 + 100 + 5 * 2 * math.log(10_000 / 200))
    assert ever.start_seconds == pytest.approx(10)
