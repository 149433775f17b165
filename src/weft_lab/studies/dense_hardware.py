"""The experiments of Balog et al. (2019) on Python programs, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from weft.batching import GraphSampler, evaluation_sampler
from weft.errors import DataError
from weft.graphs import Array, GraphTable, assemble
from weft.layout import LayoutConfig, TypedEdges, adjacency_of, band_statistics
from weft.models.ggnn import candidate_loss
from weft.recipes.programs.supergraphs import StepLoader, Supergraph, packed_sampler
from weft.recipes.programs.training import (
    PreparedPrograms,
    make_ggnn,
    measure_programs,
    prepare_programs,
)
from weft.sources import load
from weft.sources.program_graph import NUM_TYPES
from weft.sources.progress_bar import progress_bar
from weft.sources.python_programs import program_table
from weft.training.randomness import seed_everything
from weft.training.schedules import make_scheduler
from weft_lab.studies.dense_layouts import (
    STUDIED_ORDERS,
    FormCell,
    OrderFigures,
    Spy,
    SupergraphCount,
    count_supergraphs,
    order_figures,
    spy,
    time_forms,
)
from weft_lab.study import StudyResults
from weft_lab.study_settings import DenseHardwareStudy

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


@dataclass(kw_only=True)
class DenseResults(StudyResults):
    """Everything that was measured, and where.

    Attributes:
        orders: bandwidths by order of nodes.
        supergraphs: by block and nodes; None until they are counted.
        spy: one graph before and after.
        slices: of the training data; empty until they are cut.
        baselines: accuracies on the validation graphs that need no training.
        cells: banded against csr.
    """

    schemas: ClassVar[tuple[str, ...]] = ("weft study dense-hardware 1",)
    title: ClassVar[str] = "Study of dense hardware"
    kind: ClassVar[str] = "study of dense hardware"
    method: ClassVar[str] = (
        "Forms and slices took turns, round by round, so that what disturbs the machine disturbs "
        "all alike. Times are medians."
    )

    config: DenseHardwareStudy
    orders: list[OrderFigures] = field(default_factory=list)
    supergraphs: list[SupergraphCount] | None = None
    spy: Spy | None = None
    slices: list[Slice] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)
    cells: list[FormCell] = field(default_factory=list)


def program_data(
    config: DenseHardwareStudy,
    *,
    data_dir: Path | None = None,
    quiet: bool = False,
    data: Path | None = None,
) -> GraphTable:
    """Programs in a folder of .py files; without one, of the standard library of this Python.

    Raises:
        DataError: the folder is not there, or holds no programs.
    """
    if data is not None and not data.exists():
        raise DataError(f"--data {data} does not exist; name a folder of .py files")
    if data is None and config.graphs is None:
        return load("python", data_dir=data_dir, progress=not quiet)
    return program_table(data, limit=config.graphs, progress=not quiet, seed=config.seed)


def about_programs(table: GraphTable) -> dict[str, Any]:
    """How many graphs, files, nodes and edges there are."""
    return {
        "graphs": len(table),
        "files": len(table.metadata.get("files", ())),
        "nodes": table.total_nodes,
        "edges": table.total_edges,
    }


def measure_dense_hardware(results: DenseResults, table: GraphTable) -> None:
    """Orders, supergraphs, forms, then iterations of and trainings on slices.

    Args:
        results: are filled.
        table: programs in reverse Cuthill-McKee order.
    """
    config = results.config
    # Looks at everything that can be wrong with the table before anything is written.
    prepared = prepare_programs(table, config.recipe())
    results.save()
    bandwidth = band_statistics(table).bandwidth
    known = {figures.order for figures in results.orders}
    for order in results.missing("orders", STUDIED_ORDERS, known.__contains__):
        results.orders.append(order_figures(table, order, seed=config.seed))
    if results.spy is None:
        results.spy = spy(table)
    if results.supergraphs is None:
        counts = [
            count_supergraphs(table, bandwidth, block, nodes, NUM_TYPES, config.hidden)
            for nodes in config.nodes
            for block in config.blocks
        ]
        results.supergraphs = [count for count in counts if count is not None]
    results.save()
    if not results.cells:
        results.cells = [
            FormCell(types=types, block=block, density=density)
            for types, block, density in product(config.types, config.form_blocks, config.densities)
        ]
    # In another order than that of the table: what disturbs the machine disturbs all alike.
    mixed = np.random.default_rng(0).permutation(len(results.cells))
    cells = [results.cells[number] for number in mixed]
    for cell in results.missing("banded and csr", cells, lambda c: c.measured or c.skipped):
        time_forms(cell, config)
    if not results.slices:
        results.baselines = asdict(prepared.baselines["validation"])
        results.baselines["graphs"] = len(prepared.split["validation"])
        train, nodes = prepared.split["train"], config.training_nodes
        results.slices = slices(table, bandwidth, train, config.shares, nodes)
    if not all(each.timed(config.iterations) for each in results.slices):
        take_turn = time_iterations(results.slices, prepared, bandwidth)
        for turn in results.missing("iterations of slices", range(config.iterations + 1)):
            take_turn(turn)
    for each in results.slices if config.epochs else ():
        if not each.curve:
            show = not results.quiet
            with progress_bar(f"training: {each.name}", 100, show=show, count=True) as move:
                train_slice(each, prepared, bandwidth, config, move)
            results.save()


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
    each: list[Slice], prepared: PreparedPrograms, bandwidth: Array
) -> Callable[[int], None]:
    """What times a training step of every slice and form, turn by turn; each slice is added to.

    The first turn warms up, and does not count. Supergraphs are as large for the csr form as for
    the banded one. Making a supergraph is not timed: in training a thread does it meanwhile.
    """
    config = prepared.config
    model = make_ggnn(config, num_types=prepared.num_types, vocabulary=prepared.vocabulary)
    samplers = [_sampler(prepared, bandwidth, slice_, slice_.nodes) for slice_ in each]

    def take(turn: int) -> None:
        for slice_, sampler in zip(each, samplers, strict=True):
            plan = sampler.plan()
            planned = plan[max(turn - 1, 0) % len(plan)]
            batch = assemble(prepared.table, planned.graphs, planned.budget)
            for form in _FORMS:
                samples = slice_.iteration.setdefault(form, [])
                if form in slice_.skipped or 0 < turn <= len(samples):
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
                if turn:
                    samples.append(spent)
                    slice_.graphs_per_iteration.setdefault(form, []).append(count)

    return take


def train_slice(
    slice_: Slice,
    prepared: PreparedPrograms,
    bandwidth: Array,
    study: DenseHardwareStudy,
    progress: Callable[[int], None],
) -> None:
    """Train on the slice until as many graphs were seen as the epochs over all of them have.

    The same recipe, first weights and number of graphs for every slice; evaluated on everything.
    Supergraphs of small graphs are smaller, so that a step has as many graphs in every slice.

    Args:
        slice_: its curve and seconds are filled.
        prepared: the programs and the recipe.
        bandwidth: int [g], of each graph.
        study: how many epochs, and how often, at equal distances, to evaluate.
        progress: called with the percent that is done.
    """
    config, table = prepared.config, prepared.table
    sampler = _sampler(prepared, bandwidth, slice_, _nodes_for(prepared, bandwidth, slice_))
    total = study.epochs * len(prepared.split["train"])
    steps = max(1, round(total / sampler.statistics().graphs_per_batch))
    seed_everything(config.seed)
    model = make_ggnn(config, num_types=prepared.num_types, vocabulary=prepared.vocabulary)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    schedule = replace(config.schedule, warmup=min(config.schedule.warmup, steps // 5))
    scheduler = make_scheduler(optimizer, schedule, steps)
    form = partial(TypedEdges.of_batch, num_types=prepared.num_types)
    every = evaluation_sampler(
        table.num_nodes,
        table.num_edges,
        prepared.sampler.config,
        graphs=prepared.split["validation"],
        budget=prepared.sampler.budget,
    )
    validation = StepLoader(table, every, form)
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
        if seen >= total * (len(curve) + 1) / study.evaluations:
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


def _endless(loader: StepLoader) -> Iterator[Supergraph]:
    epoch = 0
    while True:
        loader.set_epoch(epoch)
        for step in loader:
            yield from step.supergraphs
        epoch += 1
