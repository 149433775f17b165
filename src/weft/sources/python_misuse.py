"""Functions for a detector of misused variables: one graph for all uses of a function.

A graph is a unit of `weft.sources.python_code` with a node for each of its variables, joined to
where the variable occurs and to the uses where it may stand. Versions of a unit are made by writing
another variable at a use (a misuse), or by blanking some uses out, and then following the variables
again: a version has the edges of the text that it stands for.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from weft.graphs import Array, Graph
from weft.sources.program_graph import (
    CANDIDATE,
    KINDS,
    SLOT,
    SLOT_LABEL,
    USE,
    EdgeType,
    label_array,
    misuse_graph,
)
from weft.sources.python_code import MAX_CANDIDATES, MAX_NODES, Use, rows_of, slots_of, units_of
from weft.sources.python_flow import Flow
from weft.sources.python_nodes import Occurrence, UnitNodes, Variable
from weft.sources.python_units import Function, Program

# The share of uses that a version with blanks lacks, as of words in masked language models.
_BLANK_SHARE = 0.15
# A use and a variable may not be exchangeable after all: so often another is drawn.
_TRIES = 4


@dataclass(frozen=True, kw_only=True)
class FunctionGraph:
    """A version of a function or a module's body.

    Attributes:
        graph: with the columns of MISUSE_SCHEMA.
        uses: those that are asked about, in the order of the text, as they are written here; `name`
            of a blank is the one that belongs there.
        nodes: int64 [uses], their nodes in the graph.
        variables: the names of the graph's variables by their nodes.
        wrong: of a misuse, the number of the use.
        unit: number of the unit in its file, among those that are not too large.
    """

    graph: Graph
    uses: list[Use]
    nodes: Array
    variables: dict[int, str]
    wrong: int | None = None
    unit: int = 0


def each_function(
    source: str,
    name: str,
    skipped: Counter[str],
    *,
    misuses: int = 0,
    blanks: int = 0,
    seed: int = 0,
    max_nodes: int = MAX_NODES,
    file: int = 0,
) -> Iterator[FunctionGraph]:
    """The functions of a file's text one after another, each in its versions.

    Args:
        source: the text.
        name: the file's name, which decides with `seed` what is injected.
        skipped: what is left out is counted here.
        misuses: versions with one wrong variable; fewer where a function has fewer to exchange.
        blanks: versions with some uses blanked out.
        seed: of the choice.
        max_nodes: units with more nodes are left out, and counted as "too large".
        file: number for the graphs' column `file`.
    """
    name_hash = zlib.crc32(name.encode("utf-8", "surrogateescape"))
    # Lines of units with nothing to choose count with the next one's.
    lines = 0
    for number, (program, nodes) in enumerate(units_of(source, max_nodes, skipped)):
        lines += nodes.unit.lines(program)
        rng = np.random.default_rng([seed, name_hash, number])
        try:
            versions = list(_versions(program, nodes, misuses, blanks, rng, file, lines))
        except RecursionError:
            skipped["nested too deeply"] += 1
            continue
        if versions:
            lines = 0
        yield from (replace(version, unit=number) for version in versions)


def _versions(
    program: Program,
    nodes: UnitNodes,
    misuses: int,
    blanks: int,
    rng: np.random.Generator,
    file: int,
    lines: int,
) -> Iterator[FunctionGraph]:
    """The version as it is, then those that are requested; nothing without a choice to make."""
    if len(nodes.occurrences) + len(nodes.variables_around()) < 2:
        return
    clean = _Version(program, nodes)
    if not clean.choices:
        return
    yield clean.function("clean", file, lines)
    done: set[tuple[int, Variable]] = set()
    for _ in range(_TRIES * misuses):
        if len(done) == misuses:
            break
        slot, candidates = clean.choices[int(rng.integers(len(clean.choices)))]
        others = [variable for variable in candidates if variable is not slot.variable]
        wrong = others[int(rng.integers(len(others)))]
        if (slot.node, wrong) in done:
            continue
        version = clean.changed({slot.node: wrong}, {slot.node: slot.variable})
        if slot.node in version.asked:
            done.add((slot.node, wrong))
            yield version.function("misuse", file, lines)
    for _ in range(blanks):
        count = max(1, round(_BLANK_SHARE * len(clean.choices)))
        chosen = [clean.choices[i][0] for i in rng.permutation(len(clean.choices))[:count]]
        version = clean.blanked(chosen)
        if any(slot.node in version.asked for slot in chosen):
            yield version.function("blank", file, lines)


def blank_each(program: Program, nodes: UnitNodes) -> Iterator[FunctionGraph]:
    """A version for every use of a unit, with that use alone blanked out."""
    clean = _Version(program, nodes)
    for slot, _ in clean.choices:
        version = clean.blanked([slot])
        if slot.node in version.asked:
            yield version.function("blank", 0, 0)


class _Version:
    """A unit as it is, or with other variables at some nodes."""

    def __init__(
        self,
        program: Program,
        nodes: UnitNodes,
        *,
        right: Mapping[int, Variable] | None = None,
        possible: Mapping[int, list[Variable]] | None = None,
    ) -> None:
        self.program = program
        # The analysis adds edges and nodes to what it is given.
        self.original = nodes
        self.nodes = nodes = nodes.rewritten({}) if right is None else nodes
        self.right = right or {}
        slots = slots_of(nodes)
        self.flow = Flow(nodes, (slot.node for slot in slots) if possible is None else ())
        if possible is None:
            around = nodes.variables_around()
            possible = {slot.node: self._possible(slot, around) for slot in slots}
        # Which variables may have a value somewhere depends on what is written, never on reads.
        self.possible = possible
        self.tokens = {v: [o.token for o in found] for v, found in nodes.occurrences.items()}
        self.choices: list[tuple[Occurrence, list[Variable]]] = []
        for slot in slots:
            if candidates := self._candidates(slot):
                self.choices.append((slot, candidates))
        self.asked = {slot.node for slot, _ in self.choices}

    def changed(self, changes: Mapping[int, Variable], right: Mapping[int, Variable]) -> _Version:
        """The version with `changes`, nodes and variables; `right` are those that belong there."""
        nodes = self.original.rewritten(changes)
        return _Version(self.program, nodes, right=right, possible=self.possible)

    def blanked(self, slots: list[Occurrence]) -> _Version:
        """The version in which these uses are blank."""
        # A variable of its own is joined to no other use: it is as if the slot were not there.
        changes = {slot.node: Variable(SLOT_LABEL, slot.scope) for slot in slots}
        return self.changed(changes, {slot.node: slot.variable for slot in slots})

    def _possible(self, slot: Occurrence, around: list[Variable]) -> list[Variable]:
        """The variables that may have a value in a slot, those of functions around among them."""
        found = [
            variable
            for variable in self.nodes.occurrences
            if self._in_sight(slot, variable) and self.flow.reached(slot.node, variable)
        ]
        met = set(found)
        found += [v for v in around if v not in met and self._in_sight(slot, v)]
        return found

    def _candidates(self, slot: Occurrence) -> list[Variable]:
        """Those of the possible that occur before, the latest first, and then those of closures.

        As of `python_code`: empty without a choice, or if what stands or belongs there is none.
        """
        known: list[tuple[int, str, Variable]] = []
        for variable in self.possible.get(slot.node, ()):
            tokens = self.tokens.get(variable, ())
            before = bisect_left(tokens, slot.token) - 1
            if before >= 0:
                known.append((-tokens[before], variable.name, variable))
            elif variable.scope.is_expression or self._is_around(variable):
                known.append((1, variable.name, variable))
        latest = sorted(known, key=_first_two)[:MAX_CANDIDATES]
        found = [variable for _, _, variable in latest]
        needed = {self.right.get(slot.node, slot.variable)}
        if not _is_blank(slot):
            needed.add(slot.variable)
        return found if len(found) > 1 and needed <= set(found) else []

    def _in_sight(self, slot: Occurrence, variable: Variable) -> bool:
        owner = slot.scope.owner(variable.name, module=self.nodes.unit.is_module)
        return owner is variable.scope

    def _is_around(self, variable: Variable) -> bool:
        """Whether it is one of a function around: it may have a value whenever this one runs."""
        scope = self.nodes.unit.scope.parent
        while scope is not None and scope is not variable.scope:
            scope = scope.parent
        return scope is not None and isinstance(scope.node, Function)

    def function(self, kind: str, file: int, lines: int) -> FunctionGraph:
        """The version as a graph."""
        nodes, flow = self.nodes, self.flow
        variables = [v for v in nodes.occurrences if v.name != SLOT_LABEL]
        variables += {v: None for _, c in self.choices for v in c if v not in nodes.occurrences}
        node_of = {variable: len(nodes.labels) + i for i, variable in enumerate(variables)}
        labels = label_array([*nodes.labels, *(variable.name for variable in variables)])
        lexical = [
            (EdgeType.LAST_LEXICAL_USE, later.node, earlier.node)
            for occurrences in nodes.occurrences.values()
            for earlier, later in pairwise(occurrences)
        ]
        edges = [*nodes.edges, *flow.last, *lexical, *(guard[:3] for guard in flow.guards)]
        roles = np.zeros(len(labels), dtype=np.int8)
        roles[len(nodes.labels) :] = CANDIDATE
        pairs: list[tuple[int, int, bool, bool, bool]] = []
        uses: list[Use] = []
        wrong = None
        for slot, candidates in self.choices:
            right = self.right.get(slot.node, slot.variable)
            roles[slot.node] = SLOT if _is_blank(slot) else USE
            latest = self._latest_read(slot, candidates)
            pairs += [
                (node_of[v], slot.node, v is right, v is slot.variable, v is latest)
                for v in candidates
            ]
            if kind == "misuse" and right is not slot.variable:
                wrong = len(uses)
            line, column = self.program.starts[slot.token]
            names = tuple(variable.name for variable in candidates)
            name = right.name if _is_blank(slot) else slot.variable.name
            uses.append(Use(line=line, column=column, name=name, candidates=names))
        graph, place = misuse_graph(
            labels,
            rows_of(edges),
            roles=roles,
            occurrences=np.array(
                [(node_of[v], o.node) for v in variables for o in nodes.occurrences.get(v, ())],
                dtype=np.int64,
            ).reshape(-1, 2),
            pairs=np.array(pairs, dtype=np.int64).reshape(-1, 5),
            kind=KINDS.index(kind),
            file=file,
            line=self.program.starts[nodes.unit.first][0],
            lines=lines,
        )
        return FunctionGraph(
            graph=graph,
            uses=uses,
            nodes=place[[slot.node for slot, _ in self.choices]],
            variables={int(place[node]): variable.name for variable, node in node_of.items()},
            wrong=wrong,
        )

    def _latest_read(self, slot: Occurrence, candidates: list[Variable]) -> Variable:
        """The candidate that was read last before the slot; the first if none was."""
        last = []
        for variable in candidates:
            before = bisect_left(self.tokens.get(variable, ()), slot.token)
            occurrences = self.nodes.occurrences.get(variable, [])[:before]
            last.append(next((o.token for o in reversed(occurrences) if o.reads), -1))
        return candidates[last.index(max(last))]


def _first_two(known: tuple[int, str, Variable]) -> tuple[int, str]:
    return known[:2]


def _is_blank(slot: Occurrence) -> bool:
    return slot.variable.name == SLOT_LABEL
