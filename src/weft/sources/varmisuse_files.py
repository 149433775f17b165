"""Variable-misuse samples as Allamanis et al. (2018) publish them.

A file holds objects, one a line or all in one list, gzip'd or not:

    {"filename": text (optional),
     "ContextGraph": {"Edges": {type: [[source, target], ...]}, "NodeLabels": {"0": text, ...}},
     "SlotDummyNode": node,
     "SymbolCandidates": [{"SymbolDummyNode": node, "IsCorrect": true or false}, ...]}

Nodes are numbered from 0 and every one has a label. The types of edges are EDGE_TYPES; a type that
is not there has no edges. The edges that each candidate would have in the slot's place are among
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.graphs import Array, GraphTable
from weft.sources.json_samples import BadSample, Sample, Skips, checked_fields
from weft.sources.program_graph import EDGE_TYPES
from weft.sources.program_samples import ProgramSample, check_node, collect

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
        limit: stop after so many samples.
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


def _program(sample: Sample) -> ProgramSample:
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
        # The tokens are numbered in their order, where no chain tells it.
        token = max((use for use in uses if use < slot), default=None)
    return candidates[0] if token is None else uses[token]


def _list(pairs: Array | None) -> list[list[int]]:
    return [] if pairs is None else pairs.tolist()
