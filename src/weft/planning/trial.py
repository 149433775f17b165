"""A candidate in the race: its worker, its turns so far, and what they promise."""

from __future__ import annotations

import math

from weft.planning.candidate import Candidate
from weft.planning.plan import Measured
from weft.planning.timing import Timing, time_a_unit
from weft.planning.worker import Turn, Worker


class Entrant:
    """One candidate and its account.

    Attributes:
        candidate: the settings.
        worker: its process; None before it has one and after it is out of the race.
        outcome: as in `Measured`; empty while it is in the race.
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
        self._compiled = 0.0
        self._compilations = self._eager_calls = 0
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
        self._compiled, self._compilations = turn.compile_seconds, turn.compilations
        self._eager_calls = turn.eager_calls
        self.peak_memory = turn.peak_memory
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
        timing, steps = self.timing, len(self._steps)
        return Measured(
            label=self.label,
            settings=dict(self.candidate.settings),
            outcome=self.outcome,
            samples=timing.samples if timing is not None else (),
            steps=steps,
            step_units=sum(units for _, units in self._steps) / max(1, steps),
            median=timing.median if timing is not None else None,
            low=timing.low if timing is not None else None,
            high=timing.high if timing is not None else None,
            start_seconds=self.start_seconds,
            compile_seconds=self._compiled,
            compilations=self._compilations,
            eager_calls=self._eager_calls,
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
