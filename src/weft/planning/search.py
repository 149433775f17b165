"""The search: candidates are timed in turns, the better half goes on, the best becomes a plan."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.errors import DataError
from weft.planning.candidate import Candidate
from weft.planning.explain import a_unit, reasons, seconds_words
from weft.planning.plan import CHOSEN, NOT_TRIED, STOPPED, UNFINISHED, Measured, Plan, Target
from weft.planning.worker import Turn, Work, Worker, WorkerStopped, available_memory
from weft.planning.worker_client import SLOW_TURNS

Waves: TypeAlias = (
    "Iterable[Sequence[Candidate]] | Generator[Sequence[Candidate], Sequence[Measured], None]"
)
"""Candidates in waves. A generator is sent the results so far, best first, for each next wave."""
Explain: TypeAlias = Callable[[Plan], Sequence[str]]
"""Gives the reasons that only a recipe knows, as sentences."""

# Turns for each in the round that ends a wave, then in those between the last ones.
_WAVE_TURNS, _FINAL_TURNS = 2, (4, 8)
_MOST_ALIVE = 6
_LEAST_BUDGET_SECONDS, _SHARE_OF_RUN = 120.0, 0.05
TURN_SECONDS, _TURN_STEPS = 1.0, 5
_LEAST_TURN_SECONDS = 0.1
# A compiler that takes longer than the latter hangs, however long the run.
_LEAST_PATIENCE_SECONDS, _MOST_PATIENCE_SECONDS = 2.0, 1800.0
# For processes that have to load everything first, and for the first of them to be timed: without
# it there is no plan. On a busy machine loading alone may take minutes.
_START_SECONDS, _FIRST_START_SECONDS = 60.0, 300.0
# So far behind that a second turn is due, and so far that none is needed to be sure.
_CLEARLY, _HOPELESSLY = 2.0, 6.0
# A step that takes so many times the longest so far is one that hangs.
_HANGING = 4.0
# Candidates that are as small as the smallest: what memory holds is not known better than this.
_AS_SMALL = 1.05
# Blocks of steps and draws of the bootstrap behind the interval of a median.
_BLOCKS = 16
_RESAMPLES = 1000
_CONFIDENCE = 0.95


def best_plan(
    work: Work,
    candidates: Waves,
    *,
    total_units: float,
    seconds: float | None = None,
    target: Target = "time",
    tell: Callable[[str], object] = lambda text: None,
    recipe: str = "",
    steps: int | None = None,
    memory_limit: float | None = None,
    explain: Explain | None = None,
) -> Plan:
    """Measure candidates against each other and choose.

    Each candidate trains in a process of its own. They take turns of about a second, so that
    whatever else the machine does disturbs all of them alike. A candidate that takes clearly longer
    than the best (twice, beyond both intervals) is dropped; then the better half goes on with twice
    as many turns, until the best is apart from the rest or the time is used up. No candidate
    is dropped after one turn, which something may have disturbed, unless it took many times as
    long. A candidate that has spent more on compiling and warming up than the whole run would take
    with the best one is stopped at once, so that a short run need not wait for the compiler.

    Args:
        work: what to train.
        candidates: in waves; see `Waves`. Equal ones are measured once.
        total_units: of the run that is planned for: `work.units`, such as graphs.
        seconds: to take at most, about; None for 120 or 5% of the run, whichever is more.
        target: `time`: the whole run's, compiling and warming up included. `memory`: the least
            peak memory, and among those within 5% of it the fastest.
        tell: takes a sentence about each thing that happens.
        recipe: name for the plan.
        steps: of the run, where it is counted in steps.
        memory_limit: bytes for each candidate; None for what the system has available.
        explain: the recipe's own reasons.

    Raises:
        DataError: no candidate could be measured; the message says what became of each.
        ValueError: the work cannot be pickled, or there is nothing to plan.
    """
    if total_units <= 0:
        raise ValueError(f"total_units is {total_units}; it must be above 0")
    search = Search(work, total_units, seconds, target, tell, memory_limit)
    try:
        for wave in _told(candidates, search.results):
            search.enter(wave)
            search.halve(_WAVE_TURNS)
        for more in _FINAL_TURNS:
            if not search.is_decided():
                search.halve(more)
        best = search.choose()
    finally:
        search.stop()
    plan = Plan(
        recipe=recipe,
        settings=dict(best.candidate.settings),
        target=target,
        units=work.units,
        total_units=total_units,
        steps=steps,
        measured=tuple(search.results()),
        planning_seconds=search.elapsed(),
    )
    own = explain(plan) if explain is not None else ()
    return dataclasses.replace(plan, reasons=(*reasons(plan), *own))


def _told(waves: Waves, results: Callable[[], Sequence[Measured]]) -> Iterator[Sequence[Candidate]]:
    if not isinstance(waves, Generator):
        yield from waves
        return
    try:
        yield next(waves)
        while True:
            yield waves.send(results())
    except StopIteration:
        return


class Search:
    """One search: its candidates, and how much time is left."""

    def __init__(
        self,
        work: Work,
        total_units: float,
        seconds: float | None,
        target: Target,
        tell: Callable[[str], object],
        memory_limit: float | None,
    ) -> None:
        self.work, self.total, self.given, self.target = work, total_units, seconds, target
        self.tell = tell
        self.limit = available_memory() if memory_limit is None else memory_limit
        self.began = time.perf_counter()
        self.trials: list[Trial] = []
        self.turned = 0
        more = "" if seconds is not None else f", or {_SHARE_OF_RUN:.0%} of the run if that is more"
        tell(f"planning takes at most about {seconds_words(self.budget())}{more}")

    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.began

    def budget(self) -> float:
        """Seconds that it may take, as far as is known by now."""
        if self.given is not None:
            return self.given
        best = self.best()
        run = 0.0 if best is None else best.projected[0]
        return max(_LEAST_BUDGET_SECONDS, _SHARE_OF_RUN * run)

    def left(self) -> float:
        """Seconds left of them."""
        return self.budget() - self.elapsed()

    def is_over(self) -> bool:
        """Whether the time is used up, and there is something to choose."""
        return self.left() <= 0 and self.best() is not None

    def patience(self, trial: Trial) -> float:
        """Seconds that it may spend, in all its turns, on anything but timed steps."""
        assert trial.worker is not None
        best = self.best(but=trial)
        least = _FIRST_START_SECONDS if best is None else _LEAST_PATIENCE_SECONDS
        # Half of what is left: one that hangs leaves something to the others. A compiler gets all,
        # as half of it might be too little for each.
        share = self.left() / (1 if trial.candidate.compiles else 2)
        share = min(share, _MOST_PATIENCE_SECONDS)
        most = trial.worker.spent + max(least, share, _HANGING * trial.longest_step)
        if best is None or trial.timing is not None or self.target == "memory":
            return most
        return min(most, max(_LEAST_PATIENCE_SECONDS, best.projected[0]))

    def racing(self) -> list[Trial]:
        """Those in the race with a time, best first."""
        found = [each for each in self.trials if not each.outcome and each.timing is not None]
        return self.ordered(found)

    def usable(self) -> list[Trial]:
        """Those that have a time and could be trained with, best first."""
        sound = ("", CHOSEN, "slower", "dropped", "larger")
        timed = [each for each in self.trials if each.timing is not None]
        return self.ordered(
            [e for e in timed if e.outcome in sound or e.outcome.startswith(UNFINISHED)]
        )

    def ordered(self, trials: list[Trial]) -> list[Trial]:
        """Best first."""
        if self.target == "memory":
            least = min((each.peak_memory for each in trials), default=0.0)
            return sorted(trials, key=lambda e: (e.peak_memory > _AS_SMALL * least, e.projected[0]))
        return sorted(trials, key=lambda each: each.projected[0])

    def best(self, *, but: Trial | None = None) -> Trial | None:
        """The best in the race, of the others where one is named."""
        return next((each for each in self.racing() if each is not but), None)

    def results(self) -> list[Measured]:
        """All of them: those with a time first, best first."""
        usable = sorted(self.usable(), key=lambda each: each.outcome != CHOSEN)
        others = [each for each in self.trials if each not in usable]
        return [each.measured() for each in usable + others]

    def enter(self, wave: Sequence[Candidate]) -> None:
        """Give each new candidate its first turn, those that do not compile first."""
        known = {each.candidate for each in self.trials}
        new = [Trial(each, self.total) for each in dict.fromkeys(wave) if each not in known]
        self.trials += new
        waiting = sorted(new, key=lambda each: each.candidate.compiles)
        while waiting:
            if len(self.racing()) >= _MOST_ALIVE:
                self.keep(_MOST_ALIVE // 2)
            room = _MOST_ALIVE - len(self.racing())
            group, waiting = waiting[:room], waiting[room:]
            self.start(group)
            for each in group:
                if not each.outcome:
                    self.turn(each)
            self.drop()

    def start(self, group: list[Trial]) -> None:
        """Start their processes, all at once: nothing is timed meanwhile."""
        for each in group:
            if self.is_over():
                each.leave(self.no_time())
            else:
                each.worker = Worker(self.work, each.candidate, memory_limit=self.limit)
        most = min(_MOST_PATIENCE_SECONDS, self.left() / 2)
        least = _FIRST_START_SECONDS if self.best() is None else _START_SECONDS
        until = time.perf_counter() + max(least, most)
        for each in group:
            if each.worker is not None:
                try:
                    each.worker.ready(patience=until - time.perf_counter())
                except WorkerStopped as stopped:
                    self.lose(each, stopped)

    def turn(self, trial: Trial) -> None:
        """A turn for one; it may be its last."""
        assert trial.worker is not None
        if self.is_over():
            if trial.timing is None:
                trial.leave(self.no_time())
            return
        self.make_room(trial)
        # The last turn ends in time even where steps are slow.
        seconds = min(TURN_SECONDS, max(_LEAST_TURN_SECONDS, self.left() / SLOW_TURNS))
        try:
            turn = trial.worker.turn(
                steps=_TURN_STEPS, seconds=seconds, patience=self.patience(trial)
            )
        except WorkerStopped as stopped:
            self.lose(trial, stopped)
            return
        first = not trial.turns
        trial.add(turn)
        if turn.eager_calls:
            trial.leave("recompile limit")
            self.tell(f"{trial.label}: the limit of {turn.compilations} compilations is reached")
        elif trial.timing is None:
            trial.leave(f"failed: its steps hold no {self.work.units}")
        elif first:
            unit = a_unit(self.work.units)
            self.tell(f"{trial.label}: {seconds_words(trial.timing.median)} {unit}")

    def lose(self, trial: Trial, stopped: WorkerStopped) -> None:
        """Note why a candidate's process has ended, or was ended after the time that it had."""
        outcome = stopped.outcome
        best = self.best(but=trial)
        if stopped.spent is not None:
            assert trial.worker is not None
            begun = trial.worker.is_ready
            what = "compiling" if trial.candidate.compiles else "starting"
            words = f"{seconds_words(stopped.spent)} of {what if begun else 'getting ready'}"
            # What comes before the first step is no part of a projected run.
            if begun and best is not None and stopped.spent > best.projected[0]:
                run = seconds_words(best.projected[0])
                outcome = f"{STOPPED}{words}, the whole run takes {run} without"
            else:
                outcome = f"{UNFINISHED}{words}, more than there is for planning"
        trial.leave(outcome)
        self.tell(f"{trial.label}: {outcome}")

    def drop(self) -> None:
        """Drop the candidates that are clearly behind the best."""
        if self.target == "memory":
            for each in self.racing()[1:]:
                if each.peak_memory > _CLEARLY * self.racing()[0].peak_memory:
                    each.leave("larger")
            return
        hopeless = self.far_behind(_HOPELESSLY)
        self.look_again([each for each in self.far_behind(_CLEARLY) if each not in hopeless])
        for each in self.far_behind(_CLEARLY):
            each.leave("dropped")

    def far_behind(self, times: float) -> list[Trial]:
        """Those that take so many times as long as the best, beyond both intervals."""
        racing = self.racing()
        return [each for each in racing[1:] if each.projected[1] > times * racing[0].projected[2]]

    def look_again(self, doubted: Sequence[Trial]) -> None:
        """Give a second turn to those that had only one: something may have disturbed it."""
        for each in doubted:
            if each.turns < 2:
                self.turn(each)

    def keep(self, count: int) -> None:
        """Drop all but the best `count`."""
        self.look_again(self.racing()[count:])
        first, *others = self.racing()
        for each in others[count - 1 :]:
            each.leave(self.behind(each, first))

    def halve(self, turns: int) -> None:
        """The better half, two at least, gets so many more turns each, interleaved."""
        count = len(self.racing())
        if count < 2:
            return
        self.keep(max(2, (count + 1) // 2))
        for _ in range(turns):
            # In alternating order, so that no candidate always follows the same one.
            self.turned += 1
            for each in self.racing()[:: 1 if self.turned % 2 else -1]:
                self.turn(each)
        self.drop()

    def is_decided(self) -> bool:
        """Whether more turns would not change the choice, or there is no time for them."""
        racing = self.racing()
        if len(racing) < 2 or self.left() <= 0:
            return True
        best, *others = racing
        if self.target == "memory":
            others = [e for e in others if e.peak_memory <= _AS_SMALL * best.peak_memory]
        return all(each.projected[1] > best.projected[2] for each in others)

    def choose(self) -> Trial:
        """The best; the others get their outcomes."""
        left = self.racing() or self.usable()
        if not left:
            became = "; ".join(f"{each.label}: {each.outcome}" for each in self.trials)
            raise DataError(f"there is nothing to choose from: {became or 'no candidates'}")
        best, *others = left
        for each in others:
            each.leave(each.outcome or self.behind(each, best))
        best.leave(CHOSEN)
        return best

    def behind(self, trial: Trial, best: Trial) -> str:
        """The outcome of one that another one has beaten."""
        larger = trial.peak_memory > _AS_SMALL * best.peak_memory
        return "larger" if self.target == "memory" and larger else "slower"

    def no_time(self) -> str:
        """The outcome of one that was never timed."""
        return f"{NOT_TRIED}the {seconds_words(self.budget())} for planning were used up"

    def make_room(self, trial: Trial) -> None:
        """Drop the slowest while memory may be too little for another turn of `trial`."""
        needed = max(each.peak_memory for each in self.trials) - trial.peak_memory
        for other in self.racing()[:0:-1]:
            if other is not trial and available_memory() < needed:
                other.leave(self.behind(other, self.racing()[0]))

    def stop(self) -> None:
        """End all processes, whatever has happened."""
        # Each of them, even if Ctrl-C comes a second time.
        with ExitStack() as stack:
            for each in self.trials:
                if each.worker is not None:
                    stack.callback(each.leave, each.outcome)


class Trial:
    """One candidate and its account.

    Attributes:
        candidate: the settings.
        worker: its process; None before it has one and after it is out of the search.
        outcome: as in `Measured`; empty while it is in the search.
        turns: how many it has had.
        timing: of a unit; None before a step was timed.
        peak_memory: bytes.
    """

    def __init__(self, candidate: Candidate, total_units: float) -> None:
        self.candidate = candidate
        self.worker: Worker | None = None
        self.outcome = ""
        self.turns = 0
        self.timing: Timing | None = None
        self.peak_memory = 0.0
        self._total = total_units
        self._steps: list[tuple[float, int]] = []
        self._start: list[tuple[float, int]] = []
        self._last: Turn | None = None
        self._to_come = 0.0

    @property
    def label(self) -> str:
        """Of its settings, in words."""
        return self.candidate.label

    def add(self, turn: Turn) -> None:
        """Take a turn's answer into account."""
        self.turns += 1
        self._steps += turn.samples
        self._start += turn.start
        self._last, self.peak_memory = turn, turn.peak_memory
        if any(units for _, units in self._steps):
            self.timing = time_a_unit(self._steps)
            self._to_come = self._later_starts(turn, self.timing.median)

    def leave(self, outcome: str) -> None:
        """End its process; it is out of the race for this reason."""
        self.outcome = outcome
        if self.worker is not None:
            self.peak_memory = max(self.peak_memory, self.worker.peak_memory)
            self.worker.stop()
            self.worker = None

    @property
    def longest_step(self) -> float:
        """Seconds of the longest step that was timed."""
        return max((seconds for seconds, _ in self._steps), default=0.0)

    @property
    def start_seconds(self) -> float:
        """What its untimed steps took beyond the time of as many timed ones."""
        usual = self.timing.median if self.timing is not None else 0.0
        return max(0.0, sum(seconds - units * usual for seconds, units in self._start))

    @property
    def projected(self) -> tuple[float, float, float]:
        """Seconds of the whole run: by the median, and by the two ends of its interval."""
        if self.timing is None:
            return math.inf, math.inf, math.inf
        start = self.start_seconds + self._to_come
        middle, low, high = (
            start + self._total * each
            for each in (self.timing.median, self.timing.low, self.timing.high)
        )
        return middle, low, high

    def measured(self) -> Measured:
        """The account, to be kept."""
        timing, last, steps = self.timing, self._last, len(self._steps)
        return Measured(
            **(dataclasses.asdict(timing) if timing is not None else {}),
            label=self.label,
            settings=dict(self.candidate.settings),
            outcome=self.outcome,
            steps=steps,
            step_units=sum(units for _, units in self._steps) / max(1, steps),
            start_seconds=self.start_seconds,
            compile_seconds=last.compile_seconds if last is not None else 0.0,
            compilations=last.compilations if last is not None else 0,
            eager_calls=last.eager_calls if last is not None else 0,
            peak_memory=self.peak_memory,
            projected_seconds=self.projected[0] if timing is not None else None,
        )

    def _later_starts(self, turn: Turn, usual: float) -> float:
        """Seconds of compiling still to come where shapes that are new keep coming.

        Of things drawn from a large set the n-th is new with a chance that falls as 1/n, so the
        cost of a last turn that ended after n of N units is met again ln(N/n) times for each time
        that the turn fits into n. The first turn, which has to compile, says nothing about that.
        """
        late = sum(seconds - units * usual for seconds, units in turn.start)
        done = sum(units for _, units in self._steps + self._start)
        here = sum(units for _, units in turn.samples + turn.start)
        if self.turns < 2 or late <= 0 or not here or done >= self._total:
            return 0.0
        return late * done / here * math.log(self._total / done)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a unit takes, in seconds.

    Attributes:
        samples: of each block of consecutive steps.
        median: of them.
        low: where the 95% bootstrap interval of the median begins.
        high: where it ends.
    """

    samples: tuple[float, ...]
    median: float
    low: float
    high: float


def time_a_unit(steps: Sequence[tuple[float, int]]) -> Timing:
    """The time of a unit from steps of (seconds, units); there must be some.

    A run's time is the ratio of the sums, seconds over units: some batches hold more graphs than
    others, some are padded to twice the size, and the median step then says little about their
    sum. A mean, on the other hand, believes every hiccup of the machine. So this is the median of
    ratios of sums: consecutive steps form blocks, from 16 to 31 of them however many steps there
    are (fewer than 16 steps are each their own), each block is the ratio of its sums, and the
    median of the blocks forgets those that something else disturbed. What is resampled for the
    interval are blocks too, since neighbouring steps are disturbed together.
    """
    seconds = np.array([each[0] for each in steps], dtype=np.float64)
    units = np.array([each[1] for each in steps], dtype=np.float64)
    assert units.sum() > 0, "steps without units cannot be timed"
    length = max(1, len(steps) // _BLOCKS)
    starts = np.arange(0, len(steps) - length + 1, length)
    block_units = np.add.reduceat(units, starts)
    rates = (np.add.reduceat(seconds, starts) / np.maximum(block_units, 1e-9))[block_units > 0]
    drawn = np.random.default_rng(0).choice(rates, size=(_RESAMPLES, len(rates)))
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(np.median(drawn, axis=1), (tail, 1 - tail))
    return Timing(
        samples=tuple(rates.tolist()),
        median=float(np.median(rates)),
        low=float(low),
        high=float(high),
    )
