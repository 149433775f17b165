"""The nodes of one unit: its tokens, its syntax tree, and where its variables occur."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.sources.program_graph import EdgeType
from weft.sources.python_units import Function, Program, Scope, Unit, children


class TooLarge(Exception):
    """A unit with more nodes than requested."""


@dataclass(frozen=True, eq=False)
class Variable:
    """A name in the scope that owns it."""

    name: str
    scope: Scope


@dataclass(frozen=True, eq=False)
class Occurrence:
    """A variable at a place in the text.

    Attributes:
        variable: which.
        scope: the scope that the place is in.
        token: number of its token in the file.
        node: the token's node.
        reads: its value is taken here, not given.
        can_be_slot: that, and the token is the variable's name.
    """

    variable: Variable
    scope: Scope
    token: int
    node: int
    reads: bool
    can_be_slot: bool


class UnitNodes:
    """Nodes and the edges Child and NextToken of a unit.

    Attributes:
        program: the file.
        unit: the unit.
        labels: those of the nodes.
        edges: (type, sender, receiver) of each edge.
        node_of: the node of each part of the syntax tree.
        token_node: the node of each token, by the token's number in the file.
        place: where a variable is read or bound: the occurrence of a part of the syntax tree.
        occurrences: of each variable, in order of the text, one for each token.
    """

    def __init__(self, program: Program, unit: Unit, max_nodes: int) -> None:
        """Make the nodes.

        Raises:
            TooLarge: there are more than `max_nodes`.
        """
        self.program, self.unit = program, unit
        self.labels: list[str] = []
        self.edges: set[tuple[int, int, int]] = set()
        self._max_nodes = max_nodes
        self.token_node: dict[int, int] = {}
        self.node_of: dict[ast.AST, int] = {}
        self.place: dict[ast.AST, Occurrence] = {}
        self._variables: dict[tuple[Scope, str], Variable] = {}
        self._first_generators: set[ast.AST] = set()
        self._spans: list[tuple[tuple[int, int], tuple[int, int], int]] = []
        self._add_tokens()
        self._add_tree()
        self._join()
        self.occurrences = self._by_variable()

    def _by_variable(self) -> dict[Variable, list[Occurrence]]:
        found: dict[Variable, list[Occurrence]] = {}
        met: set[tuple[Variable, int]] = set()
        for occurrence in sorted(self.place.values(), key=lambda o: o.token):
            if (occurrence.variable, occurrence.token) not in met:
                met.add((occurrence.variable, occurrence.token))
                found.setdefault(occurrence.variable, []).append(occurrence)
        return found

    def rewritten(self, changes: Mapping[int, Variable]) -> UnitNodes:
        """A copy as if other variables stood at these nodes; the analysis of one leaves the other.

        Args:
            changes: the variable by the node of a token that can be a slot.
        """
        other = copy.copy(self)
        other.labels, other.edges = list(self.labels), set(self.edges)
        other.place = {
            part: replace(o, variable=changes[o.node]) if o.node in changes else o
            for part, o in self.place.items()
        }
        for node, variable in changes.items():
            other.labels[node] = variable.name
        other.occurrences = other._by_variable()
        return other

    def variables_around(self) -> list[Variable]:
        """Variables of the functions around the unit's own, the innermost first."""
        found: list[Variable] = []
        scope = self.unit.scope.parent
        while scope is not None:
            if isinstance(scope.node, Function):
                for name in sorted(scope.block.get_identifiers()):
                    if scope.binds(name):
                        key = (scope, name)
                        found.append(self._variables.setdefault(key, Variable(name, scope)))
            scope = scope.parent
        return found

    def written_elsewhere(self) -> Iterator[Variable]:
        """The variables that other functions may write: those around the unit, or those in it."""
        inside = self.unit.scope.written_inside()
        around, scope = set(), self.unit.scope.parent
        while scope is not None:
            around.add(scope)
            scope = scope.parent
        for variable in self.occurrences:
            own = variable.scope is self.unit.scope
            if variable.scope in around or (own and variable.name in inside):
                yield variable

    def callee(self, func: ast.AST) -> tuple[Any, int]:
        """The function of this file that is called, and how many arguments are bound already."""
        functions = self.program.functions
        scope = self.unit.scope
        found: Any = None
        if isinstance(func, ast.Name) and func not in self.place:
            around = scope
            while found is None:
                if not around.is_class or around is scope:
                    found = functions.get((around.node, func.id))
                if around.parent is None:
                    break
                around = around.parent
            if isinstance(found, ast.ClassDef):
                found = functions.get((found, "__init__"))
                return (found, 1) if isinstance(found, Function) else (None, 0)
            return (found, 0) if isinstance(found, Function) else (None, 0)
        # Any variable, not only self: otherwise the edge would reveal what stands in a slot.
        if isinstance(func, ast.Attribute) and func.value in self.place:
            own = scope.parent
            if own is not None and own.is_class:
                found = functions.get((own.node, func.attr))
                if isinstance(found, Function):
                    static = any(
                        isinstance(d, ast.Name) and d.id == "staticmethod"
                        for d in found.decorator_list
                    )
                    return found, 0 if static else 1
        return None, 0

    def add_node(self, label: str) -> int:
        """A new node; returns its number."""
        self.labels.append(label)
        return len(self.labels) - 1

    def _node(self, label: str) -> int:
        if len(self.labels) >= self._max_nodes:
            raise TooLarge
        return self.add_node(label)

    def _add_tokens(self) -> None:
        before = None
        for number in self.unit.tokens():
            node = self.token_node[number] = self._node(self.program.tokens[number].string)
            if before is not None:
                self.edges.add((EdgeType.NEXT_TOKEN, before, node))
            before = node

    def _add_tree(self) -> None:
        # (part, its parent's node, scope)
        waiting: list[tuple[ast.AST, int | None, Scope | None]] = [(self.unit.node, None, None)]
        while waiting:
            part, parent, scope = waiting.pop()
            node = self.node_of[part] = self._node(f"<{type(part).__name__}>")
            if parent is not None:
                self.edges.add((EdgeType.CHILD, parent, node))
            # Some parts of f-strings are nowhere.
            if hasattr(part, "lineno"):
                self._spans.append((self.program.start(part), self.program.end(part), node))
                self._place(part, scope)
            waiting += [
                (below, node, inside) for below, inside in reversed(self._below(part, scope))
            ]

    def _below(self, part: ast.AST, scope: Scope | None) -> list[tuple[ast.AST, Scope | None]]:
        """The parts directly below and the scopes that they are in."""
        if part is self.unit.node:
            own = self.unit.scope
            if self.unit.is_module:
                return [(n, own) for n in children(part) if not isinstance(n, Function)]
            # Defaults, annotations and decorators belong to the unit around; they are in sight.
            body = set(part.body)  # type: ignore[attr-defined]
            return [
                (n, own if n in body or isinstance(n, ast.arguments) else None)
                for n in children(part)
                if not (n in body and isinstance(n, Function))
            ]
        below = [n for n in children(part) if not isinstance(n, Function)]
        if isinstance(part, ast.arguments):
            outer = scope
            if scope is self.unit.scope:
                outer = None
            elif scope is not None:
                outer = scope.parent
            return [(n, scope if isinstance(n, ast.arg) else outer) for n in below]
        if part in self._first_generators:  # its iterable is evaluated outside
            outer = scope.parent if scope is not None else None
            return [(n, outer if n is part.iter else scope) for n in below]  # type: ignore
        if isinstance(part, ast.arg):  # its annotation
            return [(n, None) for n in below]
        inner = scope.inner(part) if scope is not None else None
        if inner is None:
            return [(n, scope) for n in below]
        if isinstance(part, ast.Lambda):
            return [(n, inner) for n in below]
        if isinstance(part, ast.ClassDef):
            body = set(part.body)
            return [(n, inner if n in body else scope) for n in below]
        self._first_generators.add(part.generators[0])  # type: ignore[attr-defined]
        return [(n, inner) for n in below]

    def _place(self, part: ast.AST, scope: Scope | None) -> None:
        name, at = _name(part, self.program)
        if name is None or scope is None:
            return
        number = at if at is not None else self.program.at.get(self.program.start(part))
        node = self.token_node.get(number) if number is not None else None
        if number is None or node is None:
            return
        owner = scope.owner(name, module=self.unit.is_module)
        if owner is None:
            return
        variable = self._variables.setdefault((owner, name), Variable(name, owner))
        reads = isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        # Python normalises identifiers: then another text stands there, of another length.
        is_name = self.program.tokens[number].string == name
        self.place[part] = Occurrence(
            variable, scope, number, node, reads, can_be_slot=reads and is_name
        )

    def _join(self) -> None:
        """Each token becomes a child of the smallest part of the tree around it."""
        self._spans.sort(key=lambda span: (span[0], (-span[1][0], -span[1][1])))
        root = self.node_of[self.unit.node]
        around: list[tuple[tuple[int, int], int]] = []
        next_span = 0
        for number, node in self.token_node.items():
            token = self.program.tokens[number]
            while next_span < len(self._spans) and self._spans[next_span][0] <= token.start:
                _, end, part = self._spans[next_span]
                while around and around[-1][0] <= self._spans[next_span][0]:
                    around.pop()
                around.append((end, part))
                next_span += 1
            while around and around[-1][0] <= token.start:
                around.pop()
            self.edges.add((EdgeType.CHILD, around[-1][1] if around else root, node))


def _name(part: Any, program: Program) -> tuple[str | None, int | None]:
    """The name that a part reads or binds, and its token where the part begins with another."""
    if isinstance(part, ast.Name):
        return part.id, None
    if isinstance(part, ast.arg):
        return part.arg, None
    if isinstance(part, ast.ExceptHandler) and part.name:
        after = program.span(part.type)[1] if part.type is not None else program.span(part)[0]
        return part.name, _token_after(program, after, "as")
    if isinstance(part, (ast.MatchAs, ast.MatchStar)) and part.name:
        return part.name, program.span(part)[1] - 1
    if isinstance(part, ast.MatchMapping) and part.rest:
        return part.rest, _token_after(program, _last_star(program, part), "**")
    return None, None


def _token_after(program: Program, first: int, mark: str) -> int | None:
    for number in range(first, min(first + 4, len(program.tokens) - 1)):
        if program.tokens[number].string == mark:
            return number + 1
    return None


def _last_star(program: Program, part: ast.AST) -> int:
    first, stop = program.span(part)
    while stop > first and program.tokens[stop - 1].string != "**":
        stop -= 1
    return max(stop - 1, first)
