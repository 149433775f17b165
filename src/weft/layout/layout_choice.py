"""Which form of an adjacency to take: given, or the fastest of those that were measured here.

Only forms that may be the fastest are timed, by a cost model: seconds forward and backward of one
step, for N nodes, E distinct edges of P types and H features. The rates of the machine are measured
once a process: large matrix products, batched products of blocks by their size, gathered bytes and
copied bytes. Estimates are right to about a factor of two.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError
from weft.graphs import Array, GraphBatch
from weft.layout.banded import BandedAdjacency, block_distance
from weft.layout.config import Form, LayoutConfig
from weft.layout.csr import TypedEdges, distinct_edges, edges_of, rows_by_type
from weft.layout.dense import DenseAdjacency

AnyAdjacency = TypedEdges | BandedAdjacency | DenseAdjacency

# What is estimated this much worse than the best is not timed.
_RULED_OUT = 3.0
_BANDED_TIMED = 2
_BLOCKS = (8, 32, 128, 512)
# Rows of the products that are timed: the results are larger than a cache.
_CALIBRATED_ROWS = 2**15
_LADDER = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One form for one batch; seconds are of one step, forward and backward.

    Attributes:
        form: csr, banded or dense.
        block: S.
        estimated: seconds by the cost model.
        measured: median seconds, or None if it was not measured.
        reason: why it was not.
    """

    form: Form
    block: int | None
    estimated: float
    measured: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The fastest form, to be used for all batches like the one that was measured.

    Attributes:
        config: with a form that is not `auto`.
        figures: of every form that was considered, the chosen one first.
    """

    config: LayoutConfig
    figures: tuple[Figure, ...]


def adjacency_of(
    batch: GraphBatch, num_types: int, config: LayoutConfig | None = None
) -> AnyAdjacency:
    """The adjacency of a batch's real edges, on its device.

    `auto` measures on this very batch. Over many batches, measure once: pass the `config` of
    `measured_choice` for the first.

    Raises:
        DataError: the form cannot hold the batch, or not in the memory allowed.
    """
    config = LayoutConfig() if config is None else config
    if config.form == "auto":
        config = measured_choice(batch, num_types, config).config
    if config.form == "csr":
        return TypedEdges.of_batch(batch, num_types).to(batch.senders.device)
    block = config.block
    if block is None and config.form == "dense":
        block = _largest_graph(batch)
    elif block is None:
        figures = [f for f in estimates(batch, num_types, config) if f.form == config.form]
        fitting = [f for f in figures if not f.reason]
        if not fitting:
            raise DataError(f"form '{config.form}': {figures[0].reason}; take form 'csr'")
        block = min(fitting, key=lambda figure: figure.estimated).block
        assert block is not None
    too_large = _too_large(_cells(batch, num_types, config.form, block), config)
    if too_large:
        raise DataError(
            f"form '{config.form}' with block={block}: {too_large}; take a smaller block (with "
            "outside='spill' if need be), form 'csr', or raise memory_gb"
        )
    if config.form == "banded":
        banded = BandedAdjacency.of_batch(batch, num_types, block, config.outside)
        return banded.to(batch.senders.device)
    return DenseAdjacency.of_batch(batch, num_types, block).to(batch.senders.device)


# The timed steps need gradients, even if this is called during a prediction.
@torch.inference_mode(False)
@torch.enable_grad()
def measured_choice(
    batch: GraphBatch,
    num_types: int,
    config: LayoutConfig | None = None,
    *,
    bandwidth: int = 0,
    rounds: int = 5,
) -> Choice:
    """Time the forms that may be the fastest for this batch, alternating, and take the fastest.

    Args:
        batch: like those to come.
        num_types: P.
        config: its form does not matter; a block that is given is not changed.
        bandwidth: the largest of all graphs to come, see `band_statistics`: no smaller block is
            chosen unless edges outside are spilled.
        rounds: times that each is run, after one that is not counted.
    """
    config = LayoutConfig() if config is None else config
    device = batch.senders.device
    figures = _shortlist(estimates(batch, num_types, config, bandwidth=bandwidth))
    ready = [figure for figure in figures if not figure.reason]
    forms = [adjacency_of(batch, num_types, _as_config(figure, config)) for figure in ready]
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch.num_nodes, config.hidden), (num_types, config.hidden, config.hidden))
    h, weight = (torch.randn(*s, generator=generator).to(device).requires_grad_() for s in shapes)
    bias = torch.zeros(num_types, config.hidden, device=device, requires_grad=True)
    gradient = torch.randn(*shapes[0], generator=generator).to(device)

    def step(adjacency: AnyAdjacency) -> Callable[[], object]:
        given = (h, weight, bias)
        return lambda: torch.autograd.grad(adjacency.propagate(*given), given, gradient)

    times = timed_by_turns([step(form) for form in forms], device, rounds)
    found = [figure for figure in figures if figure.reason]
    found += [replace(f, measured=spent) for f, spent in zip(ready, times, strict=True)]
    found.sort(key=lambda f: (f.measured is None, f.measured or f.estimated))
    return Choice(config=_as_config(found[0], config), figures=tuple(found))


def estimates(
    batch: GraphBatch, num_types: int, config: LayoutConfig, *, bandwidth: int = 0
) -> list[Figure]:
    """Every form and block size with its cost; `reason` says which cannot be used, and why."""
    rates = machine_rates(batch.senders.device)
    edges = distinct_edges(*edges_of(batch), batch.num_nodes, num_types)
    sparse = _sparse_seconds(edges, batch.num_nodes, config.hidden, rates)
    figures = [Figure(form="csr", block=None, estimated=sparse)]
    own = int(np.abs(edges[0] - edges[1]).max(initial=1))
    spills = config.outside == "spill"
    least = 1 if spills else max(own, bandwidth)
    sizes = blocks_from(least, batch.num_nodes) if config.block is None else [config.block]
    for block in sizes:
        far = np.abs(block_distance(edges[0], edges[1], block)) > 1
        seconds = banded_seconds(batch.num_nodes, num_types, block, config.hidden, rates)
        if spills and far.any():
            rest = tuple(part[far] for part in edges)
            seconds += _sparse_seconds(rest, batch.num_nodes, config.hidden, rates)
        reason = _too_large(_cells(batch, num_types, "banded", block), config)
        if config.outside == "raise" and far.any():
            reason = f"{int(far.sum())} of {len(far)} edges are outside the blocks of {block}"
        figures.append(Figure(form="banded", block=block, estimated=seconds, reason=reason))
    largest = _largest_graph(batch)
    block = largest if config.block is None else config.block
    seconds = dense_seconds(
        batch.num_nodes, batch.num_graphs, num_types, block, config.hidden, rates
    )
    reason = _too_large(_cells(batch, num_types, "dense", block), config)
    if block < largest:
        reason = f"a graph has {largest} nodes, the blocks have {block}"
    figures.append(Figure(form="dense", block=block, estimated=seconds, reason=reason))
    return figures


def _shortlist(figures: list[Figure]) -> list[Figure]:
    """The same, with a reason for each that is not worth measuring."""
    usable = [figure for figure in figures if not figure.reason]
    best = min(figure.estimated for figure in usable)
    banded = sorted(f.estimated for f in usable if f.form == "banded")[:_BANDED_TIMED]
    found = []
    for figure in figures:
        reason = figure.reason
        if not reason and figure.estimated > _RULED_OUT * best:
            reason = f"estimated more than {_RULED_OUT:g} times as slow as the best"
        elif not reason and figure.form == "banded" and figure.estimated > banded[-1]:
            reason = "other blocks are estimated faster"
        found.append(replace(figure, reason=reason))
    return found


def _as_config(figure: Figure, config: LayoutConfig) -> LayoutConfig:
    # Graphs to come may be larger than those that were measured.
    block = config.block if figure.form == "dense" else figure.block
    return replace(config, form=figure.form, block=block)


def _sparse_seconds(edges: tuple[Array, ...], nodes: int, hidden: int, rates: Rates) -> float:
    of, to, kinds = edges
    types = int(kinds.max(initial=0)) + 1
    sides = (rows_by_type(kinds * nodes + ends, nodes, types) for ends in (of, to))
    return csr_seconds(len(of), int(np.minimum(*sides).sum()), hidden, rates)


def _largest_graph(batch: GraphBatch) -> int:
    sizes = batch.node_offsets[: batch.num_real_graphs + 1].diff()
    return max(1, int(sizes.max())) if len(sizes) else 1


def _cells(batch: GraphBatch, num_types: int, form: Form, block: int) -> int:
    if form == "banded":
        return banded_cells(batch.num_nodes, num_types, block)
    return batch.num_graphs * num_types * block**2


def _too_large(cells: int, config: LayoutConfig) -> str:
    needed = 4e-9 * cells
    if needed <= config.memory_gb:
        return ""
    return f"it takes {needed:.1f} GB in float32, more than the {config.memory_gb:g} GB allowed"


# -- The cost model --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a machine does in a second.

    Attributes:
        products: multiply-adds of a large matrix product.
        batched: multiply-adds of batched products, for blocks of each of `blocks` sources.
        blocks: ascending numbers of sources.
        gathered: bytes that a sparse product reads at edges.
        copied: bytes that a copy reads and writes.
    """

    products: float
    batched: tuple[float, ...]
    blocks: tuple[int, ...]
    gathered: float
    copied: float

    def batched_at(self, sources: int) -> float:
        """Multiply-adds a second of blocks with this many sources, between those measured."""
        return float(np.exp(np.interp(np.log(sources), np.log(self.blocks), np.log(self.batched))))


def machine_rates(device: torch.device | str = "cpu") -> Rates:
    """The rates of a device, measured in a second or two and remembered by this process."""
    return _measured_rates(str(device), torch.get_num_threads())


# The timed steps need gradients, even if this is called during a prediction.
@functools.cache
@torch.inference_mode(False)
@torch.enable_grad()
def _measured_rates(device: str, threads: int) -> Rates:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    size, width = 1024, 64
    square, source, target = randn(size, size), randn(2**22), randn(2**22)
    edges = _band_of_edges().to(device)
    weight, gradient = randn(1, width, width).requires_grad_(), randn(edges.num_nodes, width)
    h = randn(edges.num_nodes, width).requires_grad_()

    def sparse() -> object:
        return torch.autograd.grad(edges.propagate(h, weight), (h, weight), gradient)

    works = [lambda: square @ square, lambda: target.copy_(source), sparse]
    blocks = [_batched_product(block, width, randn) for block in _BLOCKS]
    products, copy, sparse_product, *batched = timed_by_turns([*works, *blocks], device)
    rate = size**3 / products
    transform = 3 * edges.num_rows * width**2 / rate
    gathered = _gathered_bytes(edges.into_nodes.shape[0], edges.num_rows, width)
    return Rates(
        products=rate,
        batched=tuple(
            2 * _CALIBRATED_ROWS * block * width / spent
            for block, spent in zip(_BLOCKS, batched, strict=True)
        ),
        blocks=_BLOCKS,
        gathered=gathered / max(sparse_product - transform, sparse_product / 10),
        copied=2 * source.nbytes / copy,
    )


def _band_of_edges() -> TypedEdges:
    """Senders near their receivers, as in batches of graphs."""
    nodes, degree = 16384, 12
    receivers = np.repeat(np.arange(nodes), degree)
    near = np.random.default_rng(0).integers(-64, 64, nodes * degree)
    kinds = np.zeros(nodes * degree, dtype=np.int64)
    return TypedEdges.of((receivers + near) % nodes, receivers, kinds, nodes, 1, aggregate=True)


def _batched_product(
    block: int, width: int, randn: Callable[..., Tensor]
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Blocks of `block` sources and 8 types, forward and backward."""
    count, targets = _CALIBRATED_ROWS // (8 * block), 8 * block
    sizes = ((targets, block), (block, width), (targets, width))
    rows, own, back = (randn(count, *size) for size in sizes)
    return lambda: (rows @ own, rows.mT @ back)


def timed_by_turns(
    works: Sequence[Callable[[], object]], device: torch.device | str, rounds: int = 5
) -> list[float]:
    """Median seconds of each of `works`, after one call that is not counted.

    They alternate, so that other load on the machine slows all of them alike.
    """
    samples: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for own, work in zip(samples, works, strict=True):
            start = time.perf_counter()
            work()
            if torch.device(device).type == "cuda":
                torch.cuda.synchronize(device)
            own.append(time.perf_counter() - start)
    return [statistics.median(own[1:]) for own in samples]


def _gathered_bytes(edges: int, rows: int, hidden: int) -> int:
    # Once forward, twice backward; a row is written and read where an edge is only read.
    return 3 * 4 * hidden * (edges + rows)


def csr_seconds(edges: int, rows: int, hidden: int, rates: Rates) -> float:
    """Seconds of TypedEdges with this many distinct edges and rows."""
    transform = 3 * rows * hidden**2 / rates.products
    return transform + _gathered_bytes(edges, rows, hidden) / rates.gathered


def banded_cells(num_nodes: int, num_types: int, block: int) -> int:
    """Numbers that BandedAdjacency multiplies with."""
    blocks = max(-(-num_nodes // block), 1)
    return blocks * block**2 * num_types * (3 if blocks > 1 else 1)


def banded_seconds(num_nodes: int, num_types: int, block: int, hidden: int, rates: Rates) -> float:
    """Seconds of BandedAdjacency without spill."""
    blocks = max(-(-num_nodes // block), 1)
    # Three blocks of sources are put side by side, and taken apart again on the way back.
    sources, copies = (block, 0) if blocks == 1 else (3 * block, 12)
    return _block_seconds(blocks, num_types, block, sources, copies, hidden, rates)


def dense_seconds(
    num_nodes: int, num_graphs: int, num_types: int, block: int, hidden: int, rates: Rates
) -> float:
    """Seconds of DenseAdjacency."""
    # Into the blocks and out of them, both ways, unless the nodes fill them as they are.
    copies = 0 if num_graphs * block == num_nodes else 8
    return _block_seconds(num_graphs, num_types, block, block, copies, hidden, rates)


def _block_seconds(
    blocks: int, num_types: int, block: int, sources: int, copies: int, hidden: int, rates: Rates
) -> float:
    """A batched product and a large one, with the derivatives that they need: one and two."""
    rows = blocks * block * num_types
    sums = 2 * rows * sources * hidden / rates.batched_at(sources)
    copied = copies * 4 * blocks * block * hidden / rates.copied
    return sums + 3 * rows * hidden**2 / rates.products + copied


def blocks_from(least: int, num_nodes: int) -> list[int]:
    """Block sizes to consider: not below `least`, and one that holds all nodes."""
    exact = max(-(-least // 8) * 8, 1)
    sizes = {size for size in _LADDER if least <= size < num_nodes} | {max(num_nodes, 1)}
    return sorted(sizes | ({exact} if 0 < exact < num_nodes else set()))


def choose_block(
    bandwidths: Array | int,
    num_nodes: int,
    num_types: int,
    hidden: int = 128,
    *,
    rates: Rates | None = None,
) -> int:
    """The block size with the least cost that holds every edge.

    Args:
        bandwidths: of the graphs, see `band_statistics`.
        num_nodes: N of a batch.
        num_types: P.
        hidden: H.
        rates: of the machine; those of its processor by default.
    """
    rates = machine_rates() if rates is None else rates
    sizes = blocks_from(int(np.max(bandwidths, initial=1)), num_nodes)
    return min(sizes, key=lambda size: banded_seconds(num_nodes, num_types, size, hidden, rates))
