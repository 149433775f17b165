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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable, table_from_graphs
from weft.sources.json_samples import BadSample, JsonSample, Skips, checked_fields, json_samples
from weft.sources.program_graph import (
    EDGE_NAMES,
    EDGE_TYPES,
    PROGRAM_SCHEMA,
    VOCABULARY,
    label_buckets,
    program_graph,
)


@dataclass(frozen=True, kw_only=True)
class ProgramSample:
    """One slot in one program.

    Attributes:
        program: the name of the program.
        labels: of the n nodes.
        edges: int64 [e, 2], senders and receivers, for types of EDGE_TYPES; no reversed ones.
        slot: its node.
        candidates: their nodes.
        correct: the node of the right one.
        recent: the node of the one used last before the slot.
        line: where the slot is, from 1.
        column: where it is in the line, from 0.
    """

    program: str
    labels: Sequence[str]
    edges: Mapping[str, Array]
    slot: int
    candidates: Sequence[int]
    correct: int
    recent: int
    line: int
    column: int


def check_node(where: str, name: str, node: Any, num_nodes: int) -> int:
    """`node` of field `name`, which must be one of 0 to num_nodes - 1."""
    if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < num_nodes:
        raise BadSample(
            "a missing node",
            f"{where}, field '{name}': {str(node)[:40]} is none of the nodes 0 to {num_nodes - 1}",
        )
    return node


def collect(
    paths: Sequence[Path],
    program: Callable[[JsonSample], ProgramSample | None],
    *,
    source: str,
    skips: Skips,
    limit: int | None,
    progress: bool,
    more: Mapping[str, Any] | None = None,
) -> GraphTable:
    """The programs that `program` makes of the samples, as a table in memory.

    Args:
        paths: the files with the samples.
        program: raises BadSample for a bad sample; None leaves it out.
        source: where they come from, for the metadata.
        skips: counts what is left out.
        limit: stop after this number of programs.
        progress: show a progress bar.
        more: metadata that is ready when all is read.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; it must be 1 or more, or None for all samples")
    names: dict[str, int] = {}
    graphs: list[Graph] = []
    for sample in json_samples(paths, progress=progress):
        with skips.sample():
            found = program(sample)
            if found is not None:
                graphs.append(_graph(found, names.setdefault(found.program, len(names))))
        if len(graphs) == limit:
            break
    if not graphs:
        raise DataError(
            f"{', '.join(map(str, paths))}: no sample can be used: {dict(skips.counts)}"
        )
    metadata = {
        "kind": "programs",
        "edge_types": list(EDGE_NAMES),
        "files": list(names),
        "vocabulary": VOCABULARY,
        "order": "rcm",
        "skipped": dict(skips.counts),
        "source": source,
        "read": [path.name for path in paths],
        **(more or {}),
    }
    return table_from_graphs(graphs, PROGRAM_SCHEMA, metadata=metadata)


def _graph(sample: ProgramSample, file: int) -> Graph:
    edges = [
        np.column_stack([np.full(len(pairs), EDGE_TYPES.index(name)), pairs])
        for name, pairs in sample.edges.items()
    ]
    graph, _ = program_graph(
        np.array([label_buckets(label) for label in sample.labels], dtype=np.int32),
        np.concatenate([np.empty((0, 3), dtype=np.int64), *edges]),
        slot=sample.slot,
        candidates=sample.candidates,
        correct=sample.correct,
        recent=sample.recent,
        file=file,
        line=sample.line,
        column=sample.column,
    )
    return graph


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
        skips=Skips(skip_bad=skip_bad),
        limit=limit,
        progress=progress,
    )


def _program(sample: JsonSample) -> ProgramSample:
    content = sample.fields((_GRAPH, _SLOT, _CANDIDATES))
    where = sample.where
    graph = checked_fields(f"{where}, field '{_GRAPH}'", content[_GRAPH], ("Edges", "NodeLabels"))
    labels = _labels(where, graph["NodeLabels"])
    edges = _edges(where, graph["Edges"], len(labels))
    slot = check_node(where, _SLOT, content[_SLOT], len(labels))
    candidates, correct = _candidates(where, content[_CANDIDATES], len(labels))
    if slot in candidates:
        raise BadSample(
            "the slot is a candidate",
            f"{where}, field '{_CANDIDATES}': node {slot} is the slot itself",
        )
    name = content.get("filename", sample.file.name)
    if not isinstance(name, str):
        raise BadSample("wrong type", f"{where}, field 'filename': {name!r} is not text")
    return ProgramSample(
        program=name,
        labels=labels,
        edges=edges,
        slot=slot,
        candidates=candidates,
        correct=correct,
        recent=_recent(edges, slot, candidates),
        line=sample.number,
        column=0,
    )


def _labels(where: str, labels: Any) -> list[str]:
    field = f"{where}, field 'NodeLabels'"
    if not isinstance(labels, dict) or not labels:
        raise BadSample("wrong type", f"{field}: not an object with the label of every node")
    found = []
    for node in range(len(labels)):
        label = labels.get(str(node))
        if label is None:
            raise BadSample(
                "a node has no label",
                f"{field}: node {node} has none, but there are {len(labels)}: they must be those "
                f"of nodes 0 to {len(labels) - 1}",
            )
        if not isinstance(label, str):
            raise BadSample("wrong type", f"{field}: {label!r} of node {node} is not text")
        found.append(label)
    return found


def _edges(where: str, edges: Any, num_nodes: int) -> dict[str, Array]:
    if not isinstance(edges, dict):
        raise BadSample("wrong type", f"{where}, field 'Edges': not an object of types and pairs")
    found = {}
    for name, pairs in edges.items():
        field = f"{where}, field 'Edges', type '{name}'"
        if name not in EDGE_TYPES:
            raise BadSample(
                "an unknown type of edge",
                f"{field}: no such type; choose from {', '.join(EDGE_TYPES)}",
            )
        found[name] = _pairs(field, pairs, num_nodes)
    return found


def _pairs(field: str, pairs: Any, num_nodes: int) -> Array:
    """int64 [e, 2] of a list of pairs of nodes."""
    try:
        array = np.array(pairs)
    except ValueError:  # lists of different lengths
        array = np.array(None)
    if array.size == 0 and isinstance(pairs, list):
        return np.empty((0, 2), dtype=np.int64)
    if array.dtype.kind != "i" or array.ndim != 2 or array.shape[1] != 2:
        raise BadSample("wrong type", f"{field}: not a list of [source, target] node numbers")
    outside = ((array < 0) | (array >= num_nodes)).any(axis=1)
    if outside.any():
        raise BadSample(
            "an edge to a missing node",
            f"{field}: {array[outside][0].tolist()} leaves the nodes 0 to {num_nodes - 1}",
        )
    return array.astype(np.int64)


def _candidates(where: str, candidates: Any, num_nodes: int) -> tuple[list[int], int]:
    """The nodes of the candidates, and that of the right one."""
    field = f"{where}, field '{_CANDIDATES}'"
    if not isinstance(candidates, list):
        raise BadSample("wrong type", f"{field}: not a list")
    if not candidates:
        raise BadSample("no candidates", f"{field}: no candidates")
    nodes, right = [], []
    for candidate in candidates:
        about = checked_fields(field, candidate, ("SymbolDummyNode", "IsCorrect"))
        node = check_node(field, "SymbolDummyNode", about["SymbolDummyNode"], num_nodes)
        if not isinstance(about["IsCorrect"], bool):
            raise BadSample(
                "wrong type", f"{field}: IsCorrect of node {node} is neither true nor false"
            )
        nodes.append(node)
        right += [node] if about["IsCorrect"] else []
    if len(set(nodes)) < len(nodes):
        raise BadSample("a candidate twice", f"{field}: two candidates have one node in {nodes}")
    if len(nodes) == 1:
        raise BadSample("one candidate only", f"{field}: one candidate is nothing to choose from")
    if len(right) != 1:
        reason = "two right answers" if right else "no right answer"
        raise BadSample(
            reason, f"{field}: {len(right)} of {len(nodes)} candidates are right, there must be one"
        )
    return nodes, right[0]


def _recent(edges: Mapping[str, Array], slot: int, candidates: Sequence[int]) -> int:
    """The candidate that was used last before the slot; the first if none was."""
    uses = {use: node for node, use in _list(edges.get("LastLexicalUse")) if node in candidates}
    before = {after: node for node, after in _list(edges.get("NextToken"))}
    token: int | None = slot
    while token is not None and token not in uses:
        token = before.pop(token, None)  # taken out, so that a circle has an end
    if token is None:
        # Without a chain, tokens are in the order of their numbers.
        token = max((use for use in uses if use < slot), default=None)
    return candidates[0] if token is None else uses[token]


def _list(pairs: Array | None) -> list[list[int]]:
    return [] if pairs is None else pairs.tolist()
