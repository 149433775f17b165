"""Program graphs with a slot: the types of edges, labels as subtokens, one finished graph."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.graphs import Array, Column, Graph

if TYPE_CHECKING:
    from weft.graphs import GraphTable

EDGE_TYPES = (
    "Child",
    "NextToken",
    "LastUse",
    "LastWrite",
    "LastLexicalUse",
    "ComputedFrom",
    "ReturnsTo",
    "FormalArgName",
    "GuardedBy",
    "GuardedByNegation",
)
"""The types of edges between the parts of a program (Allamanis et al. 2018)."""

NUM_TYPES = 2 * len(EDGE_TYPES)
"""Types in a table: type + 10 is the same edge with its ends exchanged."""

EDGE_NAMES = (*EDGE_TYPES, *(f"{name}, reversed" for name in EDGE_TYPES))
VOCABULARY = 8192
SUBTOKENS = 6
SLOT = 1
CANDIDATE = 2
USE = 3
SLOT_LABEL = "<SLOT>"

PROGRAM_SCHEMA = {
    "subtokens": Column(
        level="node", dtype="int32", shape=(SUBTOKENS,), doc="hashed parts of the label, 0 = none"
    ),
    "role": Column(level="node", dtype="int8", doc="0 ordinary, 1 the slot, 2 a candidate"),
    "correct": Column(level="node", dtype="int8", doc="1 at the right candidate"),
    "recent": Column(
        level="node", dtype="int8", doc="1 at the candidate used last before the slot"
    ),
    "type": Column(level="edge", dtype="int8", doc="type of the edge, + 10 reversed"),
    "file": Column(level="graph", dtype="int32", doc="number of the file in the metadata"),
    "line": Column(level="graph", dtype="int32", doc="line of the slot, from 1"),
    "column": Column(level="graph", dtype="int32", doc="column of the slot in characters, from 0"),
}
"""The columns of a table of programs."""


MISUSE_EDGE_NAMES = (*EDGE_NAMES, "OccurrenceOf", "OccurrenceOf, reversed", "MayStandIn")
"""Types in a table of misuses: every variable has a node, joined to where it occurs and may."""

OCCURRENCE_OF, OCCURRENCE_OF_REVERSED, MAY_STAND_IN = range(len(EDGE_NAMES), len(EDGE_NAMES) + 3)

KINDS = ("clean", "misuse", "blank")
"""Versions of a function: as it is, with one wrong variable, with some uses blanked out."""

MISUSE_SCHEMA = {
    "subtokens": PROGRAM_SCHEMA["subtokens"],
    "role": Column(
        level="node", dtype="int8", doc="0 ordinary, 1 a blank, 2 a variable, 3 a use of one"
    ),
    "type": Column(level="edge", dtype="int8", doc="number of the type in the metadata"),
    "right": Column(
        level="edge", dtype="int8", doc="1 at MayStandIn from the variable that belongs there"
    ),
    "written": Column(
        level="edge", dtype="int8", doc="1 at MayStandIn from the variable that stands there"
    ),
    "recent": Column(
        level="edge", dtype="int8", doc="1 at MayStandIn from the variable read last before"
    ),
    "kind": Column(level="graph", dtype="int8", doc=f"number of {', '.join(KINDS)}"),
    "file": PROGRAM_SCHEMA["file"],
    "line": Column(level="graph", dtype="int32", doc="first line of the function, from 1"),
    "lines": Column(level="graph", dtype="int32", doc="lines of text that the graph stands for"),
}
"""The columns of a table of misuses; a graph is one version of one function or module body."""


class EdgeType:
    """Numbers of the types of edges."""

    CHILD, NEXT_TOKEN, LAST_USE, LAST_WRITE, LAST_LEXICAL_USE = range(5)
    COMPUTED_FROM, RETURNS_TO, FORMAL_ARG_NAME, GUARDED_BY, GUARDED_BY_NEGATION = range(5, 10)


# Words of camelCase, words of capitals, digits; an underscore or a sign separates.
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?(?:(?![A-Z])[^\W\d_])+|[A-Z]+|\d+")
# The beginning of a long text is enough.
_READ_CHARACTERS = 200


def subtokens_of(label: str) -> tuple[str, ...]:
    """The parts of a label: words of an identifier in lower case, at most six.

    A label without words (an operator) or in angle brackets (the slot, a class of the syntax tree)
    stays whole.
    """
    if label.startswith("<") and label.endswith(">"):
        return (label,)
    words = _WORD.findall(label[:_READ_CHARACTERS])[:SUBTOKENS]
    return tuple(word.lower() for word in words) or ((label[:_READ_CHARACTERS],) if label else ())


@lru_cache(maxsize=2**16)
def label_buckets(label: str) -> tuple[int, ...]:
    """Six numbers for a label: a bucket from 1 for each subtoken, then zeros."""
    words = (zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in subtokens_of(label))
    buckets = [1 + word % (VOCABULARY - 1) for word in words]
    return tuple(buckets + [0] * (SUBTOKENS - len(buckets)))


def label_array(labels: Sequence[str]) -> Array:
    """int32 [n, 6], the buckets of n labels."""
    buckets = [label_buckets(label) for label in labels]
    return np.array(buckets, dtype=np.int32).reshape(-1, SUBTOKENS)


def program_metadata(files: list[str], **more: Any) -> dict[str, Any]:
    """Metadata of a table of programs: `files` are those that the column `file` counts."""
    return {
        "kind": "programs",
        "edge_types": list(EDGE_NAMES),
        "files": files,
        "vocabulary": VOCABULARY,
        "order": "rcm",
        **more,
    }


def program_graph(
    subtokens: Array,
    edges: Array,
    *,
    slot: int,
    candidates: Sequence[int],
    correct: int,
    recent: int,
    file: int = 0,
    line: int = 1,
    column: int = 0,
) -> tuple[Graph, Array]:
    """One sample with the columns of PROGRAM_SCHEMA, and where its candidates went.

    Repeated edges fall out, every edge gets its reverse, and the nodes are put into reverse
    Cuthill-McKee order.

    Args:
        subtokens: int32 [n, 6], labels as buckets.
        edges: int [e, 3], (type, sender, receiver) with types 0 to 9.
        slot: the node to fill.
        candidates: nodes of the candidates, at least two.
        correct: the right one among them, as a node.
        recent: the one whose variable was used last before the slot, as a node.
        file: number of the file.
        line: of the slot, from 1.
        column: of the slot, from 0.

    Returns:
        The graph, and int64 [c]: the candidates' new node numbers in the order of `candidates`.
    """
    n = len(subtokens)
    limits = (len(EDGE_TYPES), n, n)
    places = (slot, *candidates)
    # Readers of files have checked what they read, with messages for users.
    assert edges.shape == (len(edges), 3), f"edges have shape {list(edges.shape)}"
    assert ((edges >= 0) & (edges < limits)).all(), f"edges beyond {limits}: {edges.max(axis=0)}"
    assert len(set(places)) == len(places) > 2, f"slot and two or more candidates: {places}"
    assert 0 <= min(places) <= max(places) < n, f"{places} beyond the {n} nodes"
    assert {correct, recent} <= set(candidates), f"{correct} or {recent} is none of {candidates}"
    kinds, senders, receivers = _both_ways(edges, n)
    order, place = _ordered(n, senders, receivers)
    role = np.zeros(n, dtype=np.int8)
    right, latest = role.copy(), role.copy()
    new_places: Array = place[np.asarray(candidates)]
    role[place[slot]] = SLOT
    role[new_places] = CANDIDATE
    right[place[correct]] = 1
    latest[place[recent]] = 1
    graph = Graph(
        num_nodes=n,
        senders=place[senders].astype(np.int32),
        receivers=place[receivers].astype(np.int32),
        nodes={"subtokens": subtokens[order], "role": role, "correct": right, "recent": latest},
        edges={"type": kinds.astype(np.int8)},
        graph={
            "file": np.array(file, dtype=np.int32),
            "line": np.array(line, dtype=np.int32),
            "column": np.array(column, dtype=np.int32),
        },
    )
    return graph, new_places


def misuse_graph(
    subtokens: Array,
    edges: Array,
    *,
    roles: Array,
    occurrences: Array,
    pairs: Array,
    kind: int = 0,
    file: int = 0,
    line: int = 1,
    lines: int = 0,
) -> tuple[Graph, Array]:
    """One version of a function with the columns of MISUSE_SCHEMA, and where its nodes went.

    Args:
        subtokens: int32 [n, 6], labels as buckets.
        edges: int [e, 3], (type, sender, receiver) with types 0 to 9.
        roles: int [n].
        occurrences: int [o, 2], (variable, token) where it occurs.
        pairs: int [p, 5], (variable, use, right, written, recent) where it may stand; the last
            three are 0 or 1.
        kind: number of the version in KINDS.
        file: number of the file.
        line: the first of the function, from 1.
        lines: of text that the graph stands for.

    Returns:
        The graph, and int64 [n]: the new number of each node.
    """
    n = len(subtokens)
    kinds, senders, receivers = _both_ways(edges, n)
    variables, tokens = occurrences.T
    senders = np.concatenate([senders, variables, tokens])
    receivers = np.concatenate([receivers, tokens, variables])
    more = np.repeat([OCCURRENCE_OF, OCCURRENCE_OF_REVERSED], len(occurrences))
    marks = np.zeros((len(senders) + len(pairs), 3), dtype=np.int8)
    marks[len(senders) :] = pairs[:, 2:]
    ends = np.concatenate([senders, pairs[:, 0]]), np.concatenate([receivers, pairs[:, 1]])
    order, place = _ordered(n, *ends)
    kinds = np.concatenate([kinds, more, np.full(len(pairs), MAY_STAND_IN)])
    numbers = {"kind": (kind, np.int8), "file": (file, np.int32)}
    numbers |= {"line": (line, np.int32), "lines": (lines, np.int32)}
    graph = Graph(
        num_nodes=n,
        senders=place[ends[0]].astype(np.int32),
        receivers=place[ends[1]].astype(np.int32),
        nodes={"subtokens": subtokens[order], "role": roles[order].astype(np.int8)},
        edges={
            "type": kinds.astype(np.int8),
            **{name: marks[:, i] for i, name in enumerate(("right", "written", "recent"))},
        },
        graph={name: np.array(value, dtype=dtype) for name, (value, dtype) in numbers.items()},
    )
    return graph, place


def _both_ways(edges: Array, n: int) -> tuple[Array, Array, Array]:
    """Types, senders and receivers of the edges, each once, and then of their reverses."""
    keys = np.unique((edges[:, 0] * n + edges[:, 1]) * n + edges[:, 2])
    kinds, pairs = np.divmod(keys, n * n)
    senders, receivers = np.divmod(pairs, n)
    return (
        np.concatenate([kinds, kinds + len(EDGE_TYPES)]),
        np.concatenate([senders, receivers]),
        np.concatenate([receivers, senders]),
    )


def _ordered(n: int, senders: Array, receivers: Array) -> tuple[Array, Array]:
    """The reverse Cuthill-McKee order of the nodes, and the place of each node in it."""
    # The constants above are read where options are printed, without waiting for scipy.
    from weft.layout.orders import ORDERS

    order = ORDERS["rcm"](n, senders, receivers)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    return order, place


def text_order(table: GraphTable) -> Array:
    """int64 [N]: the nodes of each graph as a parser numbers them, over all graphs.

    Tables have their nodes in another order; this one follows from the edges. Tokens come as
    NextToken chains them, then the parts of the syntax tree from the top, each before what is below
    it, then what hangs in neither: candidates.
    """
    base = np.repeat(table.node_offsets[:-1], table.num_edges)
    senders, receivers = (table.columns[name] + base for name in ("senders", "receivers"))
    kinds = np.asarray(table.column("type"))
    total = table.total_nodes
    chain, child = kinds == EdgeType.NEXT_TOKEN, kinds == EdgeType.CHILD
    before = np.arange(total)
    before[receivers[chain]] = senders[chain]
    number = (before != np.arange(total)).astype(np.int64)
    is_token = number > 0
    is_token[senders[chain]] = True
    # Each round looks twice as far back along the chain.
    for _ in range(int(table.num_nodes.max(initial=1)).bit_length()):
        number += number[before]
        before = before[before]
    first = np.where(is_token, number, total)
    depth = np.zeros(total, dtype=np.int64)
    parents, children = senders[child], receivers[child]
    # A tree is at most as high as its number of nodes; the rounds end as soon as nothing changes.
    for _ in range(int(table.num_nodes.max(initial=0))):
        earlier, deeper = first.copy(), depth.copy()
        np.minimum.at(earlier, parents, first[children])
        np.maximum.at(deeper, children, depth[parents] + 1)
        if (earlier == first).all() and (deeper == depth).all():
            break
        first, depth = earlier, deeper
    kind = np.where(is_token, 0, np.where(first < total, 1, 2))
    graph = np.repeat(np.arange(len(table)), table.num_nodes)
    found: Array = np.lexsort((depth, first, kind, graph))
    return found
