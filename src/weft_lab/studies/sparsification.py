"""Peng et al. (2022), "Towards Sparsification of Graph Neural Networks", and what it left open."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from weft.errors import DataError
from weft.graphs import Graph
from weft.integrations.accelerate import accelerate
from weft.recipes.links.data import temporal_edges
from weft.sources import CATALOGUE, EdgeList, load, planted_partition, temporal
from weft.sparsify import Masks, erk, random_masks
from weft.sparsify.compaction import compact
from weft.sparsify.sparse_layers import SparseLinear
from weft_lab.studies.sparsification_training import (
    PreparedTask,
    SparseRun,
    kinds_of,
    prepare_task,
    train_kind,
)
from weft_lab.study import StudyResults
from weft_lab.study_settings import Network, SparsificationStudy, Task
from weft_lab.timing import crossover, median_ratio, time_by_turns

Mode = Literal["training", "inference"]

FORMS: dict[Mode, tuple[str, ...]] = {
    "training": ("dense", "masks", "sparse", "accelerate"),
    "inference": ("dense", "sparse", "compact", "accelerate"),
}
"""dense: torch; masks: the same with masks kept at 0; sparse: every layer a `SparseLinear`;
compact: dense without units that do nothing; accelerate: what `accelerate` chose."""

# Seconds of a turn: many calls of what takes less than a hiccup of the machine.
_TURN = 0.02
# What a file of version 1 counted; its runs are kept, and the tables say so.
_NONZERO = (
    "Weights and FLOPs of trainings from a file of version 1 are of the weights that were not 0 at "
    "the end; those that masks keep and that happened to be 0 are not among them."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SparsificationData:
    """What is learned.

    Attributes:
        links_name: of the temporal graph.
        edges: with times.
        nodes_name: of the graph whose nodes have classes.
        graph: with node columns `y` and, for the GCN, `x`.
    """

    links_name: str
    edges: EdgeList
    nodes_name: str
    graph: Graph

    def about(self) -> dict[str, Any]:
        """Names and sizes."""
        both: dict[str, tuple[str, EdgeList | Graph]] = {
            "links": (self.links_name, self.edges),
            "nodes": (self.nodes_name, self.graph),
        }
        return {
            kind: {"name": name, "nodes": each.num_nodes, "edges": each.num_edges}
            for kind, (name, each) in both.items()
        }


def generated_edges(config: SparsificationStudy) -> EdgeList:
    """A stream in which the active stay active."""
    return temporal(config.nodes, config.edges, seed=config.seed)


def generated_nodes(config: SparsificationStudy) -> Graph:
    """Ten classes that show in who links to whom, and in features."""
    return planted_partition(
        config.nodes, 10, mean_degree=10, homophily=0.8, num_features=32, seed=config.seed
    )


def sparsification_data(
    config: SparsificationStudy,
    *,
    data_dir: Path | None = None,
    quiet: bool = False,
    links: str | None = None,
    links_files: tuple[Path, ...] = (),
    classes: str | None = None,
    classes_files: tuple[Path, ...] = (),
) -> SparsificationData:
    """A temporal graph and one whose nodes have classes; what is not named is generated.

    Raises:
        DataError: there is no such data set or file, or it is not what is learned here.
    """
    for name, given, files in (("links", links, links_files), ("classes", classes, classes_files)):
        if given is None and files:
            raise DataError(f"--{name}-files are of a data set; name it with --{name}")
    edges = (
        generated_edges(config)
        if links is None
        else temporal_edges(links, files=links_files, data_dir=data_dir, progress=not quiet)
    )
    if classes is None:
        graph = generated_nodes(config)
    elif classes not in CATALOGUE:
        raise DataError(f"--classes {classes} is no data set of `weft data list`")
    else:
        table = load(classes, files=classes_files, data_dir=data_dir, progress=not quiet)
        if len(table) != 1 or "y" not in table.schema:
            raise DataError(f"--classes {classes} is not one graph whose nodes have classes")
        graph = table[0]
        if "gcn" in config.tasks and "x" not in graph.nodes:
            raise DataError(
                f"the nodes of {classes} have no features for a GCN; leave it out: "
                "--tasks links nodes"
            )
    return SparsificationData(
        links_name=links or "generated stream",
        edges=edges,
        nodes_name=classes or "planted partition",
        graph=graph,
    )


@dataclass(kw_only=True)
class TimeCell:
    """One network at one sparsity.

    Attributes:
        network: as in the settings, such as 64-256-128-10x512.
        sparsity: of the weights.
        mode: training: forward, backward and SGD; inference: forward.
        flops: the dense network's over those of the weights that are there.
        measured: seconds of the fastest call of each turn, by form.
        chosen: layers that `accelerate` made sparse.
        layers: how many there are.
    """

    network: str
    sparsity: float
    mode: Mode
    flops: float = 0.0
    measured: dict[str, list[float]] = field(default_factory=dict)
    chosen: int = 0
    layers: int = 0

    @property
    def key(self) -> tuple[str, Mode, float]:
        """Which one it is."""
        return self.network, self.mode, self.sparsity

    def seconds(self, form: str) -> float:
        """Median of the turns."""
        return statistics.median(self.measured[form])

    def speedup(self, form: str) -> float:
        """Dense time over that of a form: median over turns, which both had one after the other."""
        return median_ratio(self.measured["dense"], self.measured[form])


@dataclass(kw_only=True)
class SparsificationResults(StudyResults):
    """Everything that was measured, and where.

    Attributes:
        densities: share of the training inputs that is not 0 with sparse embeddings, by task.
        runs: trainings.
        cells: times.
        remarks: what is to be known of trainings from a file of an earlier version.
    """

    schemas: ClassVar[tuple[str, ...]] = (
        "weft study sparsification 2",
        "weft study sparsification 1",
    )
    title: ClassVar[str] = "Study of sparsification"
    kind: ClassVar[str] = "study of sparsification"
    method: ClassVar[str] = (
        "FLOPs say what would be computed if no zero were multiplied; times are measured. The "
        "trainings keep masks on dense weights, as Peng et al. (2022) did: their FLOPs fall and "
        "their time does not. What time sparse weights save is in the tables of times, where "
        "forms took turns: medians over turns of the fastest call. SLR and RigL share the recipe "
        "(epochs, batches, learning rate); intervals are of 95% over training seeds on one split "
        "and one embedding; the best epoch is chosen by validation."
    )

    config: SparsificationStudy
    densities: dict[str, float] = field(default_factory=dict)
    runs: list[SparseRun] = field(default_factory=list)
    cells: list[TimeCell] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def of(self, task: Task) -> list[SparseRun]:
        """The trainings of a task."""
        return [run for run in self.runs if run.kind.task == task]

    @classmethod
    def upgraded(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Version 1 counted weights that are not 0, where version 2 counts those of the masks."""
        if values["schema"] == cls.schemas[0]:
            return {"remarks": [], **values}
        runs = [{"active": run["nonzero"], **run} for run in values["runs"]]
        return {**values, "runs": runs, "remarks": [_NONZERO] if runs else []}


def measure_sparsification(results: SparsificationResults, data: SparsificationData) -> None:
    """Times of all networks and forms, then trainings."""
    config = results.config
    results.save()
    wanted = [
        TimeCell(network=network, sparsity=sparsity, mode=mode)
        for network, mode, sparsity in product(config.networks, FORMS, config.time_sparsities)
    ]
    timed = {cell.key for cell in results.cells}
    for cell in results.missing("times", wanted, lambda cell: cell.key in timed):
        time_forms(cell, config)
        results.cells.append(cell)
    trained = {run.kind for run in results.runs}
    kinds = [kind for task in config.tasks for kind in kinds_of(config, task)]
    prepared: PreparedTask | None = None
    for kind in results.missing("trainings", kinds, trained.__contains__):
        if prepared is None or prepared.task != kind.task:
            prepared = prepare_task(config, kind.task, data.edges, data.graph)
            results.densities[kind.task] = prepared.density
        results.runs.append(train_kind(prepared, kind))


def time_forms(cell: TimeCell, study: SparsificationStudy) -> None:
    """Let all forms take turns on random masks of the cell's sparsity; `cell` is filled."""
    network = Network.read(cell.network)
    training = cell.mode == "training"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(study.seed)
        modules: list[nn.Module] = []
        for wide, narrow in pairwise(network.widths):
            modules += [nn.Linear(wide, narrow), nn.ReLU()]
        plain = nn.Sequential(*modules[:-1])
        x = torch.randn(network.batch, network.widths[0])
    dense = copy.deepcopy(plain)
    masks = Masks(plain)
    shares = erk(masks.shapes, 1 - cell.sparsity)
    random_masks(plain, masks, shares, seed=study.seed)
    masks.apply_()
    cell.flops = masks.size() / masks.nnz()
    chosen = copy.deepcopy(plain).train(training)
    accelerate(chosen, x, masks=masks, report=None)
    cell.chosen = sum(isinstance(layer, SparseLinear) for layer in chosen)
    cell.layers = len(network.widths) - 1
    steps = {
        "dense": _step(dense, x, training),
        "sparse": _step(_sparse(plain, masks), x, training),
        "accelerate": _step(chosen, x, training),
    }
    if training:
        steps["masks"] = _step(plain, x, training, masks)
    else:
        steps["compact"] = _step(compact(plain, masks)[0], x, training)
    ordered = {form: steps[form] for form in FORMS[cell.mode]}
    cell.measured = time_by_turns(ordered, study.rounds, turn=_TURN)


def _sparse(model: nn.Sequential, masks: Masks) -> nn.Sequential:
    """The same with every layer sparse, and its ReLU in it."""
    names = [name for name, layer in model.named_children() if isinstance(layer, nn.Linear)]
    return nn.Sequential(
        *(
            SparseLinear.from_dense(
                model.get_submodule(name),  # type: ignore[arg-type]
                masks[f"{name}.weight"],
                relu=name != names[-1],
            )
            for name in names
        )
    )


def _step(
    model: nn.Module, x: Tensor, training: bool, masks: Masks | None = None
) -> Callable[[], None]:
    model = model.train(training)
    if not training:

        def forward() -> None:
            with torch.inference_mode():
                model(x)

        return forward
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if masks is not None:
        masks.attach(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def faster_from(cells: Sequence[TimeCell], form: str) -> float | str:
    """The sparsity from which on a form is faster than dense, see `crossover`.

    Args:
        cells: of one network and mode.
        form: of FORMS.
    """
    ranked = sorted(cells, key=lambda cell: cell.sparsity)
    # What `accelerate` left dense is no faster, whatever the clock says.
    ratios = [
        1.0 if form == "accelerate" and not cell.chosen else cell.speedup(form) for cell in ranked
    ]
    kept = crossover([1 - cell.sparsity for cell in ranked], ratios)
    return kept if isinstance(kept, str) else 1 - kept
