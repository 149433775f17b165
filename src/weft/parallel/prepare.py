"""From any graph to the table that ranks read: partitioned, normalised, sorted.

Edges are counted and scattered as int32, once by sender and once by receiver: beside the graph and
the result there is room for one more array as long as the edges (two, if they have weights).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.counting_sort import group_starts
from weft.errors import DataError
from weft.graphs import Array, Column, Graph, GraphTable, write_table
from weft.graphs.checksums import checksum, edges_checksum
from weft.parallel.balance import imbalance, panel_nonzeros
from weft.parallel.grid import Grid
from weft.parallel.labels import TargetKind, as_target, is_known, target_scale, width_of
from weft.parallel.method import PARTITIONS
from weft.parallel.partition import Partition, partition_nodes
from weft.parallel.shard import KIND, fingerprint_of
from weft.parallel.shard_loops import (
    count_cut,
    equals_transpose,
    gather,
    group_by_sender,
    order_by_sender,
    scale_weights,
    sort_by_receiver,
    sum_rows,
)
from weft.parallel.splits import PARTS, check_apart, one_graph

NORMALISATIONS = ("symmetric", "row", "none")
"""symmetric: D^-1/2 (A + I) D^-1/2 as in a GCN, row: D^-1 A, a mean, none: weights as given."""

NAMES = {"names": "names of the nodes in the original order", "classes": "names of the classes"}
"""Ragged columns that a prepared table keeps."""

_CHUNK = 2**24
ROWS_HASHED = 64
"""Rows of features in the hash `original`."""


def prepare(
    source: Graph | GraphTable,
    folder: str | Path | None = None,
    *,
    blocks: int,
    partition: str = "contiguous",
    normalisation: str = "symmetric",
    dtype: str = "float32",
    target: str = "auto",
    seed: int = 0,
    grid: Grid | None = None,
    progress: Callable[[str], None] | None = None,
) -> GraphTable:
    """The table of one graph that ranks train on in full, each on its blocks.

    Columns of nodes, in the partition's order: `x` float32 or float64 [n, f]; `y` int64 [n], -1
    for none, or the labels or numbers [n, t] of `as_target`; `train`, `validation`, `test` bool
    [n]; `id` int64 [n], the node's number in `source`. A graph with `x` alone, to apply a trained
    network to, gets classes of -1 and empty masks. Of edges: `weight` [e], normalised; and where
    the matrix is not its own transpose `out_receivers` and `out_weight`, the same edges in order
    of sender.

    Metadata: `kind`, `normalisation`, `classes`; where labels or numbers are learned `target` and
    `target_scale`, the mean and standard deviation of numbers over the training nodes; `counts` of
    the split; `symmetric_values`, whether the matrix equals its transpose (of repeated edges with
    different weights, that they come in the same order both ways); `original`, a hash of the
    source's nodes and degrees, the same for any partition; `contents`, checksums of all its
    `features`, `edges`, `weights`, `labels` and `split`, by which a resumed run recognises its
    data; `fingerprint`; and `partition`: `how`, `blocks`, `offsets`, `seed`, `cut_edges` between
    blocks, `imbalance_nodes`, the largest block over the mean one, and `imbalance_edges`, the most
    nonzeros of a rank of the grid over the mean.

    Args:
        source: a graph with these columns (edge column `weight` if it has weights), or a table
            with one such graph.
        folder: a new folder for the table, which is then mapped; None keeps it in memory.
        blocks: of nodes, for as many as the grid has.
        partition: one of PARTITIONS.
        normalisation: one of NORMALISATIONS; `symmetric` adds self-loops where there are none.
        dtype: of the normalised weights, float32 or float64.
        target: what `y` is, see `weft.parallel.labels.as_target`.
        seed: of the partition.
        grid: that the ranks will have, which has so many blocks; by default 1d. Any other with as
            many blocks works, with less even ranks.
        progress: called with the name of each stage as it begins.

    Raises:
        DataError: a column is missing or wrong, a feature or weight is not finite.
        ValueError: more blocks than nodes, a grid with another number, or an unknown option.
    """
    grid = grid or Grid(rows=max(1, blocks))
    if grid.blocks != max(1, blocks):
        raise ValueError(f"blocks is {blocks}; the grid {grid.shape} has {grid.blocks}")
    tell = progress or (lambda stage: None)
    for what, value, legal in (
        ("partition", partition, PARTITIONS),
        ("normalisation", normalisation, NORMALISATIONS),
        ("dtype", dtype, ("float32", "float64")),
    ):
        if value not in legal:
            raise ValueError(f"{what} is {value!r}; choose from {', '.join(legal)}")
    if folder is not None and Path(folder).exists():
        raise DataError(f"{folder} exists already; remove it first or choose another name")
    tell("checking the graph")
    kind, graph = checked_graph(one_graph(source), target)
    tell(f"partition: {partition}, {blocks} blocks")
    parts = partition_nodes(graph, blocks, partition, seed, grid)
    tell("sorting edges")
    edges = sort_edges(graph, parts.order, loops=normalisation == "symmetric")
    tell(f"normalisation: {normalisation}")
    edges = replace(edges, weights=normalised_weights(edges, normalisation, dtype, parts.order))
    tell("comparing with the transpose")
    ends = edges.senders, edges.receivers
    symmetric = equals_transpose(*ends, edges.weights, edges.out_order)
    table = described_table(graph, parts.order, edges, symmetric)
    sizes = np.diff(parts.offsets)
    block = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    cut = int(count_cut(edges.in_starts, edges.senders, block))
    panels = panel_nonzeros(grid, block, *ends)
    settings = {"how": partition, "blocks": blocks, "seed": seed}
    table = replace(
        table,
        metadata={
            **about(table.columns, parts, settings, kind, cut, panels),
            "normalisation": normalisation,
            "symmetric_values": symmetric,
            "original": original(
                graph.nodes,
                parts.order,
                (edges.in_starts, edges.out_starts),
                graph.nodes["x"].shape,
                normalisation,
            ),
            "contents": contents(graph),
        },
    )
    tell("checksums")
    metadata = {**table.metadata, "fingerprint": fingerprint_of(table)}
    table = replace(table, metadata=metadata).known_right()
    if folder is None:
        return table
    tell(f"writing {folder}")
    return write_table(folder, [table], table.schema, metadata=table.metadata)


def checked_graph(graph: Graph, target: str) -> tuple[TargetKind, Graph]:
    """The target's kind, and the graph with the columns that are used, each in its final dtype.

    They are copied only if needed.
    """
    graph.validate()
    if not any(name in graph.nodes for name in ("y", *PARTS)):
        none = {part: np.zeros(graph.num_nodes, dtype=np.bool_) for part in PARTS}
        graph = replace(graph, nodes={**graph.nodes, "y": np.full(graph.num_nodes, -1), **none})
    for name in ("x", "y", *PARTS):
        if name not in graph.nodes:
            remedy = (
                "; make a split with weft.parallel.with_split, class_split or share_split"
                if name in PARTS
                else ""
            )
            raise DataError(
                f"the graph has no node column '{name}'; it has "
                f"{', '.join(graph.nodes) or 'none'}{remedy}"
            )
    x = graph.nodes["x"]
    kind, y = as_target(graph.nodes["y"], target)
    _check_kind("node column 'x'", x, 2, "fiub", "numbers [n, f] are needed")
    for name in PARTS:
        mask = graph.nodes[name]
        _check_kind(f"node column '{name}'", mask, 1, "b", "a mask, bool [n], is needed")
        bad = mask & ~is_known(y)
        if bad.any():
            raise DataError(
                f"node {int(np.argmax(bad))} is in '{name}' but has no class (y = "
                f"{graph.nodes['y'][np.argmax(bad)]}); take it out of the mask"
            )
    check_apart({name: graph.nodes[name] for name in PARTS})
    x = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    check_finite("node column 'x'", x)
    edges = {}
    if "weight" in graph.edges:
        weight = graph.edges["weight"]
        _check_kind("edge column 'weight'", weight, 1, "fiu", "one number for each edge is needed")
        if weight.dtype not in (np.float32, np.float64):
            weight = weight.astype(np.float64)
        check_finite("edge column 'weight'", weight)
        edges = {"weight": weight}
    ends = {}
    for name in ("senders", "receivers"):
        values = getattr(graph, name)
        # Two dtypes are enough to compile for.
        ends[name] = values if values.dtype in (np.int32, np.int64) else values.astype(np.int64)
    nodes = {"x": x, "y": y, **{p: graph.nodes[p] for p in PARTS}}
    # What nodes and classes are called is kept for predictions.
    ragged = {name: text for name, text in graph.ragged.items() if name in NAMES}
    return kind, Graph(num_nodes=graph.num_nodes, **ends, nodes=nodes, edges=edges, ragged=ragged)


def _check_kind(what: str, values: Array, ndim: int, kinds: str, needed: str) -> None:
    """Raise DataError unless an array has `ndim` dimensions and a dtype of one of the kinds."""
    if values.ndim != ndim or values.dtype.kind not in kinds:
        raise DataError(f"{what} is {values.dtype}{list(values.shape)}; {needed}")


def described_table(graph: Graph, order: Array, edges: SortedEdges, symmetric: bool) -> GraphTable:
    """The table, in memory and without metadata."""
    index, x, y = edges.senders.dtype, graph.nodes["x"], graph.nodes["y"]
    learned = "class, -1 for none" if y.ndim == 1 else "labels or numbers, nan for unknown"
    in_place = bool((order == np.arange(len(order))).all())
    columns = {
        "senders": edges.senders,
        "receivers": edges.receivers,
        "out_order": edges.out_order,
        "in_start": edges.in_starts[:-1].astype(index),
        "out_start": edges.out_starts[:-1].astype(index),
        "weight": edges.weights,
        **{name: values if in_place else values[order] for name, values in graph.nodes.items()},
        "id": order.astype(np.int64, copy=False),
        **graph.ragged,
    }
    schema = {
        "x": Column(level="node", dtype=x.dtype.name, shape=x.shape[1:], doc="features"),
        "y": Column(level="node", dtype=y.dtype.name, shape=y.shape[1:], doc=learned),
        **{name: Column(level="node", dtype="bool") for name in PARTS},
        "id": Column(level="node", dtype="int64", doc="number of the node in the original graph"),
        "weight": Column(
            level="edge", dtype=edges.weights.dtype.name, doc="entry of the normalised matrix"
        ),
        **{
            name: Column(level="ragged", dtype="uint8", doc=f"{NAMES[name]}, UTF-8 lines")
            for name in graph.ragged
        },
    }
    if not symmetric:
        for name, values in (("out_receivers", edges.receivers), ("out_weight", edges.weights)):
            columns[name] = np.empty_like(values)
            gather(values, edges.out_order, columns[name])
            doc = f"{name.removeprefix('out_')} in order of sender"
            schema[name] = Column(level="edge", dtype=values.dtype.name, doc=doc)
    return GraphTable(
        schema=schema,
        columns=columns,
        node_offsets=np.array([0, graph.num_nodes], dtype=np.int64),
        edge_offsets=np.array([0, len(edges.senders)], dtype=np.int64),
        ragged_offsets={
            name: np.array([0, len(text)], dtype=np.int64) for name, text in graph.ragged.items()
        },
    )


def about(
    nodes: Mapping[str, Array],
    parts: Partition,
    settings: dict[str, Any],
    kind: TargetKind,
    cut: int,
    panels: Array,
) -> dict[str, Any]:
    """Metadata: the partition and how good it is, the target, sizes of the split.

    Args:
        nodes: columns in the partition's order.
        parts: the partition.
        settings: how it was made.
        kind: of the target.
        cut: edges between blocks.
        panels: nonzeros of the ranks.
    """
    sizes, y = np.diff(parts.offsets), nodes["y"]
    # Tables of classes stay as they were: runs know their data by what this says.
    scale = target_scale(kind, y, nodes["train"])
    learned = {} if kind == "classes" else {"target": kind, "target_scale": scale}
    return {
        "kind": KIND,
        "partition": {
            **settings,
            "offsets": parts.offsets.tolist(),
            "cut_edges": cut,
            "imbalance_nodes": imbalance(sizes),
            "imbalance_edges": imbalance(panels),
        },
        "classes": width_of(y),
        **learned,
        "counts": {name: int(np.count_nonzero(nodes[name])) for name in PARTS},
    }


def contents(graph: Graph) -> dict[str, str]:
    """Checksums of all that is learned from, the same for any partition and order of the edges."""
    ends, nodes = (graph.senders, graph.receivers), graph.nodes
    weights = graph.edges.get("weight")
    return {
        "features": checksum(nodes["x"]),
        "edges": edges_checksum(*ends),
        "weights": "none" if weights is None else edges_checksum(*ends, weights),
        "labels": checksum(nodes["y"]),
        "split": checksum(np.stack([nodes[part] for part in PARTS])),
    }


def original(
    nodes: Mapping[str, Array],
    order: Array,
    starts: tuple[Array, Array],
    shape: tuple[int, ...],
    normalisation: str,
) -> str:
    """A hash of classes, split, degrees and some rows of features, nodes in the graph's order.

    Args:
        nodes: columns in the graph's order; of `x` the first rows are enough.
        order: int64 [n], the node at each place.
        starts: int64 [n + 1], where the edges of each receiver begin, and of each sender.
        shape: of `x`.
        normalisation: of the matrix.
    """
    x, digest = nodes["x"], hashlib.sha256()
    parts = [*(nodes[name] for name in ("y", *PARTS)), x[:ROWS_HASHED]]
    for each in starts:
        degrees = np.empty(len(order), dtype=np.int64)
        degrees[order] = np.diff(each)
        parts.append(degrees)
    for part in parts:
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    sizes = [len(order), int(starts[0][-1]), list(shape), x.dtype.name, normalisation]
    digest.update(json.dumps(sizes).encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, eq=False)
class SortedEdges:
    """Edges sorted by (receiver, sender), nodes by their place.

    Attributes:
        senders: int [e].
        receivers: int [e].
        in_starts: int64 [n + 1], where the edges of each receiver begin.
        out_starts: int64 [n + 1], where the edges of each sender begin in `out_order`.
        out_order: int [e], the edges in order of sender.
        weights: [e], or [0] where all weights are 1.
    """

    senders: Array
    receivers: Array
    in_starts: Array
    out_starts: Array
    out_order: Array
    weights: Array


def sort_edges(graph: Graph, order: Array, *, loops: bool) -> SortedEdges:
    """The edges between the nodes' places, with the weights that the graph has.

    Args:
        graph: its ends int32 or int64, its edge column `weight`, if any, float32 or float64.
        order: int64 [n], the node at each place.
        loops: add a self-loop of weight 1 to nodes that have none.
    """
    num_nodes = graph.num_nodes
    given = graph.edges.get("weight", np.empty(0, dtype=np.float32))
    missing = np.zeros(num_nodes, dtype=np.bool_)
    if loops:
        missing[:] = True
        for first in range(0, graph.num_edges, _CHUNK):
            part = slice(first, first + _CHUNK)
            missing[graph.senders[part][graph.senders[part] == graph.receivers[part]]] = False
    total = graph.num_edges + int(np.count_nonzero(missing))
    index = np.dtype(np.int32 if max(num_nodes, total) < 2**31 else np.int64)
    place = np.empty(num_nodes, dtype=index)
    place[order] = np.arange(num_nodes, dtype=index)
    new_loops = np.flatnonzero(missing[order])

    def starts_of(ends: Array) -> Array:
        degrees = np.diff(group_starts(ends, num_nodes)) + missing
        starts = np.zeros(num_nodes + 1, dtype=np.int64)
        np.cumsum(degrees[order], out=starts[1:])
        return starts

    in_starts, out_starts = starts_of(graph.receivers), starts_of(graph.senders)
    to = np.empty(total, dtype=index)
    weighted = total if "weight" in graph.edges else 0
    grouped = np.empty(weighted, dtype=given.dtype)
    ends = graph.senders, graph.receivers
    group_by_sender(*ends, given, place, new_loops, out_starts.copy(), to, grouped)
    senders = np.empty(total, dtype=index)
    weights = np.empty(weighted, dtype=given.dtype)
    sort_by_receiver(out_starts, to, grouped, in_starts.copy(), senders, weights)
    # The next array of this size reuses its memory.
    out_order = to
    order_by_sender(senders, out_starts.copy(), out_order)
    return SortedEdges(
        senders=senders,
        receivers=np.repeat(np.arange(num_nodes, dtype=index), np.diff(in_starts)),
        in_starts=in_starts,
        out_starts=out_starts,
        out_order=out_order,
        weights=weights,
    )


def normalised_weights(
    edges: SortedEdges, normalisation: str, dtype: str, order: Array | None = None
) -> Array:
    """Weights [e] of `dtype`, see `weft.graphs.gcn_weights` and `row_weights`.

    `order`, the node at each place, is for the message about one whose weights sum to less than 0.
    """
    num_nodes = len(edges.in_starts) - 1
    sums = np.diff(edges.in_starts).astype(np.float64)
    if edges.weights.size:
        sum_rows(edges.in_starts, edges.weights, sums)
    rows = columns = np.ones(num_nodes)
    if normalisation == "symmetric":
        if (sums < 0).any():
            place = int(np.argmax(sums < 0))
            node = place if order is None else int(order[place])
            raise DataError(
                f"the weights that enter node {node} sum to {sums[place]:g}; a symmetric "
                "normalisation needs sums of 0 or more: use 'row' or 'none'"
            )
        rows = columns = _inverse(np.sqrt(sums))
    elif normalisation == "row":
        rows = _inverse(sums)
    out = np.empty(len(edges.senders), dtype=dtype)
    scale_weights(edges.in_starts, edges.senders, edges.weights, rows, columns, out)
    check_finite("the normalised edge column 'weight'", out)
    return out


def _inverse(values: Array) -> Array:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)


def check_finite(what: str, values: Array) -> None:
    """Raise DataError, naming `what` and the row, unless all values [n, ...] are finite."""
    step = max(1, _CHUNK // max(1, int(np.prod(values.shape[1:]))))
    for first in range(0, len(values), step):
        finite = np.isfinite(values[first : first + step])
        if not finite.all():
            row = int(np.argwhere(~finite)[0][0])
            bad = np.ravel(values[first + row])[~np.ravel(finite[row])][0]
            raise DataError(f"{what} is {bad} in row {first + row}; correct or remove it")
