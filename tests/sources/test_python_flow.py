"""What follows the variables of a unit: each type of edge, and where a variable has a value."""

from __future__ import annotations

import ast
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from weft.sources.program_graph import EdgeType
from weft.sources.python_flow import Flow
from weft.sources.python_nodes import UnitNodes
from weft.sources.python_units import Program

Pair = tuple[str, str]


def edges(source: str, kind: int, unit: int = 1) -> set[Pair]:
    """Edges of one type in a unit (1: the first function) between labels; a token that is there
    more than once is called x#1, x#2 and so on in the order of the text."""
    program = Program(source)
    nodes = UnitNodes(program, program.units[unit], 10**6)
    flow = Flow(nodes, ())
    all_of_them = {
        *nodes.edges,
        *flow.last,
        *((guard[0], guard[1], guard[2]) for guard in flow.guards),
    }
    labels = nodes.labels
    counts = Counter(labels)
    names, met = {}, Counter()
    for node, label in enumerate(labels):
        met[label] += 1
        names[node] = f"{label}#{met[label]}" if counts[label] > 1 else label
    return {(names[s], names[r]) for t, s, r in all_of_them if t == kind}


def test_child_and_next_token() -> None:
    source = "def f(a):\n    return a + 1\n"
    assert edges(source, EdgeType.NEXT_TOKEN) == {
        ("def", "f"),
        ("f", "("),
        ("(", "a#1"),
        ("a#1", ")"),
        (")", ":"),
        (":", "return"),
        ("return", "a#2"),
        ("a#2", "+"),
        ("+", "1"),
    }
    assert edges(source, EdgeType.CHILD) == {
        ("<FunctionDef>", "<arguments>"),
        ("<arguments>", "<arg>"),
        ("<FunctionDef>", "<Return>"),
        ("<Return>", "<BinOp>"),
        ("<BinOp>", "<Name>"),
        ("<BinOp>", "<Constant>"),
        ("<FunctionDef>", "def"),
        ("<FunctionDef>", "f"),
        ("<FunctionDef>", "("),
        ("<FunctionDef>", ")"),
        ("<FunctionDef>", ":"),
        ("<arg>", "a#1"),
        ("<Return>", "return"),
        ("<Name>", "a#2"),
        ("<BinOp>", "+"),
        ("<Constant>", "1"),
    }


def test_last_use_and_last_write_in_a_straight_line() -> None:
    source = "def f(x):\n    y = x\n    x = y\n    return x\n"
    assert edges(source, EdgeType.LAST_USE) == {("x#3", "x#2"), ("x#4", "x#2")}
    assert edges(source, EdgeType.LAST_WRITE) == {
        ("x#2", "x#1"),
        ("x#3", "x#1"),
        ("x#4", "x#3"),
        ("y#2", "y#1"),
    }


def test_both_branches_reach_what_follows() -> None:
    source = "def f(x, c):\n    if c:\n        x = 1\n    else:\n        x = 2\n    return x\n"
    assert edges(source, EdgeType.LAST_WRITE) >= {("x#4", "x#2"), ("x#4", "x#3")}
    assert ("x#4", "x#1") not in edges(source, EdgeType.LAST_WRITE)


def test_a_branch_that_returns_reaches_nothing() -> None:
    source = "def f(x):\n    if x:\n        x = 1\n        return x\n    return x\n"
    assert {r for s, r in edges(source, EdgeType.LAST_WRITE) if s == "x#5"} == {"x#1"}
    assert {r for s, r in edges(source, EdgeType.LAST_USE) if s == "x#5"} == {"x#2"}


def test_a_loop_comes_back() -> None:
    source = "def f(x, xs):\n    for i in xs:\n        print(x)\n        x = i\n    return x\n"
    found = edges(source, EdgeType.LAST_WRITE)
    assert {r for s, r in found if s == "x#2"} == {"x#1", "x#3"}
    assert {r for s, r in found if s == "x#4"} == {"x#1", "x#3"}
    assert {r for s, r in found if s == "x#3"} == {"x#1"}
    assert {r for s, r in edges(source, EdgeType.LAST_USE) if s == "x#3"} == {"x#2"}


def test_loops_in_loops_break_and_continue() -> None:
    source = (
        "def f(x):\n    while x:\n        while x:\n            if x: break\n"
        "            if x: continue\n            x = 1\n        x = 2\n    return x\n"
    )
    found = edges(source, EdgeType.LAST_WRITE)
    assert {r for s, r in found if s == "x#2"} == {"x#1", "x#7"}
    assert {r for s, r in found if s == "x#3"} == {"x#1", "x#6", "x#7"}
    assert {r for s, r in found if s == "x#7"} == {"x#1", "x#6"}
    assert {r for s, r in found if s == "x#8"} == {"x#1", "x#7"}
    reads = edges(source, EdgeType.LAST_USE)
    assert {r for s, r in reads if s == "x#7"} == {"x#3", "x#4"}


def test_a_try_may_fail_before_or_after() -> None:
    source = (
        "def f(x):\n    try:\n        x = 1\n    except E as e:\n        print(x, e)\n"
        "    finally:\n        x\n"
    )
    found = edges(source, EdgeType.LAST_WRITE)
    assert {r for s, r in found if s == "x#3"} == {"x#1", "x#2"}
    assert ("e#2", "e#1") in found
    assert {r for s, r in found if s == "x#4"} == {"x#1", "x#2"}


def test_an_assignment_is_evaluated_from_the_right() -> None:
    source = "def f(x):\n    x = x + 1\n    x += x\n"
    found = edges(source, EdgeType.LAST_WRITE)
    assert {r for s, r in found if s == "x#3"} == {"x#1"}
    assert {r for s, r in found if s == "x#2"} == {"x#1"}
    assert {r for s, r in found if s == "x#5"} == {"x#2"}
    assert {r for s, r in found if s == "x#4"} == {"x#2"}


def test_patterns_of_match_bind() -> None:
    source = (
        "def f(v):\n    match v:\n        case [a, *rest]:\n            return a, rest\n"
        "        case {'k': b, **more} as whole:\n            return b, more, whole\n"
    )
    assert edges(source, EdgeType.LAST_WRITE) == {
        ("v#2", "v#1"),
        ("a#2", "a#1"),
        ("rest#2", "rest#1"),
        ("b#2", "b#1"),
        ("more#2", "more#1"),
        ("whole#2", "whole#1"),
    }


def test_a_failed_guard_leads_to_the_next_case() -> None:
    source = (
        "def f(v, t):\n    match v:\n"
        "        case [a, *b] if a > t:\n            return a, b, t\n"
        "        case {'k': c, **d} as e if t:\n            return c, t\n"
        "        case _:\n            return t\n"
    )
    assert edges(source, EdgeType.LAST_USE) == {
        ("a#3", "a#2"),
        ("t#3", "t#2"),
        ("t#4", "t#2"),
        ("t#5", "t#4"),
        ("t#6", "t#2"),
        ("t#6", "t#4"),
    }
    assert edges(source, EdgeType.LAST_WRITE) == {
        ("v#2", "v#1"),
        ("a#2", "a#1"),
        ("a#3", "a#1"),
        ("b#2", "b#1"),
        ("c#2", "c#1"),
        *((f"t#{use}", "t#1") for use in range(2, 7)),
    }
    bound = ("a#1", "b#1", "c#1", "d", "e")
    assert edges(source, EdgeType.COMPUTED_FROM) == {(name, "v#2") for name in bound}
    assert edges(source, EdgeType.GUARDED_BY) == {
        ("a#3", "<Compare>"),
        ("t#3", "<Compare>"),
        ("t#5", "<Name>#7"),
    }
    # A later case may as well be there because a pattern did not fit.
    assert edges(source, EdgeType.GUARDED_BY_NEGATION) == set()


def test_what_a_failed_pattern_read_was_read() -> None:
    source = (
        "def f(v, k):\n    match v:\n        case k.A: pass\n"
        "        case [k.B, x]: pass\n        case k.C: pass\n"
    )
    found = edges(source, EdgeType.LAST_USE)
    assert found == {("k#3", "k#2"), ("k#4", "k#2"), ("k#4", "k#3")}


def test_a_case_for_all_else_leaves_no_way_around() -> None:
    source = (
        "def f(v):\n    x = 0\n    match v:\n        case 1: x = 1\n"
        "        case {}: x = 2\n    return x\n"
    )
    for last, expected in (
        ("2", {"x#1", "x#2", "x#3"}),
        ("_", {"x#2", "x#3"}),
        ("_ if v", {"x#1", "x#2", "x#3"}),
        ("[1] | y", {"x#2", "x#3"}),
    ):
        found = edges(source.format(last), EdgeType.LAST_WRITE)
        assert {r for s, r in found if s == "x#4"} == expected, last


def test_alternatives_of_a_pattern_are_branches() -> None:
    source = "def f(v):\n    match v:\n        case [x] | {'k': x}:\n            return x\n"
    assert edges(source, EdgeType.LAST_WRITE) == {("v#2", "v#1"), ("x#3", "x#1"), ("x#3", "x#2")}
    assert edges(source, EdgeType.COMPUTED_FROM) == {("x#1", "v#2"), ("x#2", "v#2")}


def test_a_pattern_is_computed_as_a_target_is() -> None:
    source = (
        "def f(a, b):\n    match a, b:\n        case (x, [y, 1]) as z: pass\n"
        "        case K(p, k=q), r: pass\n        case [u, *w]: pass\n"
    )
    assert edges(source, EdgeType.COMPUTED_FROM) == {
        ("x", "a#2"),
        ("y", "b#2"),
        ("z", "a#2"),
        ("z", "b#2"),
        ("p", "a#2"),
        ("q", "a#2"),
        ("r", "b#2"),
        *((name, subject) for name in ("u", "w") for subject in ("a#2", "b#2")),
    }


def test_computed_from() -> None:
    source = "def f(a, b):\n    c = a * b\n    d, e = c, a\n    for g in d:\n        pass\n"
    assert edges(source, EdgeType.COMPUTED_FROM) == {
        ("c#1", "a#2"),
        ("c#1", "b#2"),
        ("d#1", "c#2"),
        ("e", "a#3"),
        ("g", "d#2"),
    }


def test_returns_to() -> None:
    source = "def f(a):\n    yield a\n    return a\n"
    assert edges(source, EdgeType.RETURNS_TO) == {
        ("yield", "<FunctionDef>"),
        ("return", "<FunctionDef>"),
    }
    assert edges("x = 1\ny = x\n", EdgeType.RETURNS_TO, unit=0) == set()


def test_formal_argument_names() -> None:
    source = (
        "def f(u):\n    return g(u, 1 + u, third=u), h(u), unknown(u)\n"
        "def g(first, second, third):\n    pass\n"
        "class h:\n    def __init__(this, one):\n        pass\n"
    )
    assert edges(source, EdgeType.FORMAL_ARG_NAME) == {
        ("u#2", "first"),
        ("<BinOp>", "second"),
        ("u#4", "third#2"),
        ("u#5", "one"),
    }


def test_formal_argument_names_of_a_method() -> None:
    source = (
        "class A:\n    def f(self, a):\n        return self.g(a)\n"
        "    def g(self, b):\n        return self.s(b)\n"
        "    @staticmethod\n    def s(c):\n        pass\n"
    )
    assert edges(source, EdgeType.FORMAL_ARG_NAME) == {("a#2", "b")}
    assert edges(source, EdgeType.FORMAL_ARG_NAME, unit=2) == {("b#2", "c")}


def test_guarded_by() -> None:
    source = (
        "def f(a, b):\n    if a > b:\n        return a\n    elif b:\n        return b\n"
        "    while not a:\n        a = 1 if b else a\n"
    )
    assert edges(source, EdgeType.GUARDED_BY) == {
        ("a#3", "<Compare>"),
        ("b#4", "<Name>#4"),
        ("a#5", "<UnaryOp>"),
        ("a#6", "<UnaryOp>"),
    }
    assert edges(source, EdgeType.GUARDED_BY_NEGATION) == {
        ("b#3", "<Compare>"),
        ("b#4", "<Compare>"),
    }


def test_what_may_have_been_used_last_stays_bounded() -> None:
    source = "def f(a, b):\n" + "    if b: a\n" * 100
    found = edges(source, EdgeType.LAST_USE)
    assert max(Counter(s for s, _ in found).values()) == 16
    assert ("a#101", "a#100") in found


def reached(source: str, unit: int = 1) -> list[str]:
    """The variables but s that may have a value at each `at(s)` in a unit, by its line."""
    program = Program(source)
    nodes = UnitNodes(program, program.units[unit], 10**6)
    calls = [part for part in nodes.node_of if isinstance(part, ast.Call)]
    slots = [nodes.place[call.args[0]] for call in calls if ast.unparse(call.func) == "at"]
    flow = Flow(nodes, (slot.node for slot in slots))
    return [
        " ".join(
            sorted(
                variable.name
                for variable in nodes.occurrences
                if variable.name != "s" and flow.reached(slot.node, variable)
            )
        )
        for slot in sorted(slots, key=lambda slot: slot.token)
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("c = at(s)\nat(s)", ["", "c"]),
        ("x = y = 1\ndel x\nat(s)\nx = 2\nat(s)", ["y", "x y"]),
        ("x = 1\nif s: del x\nat(s)", ["x"]),
        ("x: int\nat(s)\nx = 1\nat(s)", ["", "x"]),
        ("x += at(s)\nat(s)", ["", "x"]),
        ("if (x := s): at(s)", ["x"]),
        ("if s: x = 1\nelse: at(s)\nat(s)", ["", "x"]),
        ("import x\ndef y(): pass\nclass z: pass\nat(s)", [""]),
        ("class K:\n    u = 1\n    v = at(s)\nat(s)", ["u", "u v"]),
        # Loops.
        ("for i in at(s):\n    at(s)\n    x = 1\nat(s)", ["", "i x", "i x"]),
        ("while at(s):\n    x = 1\n    if s: break\n    del x\nat(s)", ["", "x"]),
        ("while at(s):\n    x = 1\n    if s: continue\n    del x", ["x"]),
        ("for x in s:\n    return\nelse:\n    at(s)", [""]),
        # Exceptions.
        ("try: at(s)\nexcept E as e: at(s)\nat(s)", ["", "e", ""]),
        ("e = 1\ntry: at(s)\nexcept E as e: at(s)\nat(s)", ["e", "e", "e"]),
        ("e = 1\ntry: raise s\nexcept E as e: at(s)\nat(s)", ["e", ""]),
        ("while s:\n    try: s()\n    except E as e: break\nat(s)", [""]),
        ("while at(s):\n    try: s()\n    except E as e: continue", [""]),
        ("try:\n    try: s()\n    except E as e: s()\nexcept F: at(s)", [""]),
        ("try:\n    x = 1\n    del x\nexcept E: at(s)\nelse: at(s)", ["x", ""]),
        ("try:\n    if s:\n        x = 1\n        return s(x)\nexcept E: at(s)", ["x"]),
        ("try: x = s()\nexcept E: y = 1\nelse: z = 1\nfinally: at(s)\nat(s)", ["x y z"] * 2),
        ("try:\n    x = 1\n    del x\nfinally: at(s)\nat(s)", ["x", ""]),
        ("while s:\n    try: break\n    finally: x = 1\nat(s)", ["x"]),
        ("with s as w:\n    x = 1\n    del x\n    at(s)\nat(s)", ["w", "w x"]),
        # Comprehensions, and what runs later.
        ("c = [at(s) for q in s for r in q]", ["q r"]),
        ("c = [r for q in at(s) for r in at(s)]", ["", "q r"]),
        ("c = {(y := q) for q in at(s) if at(s)}\nat(s)", ["", "q y", "c q y"]),
        ("c = list(at(s) for q in at(s))", ["c q", ""]),
        ("c = lambda p: at(s)\nd = at(s)", ["c d p", "c p"]),
        # Cases.
        (
            "match s:\n    case [a] if at(s): at(s)\n    case b: at(s)\nat(s)",
            ["a", "a", "a b", "a b"],
        ),
        ("match s:\n    case [a]: at(s)\n    case b: at(s)\nat(s)", ["a", "b", "a b"]),
    ],
)
def test_where_a_variable_has_a_value(body: str, expected: list[str]) -> None:
    source = "def f(s):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    assert reached(source) == expected


def test_what_other_functions_write_has_a_value_anywhere() -> None:
    inner = "    def g():\n        nonlocal x\n        x = 1\n"
    assert reached(f"def f(s):\n{inner}    at(s)\n    x = 2\n    del x\n    at(s)\n") == ["x", "x"]
    assert reached("def f(s, x):\n    def g():\n        at(s)\n        x\n", unit=2) == ["x"]
    inner = "def f():\n    global x\n    x = 1\n"
    assert reached(f"s = 1\n{inner}at(s)\nx = y = 2\n", unit=0) == ["x"]
    # A comprehension writes at once and here, although the compiler makes it a block of its own.
    assert reached("def f(s):\n    at(s)\n    [x := y for y in s]\n    at(s)\n") == ["", "x y"]


class Stop(BaseException):
    """The end of a run that is too long."""


class Function:
    """A random function with all that branches, repeats and fails, and its runs.

    Each `at(s)` stands on a line of its own.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        lines = self.block(3, "    ", loop=False)
        self.source = "\n".join(["def f(s):", *lines, "    at(s)", ""])

    def block(self, depth: int, pad: str, *, loop: bool) -> Iterator[str]:
        for _ in range(self.rng.randint(1, 3)):
            yield from self.statement(depth, pad, loop=loop)

    def statement(self, depth: int, pad: str, *, loop: bool) -> Iterator[str]:
        rng, inside = self.rng, pad + "    "
        x, y = rng.choices("abcd", k=2)
        kind = rng.randrange(6 if depth else 3)
        if kind == 0:
            yield f"{pad}{rng.choice(('at(s)', 'call(lambda: at(s))'))}"
        elif kind == 1:
            comprehension = f"[({x} := s) for i in more() if at(s)]"
            writes = (f"{x} = s", f"{x} = s", f"del {x}", f"{x}: int", comprehension)
            yield pad + rng.choice(writes)
        elif kind == 2:
            ends = ("return", "raise ValueError", "break", "continue")
            yield f"{pad}if go(): {rng.choice(ends[: 4 if loop else 2])}"
        elif kind == 3:
            loops = rng.choice((f"for {x} in more()", "while go()", ""))
            yield f"{pad}{loops or rng.choice(('if go()', f'with swallow() as {x}'))}:"
            yield from self.block(depth - 1, inside, loop=loop or bool(loops))
            if loops:
                yield f"{pad}else:"
                yield from self.block(depth - 1, inside, loop=loop)
        elif kind == 4:
            yield f"{pad}match pick():"
            for case in (f"[{x}] | ('x' as {x}) if at(s)", f"{y} if at(s)", "1"):
                yield f"{inside}case {case}:"
                yield from self.block(depth - 1, inside + "    ", loop=loop)
        else:
            handlers = rng.choice(([], [f"except ValueError as {x}", "except KeyError", "else"]))
            for head in ("try", *handlers, *["finally"][: not handlers or rng.randrange(2)]):
                yield f"{pad}{head}:"
                yield from self.block(depth - 1, inside, loop=loop)

    def seen(self, runs: int) -> dict[int, set[str]]:
        """By line, the variables that were seen to have a value there."""
        rng, found = self.rng, dict[int, set[str]]()
        later: list[Callable[[], object]] = []
        steps = 0

        def go() -> bool:
            nonlocal steps
            steps += 1
            if steps > 60:
                raise Stop
            return rng.random() < 0.5

        def at(_: object) -> bool:
            frame = sys._getframe(1)
            line = frame.f_lineno
            while frame.f_code.co_name != "f":
                frame = frame.f_back
            found.setdefault(line, set()).update({*frame.f_locals} & {*"abcd"})
            if go() and go():
                raise rng.choice((ValueError, KeyError))
            return go()

        def more() -> Iterator[int]:
            while go():
                yield 1

        def call(function: Callable[[], object]) -> None:
            later.append(function)
            if go():
                rng.choice(later)()

        class Swallow:
            def __enter__(self) -> int:
                return 1

            def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
                return kind is not None and kind is not Stop and go()

        names = {"go": go, "at": at, "more": more, "call": call, "swallow": Swallow}
        names["pick"] = lambda: rng.choice(([1], "x", 1, 2))
        exec(compile(self.source, "<random>", "exec"), names)
        for _ in range(runs):
            steps = 0
            later.clear()
            try:
                names["f"](1)
            except (Stop, Exception):
                continue
        return found


def test_what_has_a_value_in_a_run_is_reached() -> None:
    seen = 0
    for seed in range(60):
        function = Function(seed)
        lines = [n for n, text in enumerate(function.source.split("\n"), 1) if "at(s)" in text]
        found = dict(zip(lines, reached(function.source), strict=True))
        for line, names in function.seen(runs=40).items():
            assert names <= set(found[line].split()), f"line {line} of\n{function.source}"
            seen += len(names)
    assert seen > 300
