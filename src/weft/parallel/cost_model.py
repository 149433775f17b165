"""What an epoch costs on a grid of ranks: seconds, bytes and memory, without any process.

A message of m bytes between ranks takes α + m β seconds. A collective of g ranks waits for lg g
messages (an all_reduce for 2 lg g; an all_to_all or a reduce_scatter for g - 1) and moves the bytes
that the rank receives. Products take the time that follows from the machine's rates. Nodes and
edges are assumed to be spread evenly, unless those of each rank have been counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from weft.errors import DataError
from weft.files import read_object, write_atomically
from weft.parallel.grid import Grid, balanced
from weft.parallel.method import PUBLISHED, LayerPlan, Method, Model, plan_layers
from weft.parallel.recorder import Along, Event
from weft.parallel.traffic_formulas import (
    Direction,
    Sizes,
    exchange_rounds,
    predicted_events,
    published_latency,
    published_words,
)


def _check_positive(value: object, *names: str) -> None:
    for name in names:
        number = getattr(value, name)
        if not (isinstance(number, int | float) and 0 < number < math.inf):
            raise ValueError(f"{name} is {number}; it must be a positive number")


@dataclass(frozen=True, kw_only=True)
class Link:
    """The connection between two ranks.

    Attributes:
        alpha: latency of a message, s.
        beta: inverse bandwidth, s/byte.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        _check_positive(self, "alpha", "beta")


NETWORKS: Mapping[str, Link] = {
    "ethernet-10": Link(alpha=30e-6, beta=1 / 1.1e9),
    "infiniband-100": Link(alpha=2e-6, beta=1 / 11e9),
}
"""Usual figures of two networks: 10 Gb/s Ethernet with TCP, 100 Gb/s InfiniBand."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the ranks run on.

    Attributes:
        name: where the figures come from.
        link: between any two ranks.
        links: between ranks along a dimension of the grid, where that differs: `layer` inside a
            host, say, and the others between hosts.
        flops: floating-point operations of a matrix product on one rank, 1/s.
        spmm_bytes: bytes that a sparse product of one rank reads and writes, 1/s.
    """

    name: str
    link: Link
    links: Mapping[str, Link] = field(default_factory=dict)
    flops: float = 1e12
    spmm_bytes: float = 5e10

    def __post_init__(self) -> None:
        _check_positive(self, "flops", "spmm_bytes")
        for name in self.links:
            if name not in get_args(Along):
                raise ValueError(
                    f"links has '{name}'; a dimension is one of {', '.join(get_args(Along))}"
                )

    def along(self, dimension: str) -> Link:
        """The link along a dimension of the grid."""
        return self.links.get(dimension, self.link)


def save_machine(machine: Machine, path: Path) -> None:
    """Write a machine as JSON, whole or not at all."""
    text = json.dumps(asdict(machine), indent=1)
    write_atomically(path, lambda file: file.write(text.encode()))


def load_machine(path: Path) -> Machine:
    """Read what `save_machine` has written, or a file of the same form.

    Raises:
        DataError: the file describes no machine; the message names the field.
    """
    try:
        fields = read_object(path, {"link": dict})
        links = {name: Link(**link) for name, link in fields.pop("links", {}).items()}
        return Machine(link=Link(**fields.pop("link")), links=links, **fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} does not describe a machine ({error}); `weft plan full-graph --calibrate "
            "--save FILE` writes one"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A graph, and a network that is trained on all of it.

    Attributes:
        nodes: n.
        edges: nonzeros of the adjacency: an undirected edge counts twice, a self-loop once.
        widths: of the features, the hidden layers and the classes.
        model: `gcn`, or `sage` with a second weight matrix for a node's own features.
        item: bytes of a number, 4 or 8.
        symmetric: the adjacency equals its transpose, so one of them is enough.
        input_dropout: the features change in every step, so that no product can be kept.
        training: nodes that the network learns from; all of them if None.
    """

    nodes: int
    edges: int
    widths: tuple[int, ...]
    model: Model = "gcn"
    item: int = 4
    symmetric: bool = True
    input_dropout: bool = False
    training: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("nodes", 1), ("edges", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise ValueError(
                f"widths are {self.widths}; give at least 2, those of the features and the "
                "classes, each at least 1"
            )
        if self.item not in (4, 8):
            raise ValueError(f"item is {self.item} bytes; it must be 4 or 8")

    def layers(self, method: Method) -> list[LayerPlan]:
        """How each layer is computed."""
        return plan_layers(self.widths, method, model=self.model, input_dropout=self.input_dropout)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that a rank holds at its peak, by what they are for.

    Attributes:
        adjacency: its panel of the matrix, and of the transpose where that differs.
        features: its block of the input, or of the first product that is kept instead.
        activations: what the forward pass leaves for the backward pass, and one gradient.
        buffers: what travels: a stage's block or rows, partial sums, gathered features.
        weights: parameters, gradients and an optimizer's two moments.
    """

    adjacency: float
    features: float
    activations: float
    buffers: float
    weights: float

    @property
    def total(self) -> float:
        """The sum of all parts."""
        total: float = sum(asdict(self).values())
        return total


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An epoch on a grid, as the busiest rank sees it.

    Attributes:
        grid: the grid.
        compute: s of products.
        bandwidth: s in which bytes travel.
        latency: s of waiting for messages, regardless of their size.
        hidden: s of transfers that overlap with products.
        bytes: received.
        memory: held.
    """

    grid: Grid
    compute: float
    bandwidth: float
    latency: float
    hidden: float = 0.0
    bytes: float
    memory: Memory

    @property
    def seconds(self) -> float:
        """Seconds of an epoch."""
        return self.compute + self.bandwidth + self.latency - self.hidden

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            **asdict(self),
            "grid": {"name": self.grid.name, **asdict(self.grid)},
            "ranks": self.grid.ranks,
            "seconds": self.seconds,
            "memory": {**asdict(self.memory), "total": self.memory.total},
        }


def choose(estimates: Sequence[Estimate], memory_limit: float | None = None) -> Estimate:
    """The fastest grid whose ranks hold at most `memory_limit` bytes each.

    Raises:
        ValueError: none does; the message names the one that comes nearest.
    """
    fitting = [e for e in estimates if memory_limit is None or e.memory.total <= memory_limit]
    if not fitting:
        least = min(estimates, key=lambda e: e.memory.total)
        raise ValueError(
            f"no grid fits in {(memory_limit or 0) / 1e9:.3g} GB a rank: the least is "
            f"{least.memory.total / 1e9:.3g} GB, {least.grid.name} on {least.grid.ranks} ranks; "
            "take more ranks or a higher limit"
        )
    return min(fitting, key=lambda e: e.seconds)


def estimate(
    problem: Problem,
    grid: Grid,
    method: Method,
    machine: Machine,
    counts: Sequence[Sizes] | None = None,
) -> Estimate:
    """What an epoch costs the busiest rank.

    Args:
        problem: the graph and the network.
        grid: the ranks.
        method: what travels.
        machine: rates.
        counts: of each rank, see `count_graph`; by default nodes and edges are spread evenly. Ranks
            wait for each other, so products take as long as on the rank with the most of them, and
            messages as long as for the rank that receives the most.
    """
    each = [_even_sizes(problem, grid)] if counts is None else counts
    found = [_rank_cost(problem, method, machine, sizes) for sizes in each]
    sparse, dense, bandwidth, latency, travelling = (
        max(getattr(cost, name) for cost in found)
        for name in ("sparse", "dense", "bandwidth", "latency", "travelling")
    )
    stages = min(cost.stages for cost in found)
    # The first transfer of a product has nothing to overlap with.
    hidden = min(sparse, travelling) * (stages - 1) / stages if method.overlap else 0.0
    memories = [rank_memory(problem, method, sizes) for sizes in each]
    return Estimate(
        grid=grid,
        compute=sparse + dense,
        bandwidth=bandwidth,
        latency=latency,
        hidden=hidden,
        bytes=max(cost.bytes for cost in found),
        memory=max(memories, key=lambda memory: memory.total),
    )


class _RankCost(NamedTuple):
    """Seconds of one rank, the bytes that it receives, and in how many stages rows travel."""

    sparse: float
    dense: float
    bandwidth: float
    latency: float
    travelling: float
    stages: int
    bytes: float


def _rank_cost(problem: Problem, method: Method, machine: Machine, sizes: Sizes) -> _RankCost:
    events = predicted_events(
        sizes,
        method,
        problem.widths,
        model=problem.model,
        item=problem.item,
        input_dropout=problem.input_dropout,
    )
    rounds = max(1, sizes.forward.rounds)
    bandwidth, latency = event_seconds(events, machine, rounds=rounds)
    sparse, dense = _compute_seconds(problem, sizes, machine, problem.layers(method))
    rows = [event for event in events if event.along == "row"]
    return _RankCost(
        sparse=sparse,
        dense=dense,
        bandwidth=bandwidth,
        latency=latency,
        travelling=sum(event_seconds(rows, machine, rounds=rounds)),
        stages=rounds if method.exchange == "rows" else len(sizes.grid.stages(sizes.place)),
        bytes=sum(event.bytes for event in events),
    )


def estimate_published(problem: Problem, grid: Grid, machine: Machine) -> Estimate:
    """What an epoch costs as the algorithms' authors count it, without the f² terms."""
    link, sizes = machine.link, _even_sizes(problem, grid)
    layers = list(pairwise(problem.widths))
    received = problem.item * sum(
        published_words(
            grid,
            *layer,
            nodes=problem.nodes,
            nonzeros=problem.edges,
            nonzero_words=1 + 4 / problem.item,
            weights=False,
        )
        for layer in layers
    )
    return Estimate(
        grid=grid,
        compute=sum(_compute_seconds(problem, sizes, machine, problem.layers(PUBLISHED))),
        bandwidth=received * link.beta,
        latency=len(layers) * published_latency(grid) * link.alpha,
        bytes=received,
        memory=rank_memory(problem, PUBLISHED, sizes),
    )


def _even_sizes(problem: Problem, grid: Grid) -> Sizes:
    """The sizes of the busiest rank, with every edge equally likely."""
    # The last part of a balanced split is never smaller than another.
    place = grid.place(grid.ranks - 1)
    offsets = balanced(problem.nodes, grid.blocks)
    own = grid.blocks_of_row(place.row)
    height = int(offsets[own.stop] - offsets[own.start])
    rows = np.diff(offsets)[[stage.block for stage in grid.stages(place)]]
    degree = problem.edges / problem.nodes**2 * height
    # A row is wanted unless no edge comes from it.
    wanted = np.ceil(rows * -math.expm1(-degree)).astype(np.int64)
    others = int(wanted.sum()) * (grid.rows - 1) // grid.rows
    panel = Direction(
        # Rounded so that they sum to the whole.
        nonzeros=np.diff(np.ceil(degree * np.append(0, np.cumsum(rows)))).astype(np.int64),
        wanted=wanted,
        rounds=exchange_rounds(grid, others, int(rows.max())),
    )
    training = problem.nodes if problem.training is None else problem.training
    share = training * int(np.diff(offsets).max()) // problem.nodes
    return Sizes(
        grid=grid, place=place, offsets=offsets, forward=panel, backward=panel, training=share
    )


def _compute_seconds(
    problem: Problem, sizes: Sizes, machine: Machine, plans: Sequence[LayerPlan]
) -> tuple[float, float]:
    """Seconds of sparse and of dense products on one rank."""
    C, height, rows = sizes.grid.columns, sizes.panel_rows, sizes.rows
    forward, backward = (int(each.nonzeros.sum()) for each in (sizes.forward, sizes.backward))
    moved = sum(
        product_bytes(height, backward if number else forward, math.ceil(width / C), problem.item)
        for plan in plans
        for number, width in enumerate(plan.products)
    )
    matrices = 2 if problem.model == "sage" else 1
    operations = 0
    for plan in plans:
        # Forward, the gradient of the weights, and that of the input where it learns.
        times = 3 if plan.learns else 2
        cells = min(
            plan.width_in * math.ceil(plan.width_out / C),
            math.ceil(plan.width_in / C) * plan.width_out,
        )
        operations += 2 * times * matrices * rows * cells
    return moved / machine.spmm_bytes, operations / machine.flops


def product_bytes(rows: int, nonzeros: int, width: int, item: int) -> int:
    """Bytes that a sparse product reads and writes if no row of features stays in a cache."""
    return nonzeros * (4 + item + width * item) + rows * (8 + width * item)


def event_seconds(
    events: Iterable[Event], machine: Machine, *, rounds: int = 1
) -> tuple[float, float]:
    """Seconds of bandwidth and of latency that events take on a machine.

    Args:
        events: predicted or recorded.
        machine: the machine.
        rounds: of an exchange of rows; in each a rank receives from that part of its group.
    """
    bandwidth = latency = 0.0
    for event in events:
        link = machine.along(event.along)
        bandwidth += event.bytes * link.beta
        latency += _waits(event, rounds) * link.alpha
    return bandwidth, latency


def _waits(event: Event, rounds: int) -> float:
    """Messages that a rank waits for, one after another."""
    if event.kind == "all_to_all":
        return (event.group - 1) / rounds
    if event.kind == "reduce_scatter":
        return event.group - 1
    return math.log2(event.group) * (2 if event.kind == "all_reduce" else 1)


def rank_memory(problem: Problem, method: Method, sizes: Sizes) -> Memory:
    """What a rank holds, without the process itself and torch."""
    grid, place, rows, height = sizes.grid, sizes.place, sizes.rows, sizes.panel_rows
    C, item, second = grid.columns, problem.item, problem.model == "sage"
    plans = problem.layers(method)
    block = int(np.diff(sizes.offsets).max())

    def cells(width: int, *, whole: bool = False) -> int:
        return rows * (width if whole else grid.slice_widths(width)[place.column])

    def panel_bytes(panel: Direction) -> float:
        edges = int(((4 + item) * panel.nonzeros + 8 * (height + 1)).sum())
        if method.exchange == "rows" and grid.rows > 1:
            # The own rows that other ranks want: about as many as this rank wants of theirs.
            return edges + 8 * int(panel.wanted.sum())
        return edges / C if method.panels == "sent" else edges

    def travelling(panel: Direction) -> int:
        """Bytes on their way at a time: a stage's, and with overlap those of the next."""
        # A round of rows brings at most about a block, and about as much goes out.
        by_rows = method.exchange == "rows"
        moved = 2 * min(block, int(panel.wanted.sum())) if by_rows else block
        stage = moved * widest * item if grid.rows > 1 else 0
        if method.panels == "sent" and C > 1:
            stage += (4 + item) * int(panel.nonzeros.max()) + 8 * (height + 1)
        return stage * (2 if method.overlap else 1)

    first = plans[0]
    features = cells(first.width_in, whole=first.kept and first.gather)
    if first.kept and second:
        features *= 2
    kept, passing = 0, 0
    for plan in plans:
        if plan.learns:
            # The output of the activation tells where its gradient is not 0.
            kept += cells(plan.width_in)
        if plan.order == "published":
            passing = max(passing, cells(max(plan.width_in, plan.width_out), whole=C > 1))
        elif not plan.kept and (plan.order == "aggregate" or plan.gather):
            both = second and plan.order == "aggregate" and plan.gather
            kept += cells(plan.width_in, whole=plan.gather) * (2 if both else 1)
    # Backward, a layer's gradient before and after its product.
    passing = max(passing, *(2 * cells(max(p.width_in * p.learns, p.width_out)) for p in plans))
    widest = max(
        (grid.slice_widths(width)[place.column] for p in plans for width in p.products), default=0
    )
    scattered_layers = grid.layers > 1 and not grid.replicated
    panels = [sizes.forward] if problem.symmetric else [sizes.forward, sizes.backward]
    parameters = sum(
        plan.width_in * plan.width_out * (2 if second else 1) + plan.width_out for plan in plans
    )
    return Memory(
        adjacency=sum(map(panel_bytes, panels)),
        # Beside features: number, class and three masks of each node.
        features=features * item + rows * (8 + 8 + 3),
        activations=(kept + passing) * item,
        # Beside what travels: the sums that it is added to. Later, the sums and their parts from
        # the other layers; or partial products, cut for the other columns, and theirs.
        buffers=max(
            height * widest * item + max(map(travelling, panels)),
            (height + grid.layers * rows) * widest * item * scattered_layers,
            3 * cells(max(map(_scattered, plans)), whole=True) * item * (C > 1),
        ),
        weights=4 * parameters * item,
    )


def _scattered(plan: LayerPlan) -> int:
    """The widest sums that a layer scatters over the grid's columns, forward or backward."""
    if plan.order == "published":
        return 0
    if not plan.gather:
        return plan.width_out
    return plan.width_in if plan.learns else 0
