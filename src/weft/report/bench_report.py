"""The chapter of a benchmark's file, as `weft bench NAME --out FILE` writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.report.figures import Bar, bars
from weft.report.page import (
    Block,
    Chapter,
    Code,
    Facts,
    Figure,
    Part,
    Table,
    Words,
    in_unit,
    machine_rows,
    number,
    present,
    value_table,
)
from weft.report.record import mapping

SCHEMA = "weft bench 1"
_OURS = "weft"
# The pictures and tables have all of them.
_MOST_FACTS = 6


def bench_chapter(value: Mapping[str, Any]) -> Chapter:
    """The values of a benchmark's file as a chapter."""
    cases = value["cases"]
    facts = [fact for fact in map(_fact, cases) if fact is not None][:_MOST_FACTS]
    missed = [f"Missed: {each}" for case in cases for each in case.get("missed", [])]
    headline: list[Block] = [Facts(facts=facts)] if facts else []
    if missed:
        headline.append(Words(words=missed, points=len(missed) > 1))
    return Chapter(
        kind="Benchmark",
        title=f"Benchmark of {value['name']}",
        lead="Medians of steps that took turns, each candidate in a process of its own; compare "
        "them only with others of the same machine.",
        headline=headline,
        pictures=present(*map(_picture, cases)),
        parts=[Part(title=case["case"], blocks=_tables(case)) for case in cases],
        again=[
            Code(caption="Command", text=str(value["command"])),
            value_table(
                "Machine and versions", [("begun", str(value["created"])), *machine_rows(value)]
            ),
        ],
    )


def _timed(case: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The candidates that were measured."""
    found = case["contenders"].items()
    return {name: each for name, each in found if each.get("median") is not None}


def _unit_and_scale(case: Mapping[str, Any]) -> tuple[str, float]:
    """The unit that fits a case's values, and what they are multiplied with."""
    unit = str(case["unit"])
    largest = max((abs(each["median"]) for each in _timed(case).values()), default=0.0)
    if unit.partition("/")[0] != "s" or largest >= 1:
        return unit, 1.0
    return (f"m{unit}", 1e3) if largest >= 1e-3 else (f"µ{unit}", 1e6)


def _fact(case: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The best of ours beside the best peer, where the case is about time."""
    unit, scale = _unit_and_scale(case)
    medians = {name: each["median"] for name, each in _timed(case).items()}
    own = {name: value for name, value in medians.items() if name.startswith(_OURS)}
    if not own or case["unit"].partition("/")[0] != "s":
        return None
    name = min(own, key=lambda each: own[each])
    peers = mapping(mapping(case.get("ratios")).get(name))
    remark = name
    if peers:
        peer = min(peers, key=lambda each: peers[each])
        remark += f"; {peer} takes {number(peers[peer], 3)} times as long"
    return str(case["case"]), f"{number(scale * own[name], 3)} {unit}", remark


def _picture(case: Mapping[str, Any]) -> Figure | None:
    timed = _timed(case)
    if len(timed) < 2 or any(each["median"] < 0 for each in timed.values()):
        return None
    unit, scale = _unit_and_scale(case)
    shown: list[Bar] = []
    for name, each in timed.items():
        samples = [scale * float(sample) for sample in each["samples"]]
        shown.append((name, scale * each["median"], min(samples), max(samples)))
    marked = [i for i, name in enumerate(timed) if name.startswith(_OURS)]
    note = f"{case['what']}. Whiskers go from the least to the largest sample."
    title, x = str(case["case"]), f"median [{unit}]"
    return bars(title, shown, x=x, of="candidate", marked=marked, note=note)


def _tables(case: Mapping[str, Any]) -> list[Block]:
    unit, scale = _unit_and_scale(case)
    timed = _timed(case)
    ratios = {name: mapping(each) for name, each in mapping(case.get("ratios")).items() if each}
    figures = list(dict.fromkeys(key for each in timed.values() for key in each.get("figures", {})))
    rows = [
        (
            name,
            number(scale * each["median"]),
            _between([scale * sample for sample in each["samples"]]),
            number(each.get("graphs_per_second")),
            number(each["peak_bytes"] / 1e6, 3) if each.get("peak_bytes") else "–",
            *(number(own.get(name), 3) for own in ratios.values()),
            *(number(each.get("figures", {}).get(key)) for key in figures),
        )
        for name, each in timed.items()
    ]
    headings = (
        *("candidate", in_unit("median", unit), in_unit("least to largest", unit)),
        *("throughput [graphs/s]", "peak memory [MB]"),
        *(f"times as long as {own}" for own in ratios),
        *figures,
    )
    blocks: list[Block] = [Words(words=[f"{case['what']}."])]
    if rows:
        table = Table(caption=str(case["case"]), headings=headings, rows=rows, titled=True)
        blocks.append(table.without_empty())
    absent = [f"{n}: {c['absent']}." for n, c in case["contenders"].items() if c.get("absent")]
    said = [*absent, *case.get("says", [])]
    return [*blocks, *([Words(words=said)] if said else [])]


def _between(samples: Sequence[float]) -> str:
    return f"{number(min(samples), 3)} – {number(max(samples), 3)}" if len(samples) > 1 else "–"
