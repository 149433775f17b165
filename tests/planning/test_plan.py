"""A plan as a file, and plans kept in the data folder."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from weft.batching import BatchingConfig
from weft.errors import DataError
from weft.planning import Measured, Plan, cached_plan, keep_plan, plan_key, show_plan
from weft.planning.explain import memory_words, reasons, seconds_words
from weft.planning.task import plan_path


def measured(label: str, outcome: str, median: float | None, **more) -> Measured:
    settings = more.pop("settings", {"batching.policy": label, "compile": "eager"})
    timed = (
        {}
        if median is None
        else {
            "samples": (median, median),
            "steps": 50,
            "step_units": 32.0,
            "median": median,
            "low": 0.98 * median,
            "high": 1.02 * median,
            "projected_seconds": more.get("start_seconds", 0.0) + 6400 * median,
        }
    )
    return Measured(label=label, settings=settings, outcome=outcome, **timed, **more)


COMPILED = {"batching.policy": "packed", "compile": "static"}


@pytest.fixture
def plan() -> Plan:
    rows = (
        measured("packed", "chosen", 0.001, peak_memory=3e8),
        measured("dynamic", "slower", 0.0013, peak_memory=2e8),
        measured(
            "packed, compiled (static)",
            "slower",
            0.0006,
            settings=COMPILED,
            start_seconds=20.0,
            compile_seconds=19.0,
            compilations=1,
        ),
        measured("static-64", "dropped", 0.004),
        measured("unpadded", "out of memory", None, peak_memory=2e10),
        measured("static-2^n", "failed: the graph is too large", None),
        measured("static-constant", "not tried: the 120 s for planning were used up", None),
    )
    made = Plan(
        recipe="molecules",
        settings=dict(rows[0].settings),
        target="time",
        units="graphs",
        total_units=6400,
        steps=200,
        measured=rows,
        planning_seconds=33.0,
        key={"data": "abc"},
        command="weft plan molecules",
    )
    return dataclasses.replace(made, reasons=tuple(reasons(made)))


def test_a_plan_comes_back_as_it_was(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert json.loads((tmp_path / "plan.json").read_text())["schema"] == "weft plan 2"
    assert plan.chosen.label == "packed"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "weft plan 1"}, "'weft plan 1'"),
        ({"schema": None}, "no plan"),
        ({"settings": None}, "fields"),
        ({"measured": []}, "fields"),
        ({"measured": 3}, "fields"),
        ({"target": "beauty"}, "fields"),
        ({"colour": "red"}, "fields"),
        ({"total_units": 0}, "fields"),
        ({"key": None}, "fields"),
        ({"reasons": [3]}, "fields"),
        ({"measured": [{"label": "a", "settings": {}, "outcome": "chosen", "samples": []}]}, "f"),
        (
            {
                "measured": [
                    {"label": "a", "settings": {}, "outcome": "chosen", "samples": []}
                    | {"median": "fast", "low": 1.0, "high": 2.0}
                ]
            },
            "fields",
        ),
    ],
)
def test_other_files_are_refused_in_a_sentence(plan, tmp_path, change, words):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan.to_json(), **change}))
    with pytest.raises(DataError, match=words) as caught:
        Plan.load(path)
    assert str(path) in str(caught.value)
    assert "weft plan" in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "{", "[1, 2]", '"plan"', "\0"])
def test_what_is_no_json_is_refused(tmp_path, text):
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=r"plan\.json"):
        Plan.load(path)


def test_the_reasons_say_what_the_figures_say(plan):
    words = "\n".join(plan.reasons)
    assert "packed: 1 ms a graph, so 6,400 graphs take about 6.4 s" in words
    assert "1.30 times as fast as dynamic, and 4.00 times as fast as static-64" in words
    # 20 s to compile against 0.0004 s saved on each of 6400 graphs.
    assert "do not compile: it takes 20 s and saves 2.56 s over 200 steps" in words
    assert "(it pays from 1,563 steps on)" in words
    assert "memory: 300 MB at most; dynamic would do with 200 MB" in words
    assert "unpadded: out of memory" in words
    assert "static-2^n: failed: the graph is too large" in words
    assert "static-constant: not tried: the 120 s for planning were used up" in words


def test_compiling_that_is_still_to_come_is_part_of_its_account(plan):
    again = dataclasses.replace(plan.measured[2], start_seconds=1.0, projected_seconds=50.0)
    rows = (*plan.measured[:2], again)
    words = "\n".join(reasons(dataclasses.replace(plan, measured=rows)))
    # 6400 graphs at 0.6 ms are 3.84 s of the 50 s.
    assert "do not compile: it takes 46.2 s" in words
    rows = dataclasses.replace(plan, target="memory")
    assert not any("compile:" in each for each in reasons(rows))


def test_a_tie_is_called_one(plan):
    rows = (plan.measured[0], measured("dynamic", "slower", 0.00101))
    words = reasons(dataclasses.replace(plan, measured=rows))
    assert any("as fast as dynamic as far as this measurement can tell" in each for each in words)


def test_the_table_fits_80_columns(plan):
    long = {f"batching.option_{n}": "a long word" for n in range(6)}
    rows = (*plan.measured, measured(", ".join(long.values()), "slower", 0.5, settings=long))
    console = Console(file=io.StringIO(), width=80)
    show_plan(dataclasses.replace(plan, measured=rows), console)
    shown = console.file.getvalue()
    assert max(len(line) for line in shown.splitlines()) <= 80
    for each in ("packed", "chosen", "1.3 ms", "dropped", "out of memory", "- do not compile"):
        assert each in shown


def test_words_for_quantities():
    assert [seconds_words(s) for s in (3e-6, 0.00123, 1.5, 90, 240, 9000)] == [
        "3 µs",
        "1.23 ms",
        "1.5 s",
        "90 s",
        "4 min",
        "2.5 h",
    ]
    assert [seconds_words(s) for s in (None, 0, 0.99996, 4e6)] == [
        "–",
        "0 s",
        "1,000 ms",
        "1,111 h",
    ]
    assert [memory_words(b) for b in (3e5, 2.5e8, 1.25e10)] == ["300 kB", "250 MB", "12.5 GB"]
    assert [memory_words(b) for b in (None, 0, 12, 3e12)] == ["–", "0 bytes", "12 bytes", "3 TB"]


def key(**changes):
    options = {
        "recipe": "molecules",
        "data": "0123",
        "config": BatchingConfig(policy="dynamic", batch_size=32),
        "planned": ("policy", "threads", "not.there"),
        "target": "time",
        "total_units": 1000,
    }
    return plan_key(**{**options, **changes})


def test_a_kept_plan_is_found_for_its_key_alone(plan, tmp_path):
    kept = dataclasses.replace(plan, key=key())
    assert cached_plan(key(), tmp_path) is None
    path = keep_plan(kept, tmp_path)
    assert path.parent == tmp_path / "plans"
    assert cached_plan(key(), tmp_path) == kept
    # What the plan decides is no part of what it depends on.
    assert key(config=BatchingConfig(policy="packed", batch_size=32)) == key()
    for changes in (
        {"data": "4567"},
        {"config": BatchingConfig(policy="dynamic", batch_size=64)},
        {"recipe": "crystals"},
        {"target": "memory"},
        {"total_units": 2000},
    ):
        assert cached_plan(key(**changes), tmp_path) is None
    assert {"weft", "torch", "numba"} == set(key()["versions"])
    assert {"cpu", "cores", "memory_gib"} == set(key()["machine"])


def test_a_damaged_plan_in_the_cache_is_as_good_as_none(tmp_path):
    path = plan_path(key(), tmp_path)
    path.parent.mkdir()
    path.write_text('{"schema": "weft plan 0"}')
    assert cached_plan(key(), tmp_path) is None
