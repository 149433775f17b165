"""Supergraphs for training: batches of one shape with their adjacency, some of them to a step.

First they are loaded; then what a recipe leaves open of them (form, block and nodes) is settled by
measuring.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.batching import BatchingConfig, GraphLoader, GraphSampler
from weft.batching.loader import StaticMemory
from weft.errors import DataError
from weft.files import read_object
from weft.graphs import Array, GraphBatch, GraphTable, assemble
from weft.layout import band_statistics
from weft.layout.config import LayoutConfig
from weft.layout.dense import Blocks
from weft.layout.layout_choice import adjacency_of, measured_choice, timed_by_turns
from weft.models.ggnn import Adjacency, GatedGraph
from weft.models.misuse import judged_pairs
from weft.parallel.world import World, single
from weft.recipes.programs.config import PolicyName, ProgramsConfig
from weft.recipes.programs.data import step_budget
from weft.recipes.recipe import from_json
from weft.training.ranks import gpu_of
from weft.training.run import CONFIG

_NODES = (1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, kw_only=True, eq=False)
class Supergraph:
    """A batch and its adjacency.

    Attributes:
        batch: the graphs.
        adjacency: their edges, as a model multiplies with them.
        epoch: from 0.
        number: in the epoch, from 0, over all ranks.
        pairs: int [P], what a MisuseDetector scores; None for other networks.
    """

    batch: GraphBatch
    adjacency: Adjacency
    epoch: int
    number: int
    pairs: Tensor | None = None

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What a network is called with."""
        both = (self.batch, self.adjacency)
        return both if self.pairs is None else (*both, self.pairs)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepBatch:
    """What makes one step of an optimizer.

    Attributes:
        num_graphs: of all ranks' supergraphs; what a loss is divided by.
        supergraphs: this rank's, each made while the one before is used; to be taken once.
    """

    num_graphs: int
    supergraphs: Iterator[Supergraph]


class StepLoader(GraphLoader):
    """Iterates the steps of an epoch; `fit` resumes it in the middle of one.

    The supergraphs and what they make up are the same for any number of ranks: of every step each
    rank takes its share, which may be none.
    """

    def __init__(
        self,
        table: GraphTable,
        sampler: GraphSampler,
        adjacency: Callable[[GraphBatch], Adjacency],
        *,
        per_step: int = 1,
        world: World | None = None,
        detects: bool = False,
    ) -> None:
        """Connect the parts.

        Args:
            table: the graphs whose sizes the sampler has.
            sampler: which graphs make a supergraph; of one rank.
            adjacency: makes a batch's adjacency, in a thread.
            per_step: supergraphs in a step.
            world: the ranks that share each step.
            detects: the network is a MisuseDetector.
        """
        if per_step < 1:
            raise ValueError(f"per_step is {per_step}; it must be at least 1")
        self._adjacency, self._per_step, self._world = adjacency, per_step, world or single()
        self._detects = detects
        super().__init__(table, sampler, device=gpu_of(world), static=True)
        self._static_blocks = None if self._device is None else StaticMemory(self._device)

    def __len__(self) -> int:
        return -(-len(self.sampler) // self._per_step)

    def __iter__(self) -> Iterator[Any]:
        return self._steps(self.sampler.begin())

    def _steps(self, first: int) -> Iterator[StepBatch]:
        plan, rank, size = self.sampler.plan(), self._world.rank, self._world.ranks
        bounds = [
            (start, min(start + self._per_step, len(plan)))
            for start in range(first, len(plan), self._per_step)
        ]
        shares = [range(start + rank, stop, size) for start, stop in bounds]
        numbered = ((number, plan[number]) for share in shares for number in share)
        with closing(self._supergraphs(numbered)) as supergraphs:
            for (start, stop), share in zip(bounds, shares, strict=True):
                mine = islice(supergraphs, len(share))
                self.sampler.hand_out(stop - 1)
                graphs = int(plan.starts[stop] - plan.starts[start])
                yield StepBatch(num_graphs=graphs, supergraphs=mine)
                # What a step has left would be the next one's.
                deque(mine, maxlen=0)

    def _supergraphs(self, numbered: Iterator[Any]) -> Generator[Supergraph, None, None]:
        coming: Iterator[Any] = self._ahead(numbered)
        while True:
            began = time.perf_counter()
            made = next(coming, None)
            self.waiting_seconds += time.perf_counter() - began
            if made is None:
                return
            yield made if self._device is None else self._there(made, self._device)

    def _there(self, made: Supergraph, device: torch.device) -> Supergraph:
        """The same on the device."""
        adjacency: Any = made.adjacency
        pairs = made.pairs
        # Edges in no block, and those of the sparse form, are of another number each time.
        fixed = isinstance(adjacency, Blocks) and getattr(adjacency, "spill", None) is None
        if fixed and self._static_blocks is not None and self._has_budget(made.batch):
            adjacency = self._static_blocks.copy(adjacency)
        else:
            adjacency = adjacency.to(device, non_blocking=self._pin)
        if pairs is not None:
            pairs = pairs.to(device, non_blocking=self._pin)
        batch = self._moved(made.batch)
        return dataclasses.replace(made, batch=batch, adjacency=adjacency, pairs=pairs)

    def _make(self, planned: Any, used: Any = None) -> Any:
        number, graphs = planned
        batch = super()._make(graphs)
        adjacency: Any = self._adjacency(batch)
        pairs = judged_pairs(batch) if self._detects else None
        if self._pin:
            adjacency = adjacency.map(torch.Tensor.pin_memory)
            pairs = None if pairs is None else pairs.pin_memory()
        return Supergraph(
            batch=batch, adjacency=adjacency, epoch=self.sampler.epoch, number=number, pairs=pairs
        )


class SupergraphFigure(NamedTuple):
    """What supergraphs of one size cost.

    Attributes:
        seconds: of a round of messages, forward and backward, a graph.
        nodes: of a supergraph.
        layout: how its edges are multiplied, nothing left open.
        graphs: real graphs in the one that was timed.
    """

    seconds: float
    nodes: int
    layout: LayoutConfig
    graphs: int


def settled(
    table: GraphTable, train: Array, config: ProgramsConfig, num_types: int
) -> ProgramsConfig:
    """`config` with the size of supergraphs and the form of their edges decided.

    Args:
        table: the programs.
        train: int [g], the graphs for training.
        config: the recipe; what it says is not changed.
        num_types: types of edges.
    """
    layout = dataclasses.replace(config.layout, hidden=config.hidden)
    if config.nodes:
        if layout.form == "auto":
            batch = _first(table, train, config, config.nodes)
            layout = _layout(batch, _widest(table), num_types, layout)
        return dataclasses.replace(config, layout=layout)
    figures = measured_supergraphs(table, train, config, num_types)
    best = min(figures, key=lambda figure: figure.seconds)
    return dataclasses.replace(config, nodes=best.nodes, layout=best.layout)


def settled_in(folder: Path, config: ProgramsConfig) -> ProgramsConfig:
    """`config` with what the run in `folder` has decided; as it is where there is no such run.

    Another measurement may come out otherwise, and a run is only resumed with the same config.
    """
    try:
        asked = read_object(folder / CONFIG, {"config": dict})["config"]
        earlier = from_json(ProgramsConfig, asked)
    except (ValueError, TypeError):
        return config
    layout = earlier.layout if config.layout.form == "auto" else config.layout
    return dataclasses.replace(config, nodes=config.nodes or earlier.nodes, layout=layout)


def measured_supergraphs(
    table: GraphTable, train: Array, config: ProgramsConfig, num_types: int, *, rounds: int = 3
) -> list[SupergraphFigure]:
    """The cost of supergraphs by their nodes, timed by turns; arguments as of `settled`.

    Raises:
        DataError: the form that is requested can hold none of them; sizes that it cannot hold,
            while it can hold others, are left out.
    """
    largest = int(table.num_nodes[train].max())
    # A size that leaves graphs out is not the same training.
    sizes = [nodes for nodes in _NODES if nodes > largest] or [_multiple(largest + 1, config)]
    layout = dataclasses.replace(config.layout, hidden=config.hidden)
    widest = _widest(table)
    held: list[tuple[GraphBatch, LayoutConfig, Adjacency]] = []
    refused: DataError | None = None
    for nodes in sizes:
        batch = _first(table, train, config, _multiple(nodes, config))
        own = _layout(batch, widest, num_types, layout)
        try:
            held.append((batch, own, adjacency_of(batch, num_types, own)))
        except DataError as error:
            refused = error
    if refused is not None and not held:
        raise refused
    torch_state = torch.get_rng_state()
    network = GatedGraph(config.hidden, num_types, 1)
    states = [torch.randn(batch.num_nodes, config.hidden) for batch, _, _ in held]
    torch.set_rng_state(torch_state)

    def step(number: int) -> object:
        out = network(states[number].requires_grad_(), held[number][2])
        return torch.autograd.grad(out.sum(), [states[number], *network.parameters()])

    calls = [lambda number=number: step(number) for number in range(len(held))]
    times = timed_by_turns(calls, "cpu", rounds)
    return [
        SupergraphFigure(spent / batch.num_real_graphs, batch.num_nodes, own, batch.num_real_graphs)
        for (batch, own, _), spent in zip(held, times, strict=True)
    ]


def packed_sampler(
    table: GraphTable,
    graphs: Array,
    nodes: int,
    *,
    policy: PolicyName = "packed",
    seed: int = 0,
) -> GraphSampler:
    """Makes supergraphs of `nodes` nodes of those `graphs`, int [g], that fit."""
    sizes = (table.num_nodes[graphs], table.num_edges[graphs])
    budget = step_budget(*sizes, nodes)
    fitting = graphs[(sizes[0] < budget.nodes) & (sizes[1] <= budget.edges)]
    batching = BatchingConfig(policy=policy, batch_size=budget.graphs, seed=seed, budget=budget)
    return GraphSampler(table.num_nodes, table.num_edges, batching, graphs=fitting)


def _multiple(nodes: int, config: ProgramsConfig) -> int:
    block = config.layout.block or 1
    return -(-nodes // block) * block


def _first(table: GraphTable, train: Array, config: ProgramsConfig, nodes: int) -> GraphBatch:
    sampler = packed_sampler(table, train, nodes, policy=config.policy, seed=config.seed)
    planned = sampler.plan()[0]
    return assemble(table, planned.graphs, planned.budget)


def _widest(table: GraphTable) -> int:
    return int(band_statistics(table).bandwidth.max(initial=0))


def _layout(batch: GraphBatch, widest: int, num_types: int, layout: LayoutConfig) -> LayoutConfig:
    if layout.form != "auto":
        return layout
    return measured_choice(batch, num_types, layout, bandwidth=widest).config
