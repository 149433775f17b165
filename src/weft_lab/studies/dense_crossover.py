"""Banded against csr on made-up banded graphs: from which density on blocks are faster."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from weft.graphs import Graph, GraphBatch, assemble, table_from_graphs
from weft.layout import AnyAdjacency, LayoutConfig, adjacency_of, measured_choice
from weft.layout.csr import TYPE
from weft.layout.layout_choice import estimates

# Seconds of a turn: many calls of what takes less than a hiccup of the machine.
_TURN = 0.01
_MOST_CALLS = 20


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
        ratios = (a / b for a, b in zip(self.measured["auto"], self.measured[better], strict=True))
        return statistics.median(ratios) - 1


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


def time_forms(
    cell: FormCell, *, nodes: int, hidden: int, rounds: int, max_edges: int, seed: int = 0
) -> None:
    """Let csr, banded and what `auto` chooses take turns; `cell` is filled.

    Args:
        cell: which graph.
        nodes: N.
        hidden: H.
        rounds: turns of each form.
        max_edges: a graph with more is left out.
        seed: of the graph.
    """
    expected = cell.density * nodes * (2 * cell.block + 1) * cell.types
    if expected > max_edges:
        cell.skipped = f"about {expected:,.0f} edges, max_edges is {max_edges:,}"
        return
    graph = banded_graph(nodes, cell.types, cell.block, cell.density, seed=seed)
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
    forms = {
        form: adjacency_of(batch, cell.types, config)
        for form, config in {**fixed, "auto": choice}.items()
    }
    cell.measured = _turns(forms, batch, cell.types, hidden, rounds)


def _turns(
    forms: dict[str, AnyAdjacency], batch: GraphBatch, types: int, hidden: int, rounds: int
) -> dict[str, list[float]]:
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(batch.num_nodes, hidden, generator=generator).requires_grad_()
    weight = torch.randn(types, hidden, hidden, generator=generator).requires_grad_()
    bias = torch.zeros(types, hidden, requires_grad=True)
    slope = torch.randn(batch.num_nodes, hidden, generator=generator)
    samples: dict[str, list[float]] = {form: [] for form in forms}

    def call(adjacency: AnyAdjacency) -> float:
        began = time.perf_counter()
        out = adjacency.propagate(h, weight, bias)
        torch.autograd.grad(out, (h, weight, bias), slope)
        return time.perf_counter() - began

    for adjacency in forms.values():
        call(adjacency)
    calls = {form: min(_MOST_CALLS, 1 + int(_TURN / call(forms[form]))) for form in forms}
    for _ in range(rounds):
        for form, adjacency in forms.items():
            # The fastest: what else the machine does is not the form's, and lasts for a few calls.
            samples[form].append(min(call(adjacency) for _ in range(calls[form])))
    return samples


def crossover(cells: list[FormCell], *, estimated: bool = False) -> float | str:
    """The density from which on banded is faster than csr, between those of the cells.

    Gives "always" or "never" where it is faster at each of them or at none.

    Args:
        cells: of one number of types and one block, that were measured.
        estimated: by the cost model, not by the clock.
    """

    def gain(cell: FormCell) -> float:
        csr, banded = (
            cell.estimated[form] if estimated else cell.seconds(form) for form in ("csr", "banded")
        )
        return float(np.log(csr / banded))

    ranked = sorted(cells, key=lambda cell: cell.density)
    gains = [gain(cell) for cell in ranked]
    if gains[-1] <= 0:
        return "never"
    if gains[0] > 0:
        return "always"
    # The last rise above 0: noise may make several.
    for (low, below), (high, above) in reversed(list(pairwise(zip(ranked, gains, strict=True)))):
        if below <= 0 < above:
            part = below / (below - above)
            logs = np.log([low.density, high.density])
            return float(np.exp(logs[0] + part * (logs[1] - logs[0])))
    raise AssertionError("there is a rise between a loss and a gain")
