"""Variable-misuse samples of GREAT (Hellendoorn et al. 2020): Python functions as JSON lines.

A line is an object with `source_tokens` (texts), `edges` ([before, after, number, kind] between
tokens), `has_bug`, `error_location` (a token), `repair_targets` (tokens that name the right
variable) and `repair_candidates` (tokens that name any candidate, and their texts, which are
ignored); `provenances` names the program. Token and node are one, with the candidates behind them.

GREAT_EDGES says which type each kind of edge becomes. Nothing stands for GuardedBy
and GuardedByNegation. Edges left out are counted in the metadata.

**The slot.** With a bug it is the token at `error_location`. Without one any read of a variable
would do: it is one with a known last write, into which no last write and from which no computation
leads (so it is no assignment); the function's text and line choose a variable, then its read. In
its place stands a blank: its name is gone, and what depends on it is as if it were not there:
where a last use led to the slot, it leads to what the slot's own led to. Otherwise the gap would
give the name away.

**The candidates** are the names at the `repair_candidates`. Each has the edges that are known
without running the analysis again: LastLexicalUse to its nearest use before the slot, LastUse and
LastWrite to the nearest that other edges show to be a read or a write. Attributes (after a dot)
are no uses.

Samples without an answer are left out and counted: a bug without `repair_targets` (the name stands
only in a token such as `**kwargs`), a target that is no candidate (a token such as `def name(`), no
read to choose, one name only.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.graphs import Graph, GraphTable
from weft.sources.file_records import JsonSample
from weft.sources.program_graph import EDGE_TYPES, SLOT_LABEL, label_array, program_graph
from weft.sources.varmisuse_files import FileOf, Unanswered, bad_field, check_node, collect

GREAT_EDGES: dict[str, str | None] = {
    "enum_FIELD": "Child",  # from a syntax node's token to its part's
    "enum_SYNTAX": "Child",
    "enum_NEXT_SYNTAX": "NextToken",  # line ends and indents are not on the chain
    "enum_LAST_READ": "LastUse",  # reads only
    "enum_LAST_WRITE": "LastWrite",
    "enum_LAST_LEXICAL_USE": "LastLexicalUse",
    "enum_COMPUTED_FROM": "ComputedFrom",
    "enum_FORMAL_ARG_NAME": "FormalArgName",
    "enum_RETURNS_TO": None,  # leads to the call, ReturnsTo to the declaration
    "enum_CALLS": None,  # from the call to the declaration
    "enum_CFG_NEXT": None,  # control flow
    "enum_UNSPECIFIED": None,
}
"""Kinds of edges in GREAT, and the type each becomes; None if there is none that means it."""

_OF_NAMES = ("LastUse", "LastWrite", "LastLexicalUse")
_FIELDS = (
    "source_tokens",
    "edges",
    "has_bug",
    "error_location",
    "repair_targets",
    "repair_candidates",
)
Edges = dict[str, set[tuple[int, int]]]


def read_great(
    paths: Sequence[Path],
    *,
    skip_bad: bool = False,
    limit: int | None = None,
    progress: bool = True,
) -> GraphTable:
    """The samples of GREAT's files as a program table in memory.

    `file` is the program of the sample's provenance, or else the file it stands in; the format
    knows no places in the text: `line` is the sample's line in its file and `column` the number
    of the slot's token.

    Args:
        paths: the shards, plain or gzip'd.
        skip_bad: leave bad samples out too and count them in metadata["skipped"].
        limit: stop after this number of samples.
        progress: show a progress bar.

    Raises:
        DataError: a bad sample or a file that cannot be read; the message names file, line and
            field.
    """
    left_out = Counter[str]()
    return collect(
        paths,
        lambda sample, file_of: _program(sample, file_of, left_out),
        source="GREAT, variable misuse (Hellendoorn et al. 2020)",
        skip_bad=skip_bad,
        limit=limit,
        progress=progress,
        more={"edges left out": left_out},
    )


def _program(sample: JsonSample, file_of: FileOf, left_out: Counter[str]) -> Graph:
    where = sample.where
    content = sample.fields(_FIELDS)
    tokens = content["source_tokens"]
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise bad_field(where, "source_tokens", "not a list of texts")
    edges, others = _edges(where, content, len(tokens))
    candidates = _positions(where, content, "repair_candidates", len(tokens))
    targets = _positions(where, content, "repair_targets", len(tokens))
    if not candidates:
        raise bad_field(where, "repair_candidates", "no candidates", reason="no candidates")
    if not isinstance(content["has_bug"], bool):
        raise bad_field(where, "has_bug", "neither true nor false")
    slot: int | None
    if content["has_bug"]:
        slot = check_node(where, "error_location", content["error_location"], len(tokens))
        right = {tokens[target] for target in targets}
    else:
        # The line too: the same function is often there again, and then another slot is better.
        seed = zlib.crc32("\0".join(tokens).encode("utf-8", "replace")) + sample.number
        slot = _free_slot(edges, tokens, candidates, seed)
        right = set() if slot is None else {tokens[slot]}
    names = list(dict.fromkeys(tokens[place] for place in sorted(candidates)))
    answers = right.intersection(names)
    if len(answers) > 1:
        problem = f"they name {', '.join(sorted(answers))}, not one"
        raise bad_field(where, "repair_targets", problem, reason="two right answers")
    if slot is None or not answers or len(names) == 1:
        why = _why(slot, right, answers)
        raise Unanswered(why, f"{where}: {why}")
    (answer,) = answers
    left_out.update(others)
    _take_name_out(edges, slot)
    first = len(tokens)
    uses = [
        place for place in candidates if place < slot and (place == 0 or tokens[place - 1] != ".")
    ]
    last = _add_candidates(edges, tokens, names, uses)
    rows = [(EDGE_TYPES.index(kind), *pair) for kind, pairs in edges.items() for pair in pairs]
    graph, _ = program_graph(
        label_array([*tokens[:slot], SLOT_LABEL, *tokens[slot + 1 :], *names]),
        np.array(rows, dtype=np.int64).reshape(-1, 3),
        slot=slot,
        candidates=range(first, first + len(names)),
        correct=first + names.index(answer),
        recent=first + (names.index(last) if last else 0),
        file=file_of(_program_name(where, content, sample.file.name)),
        line=sample.number,
        column=slot,
    )
    return graph


def _why(slot: int | None, right: set[str], answers: set[str]) -> str:
    """Why a sample has no answer to learn."""
    if slot is None:
        return "no bug, and no read of a variable"
    if not right:
        return "a bug without repair targets"
    return "one candidate only" if answers else "a repair target that is no candidate"


def _add_candidates(
    edges: Edges, tokens: Sequence[str], names: Sequence[str], uses: Sequence[int]
) -> str | None:
    """Join the candidates, which are behind the tokens, to their last uses; the last one's name."""
    known = {
        "LastLexicalUse": set(uses),
        "LastUse": {b for _, b in edges["LastUse"]},
        "LastWrite": {b for _, b in edges["LastWrite"]},
    }
    for kind, places in known.items():
        last = {tokens[use]: use for use in sorted(places.intersection(uses))}
        edges[kind] |= {
            (len(tokens) + k, last[name]) for k, name in enumerate(names) if name in last
        }
    return tokens[max(uses)] if uses else None


def _program_name(where: str, content: dict[str, Any], default: str) -> str:
    """The path of the program in its provenance."""
    if "provenances" not in content:
        return default
    try:
        name = content["provenances"][0]["datasetProvenance"]["filepath"]
    except (KeyError, IndexError, TypeError):
        name = None
    if not isinstance(name, str):
        raise bad_field(where, "provenances", "no datasetProvenance with a filepath")
    return name


def _positions(where: str, content: dict[str, Any], name: str, num_tokens: int) -> list[int]:
    """The tokens that field `name` lists, without the texts among them."""
    listed = content[name]
    if not isinstance(listed, list):
        raise bad_field(where, name, "not a list of tokens' numbers")
    return [
        check_node(where, name, item, num_tokens) for item in listed if not isinstance(item, str)
    ]


def _edges(where: str, content: dict[str, Any], num_tokens: int) -> tuple[Edges, Counter[str]]:
    """The edges by type, and the number of edges of kinds that have no type."""
    if not isinstance(content["edges"], list):
        raise bad_field(where, "edges", "not a list")
    edges: Edges = {name: set() for name in GREAT_EDGES.values() if name}
    others = Counter[str]()
    for edge in content["edges"]:
        if not isinstance(edge, list) or len(edge) != 4:
            problem = f"{str(edge)[:60]} is not [before, after, number, kind]"
            raise bad_field(where, "edges", problem)
        before, after, _, kind = edge
        if not isinstance(kind, str) or kind not in GREAT_EDGES:
            problem = f"no kind {kind!r}; choose from {', '.join(GREAT_EDGES)}"
            raise bad_field(where, "edges", problem, reason="an unknown type of edge")
        for end, token in (("before", before), ("after", after)):
            check_node(f"{where}, field 'edges'", end, token, num_tokens)
        name = GREAT_EDGES[kind]
        if name is None:
            others[kind] += 1
        else:
            edges[name].add((before, after))
    return edges, others


def _take_name_out(edges: Edges, slot: int) -> None:
    """Take the name out of the slot: close the chains of uses over it."""
    for name in _OF_NAMES:
        pairs = edges[name]
        later = [a for a, b in pairs if b == slot != a]
        earlier = [b for a, b in pairs if a == slot != b]
        edges[name] = {pair for pair in pairs if slot not in pair} | {
            (a, b) for a in later for b in earlier
        }


def _free_slot(
    edges: Edges, tokens: Sequence[str], candidates: Sequence[int], seed: int
) -> int | None:
    """A token that reads a variable, always the same for a `seed`; None if none is known."""
    written = {b for _, b in edges["LastWrite"]} | {a for a, _ in edges["ComputedFrom"]}
    reads = sorted({a for a, _ in edges["LastWrite"]} & set(candidates) - written)
    if not reads:
        return None
    # A variable first: most reads of a method are of `self`, which would be the usual answer.
    names = list(dict.fromkeys(tokens[read] for read in reads))
    seed, chosen = divmod(seed, len(names))
    reads = [read for read in reads if tokens[read] == names[chosen]]
    return reads[seed % len(reads)]
