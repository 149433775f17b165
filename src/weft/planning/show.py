"""A plan on the terminal, in 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.planning.plan import CHOSEN, Measured, Plan
from weft.planning.reasons import a_unit, memory_words, seconds_words


def show_plan(plan: Plan, console: Console) -> None:
    """Print the candidates, from fast to slow, and the reasons."""
    title = f"plan of {plan.recipe or 'a run'}: {plan.total_units:,.0f} {plan.units}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("candidate", ratio=1)
    table.add_column(a_unit(plan.units), justify="right", no_wrap=True)
    table.add_column("±", justify="right", no_wrap=True)
    table.add_column("start", justify="right", no_wrap=True)
    table.add_column("run", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
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
