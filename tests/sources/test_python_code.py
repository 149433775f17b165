"""Python source as program graphs: each type of edge, slots, candidates, bad input."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from weft.graphs import Graph
from weft.sources.program_graph import EDGE_TYPES, EdgeType, label_buckets
from weft.sources.python_code import Sample, sample_graphs, samples_of, variable_uses
from weft.sources.python_flow import Flow
from weft.sources.python_nodes import UnitNodes
from weft.sources.python_units import Program, read_source

Pair = tuple[str, str]


def sample(source: str, line: int, column: int) -> Sample:
    (found,) = (
        s for s in samples_of(source, "f.py").samples if (s.line, s.column) == (line, column)
    )
    return found


def near(found: Sample, name: str, kind: str, *, back: bool = False) -> list[int]:
    """Lines are not stored: the nodes that the candidate `name` has edges of a type to (from)."""
    graph = found.graph
    node = np.flatnonzero(graph.nodes["role"] == 2)[found.candidates.index(name)]
    mine, others = (graph.receivers, graph.senders) if back else (graph.senders, graph.receivers)
    wanted = (mine == node) & (graph.edges["type"] == EDGE_TYPES.index(kind))
    return others[wanted].tolist()


def label_is(graph: Graph, node: int, label: str) -> bool:
    return graph.nodes["subtokens"][node].tolist() == list(label_buckets(label))


def test_lexical_uses_lead_past_the_slot() -> None:
    source = "def f(x, y):\n    print(x)\n    print(x)\n    print(x, y)\n"
    found = sample(source, 3, 10)
    graph = found.graph
    assert found.candidates.index("x") in (0, 1)
    last = graph.edges["type"] == EDGE_TYPES.index("LastLexicalUse")
    slot = int(np.flatnonzero(graph.nodes["role"] == 1)[0])
    assert label_is(graph, slot, "<SLOT>")
    assert not ((graph.senders[last] == slot) | (graph.receivers[last] == slot)).any()
    (before,), (after,) = (near(found, "x", "LastLexicalUse", back=b) for b in (False, True))
    assert label_is(graph, before, "x")
    assert label_is(graph, after, "x")
    joined = last & (graph.senders == after) & (graph.receivers == before)
    assert joined.sum() == 1
    (parameter,) = near(found, "y", "LastLexicalUse")
    assert near(found, "y", "LastWrite") == [parameter]
    assert near(found, "y", "LastUse") == []
    assert len(near(found, "x", "LastUse")) == 1


def test_the_slot_keeps_its_other_edges() -> None:
    source = "def f(x, y):\n    if x:\n        z = f(x, 1)\n        return z + y\n"
    graph = sample(source, 3, 14).graph
    slot = int(np.flatnonzero(graph.nodes["role"] == 1)[0])
    at = (graph.senders == slot) | (graph.receivers == slot)
    kinds = {EDGE_TYPES[t] for t in graph.edges["type"][at].tolist() if t < 10}
    assert kinds == {"Child", "NextToken", "ComputedFrom", "FormalArgName"}


SCOPES = """
import os
top = 1
def outer(a):
    b = a
    def inner(c):
        return c + b + b
    g = lambda p: p + a
    return [q for q in b if q != a] + inner(g), os
class K:
    u = 1
    v = u
    def method(self, w):
        return w
print(top, K.v)
other = top
print(other)
"""


def test_candidates_are_the_variables_in_scope() -> None:
    found = {(u.line, u.column): (u.name, set(u.candidates)) for u in variable_uses(SCOPES)}
    # Not a: nothing of outer but b occurs in inner, and b only from its second use on.
    assert found[7, 23] == ("b", {"c", "b"})
    assert (7, 15) not in found
    assert (7, 19) not in found
    assert found[8, 18] == ("p", {"p", "a", "b", "g"})
    assert found[9, 12] == ("q", {"q", "a", "b", "g"})
    assert found[9, 28] == ("q", {"q", "a", "b", "g"})
    # The first iterable is evaluated outside the comprehension, where q is not known.
    assert found[9, 23] == ("b", {"a", "b", "g"})
    assert found[12, 8] == ("u", {"u", "top"})
    assert found[14, 15] == ("w", {"self", "w"})
    # At module level: neither imports, functions and classes nor what comes later.
    assert (15, 6) not in found
    assert (16, 8) not in found
    assert found[17, 6] == ("other", {"top", "other"})


WITHOUT_VALUE = """
def f(a, b):
    c = a + b
    del a
    try:
        g(b)
    except E as e:
        h(b)
    return b + c
"""


def test_what_has_no_value_is_no_candidate() -> None:
    expected = {
        (3, 8): ("a", {"a", "b"}),
        (3, 12): ("b", {"a", "b"}),
        (6, 10): ("b", {"b", "c"}),
        (8, 10): ("b", {"b", "c", "e"}),
        (9, 11): ("b", {"b", "c"}),
        (9, 15): ("c", {"b", "c"}),
    }
    samples = samples_of(WITHOUT_VALUE, "f.py").samples
    for uses in (variable_uses(WITHOUT_VALUE), samples):
        assert {(u.line, u.column): (u.name, set(u.candidates)) for u in uses} == expected
    # One that has none takes no place among the eight.
    names = [f"v{i}" for i in range(8)]
    source = f"def f({', '.join(names)}):\n    w = x = v7\n"
    (use,) = variable_uses(source)
    assert use.candidates == tuple(reversed(names))


def test_a_variable_that_a_function_calls_global_stays_one_of_the_module() -> None:
    source = "G = 1\nh = 2\ndef f():\n    global G\n    G = 3\nprint(G, h)\n"
    found = {(u.name, frozenset(u.candidates)) for u in variable_uses(source)}
    assert found == {("G", frozenset("Gh")), ("h", frozenset("Gh"))}
    # In the function itself it is none: its body knows no variables of the module.
    source = "G = 1\ndef f(a, b):\n    global G\n    G = a\n    return G, b\n"
    assert {u.name for u in variable_uses(source)} == {"a", "b"}
    # A class body runs as a part of the module, which it may say aloud.
    source = "G = 1\nclass K:\n    global G\n    k = 2\n    print(G, k)\n"
    assert {u.name for u in variable_uses(source)} == {"G", "k"}


def test_at_most_eight_candidates_the_latest() -> None:
    names = [f"v{i}" for i in range(12)]
    source = f"def f({', '.join(names)}):\n    print(v11)\n    print(v0)\n"
    (use,) = variable_uses(source)
    assert use.name == "v11"
    assert use.candidates == tuple(reversed(names[4:]))


def test_the_most_recent_was_read_last() -> None:
    def recent(source: str, line: int, column: int) -> str:
        found = sample(source, line, column)
        at = np.flatnonzero(found.graph.nodes["role"] == 2).tolist()
        return found.candidates[at.index(int(np.argmax(found.graph.nodes["recent"])))]

    source = "def f(a, b):\n    print(b)\n    a = 1\n    return a\n"
    assert recent(source, 4, 11) == "b"
    # None was read: the first candidate, which is the one that occurs last.
    assert recent(source, 2, 10) == "b"


TWO_WAYS = """
def f(a, b, c):
    for i in a:
        if b > c and i:
            c = a.m(b, k=i)
            while c:
                c -= i
        else:
            b = [x + c for x in i if x]
        f(i, b, c)
    try:
        return a if b else c
    except E as e:
        print(f"{a} {e}", e)
    with c as d:
        return d + b
"""


def test_a_graph_does_not_tell_what_stood_in_its_slot() -> None:
    tried = 0
    for found in samples_of(TWO_WAYS, "f.py").samples:
        lines = TWO_WAYS.split("\n")
        text = lines[found.line - 1]
        for other in set(found.candidates) - {found.name}:
            lines[found.line - 1] = (
                text[: found.column] + other + text[found.column + len(found.name) :]
            )
            graph = sample("\n".join(lines), found.line, found.column).graph
            for name in ("subtokens", "role", "recent"):
                assert np.array_equal(graph.nodes[name], found.graph.nodes[name])
            assert np.array_equal(graph.senders, found.graph.senders)
            assert np.array_equal(graph.receivers, found.graph.receivers)
            assert np.array_equal(graph.edges["type"], found.graph.edges["type"])
            assert not np.array_equal(graph.nodes["correct"], found.graph.nodes["correct"])
            tried += 1
    assert tried > 50


def test_names_inside_an_f_string_are_uses() -> None:
    source = 'def f(a, b):\n    print(f"{a} is")\n    return a, b\n'
    program = Program(source)
    nodes = UnitNodes(program, program.units[1], 1000)
    flow = Flow(nodes, ())
    (last,) = {r for t, s, r in flow.last if t == EdgeType.LAST_USE}
    inside = nodes.labels[last]
    assert inside == "a"


def test_a_function_stands_in_its_own_unit_only() -> None:
    source = "def f(a):\n    @dec(a)\n    def g(b):\n        return b\n    return g(a)\n"
    program = Program(source)
    units = [UnitNodes(program, unit, 1000).labels for unit in program.units]
    assert units[0] == ["<Module>"]
    assert "b" not in units[1]
    assert "dec" not in units[1]
    assert units[1].count("a") == 2
    assert units[2][:4] == ["@", "dec", "(", "a"]


def test_slots_are_chosen_by_name_and_seed() -> None:
    source = "def f(a, b):\n" + "    b = a + b\n" * 30
    chosen = {
        (name, seed): [
            (s.line, s.column) for s in samples_of(source, name, slots=3, seed=seed).samples
        ]
        for name in ("x.py", "y.py")
        for seed in (0, 1)
    }
    assert all(len(places) == 3 and places == sorted(places) for places in chosen.values())
    assert len({tuple(places) for places in chosen.values()}) == 4
    again = samples_of(source, "x.py", slots=3, seed=0).samples
    assert [(s.line, s.column) for s in again] == chosen["x.py", 0]
    assert len(samples_of(source, "x.py").samples) == len(variable_uses(source)) == 60


def test_a_large_unit_is_skipped_and_counted() -> None:
    large = "def f(a, b):\n" + "    b = a + b\n" * 200
    small = "def g(a, b):\n    return a + b\n"
    found = samples_of(large + small, "x.py")
    assert found.skipped == {"too large": 1}
    assert {s.line for s in found.samples} == {203}
    assert all(s.graph.num_nodes < 1000 for s in found.samples)
    assert samples_of(large, "x.py", slots=1, max_nodes=10**4).skipped == {}


def test_a_hub_that_no_order_tames() -> None:
    source = "def f(b):\n    return g(" + "b, " * 150 + ")\n"
    source = source.replace("(b)", "(hub, b)")
    found = samples_of(source, "x.py", slots=2).samples
    assert len(found) == 2
    for s in found:
        # The call has all its arguments as children, and half of them are on one side of it.
        distances = np.abs(s.graph.senders - s.graph.receivers)
        assert np.bincount(s.graph.senders).max() > 150
        assert distances.max() >= 75


@pytest.mark.parametrize(
    ("source", "skipped"),
    [
        ("", {}),
        ("# a comment only", {}),
        ("'''a text'''\n1 + 1\npass\n", {}),
        ("def f(:\n", {"syntax error": 1}),
        ("def f():\nreturn 1\n", {"syntax error": 1}),
        ("def f(a):\n\treturn a\n        return a\n", {"syntax error": 1}),
        ("x = (\n", {"syntax error": 1}),
        ("nonlocal x\n", {"syntax error": 1}),
        ("x = '\ud800'\n", {"syntax error": 1}),
        ("x = 1 \\", {"syntax error": 1}),
        ("x = 1\0\n", {"null bytes": 1}),
        ("\ufb01 = 1; b = 2\nprint(\ufb01)\n", {}),  # Python reads it as fi
        ("x = " + "-" * 10**5 + "1\n", {"nested too deeply": 1}),
        ("x = y" + ".z" * 10**5 + "\n", {"nested too deeply": 1}),
    ],
)
def test_what_holds_no_slots(source: str, skipped: dict[str, int]) -> None:
    found = samples_of(source, "x.py")
    assert found.samples == []
    assert found.skipped == skipped
    assert variable_uses(source) == []


def test_deep_nesting_in_one_unit_leaves_the_others() -> None:
    deep = "def f(a, b):\n    return " + "(a," * 150 + "b" + ")" * 150 + "\n"
    fine = "def g(a, b):\n    return a + b\n"
    limit = sys.getrecursionlimit()
    depth = len(_frames())
    try:
        sys.setrecursionlimit(depth + 140)
        found = samples_of(deep + fine, "x.py")
    finally:
        sys.setrecursionlimit(limit)
    assert found.skipped == {"nested too deeply": 1}
    assert [s.line for s in found.samples] == [4, 4]


def _frames() -> list[object]:
    frame, found = sys._getframe(), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return found


@pytest.mark.parametrize(
    "source",
    [
        "def f(a, b):\n\tif a:\n\t\treturn b\n",
        "\x0cdef f(a, b):\n\x0c    \x0c\n    return a\n\x0c",
        "def f(a, b):\r\n    return a\r\n",
        "def f(a, b):\r    return a\r",
        "def f(a, b): return a",
        "async def f(a, b):\n    async for c in a:\n        await c\n",
        "def f(a, b):\n    break\n    return a\n",
        "def f(a, b):\n    global x\n    x = a\n    del b\n",
        "x = lambda a, b=lambda c: c: a + b\n",
        "class A:\n    a = 1; b = 2\n    print(a)\n",
    ],
)
def test_odd_but_right(source: str) -> None:
    found = samples_of(source, "x.py")
    assert found.samples
    assert found.skipped == {}


def test_columns_are_characters() -> None:
    source = "def f(größe, b):\n    s = '日本語'; return größe + b, s\n"
    lines = source.split("\n")
    found = samples_of(source, "x.py").samples
    assert {s.name for s in found} == {"größe", "b", "s"}
    for s in found:
        assert lines[s.line - 1][s.column :].startswith(s.name)


def test_columns_after_tabs_and_form_feeds() -> None:
    source = "\x0cdef f(a, b):\n\tif a:\t# tab\n\x0c\t\treturn\tb\n"
    found = samples_of(source, "x.py").samples
    assert [(s.line, s.column, s.name) for s in found] == [(2, 4, "a"), (3, 10, "b")]


@pytest.mark.parametrize(
    ("data", "skipped"),
    [
        ("def f(ä, b):\n    return ä\n".encode(), {}),
        (b"\xef\xbb\xbfdef f(a, b):\n    return a\n", {}),
        ("# coding: latin-1\ndef f(ä, b):\n    return ä\n".encode("latin-1"), {}),
        ("def f(ä, b):\n    return ä\n".encode("latin-1"), {"encoding": 1}),
        (b"# coding: none-such\nx = 1\n", {"encoding": 1}),
        (b"\xef\xbb\xbf# coding: latin-1\nx = 1\n", {"encoding": 1}),
        ("def f(a, b):\n    return a\n".encode("utf-16"), {"encoding": 1}),
        (b"\x00\x01\x02", {"null bytes": 1}),
    ],
)
def test_encodings(tmp_path: Path, data: bytes, skipped: dict[str, int]) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(data)
    found = sample_graphs(file)
    assert found.skipped == skipped
    assert len(found.samples) == (0 if skipped else 1)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert sample_graphs(tmp_path / "none.py").skipped == {"cannot be read": 1}


def test_a_file_of_fifty_thousand_lines() -> None:
    functions = "".join(
        f"def f{i}(a, b):\n    c = a\n    return f{i - 1}(c, b)\n" for i in range(1500)
    )
    data = "".join(f"x{i} = {i}\n" for i in range(45_500))
    found = samples_of(functions + data, "x.py", slots=1)
    assert len(found.samples) == 1500
    assert found.skipped == {"too large": 1}


def test_this_file_has_slots() -> None:
    found = samples_of(read_source(Path(__file__)), "x.py", slots=1)
    assert len(found.samples) > 10
    assert found.skipped == {}
