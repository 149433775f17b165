"""Functions as graphs of all their uses: versions with a misuse and with blanks, f-strings."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest

from weft.sources.program_graph import (
    CANDIDATE,
    MAY_STAND_IN,
    OCCURRENCE_OF,
    SLOT,
    USE,
    EdgeType,
    label_buckets,
)
from weft.sources.python_code import samples_of, units_of
from weft.sources.python_misuse import FunctionGraph, blank_each, each_function

SOURCE = """
import os

def scale(values, factor, offset):
    total = 0
    for value in values:
        total += value * factor + offset
    return total / len(values)
"""


def functions(source: str, **options: int) -> list[FunctionGraph]:
    return list(each_function(source, "f.py", Counter(), **options))


def pairs(function: FunctionGraph, use: int) -> dict[str, tuple[int, int]]:
    """The candidates of a use: whether each is right, and whether it is written."""
    edges = function.graph.edges
    chosen = np.flatnonzero(
        (edges["type"] == MAY_STAND_IN) & (function.graph.receivers == function.nodes[use])
    )
    return {
        function.variables[int(function.graph.senders[edge])]: (
            int(edges["right"][edge]),
            int(edges["written"][edge]),
        )
        for edge in chosen
    }


def test_all_uses_of_a_function_are_in_one_graph() -> None:
    (clean,) = functions(SOURCE)
    assert [use.name for use in clean.uses] == [
        *("values", "value", "factor", "offset", "total", "values")
    ]
    roles = clean.graph.nodes["role"]
    assert (roles[clean.nodes] == USE).all()
    assert sorted(clean.variables.values()) == ["factor", "offset", "total", "value", "values"]
    assert (roles[list(clean.variables)] == CANDIDATE).all()
    for number, use in enumerate(clean.uses):
        found = pairs(clean, number)
        assert set(found) == set(use.candidates)
        assert found[use.name] == (1, 1)
        assert sum(right + written for right, written in found.values()) == 2
    assert clean.graph.graph["kind"] == 0
    # The lines of the module's body, where there is nothing to choose, count with it.
    assert clean.graph.graph["lines"] == SOURCE.count("\n")


def test_a_misuse_is_the_graph_of_the_text_with_the_other_name() -> None:
    clean, *wrong = functions(SOURCE, misuses=6)
    assert len(wrong) == 6
    lines = SOURCE.split("\n")
    for version in wrong:
        assert version.wrong is not None
        use = version.uses[version.wrong]
        true = clean.uses[version.wrong].name
        assert use.name != true
        assert pairs(version, version.wrong)[use.name] == (0, 1)
        assert pairs(version, version.wrong)[true] == (1, 0)
        text = list(lines)
        line = text[use.line - 1]
        text[use.line - 1] = line[: use.column] + use.name + line[use.column + len(true) :]
        (same,) = functions("\n".join(text))
        for name in ("senders", "receivers"):
            np.testing.assert_array_equal(
                getattr(version.graph, name), getattr(same.graph, name), err_msg=name
            )
        np.testing.assert_array_equal(version.graph.edges["type"], same.graph.edges["type"])
        np.testing.assert_array_equal(
            version.graph.nodes["subtokens"], same.graph.nodes["subtokens"]
        )


def test_nothing_tells_what_stood_in_a_blank() -> None:
    """Two texts that differ in one use alone have the same graph once it is blank."""
    other = SOURCE.replace("value * factor", "value * offset")
    ((program, nodes),) = (u for u in units_of(SOURCE, 999, Counter()) if not u[1].unit.is_module)
    ((_, changed),) = (u for u in units_of(other, 999, Counter()) if not u[1].unit.is_module)
    one, two = (list(blank_each(program, each))[2] for each in (nodes, changed))
    assert (one.uses[2].name, two.uses[2].name) == ("factor", "offset")
    for name in ("senders", "receivers"):
        np.testing.assert_array_equal(getattr(one.graph, name), getattr(two.graph, name))
    for name in ("type", "written", "recent"):
        np.testing.assert_array_equal(one.graph.edges[name], two.graph.edges[name])
    for name in ("role", "subtokens"):
        np.testing.assert_array_equal(one.graph.nodes[name], two.graph.nodes[name])
    blank = one.nodes[2]
    assert one.graph.nodes["role"][blank] == SLOT
    assert one.graph.nodes["subtokens"][blank].tolist() == list(label_buckets("<SLOT>"))
    joined = np.isin(
        one.graph.edges["type"],
        [EdgeType.LAST_USE, EdgeType.LAST_WRITE, EdgeType.LAST_LEXICAL_USE, OCCURRENCE_OF],
    )
    assert not (joined & (one.graph.senders == blank)).any()
    assert not (joined & (one.graph.receivers == blank)).any()


def test_versions_depend_on_name_and_seed_alone() -> None:
    first, again, other = (
        [
            function.graph.edges["written"].tolist()
            for function in functions(SOURCE, misuses=1, blanks=1, seed=seed)
        ]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_the_variables_of_functions_around_may_stand_in_a_closure() -> None:
    inside = "    def inner(x):\n        return x + height\n"
    source = f"def outer(width, height):\n{inside}    return inner\n"
    inner = next(f for f in functions(source) if f.uses[0].name == "x")
    assert [use.name for use in inner.uses] == ["x", "height"]
    assert set(inner.uses[1].candidates) == {"x", "height", "width"}


F_STRINGS = '''
def show(name, width, é):
    first = f"{name!r:>{width}} {{no}} {é}" "plain" rf"\\d{width:{name}.{width}f}"
    last = f"""
  {name} and {sum(q for q in first if q != name)
     + width} {f'{first}' + name} {(lambda z: z + name)(width)}
"""
    return f"{first != last} {last:=^{width}} {name=} \\N{BULLET}"
'''


def test_names_in_f_strings_are_uses_at_their_places() -> None:
    found = [(use.line, use.column, use.name) for use in samples_of(F_STRINGS, "f.py").samples]
    lines = F_STRINGS.split("\n")
    for line, column, name in found:
        assert lines[line - 1][column : column + len(name)] == name
    per_line = Counter(line for line, _, _ in found)
    assert dict(per_line) == {3: 6, 5: 5, 6: 6, 8: 5}


SYNTAX = """
def group(a, b):
    try:
        a()
    except* ValueError as found:
        print(found, b)
    match a:
        case [x, *rest] if x:
            return x, rest
        case {"k": v, **more}:
            return v, more
async def gather(xs, ys):
    return [x async for x in xs if await x], [y for y in ys if (z := y)]
"""
NEWER = """
type Pair[T] = tuple[T, T]
def first[T: int, *Ts, **P](a: T, b: T) -> T:
    def inner[S](x: S) -> S:
        return x + a
    return inner(b)
class Box[T]:
    def put(self, item: T, count: int) -> None:
        self.item = item
        print(f"{item} {f"{count:>{item}}"} {'a' + "b" + str({"k": count}["k"])} {count=}")
"""


def test_what_the_running_python_parses_is_read() -> None:
    source = SYNTAX + (NEWER if sys.version_info >= (3, 12) else "")
    skipped: Counter[str] = Counter()
    found = list(each_function(source, "f.py", skipped, misuses=1, blanks=1))
    assert not skipped
    lines = source.split("\n")
    met = set()
    for function in found:
        for use in function.uses if function.wrong is None else ():
            written = lines[use.line - 1][use.column : use.column + len(use.name)]
            assert written == use.name
            met.add(use.name)
    assert met >= {"a", "found", "b", "x", "rest", "v", "more", "xs", "y"}
    assert ("item" in met) == (sys.version_info >= (3, 12))


@pytest.mark.parametrize(
    "text", ["f'{x!r}'", "f'{x:%H:%M}'", "f'{{}}'", "f'{x[\"a\"]}'", "f'{x}' f'{y}'", "rf'\\{x}'"]
)
def test_f_strings_that_are_right(text: str) -> None:
    skipped: Counter[str] = Counter()
    list(each_function(f"def f(x, y):\n    return {text}\n", "f.py", skipped))
    assert not skipped
