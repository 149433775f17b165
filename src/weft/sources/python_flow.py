"""What a unit computes from what: last uses and writes, assignments, guards, returns, arguments.

The unit is walked once in the order of evaluation. The state holds, for each variable, the tokens
where it may have been read last and those where it may have been written last. Branches (`if`,
conditional expressions, `match`, `try`) are walked from the same state and their ends are united.
A loop is walked once: its body starts from a mark that stands for "as before the loop, or as at
the end of the body" and is filled in when that is known. This is an approximation:

- an `except` clause starts from the state before its `try` or the one after it, not from between;
- `and`, `or`, comparisons, comprehensions and lambdas are straight lines;
- aliases, attributes and what other functions do to a variable are not seen;
- a token is never its own last use, even if a loop comes back to it;
- of more than 16 tokens where a variable may have been used last, the latest in the text are kept.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.sources.program_graph import EdgeType
from weft.sources.python_nodes import Occurrence, UnitNodes, Variable
from weft.sources.python_units import Function, children

__all__ = ["Flow"]

_MOST = 16
_Tokens = frozenset[int]
_Last = dict[Variable, _Tokens]
_LAST = (EdgeType.LAST_USE, EdgeType.LAST_WRITE)


class _State:
    """Tokens of the last reads and the last writes; marks of loops are negative numbers."""

    __slots__ = ("entry", "last", "live")

    def __init__(self, last: tuple[_Last, _Last], entry: _Tokens, live: bool = True) -> None:
        self.last, self.entry, self.live = last, entry, live

    def copy(self, *, live: bool | None = None) -> _State:
        reads, writes = self.last
        live = self.live if live is None else live
        return _State((dict(reads), dict(writes)), self.entry, live)


def _united(one: _State, other: _State) -> _State:
    if not one.live:
        return other
    if not other.live:
        return one
    both = []
    for mine, others in zip(one.last, other.last, strict=True):
        last = dict(mine)
        for variable in {**mine, **others}:
            a, b = mine.get(variable, one.entry), others.get(variable, one.entry)
            last[variable] = a if a is b else _latest(a | b)
        both.append(last)
    return _State((both[0], both[1]), one.entry)


def _latest(tokens: _Tokens) -> _Tokens:
    return tokens if len(tokens) <= _MOST else frozenset(sorted(tokens)[-_MOST:])


class Flow:
    """The edges of a unit that follow its variables; all but the lexical ones.

    Attributes:
        last: (type, token, earlier token) of LastUse and LastWrite.
        guards: (type, token, condition, variable) of GuardedBy and GuardedByNegation.
        conditions: by condition's node, the tokens of each variable that it mentions.
    """

    def __init__(self, nodes: UnitNodes, slots: Iterable[int]) -> None:
        """Walk the unit; `slots` are the nodes whose `last_at` will be asked for."""
        self.nodes, self.builder = nodes, nodes.builder
        self.last: set[tuple[int, int, int]] = set()
        self.guards: set[tuple[int, int, int, Variable]] = set()
        self.conditions: dict[int, dict[Variable, set[int]]] = {}
        self._slots = frozenset(slots)
        self._seen_at: dict[int, _State] = {}
        self._state = _State(({}, {}), frozenset())
        self._marked: list[tuple[int, int, Variable, int]] = []
        # For each loop: the state before it, and that or the one at the end of its body.
        self._loops: list[tuple[_State, tuple[_Last, _Last]]] = []
        self._breaks: list[list[_State]] = []
        self._continues: list[list[_State]] = []
        self._guarding: dict[Variable, list[tuple[int, int]]] = {}
        self._formal: dict[tuple[ast.AST, str], int] = {}
        self._walk(nodes.unit.node)
        for kind, node, variable, mark in self._marked:
            for last in self._filled(kind, variable, (mark,)) - {node}:
                self.last.add((kind, node, last))

    def last_at(self, slot: int, kind: int, variable: Variable) -> set[int]:
        """Where `variable` was last read or written (the `kind` of edge) when `slot` is reached."""
        state = self._seen_at.get(slot)
        if state is None:
            return set()
        return self._filled(
            kind, variable, state.last[_LAST.index(kind)].get(variable, state.entry)
        )

    def _filled(self, kind: int, variable: Variable, tokens: Iterable[int]) -> set[int]:
        which = _LAST.index(kind)
        found: set[int] = set()
        waiting = list(tokens)
        while waiting:
            token = waiting.pop()
            if token >= 0:
                found.add(token)
            else:  # what fills a mark holds marks of outer loops only
                before, filling = self._loops[-1 - token]
                unchanged = before.last[which].get(variable, before.entry)
                waiting += filling[which].get(variable, unchanged)
        return found

    # What happens to a variable.

    def _use(self, occurrence: Occurrence, *, write: bool) -> None:
        variable, node, state = occurrence.variable, occurrence.node, self._state
        if node in self._slots and not write:
            self._seen_at[node] = state.copy()
        for kind, last in zip(_LAST, state.last, strict=True):
            for token in last.get(variable, state.entry):
                if token < 0:
                    self._marked.append((kind, node, variable, token))
                elif token != node:
                    self.last.add((kind, node, token))
        state.last[write][variable] = frozenset((node,))
        for kind, condition in self._guarding.get(variable, ()):
            self.guards.add((kind, node, condition, variable))

    def _mentioned(self, part: ast.AST) -> list[Occurrence]:
        found, waiting = [], [part]
        while waiting:
            below = waiting.pop()
            if below in self.nodes.place:
                found.append(self.nodes.place[below])
            waiting += children(below)
        return found

    # Walking.

    def _walk(self, part: ast.AST | None) -> None:
        if part is None or part not in self.nodes.node_of:  # functions have units of their own
            return
        special = _SPECIAL.get(type(part))
        if special is not None:
            special(self, part)
            return
        if part in self.nodes.place:
            bound = not isinstance(part, ast.Name) or not isinstance(part.ctx, ast.Load)
            for below in children(part):
                self._walk(below)
            self._use(self.nodes.place[part], write=bound)
            return
        for below in children(part):
            self._walk(below)

    def _walk_all(self, parts: Iterable[ast.AST]) -> None:
        for part in parts:
            self._walk(part)

    def _assign(self, part: Any) -> None:
        targets = part.targets if isinstance(part, ast.Assign) else [part.target]
        if isinstance(part, ast.AugAssign) and part.target in self.nodes.place:
            self._use(self.nodes.place[part.target], write=False)
        self._walk(part.value)
        self._walk_all(targets)
        if isinstance(part, ast.AnnAssign):
            self._walk(part.annotation)
        if part.value is not None:
            for target in targets:
                self._compute(target, part.value)

    def _compute(self, target: ast.AST, value: ast.AST) -> None:
        """ComputedFrom: what is bound in `target`, from the variables in `value`."""
        sequences = (ast.Tuple, ast.List)
        if isinstance(target, sequences) and isinstance(value, sequences):
            stars = any(isinstance(e, ast.Starred) for e in (*target.elts, *value.elts))
            if len(target.elts) == len(value.elts) and not stars:
                for one, other in zip(target.elts, value.elts, strict=True):
                    self._compute(one, other)
                return
        sources = self._mentioned(value)
        for bound in self._bound(target):
            for source in sources:
                if bound.node != source.node:
                    self.builder.edge(EdgeType.COMPUTED_FROM, bound.node, source.node)

    def _bound(self, target: ast.AST) -> list[Occurrence]:
        found, waiting = [], [target]
        while waiting:
            part = waiting.pop()
            if isinstance(part, ast.Name) and part in self.nodes.place:
                found.append(self.nodes.place[part])
            elif isinstance(part, (ast.Tuple, ast.List)):
                waiting += part.elts
            elif isinstance(part, ast.Starred):
                waiting.append(part.value)
        return found

    def _branch(self, part: Any) -> None:
        """`if` and the conditional expression."""
        self._walk(part.test)
        before = self._state.copy()
        self._guarded(part.test, EdgeType.GUARDED_BY, _listed(part.body))
        after, self._state = self._state, before
        self._guarded(part.test, EdgeType.GUARDED_BY_NEGATION, _listed(part.orelse))
        self._state = _united(after, self._state)

    def _guarded(self, test: ast.AST, kind: int, body: Sequence[ast.AST]) -> None:
        condition = self.nodes.node_of[test]
        if condition not in self.conditions:
            mentions: dict[Variable, set[int]] = {}
            for occurrence in self._mentioned(test):
                mentions.setdefault(occurrence.variable, set()).add(occurrence.node)
            self.conditions[condition] = mentions
        for variable in self.conditions[condition]:
            self._guarding.setdefault(variable, []).append((kind, condition))
        self._walk_all(body)
        for variable in self.conditions[condition]:
            self._guarding[variable].pop()

    def _while(self, part: ast.While) -> None:
        def body() -> None:
            self._walk(part.test)
            leaving.append(self._state.copy())
            self._guarded(part.test, EdgeType.GUARDED_BY, part.body)

        def otherwise() -> None:
            self._guarded(part.test, EdgeType.GUARDED_BY_NEGATION, part.orelse)

        leaving: list[_State] = []
        self._loop(body, leaving, otherwise)

    def _for(self, part: ast.For | ast.AsyncFor) -> None:
        def body() -> None:
            leaving.append(self._state.copy())
            self._walk(part.target)
            self._compute(part.target, part.iter)
            self._walk_all(part.body)

        leaving: list[_State] = []
        self._walk(part.iter)
        self._loop(body, leaving, lambda: self._walk_all(part.orelse))

    def _loop(
        self, body: Callable[[], None], leaving: list[_State], otherwise: Callable[[], None]
    ) -> None:
        """Walk `body` once; it adds to `leaving` the state in which the loop may end."""
        before, mark = self._state, -1 - len(self._loops)
        self._loops.append((before, ({}, {})))
        self._state = _State(({}, {}), frozenset((mark,)))
        self._breaks.append([])
        self._continues.append([])
        body()
        end = self._state
        for again in self._continues.pop():
            end = _united(end, again)
        breaks = self._breaks.pop()
        if end.live:
            for last, earlier, filling in zip(
                end.last, before.last, self._loops[-1 - mark][1], strict=True
            ):
                for variable, tokens in last.items():
                    filling[variable] = _latest(
                        (tokens - {mark}) | earlier.get(variable, before.entry)
                    )
        self._state = self._outside(mark, leaving[0])
        otherwise()
        for state in breaks:
            self._state = _united(self._state, self._outside(mark, state))

    def _outside(self, mark: int, state: _State) -> _State:
        """A state of a loop's body in the terms of what is around the loop."""
        before, filling = self._loops[-1 - mark]
        outside = before.copy(live=before.live and state.live)
        for last, fill, to in zip(state.last, filling, outside.last, strict=True):
            # Where the body was not walked through by `state`, an earlier round may have been.
            to.update(fill)
            for variable, tokens in last.items():
                if mark in tokens:
                    tokens = _latest((tokens - {mark}) | to.get(variable, before.entry))
                to[variable] = tokens
        return outside

    def _break(self, part: ast.AST) -> None:
        ends = self._breaks if isinstance(part, ast.Break) else self._continues
        if ends and self._state.live:
            ends[-1].append(self._state.copy())
        self._state.live = False

    def _leave(self, part: ast.Return | ast.Raise) -> None:
        self._walk_all(children(part))
        if isinstance(part, ast.Return):
            self._returns(part)
        self._state.live = False

    def _yield(self, part: ast.AST) -> None:
        self._walk_all(children(part))
        self._returns(part)

    def _returns(self, part: ast.AST) -> None:
        token = self.nodes.token_node.get(self.nodes.program.span(part)[0])
        if isinstance(self.nodes.unit.node, Function) and token is not None:
            root = self.nodes.node_of[self.nodes.unit.node]
            self.builder.edge(EdgeType.RETURNS_TO, token, root)

    def _try(self, part: Any) -> None:
        before = self._state.copy()
        self._walk_all(part.body)
        failed = _united(before, self._state.copy(live=True)).copy(live=before.live)
        self._walk_all(part.orelse)
        after = self._state
        for handler in part.handlers:
            self._state = failed.copy()
            self._walk(handler.type)
            if handler in self.nodes.place:
                self._use(self.nodes.place[handler], write=True)
            self._walk_all(handler.body)
            after = _united(after, self._state)
        self._state = after
        self._walk_all(part.finalbody)

    def _match(self, part: ast.Match) -> None:
        self._walk(part.subject)
        before = self._state
        after = before.copy()
        for case in part.cases:
            self._state = before.copy()
            self._walk(case.pattern)
            self._walk(case.guard)
            self._walk_all(case.body)
            after = _united(after, self._state)
        self._state = after

    def _with_item(self, part: ast.withitem) -> None:
        self._walk(part.context_expr)
        if part.optional_vars is not None:
            self._walk(part.optional_vars)
            self._compute(part.optional_vars, part.context_expr)

    def _comprehension(self, part: Any) -> None:
        self._walk_all(part.generators)
        if isinstance(part, ast.DictComp):
            self._walk(part.key)
            self._walk(part.value)
        else:
            self._walk(part.elt)

    def _generator(self, part: ast.comprehension) -> None:
        self._walk(part.iter)
        self._walk(part.target)
        self._compute(part.target, part.iter)
        self._walk_all(part.ifs)

    def _call(self, part: ast.Call) -> None:
        self._walk_all(children(part))
        callee, bound = self._callee(part.func)
        if callee is None:
            return
        formal = callee.args
        names = [a.arg for a in (*formal.posonlyargs, *formal.args)]
        by_keyword = {*(a.arg for a in (*formal.args, *formal.kwonlyargs))}
        for name, argument in zip(names[bound:], part.args, strict=False):
            if isinstance(argument, ast.Starred):
                break
            self._formal_name(callee, name, argument)
        for keyword in part.keywords:
            if keyword.arg is not None and keyword.arg in by_keyword:
                self._formal_name(callee, keyword.arg, keyword.value)

    def _formal_name(self, callee: ast.AST, name: str, argument: ast.AST) -> None:
        if (callee, name) not in self._formal:
            self._formal[callee, name] = self.builder.node(name)
        place = self.nodes.place.get(argument)
        node = self.nodes.node_of[argument] if place is None else place.node
        self.builder.edge(EdgeType.FORMAL_ARG_NAME, node, self._formal[callee, name])

    def _callee(self, func: ast.AST) -> tuple[Any, int]:
        """The function of this file that is called, and how many arguments are bound already."""
        functions = self.nodes.program.functions
        scope = self.nodes.unit.scope
        found: Any = None
        if isinstance(func, ast.Name) and func not in self.nodes.place:
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
        # Not self alone: that would tell what stands in a slot there.
        if isinstance(func, ast.Attribute) and func.value in self.nodes.place:
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


def _listed(body: Any) -> list[ast.AST]:
    return body if isinstance(body, list) else [body]


_SPECIAL: dict[type[ast.AST], Callable[[Flow, Any], None]] = {
    ast.Assign: Flow._assign,
    ast.AugAssign: Flow._assign,
    ast.AnnAssign: Flow._assign,
    ast.NamedExpr: Flow._assign,
    ast.If: Flow._branch,
    ast.IfExp: Flow._branch,
    ast.While: Flow._while,
    ast.For: Flow._for,
    ast.AsyncFor: Flow._for,
    ast.Break: Flow._break,
    ast.Continue: Flow._break,
    ast.Return: Flow._leave,
    ast.Raise: Flow._leave,
    ast.Yield: Flow._yield,
    ast.YieldFrom: Flow._yield,
    ast.Try: Flow._try,
    ast.Match: Flow._match,
    ast.withitem: Flow._with_item,
    ast.ListComp: Flow._comprehension,
    ast.SetComp: Flow._comprehension,
    ast.DictComp: Flow._comprehension,
    ast.GeneratorExp: Flow._comprehension,
    ast.comprehension: Flow._generator,
    ast.Call: Flow._call,
}
if hasattr(ast, "TryStar"):
    _SPECIAL[ast.TryStar] = Flow._try
