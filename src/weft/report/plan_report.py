"""The chapter of a plan: what was tried, what it cost, what was chosen and why."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import DataError
from weft.planning import Plan
from weft.planning.explain import memory_words, seconds_words
from weft.planning.plan import CHOSEN, Measured
from weft.report.figures import Bar, bars, curves
from weft.report.page import (
    Block,
    Chapter,
    Code,
    Facts,
    Figure,
    Part,
    Picture,
    Table,
    Words,
    machine_rows,
    number,
    plain,
    present,
    value_table,
)

FORMULAS = "weft plan 1"
"""Schema of a plan that comes from the cost model, without measurements."""


def plan_chapter(path: Path, value: Mapping[str, Any]) -> Chapter:
    """The plan in the file `path`.

    Raises:
        DataError: it is damaged.
    """
    if value.get("schema") == FORMULAS:
        return _formulas_chapter(path, value)
    plan = Plan.from_json(dict(value), str(path))
    amount = f"{number(plan.steps)} steps" if plan.steps else _amount(plan)
    return Chapter(
        kind="Plan",
        title=f"How to train {plan.recipe}",
        lead=f"{len(plan.measured)} ways to train, measured in "
        f"{seconds_words(plan.planning_seconds)} for a run of {amount}; goal: least "
        f"{plan.target}.",
        headline=_choice(plan),
        pictures=_bars(plan),
        parts=[Part(title="Candidates", blocks=[_candidates(plan)])],
        again=[*_use(plan, path), _settings(plan)],
    )


@dataclass(frozen=True, kw_only=True)
class PlanBlocks:
    """A plan as a part of another chapter.

    Attributes:
        pictures: its plots.
        tables: what was chosen and why, and what was tried.
    """

    pictures: Sequence[Figure | Picture] = ()
    tables: Sequence[Block] = ()


def plan_blocks(value: Mapping[str, Any]) -> PlanBlocks:
    """A plan for another chapter; a damaged one becomes its error message."""
    try:
        chapter = plan_chapter(Path("plan.json"), value)
    except DataError as error:
        return PlanBlocks(tables=[Words(words=[str(error)])])
    tables = [block for part in chapter.parts for block in part.blocks]
    return PlanBlocks(pictures=chapter.pictures, tables=[*chapter.headline, *tables])


def _amount(plan: Plan) -> str:
    return f"{number(plan.total_units)} {plan.units}"


def _choice(plan: Plan) -> list[Block]:
    """The chosen candidate beside the slowest, and the reasons."""
    chosen = plan.chosen
    facts = [("chosen", chosen.label, "")]
    if chosen.projected_seconds is not None:
        facts.append(("projected", seconds_words(chosen.projected_seconds), _amount(plan)))
    slowest = max((each.projected_seconds or 0.0 for each in plan.measured), default=0.0)
    if chosen.projected_seconds and slowest > chosen.projected_seconds:
        gain = f"{slowest / chosen.projected_seconds:.2f}×"
        facts.append(("against the slowest", gain, "as fast"))
    facts.append(("planning took", seconds_words(plan.planning_seconds), ""))
    return [Facts(facts=facts), Words(words=list(plan.reasons), points=len(plan.reasons) > 1)]


def _settings(plan: Plan) -> Table:
    settings = [(name, plain(setting)) for name, setting in plan.settings.items()]
    return value_table("Chosen settings", settings, name="setting")


def _bars(plan: Plan) -> list[Figure]:
    timed = [each for each in plan.measured if each.median is not None]
    if not timed:
        return []
    marked = [i for i, each in enumerate(timed) if each.outcome == CHOSEN]
    unit = plan.units.removesuffix("s")
    largest = max(each.high or each.median or 0.0 for each in timed)
    scale, name = (1.0, "s") if largest >= 1 else (1e3, "ms") if largest >= 1e-3 else (1e6, "µs")
    return [
        bars(
            f"Plan: time per {unit}",
            [_bar(each, scale) for each in timed],
            x=f"time per {unit} [{name}]",
            of="candidate",
            marked=marked,
            note="Whiskers are 95% intervals of the median, by the bootstrap.",
        ),
        bars(
            "Plan: projected time of the whole run",
            [_bar(each, plan.total_units, each.projected_seconds) for each in timed],
            x="time [s]",
            of="candidate",
            marked=marked,
            note=f"{_amount(plan).capitalize()}, with compiling and warming up.",
        ),
    ]


def _candidates(plan: Plan) -> Table:
    unit = plan.units.removesuffix("s")
    return Table(
        caption="Everything that was considered",
        headings=(
            *("candidate", f"time per {unit}", "95% interval", "start", "compiling"),
            *("memory", "projected", "outcome"),
        ),
        rows=[_candidate_row(each) for each in plan.measured],
        marked=tuple(i for i, each in enumerate(plan.measured) if each.outcome == CHOSEN),
        chips=(7,),
    ).without_empty()


def _candidate_row(each: Measured) -> tuple[str, ...]:
    between = (
        "–"
        if each.low is None or each.high is None
        else f"{seconds_words(each.low)} – {seconds_words(each.high)}"
    )
    return (
        each.label,
        seconds_words(each.median),
        between,
        seconds_words(each.start_seconds) if each.start_seconds else "–",
        f"{seconds_words(each.compile_seconds)} ({each.compilations}×)"
        if each.compilations
        else "–",
        memory_words(each.peak_memory) if each.peak_memory else "–",
        seconds_words(each.projected_seconds),
        each.outcome,
    )


def _bar(each: Measured, units: float, value: float | None = None) -> Bar:
    """The time of so many units and its interval, around `value` where that is given."""
    median = each.median or 0.0
    middle = units * median if value is None else value
    low, high = (
        middle + units * (0.0 if end is None else end - median) for end in (each.low, each.high)
    )
    return each.label, middle, low, high


def _use(plan: Plan, path: Path) -> list[Block]:
    blocks: list[Block] = []
    words = plan.command.split()
    if words[:2] == ["weft", "plan"] and len(words) > 2:
        use = f"weft train {words[2]} --plan {shlex.quote(str(path))}"
        blocks.append(Code(caption="Train with it, with the same options", text=use))
    if plan.command:
        blocks.append(Code(caption="Make it again", text=plan.command))
    blocks.append(value_table("It holds for", [("made", plan.created), *machine_rows(plan.key)]))
    return blocks


def _formulas_chapter(path: Path, value: Mapping[str, Any]) -> Chapter:
    try:
        return _by_formulas(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path} says it is a {FORMULAS!r}, but its fields are not those of one ({error!r}); "
            "make it again with `weft plan full-graph --json FILE`"
        ) from error


def _by_formulas(value: Mapping[str, Any]) -> Chapter:
    problem, machine, estimates = value["problem"], value["machine"], value["estimates"]
    best = min(estimates, key=lambda each: each["seconds"])
    widths = "-".join(map(str, problem["widths"]))
    facts = [
        ("fastest", _grid(best), f"{best['ranks']:,} ranks"),
        ("an epoch", seconds_words(best["seconds"]), ""),
        ("received per rank", memory_words(best["bytes"]), "an epoch"),
        ("memory per rank", memory_words(best["memory"]["total"]), ""),
    ]
    fastest: dict[int, Mapping[str, Any]] = {}
    for each in sorted(estimates, key=lambda each: each["seconds"]):
        fastest.setdefault(each["ranks"], each)
    rows = [
        (
            f"{each['ranks']:,}",
            _grid(each),
            seconds_words(each["seconds"]),
            seconds_words(each["compute"]),
            seconds_words(each["bandwidth"] + each["latency"] - each["hidden"]),
            memory_words(each["bytes"]),
            memory_words(each["memory"]["total"]),
        )
        for each in estimates
    ]
    marked = tuple(i for i, each in enumerate(estimates) if fastest[each["ranks"]] is each)
    figures = [
        _by_ranks("Time of an epoch by ranks", estimates, "seconds", 1.0, "time of an epoch [s]"),
        _by_ranks("Received by a rank", estimates, "bytes", 1e6, "received in an epoch [MB]"),
    ]
    versions = [(f"version of {k}", str(v)) for k, v in value.get("versions", {}).items()]
    grids = Table(
        caption="Every grid; the fastest for each number of ranks stands out",
        headings=(
            *("ranks", "grid", "epoch", "compute", "messages"),
            *("received per rank", "memory per rank"),
        ),
        rows=rows,
        marked=marked,
        folded=len(rows) > 40,
    )
    link = machine["link"]
    about = [
        ("machine", str(machine["name"])),
        ("latency of a message", seconds_words(link["alpha"])),
        ("bandwidth", f"{1e-9 / link['beta']:.3g} GB/s"),
        ("matrix products of a rank", f"{machine['flops'] / 1e9:,.4g} GFLOP/s"),
        ("sparse products of a rank", f"{machine['spmm_bytes'] / 1e9:,.3g} GB/s"),
        *versions,
    ]
    return Chapter(
        kind="Plan, by formulas",
        title="One graph on many ranks",
        lead=f"{problem['model'].upper()} of widths {widths} on {problem['nodes']:,} nodes and "
        f"{problem['edges']:,} nonzeros: what an epoch would cost, by formulas; nothing was run.",
        headline=[Facts(facts=facts)],
        pictures=present(*figures),
        parts=[Part(title="Grids", blocks=[grids])],
        again=[
            Code(caption="Command", text=str(value["command"])),
            value_table("Assumed of the machine", about),
        ],
    )


def _by_ranks(
    title: str, estimates: list[Mapping[str, Any]], name: str, scale: float, y: str
) -> Figure | None:
    """The least value of each family of grids, by the number of ranks."""
    lines: dict[str, dict[float, float]] = {}
    for each in estimates:
        line = lines.setdefault(str(each["grid"]["name"]), {})
        value = each[name] / scale
        line[each["ranks"]] = min(value, line.get(each["ranks"], value))
    series = {family: sorted(line.items()) for family, line in lines.items()}
    return curves(title, series, x="ranks", y=y, x_log=True, y_log=True)


def _grid(each: Mapping[str, Any]) -> str:
    grid = each["grid"]
    return f"{grid['name']} c={grid['layers']}" if grid["name"] == "1.5d" else str(grid["name"])
