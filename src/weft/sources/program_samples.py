"""Program graphs that a file describes sample by sample, on their way into one program table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable, table_from_graphs
from weft.sources.json_samples import BadSample, Sample, Skips, json_samples
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
    program: Callable[[Sample], ProgramSample | None],
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
        limit: stop after so many programs.
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
