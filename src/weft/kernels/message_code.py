"""Source code of fused messages: gather, elementwise arithmetic and reduction in one loop.

A message is an expression over rows of the edge's receiver (`i`), of its sender (`j`) and of the
edge itself (`e`). Three loops are written for it: the forward pass, which walks the edges into each
receiver, and the two halves of the backward pass: by receiver, for the gradients of `i` and `e`
rows, and by sender, for those of `j` rows. None makes a tensor with a row for every edge unless the
messages themselves are needed. numba compiles them; the machine code is kept like that of any loop.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from weft.files import user_cache
from weft.runtime import SharedLoop

# An expression: ("leaf", k), ("const", k), or (operation, expression, ...).
Expression = tuple[Any, ...]
Place = Literal["i", "j", "e", "v"]
Reduction = Literal["sum", "squares", "max", "min"]

KNOWN_NUMBERS = (0.0, 1.0)
"""The first constants of every loop."""

MOST_FEATURES = 1024
"""Features of a message that fit into the loops' space on the stack."""


@dataclass(frozen=True)
class Leaf:
    """An input of an expression.

    Attributes:
        place: whose rows it has: those of receivers (`i`), senders (`j`) or edges (`e`); `v` is one
            row for all.
        by_head: it has one column for each head, not one for each feature.
        sorted: its rows, those of edges, are in the order of the walk; it has no gradient.
    """

    place: Place
    by_head: bool
    sorted: bool = False


@dataclass(frozen=True)
class MessageProgram:
    """An expression over edges and how it is reduced.

    Attributes:
        expression: of the message's features.
        leaves: its inputs.
        reductions: how messages into a receiver are reduced, in this order, each to [N, F]; empty
            where the messages themselves are wanted, [E, F].
        dot: without reductions: sum the features of each head, [E, H].
    """

    expression: Expression
    leaves: tuple[Leaf, ...]
    reductions: tuple[Reduction, ...] = ("sum",)
    dot: bool = False


@dataclass(frozen=True)
class _Operation:
    """The source code of an elementwise operation and of its gradients.

    Attributes:
        value: source, from the arguments {0}, {1}.
        gradients: source of the gradient to each argument; {g} is the gradient to the result, {y}
            the result.
        plain: the same in torch.
    """

    value: str
    gradients: tuple[str, ...]
    plain: Callable[..., Tensor]


_SIGMOID_GRADIENT = "{g} * {y} * (one - {y})"
OPERATIONS = {
    "add": _Operation("{0} + {1}", ("{g}", "{g}"), torch.add),
    "sub": _Operation("{0} - {1}", ("{g}", "-{g}"), torch.sub),
    "mul": _Operation("{0} * {1}", ("{g} * {1}", "{g} * {0}"), torch.mul),
    "div": _Operation("{0} / {1}", ("{g} / {1}", "-{g} * {y} / {1}"), torch.div),
    "neg": _Operation("-{0}", ("-{g}",), torch.neg),
    "relu": _Operation("max({0}, zero)", ("{g} if {0} > zero else zero",), torch.relu),
    "leaky_relu": _Operation(
        "{0} if {0} > zero else {1} * {0}",
        ("{g} if {0} > zero else {1} * {g}", "zero"),
        lambda x, slope: torch.where(x > 0, x, slope * x),
    ),
    "sigmoid": _Operation("sigmoid_of({0})", (_SIGMOID_GRADIENT,), torch.sigmoid),
    "tanh": _Operation("tanh_of({0})", ("{g} * (one - {y} * {y})",), torch.tanh),
    "exp": _Operation("exp_of({0})", ("{g} * {y}",), torch.exp),
    "silu": _Operation(
        "{0} * sigmoid_of({0})",
        ("{g} * sigmoid_of({0}) * (one + {0} * (one - sigmoid_of({0})))",),
        torch.nn.functional.silu,
    ),
    "abs": _Operation(
        "abs({0})", ("{g} if {0} > zero else (-{g} if {0} < zero else zero)",), torch.abs
    ),
    "square": _Operation("{0} * {0}", ("{g} * ({0} + {0})",), torch.square),
    "sqrt": _Operation("np.sqrt({0})", ("{g} / ({y} + {y})",), torch.sqrt),
    "elu": _Operation(
        "{0} if {0} > zero else {1} * expm1_negative({0})",
        ("{g} if {0} > zero else {g} * {1} * exp_not_positive(min({0}, zero))", "zero"),
        torch.nn.functional.elu,
    ),
    "softplus": _Operation(
        "{0} if {0} * {1} > {2} else softplus({0} * {1}) / {1}",
        ("{g} if {0} * {1} > {2} else {g} * sigmoid_of({0} * {1})", "zero", "zero"),
        torch.nn.functional.softplus,
    ),
    "gelu": _Operation(
        "{0} * normal_share({0})",
        ("{g} * (normal_share({0}) + {0} * normal_density({0}))",),
        torch.nn.functional.gelu,
    ),
}
_OF_MESSAGE_MATH = {"elu", "softplus", "gelu"}


def plain_value(
    expression: Expression, leaves: Sequence[Tensor], consts: Sequence[float]
) -> Tensor:
    """The expression in torch, for leaves that have been brought to one shape."""
    if expression[0] == "leaf":
        return leaves[expression[1]]
    values = [
        consts[part[1]] if part[0] == "const" else plain_value(part, leaves, consts)
        for part in expression[1:]
    ]
    return OPERATIONS[expression[0]].plain(*values)


# -- The source ------------------------------------------------------------------------------------


class _Lines:
    """The straight-line code of an expression and of its gradients, one name for each value."""

    def __init__(self, program: MessageProgram, near: Place, needed: Sequence[bool]) -> None:
        self.lines: list[str] = []
        self._names: dict[Expression, str] = {}
        self._program, self._near, self._needed = program, near, needed
        self.value = self._name(program.expression)

    def _name(self, expression: Expression) -> str:
        if expression in self._names:
            return self._names[expression]
        if expression[0] == "leaf":
            leaf = self._program.leaves[expression[1]]
            column = "0" if leaf.by_head else "c"
            row = "k" if leaf.sorted else self._row(leaf.place)
            source = f"l{expression[1]}[{row}, h, {column}]"
        elif expression[0] == "const":
            source = f"consts[{expression[1] + len(KNOWN_NUMBERS)}]"
        else:
            arguments = [self._name(part) for part in expression[1:]]
            source = OPERATIONS[expression[0]].value.format(*arguments)
        name = f"t{len(self._names)}"
        self._names[expression] = name
        self.lines.append(f"{name} = {source}")
        return name

    def _row(self, place: Place) -> str:
        if place in ("e", "v"):
            return "edge" if place == "e" else "0"
        return "near" if place == self._near else "far"

    def gradients(self) -> dict[int, str]:
        """Write the gradients to the needed leaves, from `gv`, that to the value; their names."""
        found: dict[Expression, str] = {self._program.expression: "gv"}
        # Every value comes after its arguments.
        for expression in reversed(list(self._names)):
            if expression not in found or expression[0] in ("leaf", "const"):
                continue
            operation = OPERATIONS[expression[0]]
            arguments = [self._names[part] for part in expression[1:]]
            for part, source in zip(expression[1:], operation.gradients, strict=True):
                if not self._leads_to_needed(part):
                    continue
                text = source.format(*arguments, g=found[expression], y=self._names[expression])
                before = found.get(part)
                name = f"b{len(self.lines)}"
                self.lines.append(f"{name} = {text if before is None else f'{before} + ({text})'}")
                found[part] = name
        leaves = [e for e in found if e[0] == "leaf" and self._needed[e[1]]]
        return {leaf[1]: found[leaf] for leaf in sorted(leaves)}

    def _leads_to_needed(self, expression: Expression) -> bool:
        if expression[0] == "leaf":
            return self._needed[expression[1]]
        return expression[0] != "const" and any(map(self._leads_to_needed, expression[1:]))


_HEADER = """\
import math

import numpy as np

from weft.kernels.vector_math import exp_of, sigmoid_of, tanh_of
from weft.runtime import compiled, prefetch, shared_rows, stack_numbers

# {options}
"""


class _Writer:
    """Writes one loop over rows, the near ends of edges."""

    def __init__(self, program: MessageProgram, near: Place, needed: Sequence[bool]) -> None:
        self.program, self.near = program, near
        self.code = _Lines(program, near, needed)
        self.out: list[str] = []

    def line(self, depth: int, text: str) -> None:
        self.out.append("    " * depth + text)

    def loop(
        self,
        name: str,
        arguments: Sequence[str],
        stacks: Sequence[tuple[str, str]],
        body: Sequence[str],
        edge_end: Sequence[str],
        row_end: Sequence[str],
    ) -> str:
        """The whole function.

        Args:
            name: of the function.
            arguments: what it takes beside the leaves and the walk, `first` of them an array of
                the message's number type.
            stacks: arrays on the stack, each with the value that it is set to for a row.
            body: what is done for each feature.
            edge_end: what is done after an edge's features.
            row_end: what is done after a row's edges.
        """
        leaves = [f"l{k}" for k in range(len(self.program.leaves))]
        walk = ["consts", "offsets", "far_of", "edge_of", "heads", "channels"]
        self.line(0, "@shared_rows")
        self.line(0, "@compiled(error_model='numpy', fastmath=OPTIONS)")
        self.line(0, f"def {name}({', '.join([*leaves, *walk, *arguments, 'first', 'stop'])}):")
        self.line(1, "zero, one = consts[0], consts[1]")
        self.line(1, "width = heads * channels")
        self.line(1, "last = far_of.shape[0] - 1")
        for name in self._far():
            self.line(1, f"{name}_rows = {name}.reshape({name}.shape[0], width)")
        for name, width in self._at_edges().items():
            self.line(1, f"{name}_rows = {name}.reshape({name}.shape[0], {width})")
        for stack, _ in stacks:
            self.line(1, f"{stack} = stack_numbers(consts, {MOST_FEATURES})")
        self.line(1, "for near in range(first, stop):")
        kept = [(stack, value) for stack, value in stacks if value]
        if kept:
            self.line(2, "for f in range(width):")
            for stack, value in kept:
                self.line(3, f"{stack}[f] = {value}")
        self.line(2, "for k in range(offsets[near], offsets[near + 1]):")
        self._prefetch()
        self.line(3, "far = np.intp(far_of[k])")
        self.line(3, "if edge_of is None:")
        self.line(4, "edge = np.intp(k)")
        self.line(3, "else:")
        self.line(4, "edge = np.intp(edge_of[k])")
        # Indices that begin at 0 are known not to be negative: vectors are used.
        self.line(3, "for h in range(heads):")
        self.line(4, "for c in range(channels):")
        self.line(5, "f = h * channels + c")
        for text in body:
            self.line(5, text)
        for text in edge_end:
            self.line(3, text)
        for text in row_end:
            self.line(2, text)
        return "\n".join(self.out) + "\n"

    def _far(self) -> list[str]:
        """Arrays with a wide row for each far end."""
        far = [
            f"l{k}"
            for k, leaf in enumerate(self.program.leaves)
            if leaf.place in ("i", "j") and leaf.place != self.near and not leaf.by_head
        ]
        return [*far, "g0"] if self.near == "j" and self.program.reductions else far

    def _at_edges(self) -> dict[str, str]:
        """Arrays with a row for each edge that are not read in their order, and their widths."""
        return {
            f"l{k}": "heads" if leaf.by_head else "width"
            for k, leaf in enumerate(self.program.leaves)
            if leaf.place == "e" and not leaf.sorted
        }

    def _prefetch(self) -> None:
        """Ask for the rows of an edge some edges ahead: they come from all over memory."""
        if far := self._far():
            self.line(3, "ahead = np.intp(far_of[min(k + 12, last)])")
            self.line(3, "for f in range(0, width, 16):")
            for name in far:
                self.line(4, f"prefetch({name}_rows, ahead, np.intp(f))")
        if at_edges := self._at_edges():
            self.line(3, "if edge_of is not None:")
            self.line(4, "ahead = np.intp(edge_of[min(k + 12, last)])")
            for name, width in at_edges.items():
                self.line(4, f"for f in range(0, {width}, 16):")
                self.line(5, f"prefetch({name}_rows, ahead, np.intp(f))")


_COPY = ["for h in range(heads):", "    for c in range(channels):"]


def _copied(out: str, row: str, stack: str) -> list[str]:
    """Code that writes a row from the stack."""
    return [*_COPY, f"        {out}[{row}, h, c] = {stack}[h * channels + c]"]


def _summed(out: str, row: str, stack: str) -> list[str]:
    """Code that writes the sum over each head's features of a row on the stack."""
    return [
        "for h in range(heads):",
        "    total = zero",
        "    for c in range(channels):",
        f"        total += {stack}[h * channels + c]",
        f"    {out}[{row}, h, 0] = total",
    ]


_ROW = {"sum": "zero", "squares": "zero", "max": "-np.inf", "min": "np.inf"}


def _forward_source(program: MessageProgram) -> str:
    writer = _Writer(program, "i", [False] * len(program.leaves))
    value = writer.code.value
    body = list(writer.code.lines)
    if program.dot:
        return writer.loop(
            "forward",
            ["out"],
            [("v", "")],
            [*body, f"v[f] = {value}"],
            _summed("out", "edge", "v"),
            [],
        )
    if not program.reductions:
        copy = _copied("out", "edge", "v")
        return writer.loop("forward", ["out"], [("v", "")], [*body, f"v[f] = {value}"], copy, [])
    stacks, arguments, row_end = [], [], []
    for number, reduction in enumerate(program.reductions):
        a, n, out, count = f"a{number}", f"n{number}", f"out{number}", f"count{number}"
        stacks.append((a, _ROW[reduction]))
        arguments.append(out)
        if reduction in ("sum", "squares"):
            term = value if reduction == "sum" else f"{value} * {value}"
            body.append(f"{a}[f] += {term}")
            row_end += _copied(out, "near", a)
            continue
        stacks.append((n, "zero"))
        arguments.append(count)
        sign = ">" if reduction == "max" else "<"
        body += [
            f"if {value} {sign} {a}[f] or {value} != {value}:",
            f"    {a}[f] = {value}",
            f"    {n}[f] = one",
            f"elif {value} == {a}[f]:",
            f"    {n}[f] += one",
        ]
        row_end += [
            "if offsets[near] == offsets[near + 1]:",
            "    for f in range(width):",
            f"        {a}[f], {n}[f] = zero, one",
            *_copied(out, "near", a),
            *_copied(count, "near", n),
        ]
    return writer.loop("forward", arguments, stacks, body, [], row_end)


def _backward_source(program: MessageProgram, near: Place, needed: Sequence[bool]) -> str:
    """The gradients to the needed leaves; one of `v` is a sum for each near end."""
    writer = _Writer(program, near, needed)
    value = writer.code.value
    receiver = "near" if near == "i" else "far"
    arguments: list[str] = []
    terms: list[str] = []
    if program.reductions:
        for number, reduction in enumerate(program.reductions):
            g = f"g{number}"
            arguments.append(g)
            g = f"{g}[{receiver}, h, c]"
            if reduction == "sum":
                terms.append(g)
            elif reduction == "squares":
                terms.append(f"({value} + {value}) * {g}")
            else:
                arguments.append(f"out{number}")
                terms.append(f"({g} if {value} == out{number}[{receiver}, h, c] else zero)")
    else:
        arguments.append("g0")
        terms.append("g0[edge, h, 0]" if program.dot else "g0[edge, h, c]")
    writer.code.lines.append(f"gv = {' + '.join(terms)}")
    names = writer.code.gradients()
    body, stacks = list(writer.code.lines), []
    edge_end: list[str] = []
    row_end: list[str] = []
    for k, name in names.items():
        leaf, stack, out = program.leaves[k], f"s{k}", f"d{k}"
        arguments.append(out)
        at_edge = leaf.place == "e"
        stacks.append((stack, "" if at_edge else "zero"))
        body.append(f"{stack}[f] {'=' if at_edge else '+='} {name}")
        row = "edge" if at_edge else "near"
        copy = (_summed if leaf.by_head else _copied)(out, row, stack)
        (edge_end if at_edge else row_end).extend(copy)
    return writer.loop(f"backward_{near}", arguments, stacks, body, edge_end, row_end)


# -- Compiled --------------------------------------------------------------------------------------


def _part_of_source(program: MessageProgram, part: str, needed: Sequence[bool]) -> str:
    if part == "forward":
        return _forward_source(program)
    return _backward_source(program, "i" if part == "backward_i" else "j", needed)


@functools.lru_cache(maxsize=1024)
def compiled_part(program: MessageProgram, part: str, needed: tuple[bool, ...]) -> SharedLoop:
    """A loop of the program: `forward`, `backward_i` or `backward_j`, for the needed leaves."""
    # A maximum is compared with what it was found from: both must be rounded alike. Elsewhere a
    # sum of features may be taken in any fixed order, so that vectors can be used.
    extreme = {"max", "min"} & set(program.reductions)
    options = "{}" if extreme else "{'contract', 'reassoc'}"
    text = _HEADER.format(options="Written by weft.kernels.message_code.")
    if _OF_MESSAGE_MATH & set(_operations(program.expression)):
        text += "from weft.kernels.message_math import *\n"
    text += f"\nOPTIONS = {options}\n\n\n" + _part_of_source(program, part, needed)
    name = "weft_message_" + hashlib.sha256(text.encode()).hexdigest()[:24]
    with _lock:
        found = sys.modules.get(name) or _module(name, text)
    loop: SharedLoop = getattr(found, part)
    return loop


def _operations(expression: Expression) -> list[str]:
    parts = [] if expression[0] in ("leaf", "const") else expression[1:]
    return [expression[0], *(name for part in parts for name in _operations(part))]


_lock = threading.Lock()


def _module(name: str, text: str) -> types.ModuleType:
    """A module made of source text; numba looks for its machine code beside its file."""
    path = user_cache() / "messages" / f"{name}.py"
    if not (path.exists() and path.read_text(encoding="utf-8") == text):
        # Processes that need the same loops at once each have a file of their own to rename.
        part = path.with_name(f".{name}.{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink()
            # A folder that cannot be written: every process compiles again.
            path = Path(f"<{name}>")
    module = types.ModuleType(name)
    module.__file__ = str(path)
    # Its loops are looked up by the module's name while they are made.
    sys.modules[name] = module
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102
    except BaseException:
        del sys.modules[name]
        raise
    return module
