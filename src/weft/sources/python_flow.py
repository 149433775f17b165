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

Whether a variable may have a value at all (`Flow.reached`) is followed more carefully: it has none
only where no path from a write leads to. An exception may be raised anywhere in a `try`, and be
swallowed by a `with`; a `finally` may be entered from anywhere; a comprehension comes back to its
beginning; lambdas and generator expressions may run at any later time. What `import *` binds is not
seen.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.sources.program_graph import EdgeType
from weft.sources.python_nodes import Occurrence, UnitNodes, Variable
from weft.sources.python_units import Function, children

_MOST = 16
_Tokens = frozenset[int]
_Last = dict[Variable, _Tokens]
_LAST = (EdgeType.LAST_USE, EdgeType.LAST_WRITE)
_READS, _WRITES, _VALUES = range(3)
_SOME: _Tokens = frozenset((0,))


class _State:
    """Tokens of the last reads, of the last writes, and any token for a variable with a value.

    Marks of loops are negative numbers. A variable that is in none of the dictionaries is as at
    the `entry`.
    """

    __slots__ = ("entry", "last", "live")

    def __init__(self, last: tuple[_Last, ...], entry: _Tokens, live: bool = True) -> None:
        self.last, self.entry, self.live = last, entry, live

    @classmethod
    def at(cls, entry: _Tokens) -> _State:
        return cls(({}, {}, {}), entry)

    @property
    def values(self) -> _Last:
        return self.last[_VALUES]

    def copy(self, *, live: bool | None = None) -> _State:
        live = self.live if live is None else live
        return _State(tuple(map(dict, self.last)), self.entry, live)


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
    return _State(tuple(both), one.entry)


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
        """Walk the unit; `slots` are the nodes that `last_at` and `reached` will be called on."""
        self.nodes = nodes
        self.last: set[tuple[int, int, int]] = set()
        self.guards: set[tuple[int, int, int, Variable]] = set()
        self.conditions: dict[int, dict[Variable, set[int]]] = {}
        self._slots = frozenset(slots)
        self._seen_at: dict[int, _State] = {}
        self._state = _State.at(frozenset())
        self._marked: list[tuple[int, int, Variable, int]] = []
        # For each loop: the state before it, and that or the one at the end of its body.
        self._loops: list[tuple[_State, tuple[_Last, ...]]] = []
        self._breaks: list[list[_State]] = []
        self._continues: list[list[_State]] = []
        self._guarding: dict[Variable, list[tuple[int, int]]] = {}
        self._formal: dict[tuple[ast.AST, str], int] = {}
        # The variables written so far, and those that other functions may write at any time.
        self._written: list[Variable] = []
        self._always = frozenset(nodes.written_elsewhere())
        self._ever = {
            o.variable
            for part, o in nodes.place.items()
            if not isinstance(part, ast.Name) or isinstance(part.ctx, ast.Store)
        }
        self._state.values.update(dict.fromkeys(self._always, _SOME))
        self._walk(nodes.unit.node)
        for kind, node, variable, mark in self._marked:
            for last in self._filled(_LAST.index(kind), variable, (mark,)) - {node}:
                self.last.add((kind, node, last))

    def last_at(self, slot: int, kind: int, variable: Variable) -> set[int]:
        """Where `variable` was last read or written (the `kind` of edge) when `slot` is reached."""
        return self._found_at(slot, _LAST.index(kind), variable)

    def reached(self, slot: int, variable: Variable) -> bool:
        """Whether `variable` may have a value when `slot` is reached."""
        return bool(self._found_at(slot, _VALUES, variable))

    def _found_at(self, slot: int, which: int, variable: Variable) -> set[int]:
        state = self._seen_at.get(slot)
        if state is None:
            return set()
        return self._filled(which, variable, state.last[which].get(variable, state.entry))

    def _filled(self, which: int, variable: Variable, tokens: Iterable[int]) -> set[int]:
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
        for kind, last in zip(_LAST, state.last, strict=False):
            for token in last.get(variable, state.entry):
                if token < 0:
                    self._marked.append((kind, node, variable, token))
                elif token != node:
                    self.last.add((kind, node, token))
        state.last[write][variable] = frozenset((node,))
        for kind, condition in self._guarding.get(variable, ()):
            self.guards.add((kind, node, condition, variable))

    def _write(self, occurrence: Occurrence) -> None:
        self._use(occurrence, write=True)
        self._written.append(occurrence.variable)
        self._state.values[occurrence.variable] = _SOME

    def _unbind(self, variable: Variable, states: Iterable[_State]) -> None:
        if variable not in self._always:
            for state in states:
                state.values[variable] = frozenset()

    def _from_anywhere(self, state: _State, before: _State, start: int) -> None:
        """Let `state` be reached from all places since `before`, when `start` were written."""
        values, entry = state.values, state.entry
        for variable in {**before.values, **values}:
            earlier = before.values.get(variable, before.entry)
            values[variable] = values.get(variable, entry) | earlier
        for variable in self._written[start:]:
            values[variable] = _SOME

    def _jumps(self) -> set[_State]:
        """The states in which the innermost loop has been left or begun again so far."""
        return {state for ends in (self._breaks, self._continues) if ends for state in ends[-1]}

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
        self._walk_all(children(part))
        occurrence = self.nodes.place.get(part)
        context = part.ctx if isinstance(part, ast.Name) else None
        if occurrence is None:
            return
        if isinstance(context, ast.Load):
            self._use(occurrence, write=False)
        elif isinstance(context, ast.Del):
            self._use(occurrence, write=True)
            self._unbind(occurrence.variable, [self._state])
        else:
            self._write(occurrence)

    def _walk_all(self, parts: Iterable[ast.AST]) -> None:
        for part in parts:
            self._walk(part)

    def _assign(self, part: Any) -> None:
        targets = part.targets if isinstance(part, ast.Assign) else [part.target]
        if isinstance(part, ast.AugAssign) and part.target in self.nodes.place:
            self._use(self.nodes.place[part.target], write=False)
        self._walk(part.value)
        if part.value is None and part.target in self.nodes.place:  # an annotation assigns no value
            self._use(self.nodes.place[part.target], write=True)
        else:
            self._walk_all(targets)
        if isinstance(part, ast.AnnAssign):
            self._walk(part.annotation)
        if part.value is not None:
            for target in targets:
                self._compute(target, part.value)

    def _compute(self, target: ast.AST, value: ast.AST) -> None:
        """ComputedFrom: what is bound in `target`, from the variables in `value`."""
        targets, values = _elements(target), _elements(value)
        if targets and len(targets) == len(values):
            stars = (ast.Starred, ast.MatchStar)
            if not any(isinstance(e, stars) for e in (*targets, *values)):
                for one, other in zip(targets, values, strict=True):
                    self._compute(one, other)
                return
        within: list[ast.AST] = []
        if isinstance(target, ast.MatchOr):
            within += target.patterns
        elif isinstance(target, ast.MatchAs) and target.pattern is not None:
            within.append(target.pattern)
        for pattern in within:
            self._compute(pattern, value)
        sources = self._mentioned(value)
        for bound in [self.nodes.place.get(target)] if within else self._bound(target):
            for source in sources:
                if bound is not None and bound.node != source.node:
                    self.nodes.edges.add((EdgeType.COMPUTED_FROM, bound.node, source.node))

    def _bound(self, target: ast.AST) -> list[Occurrence]:
        found, waiting = [], [target]
        while waiting:
            part = waiting.pop()
            if isinstance(part, (ast.Name, ast.pattern)) and part in self.nodes.place:
                found.append(self.nodes.place[part])
            if isinstance(part, (ast.Tuple, ast.List)):
                waiting += part.elts
            elif isinstance(part, ast.Starred):
                waiting.append(part.value)
            elif isinstance(part, ast.pattern):
                waiting += [below for below in children(part) if isinstance(below, ast.pattern)]
        return found

    def _branch(self, part: Any) -> None:
        """`if` and the conditional expression."""
        self._walk(part.test)
        before = self._state.copy()
        if_true, if_false = (
            way if isinstance(way, list) else [way] for way in (part.body, part.orelse)
        )
        self._guarded(part.test, EdgeType.GUARDED_BY, if_true)
        after, self._state = self._state, before
        self._guarded(part.test, EdgeType.GUARDED_BY_NEGATION, if_false)
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
        self._loops.append((before, ({}, {}, {})))
        self._state = _State.at(frozenset((mark,)))
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

    def _leave(self, part: ast.AST) -> None:
        """`return` and `yield`, which also give a value to the caller, and `raise`."""
        self._walk_all(children(part))
        root, token = self.nodes.unit.node, None
        if hasattr(part, "lineno"):
            token = self.nodes.token_node.get(self.nodes.program.span(part)[0])
        if not isinstance(part, ast.Raise) and isinstance(root, Function) and token is not None:
            self.nodes.edges.add((EdgeType.RETURNS_TO, token, self.nodes.node_of[root]))
        if isinstance(part, (ast.Return, ast.Raise)):
            self._state.live = False

    def _try(self, part: Any) -> None:
        before, start, jumps = self._state.copy(), len(self._written), self._jumps()
        self._walk_all(part.body)
        failed = _united(before, self._state.copy(live=True)).copy(live=before.live)
        self._from_anywhere(failed, before, start)
        self._walk_all(part.orelse)
        after = self._state
        for handler in part.handlers:
            self._state = failed.copy()
            self._handle(handler)
            after = _united(after, self._state)
        self._state = after
        if part.finalbody:
            self._finally(part.finalbody, before, start, jumps)

    def _handle(self, handler: ast.ExceptHandler) -> None:
        self._walk(handler.type)
        if handler not in self.nodes.place:
            self._walk_all(handler.body)
            return
        # However the clause is left, its name has no value from then on.
        start, jumps = len(self._written), self._jumps()
        name = self.nodes.place[handler].variable
        self._write(self.nodes.place[handler])
        self._walk_all(handler.body)
        self._unbind(name, {self._state} | self._jumps() - jumps)
        self._written[start:] = [other for other in self._written[start:] if other is not name]

    def _finally(self, body: list[ast.AST], before: _State, start: int, jumps: set[_State]) -> None:
        tried = dict(self._state.values)
        self._from_anywhere(self._state, before, start)
        entered, start = dict(self._state.values), len(self._written)
        self._walk_all(body)
        written = dict.fromkeys(self._written[start:], _SOME)
        # What comes next is reached only from the end of what was tried.
        values, entry = self._state.values, self._state.entry
        for variable, tokens in entered.items():
            if variable not in written and values.get(variable, entry) == tokens:
                values[variable] = tried.get(variable, entry)
        for state in self._jumps() - jumps:
            state.values.update(written)

    def _with(self, part: ast.With | ast.AsyncWith) -> None:
        self._walk_all(part.items)
        before, start = self._state.copy(), len(self._written)
        self._walk_all(part.body)
        self._from_anywhere(self._state, before, start)

    def _with_item(self, part: ast.withitem) -> None:
        self._walk(part.context_expr)
        if part.optional_vars is not None:
            self._walk(part.optional_vars)
            self._compute(part.optional_vars, part.context_expr)

    def _match(self, part: ast.Match) -> None:
        self._walk(part.subject)
        after = self._state.copy(live=False)
        for case in part.cases:
            before = self._state.copy()
            self._walk(case.pattern)
            self._compute(case.pattern, part.subject)
            failed = self._unmatched(case.pattern, before)
            if case.guard is None:
                self._walk_all(case.body)
            else:
                self._walk(case.guard)
                failed = _united(failed, self._state.copy())
                self._guarded(case.guard, EdgeType.GUARDED_BY, case.body)
            after = _united(after, self._state)
            self._state = failed
        self._state = _united(after, self._state)

    def _unmatched(self, pattern: ast.pattern, before: _State) -> _State:
        """The state in which `pattern` did not fit: it may have read, but has bound nothing."""
        if _fits_all(pattern):
            return before.copy(live=False)
        reads = dict(self._state.last[_READS])
        tried = _State((reads, *before.copy().last[_WRITES:]), before.entry, before.live)
        return _united(before, tried)

    def _either(self, part: ast.MatchOr) -> None:
        after, before = self._state.copy(live=False), self._state
        for pattern in part.patterns:
            self._state = before.copy()
            self._walk(pattern)
            before = self._unmatched(pattern, before)
            after = _united(after, self._state)
        self._state = after

    def _comprehension(self, part: Any) -> None:
        first = part.generators[0]
        self._walk(first.iter)

        def generate() -> None:
            for generator in part.generators:
                if generator is not first:
                    self._walk(generator.iter)
                self._walk(generator.target)
                self._compute(generator.target, generator.iter)
                self._walk_all(generator.ifs)
            self._walk_all([part.key, part.value] if isinstance(part, ast.DictComp) else [part.elt])

        if isinstance(part, ast.GeneratorExp):
            self._later(generate)
        else:
            # A comprehension comes back to its beginning with what it bound.
            bound = [o.variable for o in self._mentioned(part) if not o.reads]
            self._state.values.update(dict.fromkeys(bound, _SOME))
            generate()

    def _lambda(self, part: ast.Lambda) -> None:
        self._walk(part.args)
        self._later(lambda: self._walk(part.body))

    def _later(self, walk: Callable[[], None]) -> None:
        """Walk what may run when all else has: whatever is written anywhere may have a value."""
        values, start = dict(self._state.values), len(self._written)
        self._state.values.update(dict.fromkeys(self._ever, _SOME))
        walk()
        self._state.values.clear()
        self._state.values.update(values)
        self._state.values.update(dict.fromkeys(self._written[start:], _SOME))

    def _call(self, part: ast.Call) -> None:
        self._walk_all(children(part))
        callee, bound = self.nodes.callee(part.func)
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
            self._formal[callee, name] = self.nodes.add_node(name)
        place = self.nodes.place.get(argument)
        node = self.nodes.node_of[argument] if place is None else place.node
        self.nodes.edges.add((EdgeType.FORMAL_ARG_NAME, node, self._formal[callee, name]))


def _elements(part: ast.AST) -> Sequence[ast.AST]:
    """The parts of a tuple, of a list, or of a pattern of one; none of anything else."""
    if isinstance(part, (ast.Tuple, ast.List)):
        return part.elts
    return part.patterns if isinstance(part, ast.MatchSequence) else ()


def _fits_all(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return any(map(_fits_all, pattern.patterns))
    return isinstance(pattern, ast.MatchAs) and (
        pattern.pattern is None or _fits_all(pattern.pattern)
    )


_WALKS: dict[Callable[[Flow, Any], None], tuple[str, ...]] = {
    Flow._assign: ("Assign", "AugAssign", "AnnAssign", "NamedExpr"),
    Flow._branch: ("If", "IfExp"),
    Flow._while: ("While",),
    Flow._for: ("For", "AsyncFor"),
    Flow._break: ("Break", "Continue"),
    Flow._leave: ("Return", "Raise", "Yield", "YieldFrom"),
    Flow._try: ("Try", "TryStar"),
    Flow._match: ("Match",),
    Flow._either: ("MatchOr",),
    Flow._with: ("With", "AsyncWith"),
    Flow._with_item: ("withitem",),
    Flow._lambda: ("Lambda",),
    Flow._comprehension: ("ListComp", "SetComp", "DictComp", "GeneratorExp"),
    Flow._call: ("Call",),
}
# By name: Python 3.10 has no TryStar.
_SPECIAL = {getattr(ast, name, None): walk for walk, names in _WALKS.items() for name in names}
