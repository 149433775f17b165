"""How far orders of nodes bring the edges of programs to the diagonal."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from weft.graphs import Array, GraphTable, table_from_columns
from weft.layout import ORDERS, BandStatistics, band_statistics
from weft.sources.program_graph import text_order

STUDIED_ORDERS = ("random", "text", "degree", "metis", "rcm")
"""`text`: tokens as they come, then the syntax tree, then candidates, as a parser numbers them."""

BINS = (0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Bandwidths at which bars of the histogram begin; the last has no end."""

_PERCENTS = (50, 83, 92, 99, 100)


@dataclass(frozen=True, kw_only=True)
class OrderFigures:
    """All graphs in one order of their nodes.

    Attributes:
        order: its name.
        skipped: why it was not measured; empty if it was.
        graphs: how many.
        percentiles: of the bandwidth, by percent of the graphs.
        histogram: graphs by bandwidth, from each of BINS to below the next.
        mean_profile: mean of Σ over nodes of the distance to the first neighbour before it.
        fill: distinct edges over the places |i - j| <= bandwidth, of all graphs together.
        at_least: percentiles of what no order can go below, because of hubs.
        seconds: to find the order of all graphs.
    """

    order: str
    skipped: str = ""
    graphs: int = 0
    percentiles: dict[str, float]
    histogram: list[int]
    mean_profile: float = 0.0
    fill: float = 0.0
    at_least: dict[str, float]
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Spy:
    """The edges of one graph before and after.

    Attributes:
        where: file and line.
        nodes: how many.
        before: receivers and senders in the order of the text.
        after: the same in reverse Cuthill-McKee order.
        bandwidth_before: in the order of the text.
        bandwidth_after: in reverse Cuthill-McKee order.
        least: what no order can go below.
    """

    where: str
    nodes: int
    before: list[list[int]]
    after: list[list[int]]
    bandwidth_before: int
    bandwidth_after: int
    least: int


def order_figures(table: GraphTable, name: str, *, seed: int = 0) -> OrderFigures:
    """Bandwidths of all graphs of a table of programs with their nodes in this order."""
    began = time.perf_counter()
    try:
        taken = _taken(table, name, seed)
    except ImportError as error:
        return OrderFigures(
            order=name, skipped=str(error), percentiles={}, histogram=[], at_least={}
        )
    seconds = time.perf_counter() - began
    found = _statistics(table, _stored(table, name, taken))
    counts = np.bincount(
        np.searchsorted(BINS, found.bandwidth, side="right") - 1, minlength=len(BINS)
    )
    # A graph without edges has no entries either.
    places = found.entries / np.where(found.fill > 0, found.fill, 1.0)
    return OrderFigures(
        order=name,
        graphs=len(table),
        percentiles=_percentiles(found.bandwidth),
        histogram=counts.tolist(),
        mean_profile=float(found.profile.mean()),
        fill=float(found.entries.sum() / max(places.sum(), 1.0)),
        at_least=_percentiles(found.least),
        seconds=seconds,
    )


def _percentiles(values: Array) -> dict[str, float]:
    # Of graphs, so one that exists: half of a bandwidth keeps no edge.
    found = np.percentile(values, _PERCENTS, method="inverted_cdf")
    return {str(percent): float(value) for percent, value in zip(_PERCENTS, found, strict=True)}


def _taken(table: GraphTable, name: str, seed: int) -> Array:
    """int64 [N], the node, over all graphs, at each place of the order."""
    graph = np.repeat(np.arange(len(table)), table.num_nodes)
    if name == "random":
        keys = np.random.default_rng(seed).random(table.total_nodes)
        found: Array = np.lexsort((keys, graph))
        return found
    if name == "text":
        return text_order(table)
    senders, receivers = table.columns["senders"], table.columns["receivers"]
    nodes, edges = table.node_offsets.tolist(), table.edge_offsets.tolist()
    taken = np.empty(table.total_nodes, dtype=np.int64)
    for i in range(len(table)):
        own = slice(edges[i], edges[i + 1])
        count = nodes[i + 1] - nodes[i]
        order = ORDERS[name](count, senders[own], receivers[own])
        taken[nodes[i] : nodes[i + 1]] = nodes[i] + order
    return taken


def _stored(table: GraphTable, name: str, taken: Array) -> Array:
    # An order found from another one breaks ties otherwise: what the table has is what is used.
    return np.arange(table.total_nodes) if table.metadata.get("order") == name else taken


def _placed(table: GraphTable, taken: Array) -> tuple[Array, Array]:
    """Senders and receivers, local to their graphs, with nodes in the order `taken`."""
    place = np.empty_like(taken)
    place[taken] = np.arange(len(taken))
    base = np.repeat(table.node_offsets[:-1], table.num_edges)
    return (
        place[table.columns["senders"] + base] - base,
        place[table.columns["receivers"] + base] - base,
    )


def _statistics(table: GraphTable, taken: Array) -> BandStatistics:
    senders, receivers = _placed(table, taken)
    bare = table_from_columns(
        {},
        num_nodes=table.num_nodes,
        num_edges=table.num_edges,
        columns={"senders": senders, "receivers": receivers},
    )
    return band_statistics(bare)


def spy(table: GraphTable) -> Spy:
    """The edges of a graph that is larger than nine of ten others, before and after."""
    sizes = table.num_nodes
    number = int(np.argsort(sizes, kind="stable")[int(0.9 * (len(sizes) - 1))])
    one = table.select(np.array([number]))
    edges, bandwidths = {}, {}
    for name in ("text", "rcm"):
        taken = _stored(one, name, _taken(one, name, 0))
        statistics = _statistics(one, taken)
        bandwidths[name], least = int(statistics.bandwidth[0]), int(statistics.least[0])
        senders, receivers = _placed(one, taken)
        pairs = np.unique(np.stack([receivers, senders]), axis=1)
        edges[name] = pairs.tolist()
    files = table.metadata.get("files", ())
    file, line = int(one.column("file")[0]), int(one.column("line")[0])
    return Spy(
        where=f"{files[file]}, line {line}" if file < len(files) else f"graph {number}",
        nodes=int(sizes[number]),
        before=edges["text"],
        after=edges["rcm"],
        bandwidth_before=bandwidths["text"],
        bandwidth_after=bandwidths["rcm"],
        least=least,
    )
