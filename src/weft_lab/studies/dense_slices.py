"""Training on slices of the programs by bandwidth or by order: what it costs and what it learns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import torch

from weft.batching import GraphSampler, evaluation_sampler
from weft.errors import DataError
from weft.graphs import Array, GraphTable, assemble
from weft.layout import LayoutConfig, TypedEdges, adjacency_of
from weft.models.ggnn import candidate_loss
from weft.recipes.programs.supergraph_choice import packed_sampler
from weft.recipes.programs.supergraphs import StepLoader, Supergraph
from weft.recipes.programs.training import (
    PreparedPrograms,
    make_ggnn,
    measure_programs,
)
from weft.training.randomness import seed_everything
from weft.training.schedules import make_scheduler

By = Literal["all data", "bandwidth", "order"]
_FORMS: tuple[Literal["banded", "csr"], ...] = ("banded", "csr")


@dataclass(kw_only=True)
class Slice:
    """Some of the training graphs, and what was measured on them: plain values, as in the file.

    Attributes:
        by: what they are chosen by; the order of a graph is its number of nodes.
        limit: the largest bandwidth or order that is kept; None keeps all.
        share: of the training graphs.
        graphs: of the training part.
        block: of the banded form: the smallest, in eights, that holds every edge.
        nodes: of a supergraph, a multiple of the block.
        graphs_per_iteration: real graphs of the supergraphs of each timed step, by form.
        iteration: seconds of each timed step, forward, backward and the blocks' cast, by form.
        skipped: why a form was not timed, by form.
        curve: graphs seen, steps taken and accuracy on all validation graphs.
        seconds: of the training, without evaluations.
    """

    by: By
    limit: int | None
    share: float
    graphs: int
    block: int
    nodes: int
    graphs_per_iteration: dict[str, list[int]] = field(default_factory=dict)
    iteration: dict[str, list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    curve: list[tuple[int, int, float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """As in the tables."""
        return self.by if self.limit is None else f"{self.by} <= {self.limit}"

    def timed(self, iterations: int) -> bool:
        """Whether every form has had so many, or cannot."""
        return all(
            form in self.skipped or len(self.iteration.get(form, ())) >= iterations
            for form in _FORMS
        )

    def milliseconds_a_graph(self, form: str) -> float | None:
        """Of the median step of this form; None if it was not timed."""
        pairs = zip(
            self.iteration.get(form, ()), self.graphs_per_iteration.get(form, ()), strict=True
        )
        samples = [1e3 * seconds / graphs for seconds, graphs in pairs]
        return float(np.median(samples)) if samples else None


def slices(
    table: GraphTable, bandwidth: Array, train: Array, shares: tuple[float, ...], nodes: int
) -> list[Slice]:
    """All training graphs, and the slices that keep about these shares of them.

    Args:
        table: the programs.
        bandwidth: int [g], of each graph.
        train: int [t], the graphs of the training part.
        shares: of the training graphs, for each a slice by bandwidth and one by order.
        nodes: of a supergraph, about.
    """
    chosen: list[tuple[By, int | None]] = [("all data", None)]
    for share in shares:
        for by, values in _measures(table, bandwidth).items():
            limit = np.percentile(values[train], 100 * share, method="inverted_cdf")
            chosen.append((by, int(limit)))
    found = []
    for by, limit in dict.fromkeys(chosen):
        graphs = _kept(table, bandwidth, train, by, limit)
        widest = int(bandwidth[graphs].max(initial=1))
        block = min(-(-max(widest, 1) // 8) * 8, nodes)
        found.append(
            Slice(
                by=by,
                limit=limit,
                share=len(graphs) / len(train),
                graphs=len(graphs),
                block=block,
                nodes=-(-nodes // block) * block,
            )
        )
    return found


def _measures(table: GraphTable, bandwidth: Array) -> dict[By, Array]:
    return {"bandwidth": bandwidth, "order": table.num_nodes}


def _kept(table: GraphTable, bandwidth: Array, train: Array, by: By, limit: int | None) -> Array:
    if limit is None:
        return train
    kept: Array = train[_measures(table, bandwidth)[by][train] <= limit]
    return kept


def time_iterations(
    each: list[Slice],
    prepared: PreparedPrograms,
    bandwidth: Array,
    *,
    iterations: int,
    done: Callable[[], None],
) -> None:
    """Time training steps of every slice, round by round; each slice is added to.

    Supergraphs are as large for the csr form as for the banded one. Making a supergraph is not
    timed: in training a thread does it meanwhile.
    """
    table, config = prepared.table, prepared.config
    model = make_ggnn(config, num_types=prepared.num_types, vocabulary=prepared.vocabulary)
    samplers = [_sampler(prepared, bandwidth, slice_, slice_.nodes) for slice_ in each]
    for turn in range(-1, iterations):  # the first warms up, and does not count
        for slice_, sampler in zip(each, samplers, strict=True):
            plan = sampler.plan()
            planned = plan[max(turn, 0) % len(plan)]
            batch = assemble(table, planned.graphs, planned.budget)
            for form in _FORMS:
                samples = slice_.iteration.setdefault(form, [])
                if form in slice_.skipped or 0 <= turn < len(samples):
                    continue
                block = slice_.block if form == "banded" else None
                layout = LayoutConfig(form=form, block=block, hidden=config.hidden)
                try:
                    adjacency = adjacency_of(batch, prepared.num_types, layout)
                except DataError as error:
                    slice_.skipped[form] = str(error)
                    continue
                began = time.perf_counter()
                loss, count = candidate_loss(batch, model(batch, adjacency))
                torch.autograd.backward(loss / count)
                spent = time.perf_counter() - began
                if turn >= 0:
                    samples.append(spent)
                    slice_.graphs_per_iteration.setdefault(form, []).append(count)
        done()


def train_slice(
    slice_: Slice,
    prepared: PreparedPrograms,
    bandwidth: Array,
    *,
    epochs: int,
    evaluations: int,
    progress: Callable[[int], None],
) -> None:
    """Train on the slice until as many graphs were seen as `epochs` over all training graphs have.

    The same recipe, first weights and number of graphs for every slice; evaluated on everything.
    Supergraphs of small graphs are smaller, so that a step has as many graphs in every slice.

    Args:
        slice_: its curve and seconds are filled.
        prepared: the programs and the recipe.
        bandwidth: int [g], of each graph.
        epochs: over all training graphs.
        evaluations: at equal distances, the last at the end.
        progress: called with the percent that is done.
    """
    config, table = prepared.config, prepared.table
    sampler = _sampler(prepared, bandwidth, slice_, _nodes_for(prepared, bandwidth, slice_))
    total = epochs * len(prepared.split["train"])
    steps = max(1, round(total / sampler.statistics().graphs_per_batch))
    seed_everything(config.seed)
    model = make_ggnn(config, num_types=prepared.num_types, vocabulary=prepared.vocabulary)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    schedule = replace(config.schedule, warmup=min(config.schedule.warmup, steps // 5))
    scheduler = make_scheduler(optimizer, schedule, steps)
    form = partial(TypedEdges.of_batch, num_types=prepared.num_types)
    validation = _validation(prepared)
    curve: list[tuple[int, int, float]] = []
    seen = taken = 0
    seconds, began = 0.0, time.perf_counter()
    for supergraph in _endless(StepLoader(table, sampler, form)):
        scores = model(supergraph.batch, supergraph.adjacency)
        loss, graphs = candidate_loss(supergraph.batch, scores)
        optimizer.zero_grad()
        torch.autograd.backward(loss / graphs)
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        scheduler.step()
        seen, taken = seen + graphs, taken + 1
        progress(min(100, 100 * seen // total))
        if seen >= total * (len(curve) + 1) / evaluations:
            seconds += time.perf_counter() - began
            model.eval()
            curve.append((seen, taken, measure_programs(model, validation)["accuracy"]))
            model.train()
            began = time.perf_counter()
        if seen >= total:
            break
    slice_.curve, slice_.seconds = curve, seconds


def _nodes_for(prepared: PreparedPrograms, bandwidth: Array, slice_: Slice) -> int:
    """Nodes of a supergraph that holds as many graphs of the slice as others hold of all."""
    sizes, train = prepared.table.num_nodes, prepared.split["train"]
    own = sizes[_kept(prepared.table, bandwidth, train, slice_.by, slice_.limit)]
    # Without those that are larger than a supergraph of the recipe and so in no training.
    every, own = (s[s < prepared.config.nodes] for s in (sizes[train], own))
    asked = float(prepared.config.nodes * own.mean() / every.mean())
    return max(round(asked), int(own.max()) + 1)


def _sampler(
    prepared: PreparedPrograms, bandwidth: Array, slice_: Slice, nodes: int
) -> GraphSampler:
    table, train = prepared.table, prepared.split["train"]
    graphs = _kept(table, bandwidth, train, slice_.by, slice_.limit)
    return packed_sampler(table, graphs, nodes, seed=prepared.config.seed)


def _validation(prepared: PreparedPrograms) -> StepLoader:
    table, graphs = prepared.table, prepared.split["validation"]
    sampler = evaluation_sampler(
        table.num_nodes,
        table.num_edges,
        prepared.sampler.config,
        graphs=graphs,
        budget=prepared.sampler.budget,
    )
    form = partial(TypedEdges.of_batch, num_types=prepared.num_types)
    return StepLoader(table, sampler, form)


def _endless(loader: StepLoader) -> Iterator[Supergraph]:
    epoch = 0
    while True:
        loader.set_epoch(epoch)
        for step in loader:
            yield from step.supergraphs
        epoch += 1
