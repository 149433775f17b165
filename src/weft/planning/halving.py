"""Successive halving: short interleaved turns for all, longer ones for those that do best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeAlias

from weft.planning.candidate import Candidate
from weft.planning.plan import Measured, Plan, Target
from weft.planning.race import Race
from weft.planning.reasons import reasons
from weft.planning.workload import Work

Waves: TypeAlias = (
    "Iterable[Sequence[Candidate]] | Generator[Sequence[Candidate], Sequence[Measured], None]"
)
"""Candidates in waves. A generator is sent the results so far, best first, for each next wave."""
Explain: TypeAlias = Callable[[Plan], Sequence[str]]
"""Gives the reasons that only a recipe knows, as sentences."""

# Turns for each in the round that ends a wave, then in those between the last ones.
_WAVE_TURNS, _FINAL_TURNS = 2, (4, 8)


def search(
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

    Each is a process of its own. Those in the race take turns of about a second, so that whatever
    else the machine does meets all of them alike. Whoever takes clearly longer than the best
    (twice, beyond both intervals) is out; then the better half goes on with twice as many turns
    until the best is told apart from the rest, or the time is used up. Nobody is out after one
    turn, which something may have disturbed, unless it took many times as long. What
    has spent more on compiling and warming up than the whole run would take with the best one is
    stopped there and then: so a short run need not wait for the compiler.

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
        raise ValueError(f"total_units is {total_units}; a run to be planned has some")
    race = Race(work, total_units, seconds, target, tell, memory_limit)
    try:
        for wave in _told(candidates, race.results):
            race.enter(wave)
            race.halve(_WAVE_TURNS)
        for more in _FINAL_TURNS:
            if not race.is_decided():
                race.halve(more)
        best = race.choose()
    finally:
        race.stop()
    plan = Plan(
        recipe=recipe,
        settings=dict(best.candidate.settings),
        target=target,
        units=work.units,
        total_units=total_units,
        steps=steps,
        measured=tuple(race.results()),
        planning_seconds=race.elapsed(),
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
