"""VarMisuse samples from one Python file: which variable belongs into a slot?

Every function is a unit of its own and so is the module's body; a sample is a unit's graph with
one use of a variable taken out. Nodes are the tokens and the parts of the syntax tree. Nothing in
the graph tells which variable stood in the slot: the uses around it are joined as if the slot were
not there, and a condition that mentions the variable only in the slot guards none of its uses.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import numpy as np

from weft.graphs import Array, Graph
from weft.sources.program_graph import SLOT_LABEL, EdgeType, label_array, program_graph
from weft.sources.python_flow import Flow
from weft.sources.python_nodes import Occurrence, TooLarge, UnitNodes, Variable
from weft.sources.python_units import Program, Unusable, read_source

MAX_CANDIDATES = 8
MAX_NODES = 1000
_place = attrgetter("line", "column")
_token = attrgetter("token")


@dataclass(frozen=True, kw_only=True)
class Use:
    """A variable that is read, where at least one other could stand.

    Attributes:
        line: from 1.
        column: in characters, from 0.
        name: the variable.
        candidates: names that could stand there, the most recently used first; `name` is one.
    """

    line: int
    column: int
    name: str
    candidates: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Sample(Use):
    """A use as a graph. Its candidates are in the order of their nodes in the graph."""

    graph: Graph


@dataclass(frozen=True, kw_only=True)
class FileSamples:
    """The samples of a file, in the order of the text, and what was left out.

    Attributes:
        samples: one for each slot.
        skipped: counts by reason: a whole file that cannot be parsed, or units that are too large.
    """

    samples: list[Sample]
    skipped: dict[str, int] = field(default_factory=dict)


def variable_uses(source: str) -> list[Use]:
    """All uses in a file that a sample can be made of; none if it cannot be parsed."""
    uses: list[Use] = []
    for program, nodes in units_of(source, MAX_NODES, Counter()):
        slots = slots_of(nodes)
        flow = Flow(nodes, (slot.node for slot in slots))
        for slot in slots:
            if candidates := _candidates(nodes, flow, slot):
                line, column = program.starts[slot.token]
                names = tuple(variable.name for variable, _ in candidates)
                name = slot.variable.name
                uses.append(Use(line=line, column=column, name=name, candidates=names))
    return sorted(uses, key=_place)


def sample_graphs(path: Path, *, max_nodes: int = MAX_NODES) -> FileSamples:
    """Samples of all uses in a file; see `samples_of`."""
    try:
        return samples_of(read_source(path), path.name, max_nodes=max_nodes)
    except Unusable as reason:
        return FileSamples(samples=[], skipped={str(reason): 1})


def samples_of(
    source: str,
    name: str,
    *,
    slots: int | None = None,
    seed: int = 0,
    max_nodes: int = MAX_NODES,
    file: int = 0,
) -> FileSamples:
    """All of `each_sample`, in the order of the text; nothing in it makes this raise."""
    skipped: Counter[str] = Counter()
    found = each_sample(
        source, name, skipped, slots=slots, seed=seed, max_nodes=max_nodes, file=file
    )
    return FileSamples(samples=sorted(found, key=_place), skipped=dict(skipped))


def each_sample(
    source: str,
    name: str,
    skipped: Counter[str],
    *,
    slots: int | None = None,
    seed: int = 0,
    max_nodes: int = MAX_NODES,
    file: int = 0,
) -> Iterator[Sample]:
    """Samples of a file's text one after another, unit by unit, so that memory stays small.

    Args:
        source: the text.
        name: the file's name, which decides with `seed` which slots are taken.
        skipped: what is left out is counted here.
        slots: the most samples of a unit; None for all.
        seed: of the choice.
        max_nodes: units with more nodes are left out, and counted as "too large".
        file: number for the graphs' column `file`.
    """
    name_hash = zlib.crc32(name.encode("utf-8", "surrogateescape"))
    for number, (_, nodes) in enumerate(units_of(source, max_nodes, skipped)):
        rng = np.random.default_rng([seed, name_hash, number])
        try:
            yield from _unit_samples(nodes, slots, rng, file)
        except RecursionError:
            skipped["nested too deeply"] += 1


def units_of(
    source: str, max_nodes: int, skipped: Counter[str]
) -> Iterator[tuple[Program, UnitNodes]]:
    """The nodes of each unit of a text, but of those with more than `max_nodes`."""
    try:
        program = Program(source)
    except Unusable as reason:
        skipped[str(reason)] += 1
        return
    for unit in program.units:
        try:
            yield program, UnitNodes(program, unit, max_nodes)
        except TooLarge:
            skipped["too large"] += 1


def slots_of(nodes: UnitNodes) -> list[Occurrence]:
    """The reads that can be slots, in the order of the text."""
    found = [o for all_of_one in nodes.occurrences.values() for o in all_of_one if o.can_be_slot]
    return sorted(found, key=_token)


def _candidates(nodes: UnitNodes, flow: Flow, slot: Occurrence) -> list[tuple[Variable, int]]:
    """Variables that could stand in the slot, the latest first, and the occurrence before it.

    A variable can if it is in scope, may have a value there, and occurs before the slot in the text
    or is bound by the lambda or comprehension around it; the eight latest are taken. The number is
    -1 if it does not occur before. Empty if there is no other, or if the slot's own variable is
    none of them: adding it would give the answer away.
    """
    known: list[tuple[int, str, Variable, int]] = []
    for variable, occurrences in nodes.occurrences.items():
        before = bisect_left(occurrences, slot.token, key=_token) - 1
        if before < 0 and not variable.scope.is_expression:
            continue
        owner = slot.scope.owner(variable.name, module=nodes.unit.is_module)
        if owner is variable.scope and flow.reached(slot.node, variable):
            token = occurrences[before].token if before >= 0 else -1
            known.append((-token, variable.name, variable, before))
    latest = sorted(known, key=lambda candidate: candidate[:2])[:MAX_CANDIDATES]
    found = [(variable, before) for _, _, variable, before in latest]
    if len(found) < 2:
        return []
    return found if any(variable is slot.variable for variable, _ in found) else []


def _unit_samples(
    nodes: UnitNodes, limit: int | None, rng: np.random.Generator, file: int
) -> Iterator[Sample]:
    slots = slots_of(nodes)
    if not slots or len(nodes.occurrences) < 2:
        return
    chosen: list[tuple[Occurrence, list[tuple[Variable, int]]]] = []
    flow = Flow(nodes, (slot.node for slot in slots))
    order = range(len(slots)) if limit is None else rng.permutation(len(slots)).tolist()
    for i in order:
        if limit is not None and len(chosen) == limit:
            break
        if candidates := _candidates(nodes, flow, slots[i]):
            chosen.append((slots[i], candidates))
    if not chosen:
        return
    base = _Base(nodes, flow)
    for slot, candidates in chosen:
        yield base.sample(slot, candidates, file)


class _Base:
    """What the samples of one unit share."""

    def __init__(self, nodes: UnitNodes, flow: Flow) -> None:
        self.nodes, self.flow = nodes, flow
        self.labels = label_array(nodes.labels)
        self.fixed = rows_of(sorted(nodes.edges))
        self.last = rows_of(sorted(flow.last))
        self.lexical = rows_of(
            [
                (EdgeType.LAST_LEXICAL_USE, later.node, earlier.node)
                for occurrences in nodes.occurrences.values()
                for earlier, later in pairwise(occurrences)
            ]
        )
        self.guards = list(flow.guards)
        self.guard_rows = rows_of([guard[:3] for guard in self.guards])

    def sample(self, slot: Occurrence, candidates: list[tuple[Variable, int]], file: int) -> Sample:
        nodes, n = self.nodes, len(self.labels)
        added = self._around(slot)
        for node, (variable, before) in enumerate(candidates, start=n):
            added += self._speculative(slot, node, variable, before)
        edges = np.concatenate(
            [
                self.fixed,
                _without(self.last, slot.node),
                _without(self.lexical, slot.node),
                self.guard_rows[self._guards_kept(slot)],
                rows_of(added),
            ]
        )
        variables = [variable for variable, _ in candidates]
        labels = np.concatenate([self.labels, label_array([v.name for v in variables])])
        labels[slot.node] = label_array([SLOT_LABEL])
        line, column = nodes.program.starts[slot.token]
        graph, places = program_graph(
            labels,
            edges,
            slot=slot.node,
            candidates=range(n, n + len(candidates)),
            correct=n + variables.index(slot.variable),
            recent=n + self._recent(candidates),
            file=file,
            line=line,
            column=column,
        )
        return Sample(
            line=line,
            column=column,
            name=slot.variable.name,
            candidates=tuple(variables[i].name for i in np.argsort(places)),
            graph=graph,
        )

    def _recent(self, candidates: list[tuple[Variable, int]]) -> int:
        """The candidate that was read last before the slot; the first if none was."""
        last = []
        for variable, before in candidates:
            reads = (o.token for o in self.nodes.occurrences[variable][before::-1] if o.reads)
            last.append(next(reads, -1) if before >= 0 else -1)
        return last.index(max(last))

    def _around(self, slot: Occurrence) -> list[tuple[int, int, int]]:
        """The uses of the slot's variable around it, joined as if it were not there."""
        kinds, senders, receivers = self.last.T
        later = senders[
            (kinds == EdgeType.LAST_USE) & (receivers == slot.node) & (senders != slot.node)
        ]
        earlier = self.flow.last_at(slot.node, EdgeType.LAST_USE, slot.variable) - {slot.node}
        joined = [
            (EdgeType.LAST_USE, one, other)
            for one in later.tolist()
            for other in sorted(earlier - {one})
        ]
        occurrences = self.nodes.occurrences[slot.variable]
        at = bisect_left(occurrences, slot.token, key=_token)
        if 0 < at < len(occurrences) - 1:
            before, after = occurrences[at - 1].node, occurrences[at + 1].node
            joined.append((EdgeType.LAST_LEXICAL_USE, after, before))
        return joined

    def _speculative(
        self, slot: Occurrence, node: int, variable: Variable, before: int
    ) -> list[tuple[int, int, int]]:
        """The edges that the slot would have with this variable in it."""
        edges = [
            (kind, node, last)
            for kind in (EdgeType.LAST_USE, EdgeType.LAST_WRITE)
            for last in sorted(self.flow.last_at(slot.node, kind, variable) - {slot.node})
        ]
        occurrences = self.nodes.occurrences[variable]
        if before >= 0:
            edges.append((EdgeType.LAST_LEXICAL_USE, node, occurrences[before].node))
        after = bisect_right(occurrences, slot.token, key=_token)
        if after < len(occurrences):
            edges.append((EdgeType.LAST_LEXICAL_USE, occurrences[after].node, node))
        return edges

    def _guards_kept(self, slot: Occurrence) -> list[bool]:
        # A condition that names the variable in the slot only would give it away.
        only_here = {
            condition
            for condition, mentions in self.flow.conditions.items()
            if mentions.get(slot.variable) == {slot.node}
        }
        return [
            node != slot.node and not (variable is slot.variable and condition in only_here)
            for _, node, condition, variable in self.guards
        ]


def rows_of(edges: list[tuple[int, int, int]]) -> Array:
    """int64 [e, 3] of (type, sender, receiver)."""
    return np.array(edges, dtype=np.int64).reshape(-1, 3)


def _without(edges: Array, node: int) -> Array:
    kept: Array = edges[(edges[:, 1] != node) & (edges[:, 2] != node)]
    return kept
