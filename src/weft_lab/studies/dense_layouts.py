"""Orders of nodes, supergraphs and forms of the adjacency, as the study of dense hardware asks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from weft.graphs import Array, Graph, GraphTable, assemble, table_from_columns, table_from_graphs
from weft.layout import (
    ORDERS,
    AnyAdjacency,
    LayoutConfig,
    adjacency_of,
    band_statistics,
    measured_choice,
    reorder,
)
from weft.layout.csr import TYPE
from weft.layout.layout_choice import estimates
from weft.recipes.programs.supergraphs import packed_sampler
from weft.sources.program_graph import text_order
from weft_lab.study_settings import DenseHardwareStudy
from weft_lab.timing import crossover, median_ratio, time_by_turns

# Seconds of a turn: many calls of what takes less than a hiccup of the machine.
_TURN = 0.01

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
    try:
        ordered, seconds = _in_order(table, name, seed)
    except ImportError as error:
        return OrderFigures(
            order=name, skipped=str(error), percentiles={}, histogram=[], at_least={}
        )
    found = band_statistics(ordered)
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


def _in_order(table: GraphTable, name: str, seed: int = 0) -> tuple[GraphTable, float]:
    """The edges alone, with the nodes of all graphs in this order; the seconds that it took."""
    began = time.perf_counter()
    joined = partial(table_from_columns, {}, num_nodes=table.num_nodes, num_edges=table.num_edges)
    ends = {end: table.columns[end] for end in ("senders", "receivers")}
    bare = joined(columns=ends)
    if name in ORDERS:
        found = reorder(bare, name)
    else:
        # int64 [N], the node, over all graphs, at each place of the order.
        keys = np.random.default_rng(seed).random(table.total_nodes)
        graph = np.repeat(np.arange(len(table)), table.num_nodes)
        taken = np.lexsort((keys, graph)) if name == "random" else text_order(table)
        place = np.empty_like(taken)
        place[taken] = np.arange(len(taken))
        base = np.repeat(table.node_offsets[:-1], table.num_edges)
        moved = {end: place[nodes + base] - base for end, nodes in ends.items()}
        found = joined(columns=moved)
    seconds = time.perf_counter() - began
    # An order found from another one breaks ties otherwise: what the table has is what is used.
    return (bare if table.metadata.get("order") == name else found), seconds


def spy(table: GraphTable) -> Spy:
    """The edges of a graph that is larger than nine of ten others, before and after."""
    sizes = table.num_nodes
    number = int(np.argsort(sizes, kind="stable")[int(0.9 * (len(sizes) - 1))])
    one = table.select(np.array([number]))
    edges, bandwidths = {}, {}
    for name in ("text", "rcm"):
        ordered, _ = _in_order(one, name)
        found = band_statistics(ordered)
        bandwidths[name], least = int(found.bandwidth[0]), int(found.least[0])
        pairs = [ordered.columns[end] for end in ("receivers", "senders")]
        edges[name] = np.unique(np.stack(pairs), axis=1).tolist()
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


@dataclass(frozen=True, kw_only=True)
class SupergraphCount:
    """Supergraphs of the graphs whose edges all fall into the blocks.

    Attributes:
        block: S.
        nodes: N, a multiple of S.
        share: graphs with a bandwidth of at most S, and fewer than N nodes, among all.
        graphs: real graphs in a supergraph, mean.
        node_fill: real nodes among all.
        cell_fill: edges among the cells of the blocks, over all types.
        megabytes: of the blocks of a supergraph, a byte a cell.
        products: multiply-adds of a round of messages and its GRU, in millions a graph.
    """

    block: int
    nodes: int
    share: float
    graphs: float
    node_fill: float
    cell_fill: float
    megabytes: float
    products: float


def count_supergraphs(
    table: GraphTable, bandwidth: Array, block: int, nodes: int, num_types: int, hidden: int
) -> SupergraphCount | None:
    """What one epoch of supergraphs of programs looks like; None if no graph fits.

    Args:
        table: the programs.
        bandwidth: int [g], of each graph.
        block: S.
        nodes: N, rounded up to a multiple of S.
        num_types: P.
        hidden: H.
    """
    nodes = -(-nodes // block) * block
    fitting = np.flatnonzero((bandwidth <= block) & (table.num_nodes < nodes))
    if not len(fitting):
        return None
    found = packed_sampler(table, fitting, nodes).statistics()
    blocks = nodes // block
    cells = (3 * blocks - 2) * block**2 * num_types
    edges = float(table.num_edges[fitting].sum()) / found.batches
    products = cells * hidden + nodes * (num_types + 6) * hidden**2
    return SupergraphCount(
        block=block,
        nodes=nodes,
        share=len(fitting) / len(table),
        graphs=found.graphs_per_batch,
        node_fill=found.node_fill,
        cell_fill=edges / cells,
        megabytes=cells / 1e6,
        products=products / found.graphs_per_batch / 1e6,
    )


@dataclass(kw_only=True)
class FormCell:
    """A graph, and what its forms take: seconds of one round of messages, forward and backward.

    Attributes:
        types: P.
        block: S; no edge joins nodes further apart.
        density: edges of each type among the places |i - j| <= S.
        edges: of all types.
        estimated: seconds by the cost model, by form: csr, banded with blocks of S.
        measured: seconds of the fastest call of each turn, by form; `auto` is the form that was
            chosen.
        chosen: what `auto` chose, such as "banded 32".
        skipped: why it was not measured; empty if it was.
    """

    types: int
    block: int
    density: float
    edges: int = 0
    estimated: dict[str, float] = field(default_factory=dict)
    measured: dict[str, list[float]] = field(default_factory=dict)
    chosen: str = ""
    skipped: str = ""

    def seconds(self, form: str) -> float:
        """Median of the turns."""
        return statistics.median(self.measured[form])

    @property
    def behind(self) -> float:
        """How much longer what `auto` chose takes than the better of csr and banded; 0 for the one.

        The median over the turns: both had theirs one after the other.
        """
        better = min(("csr", "banded"), key=self.seconds)
        if self.chosen == _name(better, self.block):
            return 0.0
        return median_ratio(self.measured["auto"], self.measured[better]) - 1


def _name(form: str, block: int | None) -> str:
    return form if form == "csr" else f"{form} {block}"


def banded_graph(nodes: int, types: int, block: int, density: float, *, seed: int = 0) -> Graph:
    """A graph with each of the possible edges |i - j| <= block of each type at this chance."""
    rng = np.random.default_rng(seed)
    reach = min(block, nodes - 1)
    receivers, offsets, kinds = np.nonzero(rng.random((nodes, 2 * reach + 1, types)) < density)
    senders = receivers + offsets - reach
    inside = (senders >= 0) & (senders < nodes)
    return Graph(
        num_nodes=nodes,
        senders=senders[inside],
        receivers=receivers[inside],
        edges={TYPE: kinds[inside].astype(np.int16)},
    )


def time_forms(cell: FormCell, study: DenseHardwareStudy) -> None:
    """Let csr, banded and what `auto` chooses take turns; `cell` is filled."""
    nodes, hidden, max_edges = study.form_nodes, study.hidden, study.max_edges
    expected = cell.density * nodes * (2 * cell.block + 1) * cell.types
    if expected > max_edges:
        cell.skipped = f"about {expected:,.0f} edges, max_edges is {max_edges:,}"
        return
    graph = banded_graph(nodes, cell.types, cell.block, cell.density, seed=study.seed)
    cell.edges = graph.num_edges
    batch = assemble(table_from_graphs([graph]), [0])
    fixed = {
        "csr": LayoutConfig(form="csr", hidden=hidden),
        "banded": LayoutConfig(form="banded", block=cell.block, hidden=hidden),
    }
    for form, config in fixed.items():
        found = [f for f in estimates(batch, cell.types, config) if f.form == form]
        cell.estimated[form] = found[0].estimated
        if found[0].reason:
            cell.skipped = f"{form}: {found[0].reason}"
            return
    choice = measured_choice(batch, cell.types, LayoutConfig(hidden=hidden)).config
    cell.chosen = _name(choice.form, choice.block)
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(batch.num_nodes, hidden, generator=generator).requires_grad_()
    weight = torch.randn(cell.types, hidden, hidden, generator=generator).requires_grad_()
    bias = torch.zeros(cell.types, hidden, requires_grad=True)
    gradient = torch.randn(batch.num_nodes, hidden, generator=generator)

    def call(adjacency: AnyAdjacency) -> Callable[[], object]:
        return lambda: torch.autograd.grad(
            adjacency.propagate(h, weight, bias), (h, weight, bias), gradient
        )

    calls = {
        form: call(adjacency_of(batch, cell.types, config))
        for form, config in {**fixed, "auto": choice}.items()
    }
    cell.measured = time_by_turns(calls, study.rounds, turn=_TURN)


def banded_from(cells: Sequence[FormCell], *, estimated: bool = False) -> float | str:
    """The density from which on banded is faster than csr, see `crossover`.

    Args:
        cells: of one number of types and one block, that were measured.
        estimated: by the cost model, not by the clock.
    """
    ranked = sorted(cells, key=lambda cell: cell.density)
    seconds = [
        [cell.estimated[form] if estimated else cell.seconds(form) for cell in ranked]
        for form in ("csr", "banded")
    ]
    ratios = [csr / banded for csr, banded in zip(*seconds, strict=True)]
    return crossover([cell.density for cell in ranked], ratios)
