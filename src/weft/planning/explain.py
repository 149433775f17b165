"""Why a plan chose what it chose, in sentences, and a plan on the terminal, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.planning.plan import CHOSEN, NOT_TRIED, STOPPED, UNFINISHED, Measured, Plan

_TIMES = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
_SHOWN = 3
_BEHIND = ("slower", "dropped", "larger")


def seconds_words(seconds: float | None) -> str:
    """A time in the unit that fits it, in three digits; a dash for None."""
    if not seconds:
        return "–" if seconds is None else "0 s"
    # Minutes and hours only from two on: 90 s says more than 1.5 min.
    fitting = ((s, u) for s, u in _TIMES if seconds >= s * (2 if s > 1 else 1))
    scale, unit = next(fitting, _TIMES[-1])
    return f"{_digits(seconds / scale)} {unit}"


def a_unit(units: str) -> str:
    """One of them, with its article: a graph, an epoch."""
    return f"{'an' if units[:1] in 'aeio' else 'a'} {units.removesuffix('s')}"


def memory_words(size: float | None) -> str:
    """Bytes in the unit that fits them, in three digits; a dash for None."""
    if size is None:
        return "–"
    scale, unit = next((each for each in _SIZES if size >= each[0]), _SIZES[-1])
    return f"{_digits(size / scale)} {unit}"


def reasons(plan: Plan) -> list[str]:
    """What the measurements say for the chosen one, and what they do not."""
    best = plan.chosen
    others = [each for each in plan.measured if each.outcome in _BEHIND]
    return [
        *_times(plan, best, others),
        *_compiling(plan, best, others),
        *_accelerating(best, others),
        *_memory(plan, best, others),
        *_left_out(plan.measured),
    ]


def _times(plan: Plan, best: Measured, others: Sequence[Measured]) -> list[str]:
    assert best.median is not None
    assert best.projected_seconds is not None
    whole = (
        f"{best.label}: {seconds_words(best.median)} {a_unit(plan.units)}, so "
        f"{plan.total_units:,.0f} {plan.units} take about {seconds_words(best.projected_seconds)}"
    )
    if best.start_seconds >= 0.1:
        whole += f", {seconds_words(best.start_seconds)} of that to start"
    found = [whole]
    order = sorted(others, key=lambda each: each.projected_seconds or 0.0)
    if not order:
        return [*found, "there is no other to compare it with"]
    words = [_ratio(best, each) for each in (order[0], order[-1])][: len(order)]
    found.append(", and ".join(words))
    return found


def _ratio(best: Measured, other: Measured) -> str:
    assert best.projected_seconds is not None
    assert other.projected_seconds is not None
    ratio = other.projected_seconds / best.projected_seconds
    assert None not in (best.high, best.low, other.low, other.high)
    alike = (best.high or 0.0) >= (other.low or 0.0) and (other.high or 0.0) >= (best.low or 0.0)
    if ratio < 0.995:
        return f"{1 / ratio:.2f} times as long as {other.label} takes"
    if ratio < 1.05 and alike:
        return f"as fast as {other.label} as far as this measurement can tell ({ratio:.2f} times)"
    return f"{ratio:.2f} times as fast as {other.label}"


def _accelerating(best: Measured, others: Sequence[Measured]) -> list[str]:
    """What `weft.accelerate` gives: the chosen one beside its nearest relative without, or with."""
    on = bool(best.settings.get("accelerate"))
    relatives = [each for each in others if bool(each.settings.get("accelerate")) != on]
    if not relatives:
        return []
    words = _ratio(best, max(relatives, key=lambda each: _alike(best, each)))
    return [f"weft.accelerate {'on' if on else 'off'}: {words}"]


def _compiling(plan: Plan, best: Measured, others: Sequence[Measured]) -> list[str]:
    """Whether compiling pays: the chosen one beside its nearest relative that does the other."""
    # Imported here and not above: words for times and sizes need no torch.
    from weft.training.compilation import worth_compiling

    if plan.target != "time":
        return []
    relatives = [each for each in others if each.compiles != best.compiles]
    if relatives:
        # The most settings in common, then the fastest.
        other = min(relatives, key=lambda e: (-_alike(best, e), e.projected_seconds or 0.0))
        eager, compiled = (other, best) if best.compiles else (best, other)
        assert eager.median is not None
        assert compiled.median is not None
        steps = plan.steps or max(1, round(plan.total_units / eager.step_units))
        size = plan.total_units / steps
        payoff = worth_compiling(
            steps,
            compile_seconds=max(0.0, _once(plan, compiled) - _once(plan, eager)),
            eager_step=eager.median * size,
            compiled_step=compiled.median * size,
        )
        return [payoff.words]
    became = [each.outcome for each in plan.measured if each.compiles]
    if any(each.startswith(STOPPED) for each in became):
        return ["do not compile: it takes longer than it could save"]
    if any(each.startswith((UNFINISHED, NOT_TRIED)) for each in became):
        return ["whether compiling pays is not known: there was too little time to plan"]
    return []


def _once(plan: Plan, each: Measured) -> float:
    """Seconds of the projected run beside its steps, with the compiling that is still to come."""
    assert each.median is not None
    assert each.projected_seconds is not None
    return each.projected_seconds - plan.total_units * each.median


def _alike(a: Measured, b: Measured) -> int:
    return sum(b.settings.get(name) == value for name, value in a.settings.items())


def _memory(plan: Plan, best: Measured, others: Sequence[Measured]) -> list[str]:
    if not best.peak_memory:
        return []
    words = f"memory: {memory_words(best.peak_memory)} at most"
    known = [each for each in others if each.peak_memory]
    if not known:
        return [words]
    if plan.target == "memory":
        most = max(known, key=lambda each: each.peak_memory)
        if most.peak_memory > 1.05 * best.peak_memory:
            words += f"; {most.label} holds {memory_words(most.peak_memory)}"
    else:
        least = min(known, key=lambda each: each.peak_memory)
        if best.peak_memory > 1.05 * least.peak_memory:
            words += f"; {least.label} would do with {memory_words(least.peak_memory)}"
    return [words]


def _left_out(measured: Sequence[Measured]) -> list[str]:
    """One sentence for each reason why candidates have no place in the order."""
    groups: dict[str, list[str]] = {}
    for each in measured:
        if each.outcome not in (CHOSEN, *_BEHIND):
            groups.setdefault(each.outcome, []).append(each.label)
    return [f"{_some(labels)}: {outcome}" for outcome, labels in groups.items()]


def _some(labels: Sequence[str]) -> str:
    rest = len(labels) - _SHOWN
    return "; ".join(labels[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show_plan(plan: Plan, console: Console) -> None:
    """Print the candidates, from fast to slow, and the reasons."""
    title = f"plan of {plan.recipe or 'a run'}: {plan.total_units:,.0f} {plan.units}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("candidate", ratio=1)
    for heading in (a_unit(plan.units), "±", "start", "run", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in plan.measured:
        style = "bold" if each.outcome == CHOSEN else ""
        # What a candidate without a place came to is a sentence, and stands among the reasons.
        table.add_row(Text(each.label), *_cells(each), each.outcome.partition(":")[0], style=style)
    console.print(table)
    console.print()
    words = Table.grid(padding=(0, 1))
    for reason in plan.reasons:
        words.add_row("-", Text(reason))
    console.print(words)
    console.print(f"planning took {seconds_words(plan.planning_seconds)}")


def _cells(each: Measured) -> tuple[str, str, str, str, str]:
    memory = memory_words(each.peak_memory) if each.peak_memory else ""
    if each.median is None or each.low is None or each.high is None:
        return "", "", "", "", memory
    half = max(each.high - each.median, each.median - each.low) / each.median
    return (
        seconds_words(each.median),
        f"{half:.0%}",
        seconds_words(each.start_seconds) if each.start_seconds >= 0.05 else "",
        seconds_words(each.projected_seconds or 0.0),
        memory,
    )
