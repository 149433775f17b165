"""Which form of an adjacency to take: given, or the fastest of those that were measured here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from weft.errors import DataError
from weft.graphs import Array, GraphBatch
from weft.layout.banded import BandedAdjacency, block_distance
from weft.layout.config import Form, LayoutConfig
from weft.layout.csr import TypedEdges, distinct_edges, edges_of, rows_by_type
from weft.layout.dense import DenseAdjacency
from weft.layout.layout_cost import (
    Rates,
    banded_cells,
    banded_seconds,
    blocks_from,
    csr_seconds,
    dense_seconds,
    machine_rates,
    timed_by_turns,
)

AnyAdjacency = TypedEdges | BandedAdjacency | DenseAdjacency

# Estimates are within about a factor of two; what is this much worse than the best is not timed.
_RULED_OUT = 3.0
_BANDED_TIMED = 2


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
