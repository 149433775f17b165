"""The race of candidates: their order, their turns, and who is out when."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from weft.errors import DataError
from weft.planning.candidate import Candidate
from weft.planning.plan import CHOSEN, NOT_TRIED, STOPPED, UNFINISHED, Measured, Target
from weft.planning.processes import available_memory
from weft.planning.reasons import a_unit, seconds_words
from weft.planning.trial import Entrant
from weft.planning.worker import Worker, WorkerStopped
from weft.planning.worker_client import SLOW_TURNS
from weft.planning.workload import Work

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


class Race:
    """One search: who is in it, and how much time is left."""

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
        self.entrants: list[Entrant] = []
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

    def patience(self, entrant: Entrant) -> float:
        """Seconds that it may spend, in all its turns, on anything but timed steps."""
        assert entrant.worker is not None
        best = self.best(but=entrant)
        least = _FIRST_START_SECONDS if best is None else _LEAST_PATIENCE_SECONDS
        # Half of what is left: one that hangs leaves something to the others. A compiler gets all,
        # as half of it might be too little for each.
        share = self.left() / (1 if entrant.candidate.compiles else 2)
        share = min(share, _MOST_PATIENCE_SECONDS)
        most = entrant.worker.spent + max(least, share, _HANGING * entrant.longest_step)
        if best is None or entrant.timing is not None or self.target == "memory":
            return most
        return min(most, max(_LEAST_PATIENCE_SECONDS, best.projected[0]))

    def racing(self) -> list[Entrant]:
        """Those in the race with a time, best first."""
        found = [each for each in self.entrants if not each.outcome and each.timing is not None]
        return self.ordered(found)

    def ordered(self, entrants: list[Entrant]) -> list[Entrant]:
        """Best first."""
        if self.target == "memory":
            least = min((each.peak_memory for each in entrants), default=0.0)
            return sorted(
                entrants, key=lambda e: (e.peak_memory > _AS_SMALL * least, e.projected[0])
            )
        return sorted(entrants, key=lambda each: each.projected[0])

    def best(self, *, but: Entrant | None = None) -> Entrant | None:
        """The best in the race, of the others where one is named."""
        return next((each for each in self.racing() if each is not but), None)

    def results(self) -> list[Measured]:
        """All of them: those with a time first, best first."""
        usable = [e for e in self.entrants if e.timing is not None and _is_usable(e)]
        usable = self.ordered(usable)
        usable.sort(key=lambda each: each.outcome != CHOSEN)
        others = [each for each in self.entrants if each not in usable]
        return [each.measured() for each in usable + others]

    def enter(self, wave: Sequence[Candidate]) -> None:
        """Give each new candidate its first turn, those that do not compile first."""
        known = {each.candidate for each in self.entrants}
        new = [Entrant(each, self.total) for each in dict.fromkeys(wave) if each not in known]
        self.entrants += new
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

    def start(self, group: list[Entrant]) -> None:
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

    def turn(self, entrant: Entrant) -> None:
        """A turn for one; it may be its last."""
        assert entrant.worker is not None
        if self.is_over():
            if entrant.timing is None:
                entrant.leave(self.no_time())
            return
        self.make_room(entrant)
        # The last turn ends in time even where steps are slow.
        seconds = min(TURN_SECONDS, max(_LEAST_TURN_SECONDS, self.left() / SLOW_TURNS))
        try:
            turn = entrant.worker.turn(
                steps=_TURN_STEPS, seconds=seconds, patience=self.patience(entrant)
            )
        except WorkerStopped as stopped:
            self.lose(entrant, stopped)
            return
        first = not entrant.turns
        entrant.add(turn)
        if turn.eager_calls:
            entrant.leave("recompile limit")
            self.tell(f"{entrant.label}: the limit of {turn.compilations} compilations is reached")
        elif entrant.timing is None:
            entrant.leave(f"failed: its steps hold no {self.work.units}")
        elif first:
            unit = a_unit(self.work.units)
            self.tell(f"{entrant.label}: {seconds_words(entrant.timing.median)} {unit}")

    def lose(self, entrant: Entrant, stopped: WorkerStopped) -> None:
        """One is out of the race by itself, or for want of patience with it."""
        outcome = stopped.outcome
        best = self.best(but=entrant)
        if stopped.spent is not None:
            assert entrant.worker is not None
            begun = entrant.worker.is_ready
            what = "compiling" if entrant.candidate.compiles else "starting"
            words = f"{seconds_words(stopped.spent)} of {what if begun else 'getting ready'}"
            # What comes before the first step is no part of a projected run.
            if begun and best is not None and stopped.spent > best.projected[0]:
                run = seconds_words(best.projected[0])
                outcome = f"{STOPPED}{words}, the whole run takes {run} without"
            else:
                outcome = f"{UNFINISHED}{words}, more than there is for planning"
        entrant.leave(outcome)
        self.tell(f"{entrant.label}: {outcome}")

    def drop(self) -> None:
        """Send those away that are clearly behind the best."""
        if self.target == "memory":
            for each in self.racing()[1:]:
                if each.peak_memory > _CLEARLY * self.racing()[0].peak_memory:
                    each.leave("larger")
            return
        hopeless = self.far_behind(_HOPELESSLY)
        self.look_again([each for each in self.far_behind(_CLEARLY) if each not in hopeless])
        for each in self.far_behind(_CLEARLY):
            each.leave("dropped")

    def far_behind(self, times: float) -> list[Entrant]:
        """Those that take so many times as long as the best, beyond both intervals."""
        racing = self.racing()
        return [each for each in racing[1:] if each.projected[1] > times * racing[0].projected[2]]

    def look_again(self, doubted: Sequence[Entrant]) -> None:
        """A second turn for those that had but one: something else may have disturbed it."""
        for each in doubted:
            if each.turns < 2:
                self.turn(each)

    def keep(self, count: int) -> None:
        """Send all but the first away."""
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
            # There and back: nobody always comes after the same one.
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

    def choose(self) -> Entrant:
        """The best; the others get their outcomes."""
        left = self.racing() or self.ordered(
            [each for each in self.entrants if each.timing is not None and _is_usable(each)]
        )
        if not left:
            became = "; ".join(f"{each.label}: {each.outcome}" for each in self.entrants)
            raise DataError(f"there is nothing to choose from: {became or 'no candidates'}")
        best, *others = left
        for each in others:
            each.leave(each.outcome or self.behind(each, best))
        best.leave(CHOSEN)
        return best

    def behind(self, entrant: Entrant, best: Entrant) -> str:
        """The outcome of one that another one has beaten."""
        larger = entrant.peak_memory > _AS_SMALL * best.peak_memory
        return "larger" if self.target == "memory" and larger else "slower"

    def no_time(self) -> str:
        """The outcome of one that was never timed."""
        return f"{NOT_TRIED}the {seconds_words(self.budget())} for planning were used up"

    def make_room(self, entrant: Entrant) -> None:
        """Send the last ones away while memory may not do for another turn of `entrant`."""
        needed = max(each.peak_memory for each in self.entrants) - entrant.peak_memory
        for other in self.racing()[:0:-1]:
            if other is not entrant and available_memory() < needed:
                other.leave(self.behind(other, self.racing()[0]))

    def stop(self) -> None:
        """End all processes, whatever has happened."""
        # Each of them, even if Ctrl-C comes a second time.
        with ExitStack() as stack:
            for each in self.entrants:
                if each.worker is not None:
                    stack.callback(each.leave, each.outcome)


def _is_usable(entrant: Entrant) -> bool:
    beaten = ("", CHOSEN, "slower", "dropped", "larger")
    return entrant.outcome in beaten or entrant.outcome.startswith(UNFINISHED)
