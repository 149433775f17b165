"""Files of variable-misuse samples: how any become a program table, and the format of Allamanis.

The format of Allamanis et al. (2018): a file holds objects, one a line or all in one list, plain or
gzip'd:

    {"filename": text (optional),
     "ContextGraph": {"Edges": {type: [[source, target], ...]}, "NodeLabels": {"0": text, ...}},
     "SlotDummyNode": node,
     "SymbolCandidates": [{"SymbolDummyNode": node, "IsCorrect": true or false}, ...]}

Nodes are numbered from 0 and every one has a label. The types of edges are EDGE_TYPES; a type that
is not there has no edges. The edges that each candidate would have in the slot's place are among
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable, table_from_graphs
from weft.sources.file_records import BadSample, JsonSample, checked_fields, json_samples
from weft.sources.program_graph import (
    EDGE_TYPES,
    PROGRAM_SCHEMA,
    label_array,
    program_graph,
    program_metadata,
)

FileOf = Callable[[str], int]
"""The number of a program in the column `file`, by its name."""


class Unanswered(BadSample):
    """A sample that is right but has no answer to learn; it is left out and counted."""


def bad_field(where: str, field: str, problem: str, *, reason: str = "wrong type") -> BadSample:
    """What is wrong with a field of a sample."""
    return BadSample(reason, f"{where}, field '{field}': {problem}")


def check_node(where: str, name: str, node: Any, num_nodes: int) -> int:
    """`node` of field `name`, which must be one of 0 to num_nodes - 1."""
    if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < num_nodes:
        problem = f"{str(node)[:40]} is none of the nodes 0 to {num_nodes - 1}"
        raise bad_field(where, name, problem, reason="a missing node")
    return node


def collect(
    paths: Sequence[Path],
    program: Callable[[JsonSample, FileOf], Graph],
    *,
    source: str,
    skip_bad: bool,
    limit: int | None,
    progress: bool,
    more: Mapping[str, Any] | None = None,
) -> GraphTable:
    """The graphs that `program` makes of the samples, as a table in memory.

    Args:
        paths: the files with the samples.
        program: raises BadSample for a bad sample, Unanswered for one to leave out.
        source: where they come from, for the metadata.
        skip_bad: count bad samples instead of raising.
        limit: stop after this number of programs.
        progress: show a progress bar.
        more: metadata that is ready when all is read.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; it must be 1 or more, or None for all samples")
    names: dict[str, int] = {}
    graphs: list[Graph] = []
    skipped = Counter[str]()
    for sample in json_samples(paths, progress=progress):
        try:
            graphs.append(program(sample, lambda name: names.setdefault(name, len(names))))
        except BadSample as error:
            if not skip_bad and not isinstance(error, Unanswered):
                raise
            skipped[error.reason] += 1
        if len(graphs) == limit:
            break
    if not graphs:
        raise DataError(f"{', '.join(map(str, paths))}: no sample can be used: {dict(skipped)}")
    metadata = {
        **program_metadata(list(names), skipped=dict(skipped), source=source),
        "read": [path.name for path in paths],
        **(more or {}),
    }
    return table_from_graphs(graphs, PROGRAM_SCHEMA, metadata=metadata)


_GRAPH, _SLOT, _CANDIDATES = "ContextGraph", "SlotDummyNode", "SymbolCandidates"


def read_varmisuse(
    paths: Sequence[Path],
    *,
    skip_bad: bool = False,
    limit: int | None = None,
    progress: bool = True,
) -> GraphTable:
    """The samples of files in the format of Allamanis et al. as a program table in memory.

    The format knows no places in the text: `line` is the sample's line in its file (or its place
    in the list), `column` is 0, and `recent` marks the candidate whose LastLexicalUse edge leads
    to the token nearest before the slot, going back along NextToken. `file` is the program that
    the sample names in "filename", or else the file it stands in.

    Args:
        paths: the files, .jsonl.gz, or .gz with a list.
        skip_bad: leave bad samples out and count them in metadata["skipped"].
        limit: stop after this number of samples.
        progress: show a progress bar.

    Raises:
        DataError: a bad sample or a file that cannot be read; the message names file, line and
            field.
    """
    return collect(
        paths,
        _program,
        source="VarMisuse graphs of Allamanis et al.",
        skip_bad=skip_bad,
        limit=limit,
        progress=progress,
    )


def _program(sample: JsonSample, file_of: FileOf) -> Graph:
    content = sample.fields((_GRAPH, _SLOT, _CANDIDATES))
    where = sample.where
    graph = checked_fields(f"{where}, field '{_GRAPH}'", content[_GRAPH], ("Edges", "NodeLabels"))
    labels = _labels(where, graph["NodeLabels"])
    edges = _edges(where, graph["Edges"], len(labels))
    slot = check_node(where, _SLOT, content[_SLOT], len(labels))
    candidates, correct = _candidates(where, content[_CANDIDATES], len(labels))
    if slot in candidates:
        problem = f"node {slot} is the slot itself"
        raise bad_field(where, _CANDIDATES, problem, reason="the slot is a candidate")
    name = content.get("filename", sample.file.name)
    if not isinstance(name, str):
        raise bad_field(where, "filename", f"{name!r} is not text")
    typed = [
        np.column_stack([np.full(len(pairs), EDGE_TYPES.index(kind)), pairs])
        for kind, pairs in edges.items()
    ]
    found, _ = program_graph(
        label_array(labels),
        np.concatenate([np.empty((0, 3), dtype=np.int64), *typed]),
        slot=slot,
        candidates=candidates,
        correct=correct,
        recent=_recent(edges, slot, candidates),
        file=file_of(name),
        line=sample.number,
    )
    return found


def _labels(where: str, labels: Any) -> list[str]:
    if not isinstance(labels, dict) or not labels:
        raise bad_field(where, "NodeLabels", "not an object with the label of every node")
    found = []
    for node in range(len(labels)):
        label = labels.get(str(node))
        if label is None:
            problem = (
                f"node {node} has none, but there are {len(labels)}: they must be those of nodes "
                f"0 to {len(labels) - 1}"
            )
            raise bad_field(where, "NodeLabels", problem, reason="a node has no label")
        if not isinstance(label, str):
            raise bad_field(where, "NodeLabels", f"{label!r} of node {node} is not text")
        found.append(label)
    return found


def _edges(where: str, edges: Any, num_nodes: int) -> dict[str, Array]:
    """int64 [e, 2], the pairs of nodes of each type of edge."""
    if not isinstance(edges, dict):
        raise bad_field(where, "Edges", "not an object of types and pairs")
    found = {}
    for name, pairs in edges.items():
        field = f"{where}, field 'Edges', type '{name}'"
        if name not in EDGE_TYPES:
            raise BadSample(
                "an unknown type of edge",
                f"{field}: no such type; choose from {', '.join(EDGE_TYPES)}",
            )
        try:
            array = np.array(pairs)
        except ValueError:  # lists of different lengths
            array = np.array(None)
        if array.size == 0 and isinstance(pairs, list):
            array = np.empty((0, 2), dtype=np.int64)
        if array.dtype.kind != "i" or array.ndim != 2 or array.shape[1] != 2:
            raise BadSample("wrong type", f"{field}: not a list of [source, target] node numbers")
        outside = ((array < 0) | (array >= num_nodes)).any(axis=1)
        if outside.any():
            raise BadSample(
                "an edge to a missing node",
                f"{field}: {array[outside][0].tolist()} leaves the nodes 0 to {num_nodes - 1}",
            )
        found[name] = array.astype(np.int64)
    return found


def _candidates(where: str, candidates: Any, num_nodes: int) -> tuple[list[int], int]:
    """The nodes of the candidates, and that of the right one."""

    def bad(reason: str, problem: str) -> BadSample:
        return bad_field(where, _CANDIDATES, problem, reason=reason)

    if not isinstance(candidates, list):
        raise bad("wrong type", "not a list")
    if not candidates:
        raise bad("no candidates", "no candidates")
    field = f"{where}, field '{_CANDIDATES}'"
    nodes, right = [], []
    for candidate in candidates:
        about = checked_fields(field, candidate, ("SymbolDummyNode", "IsCorrect"))
        node = check_node(field, "SymbolDummyNode", about["SymbolDummyNode"], num_nodes)
        if not isinstance(about["IsCorrect"], bool):
            raise bad("wrong type", f"IsCorrect of node {node} is neither true nor false")
        nodes.append(node)
        right += [node] if about["IsCorrect"] else []
    if len(set(nodes)) < len(nodes):
        raise bad("a candidate twice", f"two candidates have one node in {nodes}")
    if len(nodes) == 1:
        raise bad("one candidate only", "one candidate is nothing to choose from")
    if len(right) != 1:
        reason = "two right answers" if right else "no right answer"
        raise bad(reason, f"{len(right)} of {len(nodes)} candidates are right, there must be one")
    return nodes, right[0]


def _recent(edges: Mapping[str, Array], slot: int, candidates: Sequence[int]) -> int:
    """The candidate that was used last before the slot; the first if none was."""
    none: Array = np.empty((0, 2))
    uses = {
        use: node for node, use in edges.get("LastLexicalUse", none).tolist() if node in candidates
    }
    before = {after: node for node, after in edges.get("NextToken", none).tolist()}
    token: int | None = slot
    while token is not None and token not in uses:
        token = before.pop(token, None)  # taken out, so that a circle has an end
    if token is None:
        # Without a chain, tokens are in the order of their numbers.
        token = max((use for use in uses if use < slot), default=None)
    return candidates[0] if token is None else uses[token]
