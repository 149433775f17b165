"""`weft plan programs --machine NAME`: what would win on an accelerator, by a roofline model.

Counts are those of the real data: nodes and samples of packed supergraphs, their distinct edges,
how far from the diagonal they are, rows of the sparse form. The rest is arithmetic.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from weft.graphs import Array, GraphBatch, GraphTable, assemble
from weft.layout.banded import block_distance
from weft.layout.config import Form
from weft.layout.csr import distinct_edges, edges_of, rows_by_type
from weft.layout.layout_choice import banded_cells
from weft.layout.roofline import (
    ACCELERATORS,
    ASSUMPTIONS,
    Accelerator,
    Operation,
    Roofline,
    banded_operations,
    block_memory,
    dense_operations,
    roofline,
    sparse_operations,
    unit_operations,
)
from weft.planning.explain import memory_words, seconds_words
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.supergraphs import packed_sampler
from weft.recipes.programs.training import prepare_programs

_NODES = (1024, 2048, 4096, 8192, 16384, 32768)
_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_NAMES = ("csr", "banded", "banded + csr", "banded, drop", "dense")
# A share of edges in no block that is called few.
_FEW = 0.01
# Supergraphs of a size whose edges are counted.
_COUNTED = 4

# What Balog et al. (2019) and Allamanis et al. (2018) publish of their training.
_PAPER_CORES, _PAPER_SECONDS = 512, 13 * 60
_PAPER_HIDDEN, _PAPER_ROUNDS, _PAPER_TYPES = 128, 8, 20
_PAPER_GRAPHS, _PAPER_NODES = 130_000, 2_228
_PAPER_BLOCK, _PAPER_SUPERGRAPH = 512, 4096
_DAY, _TITAN_GRAPHS = 86_400, 55


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Means over some supergraphs of one size.

    Attributes:
        nodes: N.
        graphs: real graphs.
        edges: distinct edges.
        rows: [P], of the sparse form.
        largest: nodes of the largest graph.
        outside: by block, distinct edges in no block and [P] rows of these.
    """

    nodes: int
    graphs: float
    edges: float
    rows: Array
    largest: int
    outside: dict[int, tuple[float, Array]]


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """One way to multiply supergraphs of one size.

    Attributes:
        counts: of the supergraphs.
        form: csr, banded or dense.
        block: S; None for csr.
        outside: share of the edges in no block.
        drops: these are left out, not multiplied as sparse ones.
        filled: share of the cells of all blocks that are edges.
        cost: of a supergraph on one core.
        memory: bytes that it takes there.
        machine: the figures.
    """

    counts: Counts
    form: Form
    block: int | None
    outside: float
    drops: bool
    filled: float | None
    cost: Roofline
    memory: float
    machine: Accelerator

    @property
    def name(self) -> str:
        """The form, and what becomes of the edges where blocks are too small for many of them."""
        if self.outside <= _FEW:
            return self.form
        return "banded, drop" if self.drops else "banded + csr"

    @property
    def fits(self) -> bool:
        """Whether a core's memory holds it."""
        return self.memory <= self.machine.memory

    @property
    def seconds_a_graph(self) -> float:
        """Seconds of a sample, over all cores."""
        return self.cost.seconds / self.counts.graphs / self.machine.cores


def show_modelled(
    table: GraphTable, config: ProgramsConfig, machine: Accelerator, console: Console
) -> None:
    """Print the table, what would win, the assumptions, and the paper's figure beside the model."""
    settled = dataclasses.replace(
        config,
        nodes=config.nodes or max(_NODES),
        layout=dataclasses.replace(config.layout, form="csr", block=None),
        compile="eager",
        precision="float32",
    )
    prepared = prepare_programs(table, settled)
    largest = int(table.num_nodes[prepared.split["train"]].max())
    # A size that leaves graphs out is not the same training.
    sizes = [nodes for nodes in _NODES if nodes > largest] or [largest + 1]
    blocks = _BLOCKS if config.layout.block is None else (config.layout.block,)
    found: list[Modelled] = []
    for nodes in sizes:
        counts = counts_of(
            prepared.table, prepared.split["train"], config, nodes, prepared.num_types, blocks
        )
        found += modelled(counts, config, machine)
    console.print(_said_of(machine, config), soft_wrap=True)
    console.print(_table(found))
    for line in (*_verdict(found, config, machine), "", *_assumptions(), "", *paper_lines()):
        console.print(line, soft_wrap=True)


def counts_of(
    table: GraphTable,
    train: Array,
    config: ProgramsConfig,
    nodes: int,
    types: int,
    blocks: Sequence[int] = _BLOCKS,
) -> Counts:
    """Counts of the first supergraphs of `nodes` nodes, of the graphs `train`, int [g]."""
    sampler = packed_sampler(table, train, nodes, policy=config.policy, seed=config.seed)
    plan = sampler.plan()
    some = [plan[number] for number in range(min(_COUNTED, len(plan)))]
    each = [
        _counts(assemble(table, planned.graphs, planned.budget), types, blocks) for planned in some
    ]
    return Counts(
        nodes=nodes,
        graphs=sampler.statistics().graphs_per_batch,
        edges=float(np.mean([own.edges for own in each])),
        rows=np.mean([own.rows for own in each], axis=0),
        largest=max(own.largest for own in each),
        outside={
            block: (
                float(np.mean([own.outside[block][0] for own in each])),
                np.mean([own.outside[block][1] for own in each], axis=0),
            )
            for block in each[0].outside
        },
    )


def _counts(batch: GraphBatch, types: int, blocks: Sequence[int]) -> Counts:
    nodes = batch.num_nodes
    of, to, kinds = distinct_edges(*edges_of(batch), nodes, types)

    def rows(chosen: Array) -> Array:
        keys = (kinds[chosen] * nodes + ends[chosen] for ends in (of, to))
        return np.minimum(*(rows_by_type(own, nodes, types) for own in keys))

    outside = {}
    for block in blocks:
        if block < nodes:
            far = np.abs(block_distance(of, to, block)) > 1
            outside[block] = (float(far.sum()), rows(far))
    sizes = batch.node_offsets[: batch.num_real_graphs + 1].diff()
    return Counts(
        nodes=nodes,
        graphs=batch.num_real_graphs,
        edges=len(of),
        rows=rows(np.full(len(of), fill_value=True)),
        largest=int(sizes.max()),
        outside=outside,
    )


def modelled(counts: Counts, config: ProgramsConfig, machine: Accelerator) -> list[Modelled]:
    """Every form and block for supergraphs with these counts."""
    hidden, rounds, types = config.hidden, config.steps, len(counts.rows)
    drops = config.layout.outside == "drop"
    unit = unit_operations(machine, nodes=counts.nodes, hidden=hidden, rounds=rounds)
    sizes = {"types": types, "hidden": hidden, "rounds": rounds}
    shared = {"nodes": counts.nodes, "hidden": hidden, "rounds": rounds}

    def one(
        form: Form, block: int | None, cells: float, far: float, parts: list[Operation]
    ) -> Modelled:
        return Modelled(
            counts=counts,
            form=form,
            block=block,
            outside=far / counts.edges if counts.edges else 0.0,
            drops=drops,
            filled=(counts.edges - far) / cells if cells else None,
            cost=roofline(machine, [*parts, *unit]),
            memory=block_memory(machine, cells=cells, nodes=counts.nodes, **sizes),
            machine=machine,
        )

    sparse = sparse_operations(machine, edges=counts.edges, rows=counts.rows.tolist(), **shared)
    found = [one("csr", None, 0.0, 0.0, sparse)]
    for block, (far, rows) in counts.outside.items():
        parts = banded_operations(machine, nodes=counts.nodes, block=block, **sizes)
        if not drops:
            parts += sparse_operations(machine, edges=far, rows=rows.tolist(), **shared)
        found.append(one("banded", block, banded_cells(counts.nodes, types, block), far, parts))
    graphs = int(np.ceil(counts.graphs))
    parts = dense_operations(machine, graphs=graphs, block=counts.largest, **sizes)
    cells = graphs * types * counts.largest**2
    return [*found, one("dense", counts.largest, cells, 0.0, parts)]


def cheapest(found: Iterable[Modelled]) -> Modelled:
    """The fastest for a sample among those that fit, or among all if none does."""
    return min(found, key=lambda each: (not each.fits, each.seconds_a_graph))


def sparse_from(counts: Sequence[Counts], config: ProgramsConfig, machine: Accelerator) -> float:
    """The least share of the bandwidth for rows read by index with which csr wins; inf if none."""
    for share in np.geomspace(1e-3, 1.0, 61).tolist():
        there = dataclasses.replace(machine, gather=share)
        best = cheapest(each for own in counts for each in modelled(own, config, there))
        if best.form == "csr":
            return float(share)
    return math.inf


def paper_lines() -> list[str]:
    """The published training on a pod, and what the model says of it, in sentences."""
    machine = dataclasses.replace(ACCELERATORS["tpu-v2-8"], cores=_PAPER_CORES)
    sizes = {"nodes": _PAPER_SUPERGRAPH, "hidden": _PAPER_HIDDEN, "rounds": _PAPER_ROUNDS}
    blocks = banded_operations(machine, types=_PAPER_TYPES, block=_PAPER_BLOCK, **sizes)
    cost = roofline(machine, [*blocks, *unit_operations(machine, **sizes)])
    supergraphs = _PAPER_GRAPHS * _PAPER_NODES / _PAPER_SUPERGRAPH
    epoch = cost.seconds * supergraphs / _PAPER_CORES
    epochs = _DAY * _TITAN_GRAPHS / _PAPER_GRAPHS
    taken = _PAPER_SECONDS / epochs
    return [
        f"Published (Balog et al. 2019): 13 minutes on {_PAPER_CORES} TPU v2 cores, where the "
        "original training took almost a day.",
        f"By this model {seconds_words(cost.seconds)} a supergraph on one core (H = "
        f"{_PAPER_HIDDEN}, {_PAPER_ROUNDS} rounds, {_PAPER_TYPES} types, blocks of {_PAPER_BLOCK}; "
        f"{_PAPER_SUPERGRAPH:,} nodes are assumed), {seconds_words(epoch)} an epoch of "
        f"{_PAPER_GRAPHS:,} graphs of {_PAPER_NODES:,} nodes, taken to fit all and to fill "
        f"supergraphs; 13 minutes hold {_PAPER_SECONDS / epoch:.0f} such epochs.",
        f"How many they took is not known here. A day at the {_TITAN_GRAPHS} graphs a second that "
        f"are published for the original on one GPU is {epochs:.0f} epochs; with as many, one took "
        f"{seconds_words(taken)} on the pod, {taken / epoch:.1f} times what the model says.",
    ]


def _said_of(machine: Accelerator, config: ProgramsConfig) -> str:
    tile = " by ".join(map(str, machine.tile))
    return (
        f"A roofline model of {machine.name}, never timed. A core: {machine.flops / 1e12:,.4g} "
        f"TFLOP/s, {machine.bandwidth / 1e9:,.4g} GB/s, {machine.memory / 1e9:,.3g} GB, tiles of "
        f"{tile}, gathers at {machine.gather:.3g} of the bandwidth, "
        f"{seconds_words(machine.start)} to start an operator; cores: {machine.cores}\n"
        f"network: H = {config.hidden}, {config.steps} rounds of messages"
    )


def _table(found: Sequence[Modelled]) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("nodes", "samples"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("form", no_wrap=True)
    sizes = ("block", "edges\noutside", "cells\nfilled", "tile\npadding", "memory\na core")
    for heading in (*sizes, "time a\nsample"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("mostly")
    table.add_column("")
    best = cheapest(found)
    for nodes, group in groupby(found, key=lambda each: each.counts.nodes):
        own = list(group)
        parts = {name: [each for each in own if each.name == name] for name in _NAMES}
        shown = [cheapest(some) for some in parts.values() if some]
        for number, each in enumerate(shown):
            table.add_row(
                f"{nodes:,}" if number == 0 else "",
                f"{each.counts.graphs:.0f}" if number == 0 else "",
                each.name,
                "" if each.block is None else f"{each.block:,}",
                f"{each.outside:.1%}" if each.form == "banded" else "",
                "" if each.filled is None else f"{each.filled:.2%}",
                f"{each.cost.rounding:.2f}",
                memory_words(each.memory),
                seconds_words(each.seconds_a_graph),
                each.cost.bound if each.fits else "too large",
                "◀" if each is best else "",
                end_section=number == len(shown) - 1,
            )
    return table


def _verdict(found: Sequence[Modelled], config: ProgramsConfig, machine: Accelerator) -> list[str]:
    best = cheapest(found)
    lines = [
        f"By the model, the fastest: {_words(best)}, {seconds_words(best.seconds_a_graph)} a "
        f"sample, mostly {best.cost.bound}."
    ]
    for name in _NAMES:
        if (own := [each for each in found if each.name == name]) and name != best.name:
            other = cheapest(own)
            ratio = other.seconds_a_graph / best.seconds_a_graph
            lines.append(f"{_words(other)}: {ratio:.1f} times as long.")
    counts = list({each.counts.nodes: each.counts for each in found}.values())
    share = sparse_from(counts, config, machine)
    said = f"if rows read by index reach {share:.2g} of the bandwidth or more"
    said = said if share < math.inf else "at no share of the bandwidth for rows read by index"
    return [*lines, f"csr wins {said}; {machine.gather:.3g} is assumed."]


def _words(each: Modelled) -> str:
    block = "" if each.block is None else f" with blocks of {each.block:,}"
    return f"{each.name}{block} in supergraphs of {each.counts.nodes:,} nodes"


def _assumptions() -> list[str]:
    return ["Assumptions:", *(f"- {each}" for each in ASSUMPTIONS)]
