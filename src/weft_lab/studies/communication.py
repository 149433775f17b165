"""The algorithms of Tripathy, Yelick and Buluç (2020) and ours: what travels, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from weft.errors import DataError
from weft.graphs import Graph, open_table
from weft.graphs.store import MANIFEST
from weft.parallel.grid import Grid, grids_for
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import source_graph
from weft.sources import CATALOGUE, load, planted_partition, shchur
from weft_lab.counted_partitions import CountedPartition, counted_partition, with_loops
from weft_lab.grid_training import (
    METHODS,
    GridCell,
    PreparedTables,
    grid_cells,
    grid_label,
    train_on_ranks,
    with_random_features,
)
from weft_lab.report import Panel, Section
from weft_lab.study import Finding, Study, StudyResults
from weft_lab.study_settings import CommunicationStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = ("1d", "1.5d", "2d", "3d")
_PARTITIONS = ("contiguous", "random", "balanced", "metis", "volume")
_OF_METIS = ("metis", "volume")
# Of recorded bytes, by whether the ranks were processes.
_MARKS = (("o", True), ("x", False))


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedGraph:
    """The graph that ranks share: with features, classes and a split."""

    name: str
    graph: Graph

    def about(self) -> dict[str, Any]:
        """Its name and size."""
        return {"name": self.name, "nodes": self.graph.num_nodes, "edges": self.graph.num_edges}


def shared_graph(
    config: CommunicationStudy,
    *,
    data_dir: Path | None = None,
    quiet: bool = False,
    data: str | None = None,
    files: tuple[Path, ...] = (),
) -> NamedGraph:
    """A graph of the catalogue or of a path, as for `weft train full-graph`, or a generated one.

    Raises:
        DataError: there is no such graph, or it is not one graph.
    """
    if data is None:
        if files:
            raise DataError("--files are of a data set; name it with --data")
        graph = planted_partition(
            config.nodes, 8, mean_degree=14, homophily=0.8, num_features=32, seed=config.seed
        )
        return NamedGraph(name="planted partition", graph=graph)
    recipe = FullGraphConfig(data=data, seed=config.seed)
    path = Path(data)
    if data in CATALOGUE:
        if (kind := CATALOGUE[data].kind) != "one graph":
            raise DataError(f"--data {data} is {kind}, not one graph for ranks to share")
        graph = source_graph(recipe, load(data, files=files, data_dir=data_dir, progress=not quiet))
    elif not path.exists():
        raise DataError(f"--data {path} is neither a file nor a graph of `weft data list`")
    elif (path / MANIFEST).exists():
        graph = source_graph(recipe, open_table(path))
    elif path.suffix in (".npz", ".zip"):
        graph = source_graph(recipe, shchur(path))
    else:
        raise DataError(f"--data {path} is no graph table and no npz of Shchur et al.")
    return NamedGraph(name=data, graph=graph)


@dataclass(frozen=True, kw_only=True)
class AccuracyRun:
    """A training on the graph's own features and classes, in float64.

    Attributes:
        grid: the ranks.
        losses: of each epoch.
        scores: loss and accuracy of each part at the end.
    """

    grid: Grid
    losses: list[float]
    scores: dict[str, float]

    @property
    def label(self) -> str:
        """Of the grid."""
        return "1 process" if self.grid.ranks == 1 else grid_label(self.grid)


@dataclass(kw_only=True)
class CommunicationResults(StudyResults):
    """Everything that was measured, and where.

    Attributes:
        cells: bytes and times, by grid and method.
        accuracies: trainings to compare; one process first.
        partitions: what partitions leave to travel, by number of ranks.
    """

    schemas: ClassVar[tuple[str, ...]] = ("weft study communication 1",)
    title: ClassVar[str] = "Study of communication"
    kind: ClassVar[str] = "study of communication"
    method: ClassVar[str] = (
        "Bytes are those that a rank receives in an epoch, as its recorder notes them and as the "
        "formulas give them. Times are medians over epochs of the mean rank; ranks beyond the "
        "cores of the machine share them. Waiting is time in collectives that is not hidden "
        "behind products."
    )

    config: CommunicationStudy
    cells: list[GridCell] = field(default_factory=list)
    accuracies: list[AccuracyRun] = field(default_factory=list)
    partitions: list[CountedPartition] = field(default_factory=list)

    @classmethod
    def upgraded(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The values of a file; earlier ones have no partitions."""
        return {"partitions": [], **values}


def measure_communication(results: CommunicationResults, data: NamedGraph) -> None:
    """Bytes and times of every grid and method, then partitions, then accuracies."""
    config, graph = results.config, data.graph
    most, nodes = max(config.ranks), graph.num_nodes
    if most > nodes:
        raise ValueError(
            f"{most} ranks for {nodes} nodes: each needs at least one; take fewer ranks"
        )
    results.save()
    with TemporaryDirectory(prefix="weft-study-") as place:
        random = with_random_features(graph, config.widths[0], config.widths[-1], config.seed)
        tables = PreparedTables(random, Path(place), partition=config.partition, seed=config.seed)
        known = {cell.ranks for cell in results.cells}
        for ranks in results.missing("bytes and times", config.ranks, known.__contains__):
            real = ranks <= config.real_ranks
            results.cells += grid_cells(
                tables,
                ranks,
                config.widths,
                epochs=config.timed_epochs if real else 1,
                simulated=None if real else config.simulated or ranks,
            )
    looped, counted = with_loops(graph), {cell.ranks for cell in results.partitions}
    shared = [ranks for ranks in config.ranks if ranks > 1]
    for ranks in results.missing("partitions", shared, counted.__contains__):
        results.partitions += [
            counted_partition(looped, ranks, how, config.widths, config.seed)
            for how in _known_partitions()
        ]
    with TemporaryDirectory(prefix="weft-study-") as place:
        # Rounding of float32 grows with the epochs, and hides a real difference.
        tables = PreparedTables(
            graph, Path(place), partition=config.partition, seed=config.seed, dtype="float64"
        )
        # One process, then all grids of each number of ranks.
        counts = [n for n in dict.fromkeys((1, *config.accuracy_ranks)) if n <= config.real_ranks]
        groups = [grids_for(count) for count in counts]
        trained = {run.grid for run in results.accuracies}
        for grids in results.missing("accuracies", groups, trained.issuperset):
            results.accuracies += _train_on(tables, grids, config)


def _known_partitions() -> list[str]:
    """Those whose packages are installed."""
    cut = find_spec("pymetis") is not None
    return [how for how in _PARTITIONS if cut or how not in _OF_METIS]


def _train_on(
    tables: PreparedTables, grids: list[Grid], config: CommunicationStudy
) -> list[AccuracyRun]:
    settings = {"hidden": config.hidden, "epochs": config.epochs, "dropout": 0.5, "scored": True}
    method = METHODS["sparsity-aware"]
    trained = train_on_ranks([tables.run(method, grid, **settings) for grid in grids])
    return [
        AccuracyRun(grid=grid, losses=first.losses, scores=first.scores)
        for grid, (first, *_) in zip(grids, trained, strict=True)
    ]


def communication_sections(results: CommunicationResults) -> list[Section]:
    """All tables of the study of communication."""
    return [
        _volumes(results),
        _kinds(results),
        _left_by_partitions(results),
        _times(results),
        _accuracies(results),
    ]


def largest_difference(run: AccuracyRun, serial: AccuracyRun) -> float:
    """Of the losses of any epoch."""
    pairs = zip(run.losses, serial.losses, strict=True)
    return max((abs(a - b) for a, b in pairs), default=0.0)


def _volumes(results: CommunicationResults) -> Section:
    cells = {(c.grid, c.method): c for c in results.cells}
    rows = []
    for grid in dict.fromkeys(c.grid for c in results.cells if c.ranks > 1):
        own = {method: cells[grid, method] for method in METHODS}
        line = cells[next(g for g, _ in cells if g.ranks == grid.ranks), "published"]
        best = own["sparsity-aware"]
        rows.append(
            (
                *(str(grid.ranks), best.label),
                *(_megabytes(cell.mean) for cell in own.values()),
                _megabytes(max(best.predicted)),
                *(f"{line.mean / cell.mean:.1f}" for cell in (own["reductions"], best)),
                "real" if best.real else f"{len(best.records)} simulated",
            )
        )
    widths = "-".join(map(str, results.config.widths))
    return Section(
        title=f"MB that the mean rank receives in an epoch, GCN of widths {widths}, "
        f"{_graph(results)}",
        headings=(
            *("P", "grid", *METHODS, "its busiest rank"),
            *("reductions, times less", "times less", "ranks"),
        ),
        rows=rows,
        says=_equal(results.cells) + _least(results.cells),
        narrow=("P", "grid", *METHODS, "times less", "ranks"),
    )


def _graph(results: CommunicationResults) -> str:
    about = results.data
    return f"{about['name']}: {about['nodes']:,} nodes, {about['edges']:,} edges"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.3f}"


def _equal(cells: list[GridCell]) -> list[str]:
    differing = [cell for cell in cells if cell.differing]
    if differing:
        first = differing[0]
        return [
            f"Recorded and predicted bytes differ in {len(differing)} of {len(cells)} cases, first "
            f"on {first.label} of {first.ranks} ranks, {first.method}, rank {first.differing[0]}."
        ]
    real = sum(len(cell.records) for cell in cells if cell.real)
    simulated = sum(len(cell.records) for cell in cells if not cell.real)
    return [
        f"Recorded bytes equal the predicted ones on all {real} real and {simulated} simulated "
        "ranks. Times less: than 1d as published, on as many ranks."
    ]


def _least(cells: list[GridCell]) -> list[str]:
    most = max((cell.ranks for cell in cells), default=1)
    if most == 1:
        return []
    said = []
    for method in METHODS:
        own = [cell for cell in cells if cell.method == method and cell.ranks == most]
        best = min(own, key=lambda cell: cell.mean)
        said.append(f"{method} on {best.label} ({_megabytes(best.mean)} MB)")
    return [f"Least on {most} ranks: {', '.join(said)}."]


def _kinds(results: CommunicationResults) -> Section:
    """Of which collectives the bytes are, on the most ranks."""
    most = max((cell.ranks for cell in results.cells), default=1)
    cells = [cell for cell in results.cells if cell.ranks == most and most > 1]
    kinds = sorted({kind for cell in cells for r in cell.records.values() for kind in r.bytes})
    rows = []
    for cell in cells:
        records = list(cell.records.values())
        sums = [sum(record.bytes.get(kind, 0) for record in records) for kind in kinds]
        parts = [_megabytes(total / len(records)) if total else "" for total in sums]
        rows.append((cell.label, cell.method, *parts))
    return Section(
        title=f"MB on {most} ranks by kind of collective, of the ranks that recorded",
        headings=("grid", "method", *(kind.replace("_", " ") for kind in kinds)),
        rows=rows,
    )


def _left_by_partitions(results: CommunicationResults) -> Section:
    """Bytes and balance of each partition on the 1D grid."""
    cells = results.partitions
    if not cells:
        return Section(title="", headings=(), rows=[])
    most = max(cell.ranks for cell in cells)
    last = {cell.how: cell for cell in cells if cell.ranks == most}
    least = min(last.values(), key=lambda cell: cell.mean)
    even = min(last.values(), key=lambda cell: cell.imbalance)
    return Section.of(
        "MB that a rank of the 1D grid receives in an epoch, by partition, and nonzeros of the "
        f"largest rank over the mean, counted, {_graph(results)}",
        cells,
        {
            "P": "{0.ranks}",
            "partition": "{0.how}",
            "mean rank": lambda cell: _megabytes(cell.mean),
            "busiest rank": lambda cell: _megabytes(max(cell.received)),
            "nonzeros": "{0.imbalance:.3f}",
        },
        says=[
            f"On {most} ranks {least.how} receives least ({_megabytes(least.mean)} MB) and "
            f"{even.how} is the most even ({even.imbalance:.3f}). `weft plan full-graph --measure` "
            "weighs one against the other."
        ],
    )


def _times(results: CommunicationResults) -> Section:
    return Section.of(
        "Time of an epoch on real ranks",
        [cell for cell in results.cells if cell.real],
        {
            "P": "{0.ranks}",
            "grid": "{0.label}",
            "method": "{0.method}",
            "epoch [ms]": lambda cell: f"{1e3 * cell.seconds('epoch'):.1f}",
            "compute [ms]": lambda cell: f"{1e3 * cell.seconds('compute'):.1f}",
            "waiting [ms]": lambda cell: f"{1e3 * cell.seconds('communication'):.1f}",
            "threads a rank": "{0.records[0].threads}",
        },
    )


def _accuracies(results: CommunicationResults) -> Section:
    runs = results.accuracies
    if not runs:
        return Section(title="", headings=(), rows=[])
    serial = runs[0]
    worst = max(largest_difference(run, serial) for run in runs)
    names = ("train_accuracy", "validation_accuracy", "test_accuracy")
    pairs = [(run.scores[name], serial.scores[name]) for run in runs for name in names]
    same = all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)
    verdict = "are the same on every grid" if same else "are not the same on every grid"
    return Section.of(
        f"{len(serial.losses)} epochs on {_graph(results)}, its own features and classes, "
        "dropout 0.5, float64",
        runs,
        {
            "P": "{0.grid.ranks}",
            "grid": "{0.label}",
            "loss": lambda run: f"{run.losses[-1]:.6f}",
            "validation %": lambda run: f"{100 * run.scores['validation_accuracy']:.2f}",
            "test %": lambda run: f"{100 * run.scores['test_accuracy']:.2f}",
            "losses apart": lambda run: f"{largest_difference(run, serial):.1e}",
        },
        says=[f"Accuracies {verdict}; losses of any epoch differ by at most {worst:.1e}."],
    )


def communication_figures(results: CommunicationResults) -> dict[str, list[Panel]]:
    """Bytes by ranks, times by grid, and the losses of all grids."""
    shared = [cell for cell in results.cells if cell.ranks > 1]
    times: dict[str, list[GridCell]] = {}
    for cell in sorted(results.cells, key=lambda cell: cell.ranks):
        if cell.real:
            title = "1 process" if cell.ranks == 1 else f"{cell.ranks} ranks"
            times.setdefault(title, []).append(cell)
    losses = [
        ("training loss", _draw_losses, results.accuracies),
        ("apart from one process", _draw_differences, results.accuracies),
    ]
    return {
        "bytes.svg": [(method, _draw_bytes, shared, method) for method in METHODS if shared],
        "times.svg": [(title, _draw_times, cells) for title, cells in times.items()],
        "accuracy.svg": losses if results.accuracies else [],
    }


def _draw_bytes(ax: Axes, cells: Sequence[GridCell], method: str) -> None:
    own = [cell for cell in cells if cell.method == method]
    for number, name in enumerate(_NAMES):
        # Of 1.5d the replication with the least.
        by_ranks: dict[int, GridCell] = {}
        for cell in own:
            if cell.grid.name == name:
                before = by_ranks.get(cell.ranks, cell)
                by_ranks[cell.ranks] = min(before, cell, key=lambda each: each.mean)
        if not by_ranks:
            continue
        ranks = sorted(by_ranks)
        means = [by_ranks[count].mean / 1e6 for count in ranks]
        ax.plot(ranks, means, "-", color=f"C{number}", label=f"{name}, predicted")
        for mark, real in _MARKS:
            points = [
                (count, record.received / 1e6)
                for count in ranks
                for record in by_ranks[count].records.values()
                if by_ranks[count].real == real
            ]
            if points:
                ax.plot(*zip(*points, strict=True), mark, color=f"C{number}", markersize=4)
    for mark, real in _MARKS:
        if any(cell.real == real for cell in own):
            label = f"recorded, {'real' if real else 'simulated'} ranks"
            ax.plot([], [], mark, color="0.4", markersize=4, label=label)
    ticks = sorted({cell.ranks for cell in own})
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(count) for count in ticks], fontsize=8)
    ax.minorticks_off()
    # The same for all methods, so that they can be compared; ranks are not all alike.
    every = [cell.mean / 1e6 for cell in cells]
    ax.set(yscale="log", ylim=(min(every) / 3, max(every) * 2))
    ax.set(xlabel="ranks", ylabel="MB received by a rank in an epoch")


def _draw_times(ax: Axes, cells: Sequence[GridCell]) -> None:
    names = list(dict.fromkeys(cell.label for cell in cells))
    width = 0.8 / len(METHODS)
    for number, method in enumerate(METHODS):
        own = {cell.label: cell for cell in cells if cell.method == method}
        places = [i + (number - 1) * width for i in range(len(names))]
        below = [0.0] * len(names)
        for what, words, alpha in (("compute", "compute", 1), ("communication", "waiting", 0.35)):
            heights = [1e3 * own[name].seconds(what) for name in names]
            label, color = f"{method}: {words}", f"C{number}"
            ax.bar(places, heights, width, below, color=color, alpha=alpha, label=label)
            below = heights
    ax.set_xticks(range(len(names)), names, fontsize=8)
    ax.set_ylabel("ms of an epoch")


def _draw_losses(ax: Axes, runs: Sequence[AccuracyRun]) -> None:
    for number, run in enumerate(runs):
        label = run.label if run.grid.ranks == 1 else f"{run.label}, P = {run.grid.ranks}"
        style = "-" if run.grid.ranks == 1 else (0, (1, 1 + number))
        ax.plot(range(1, len(run.losses) + 1), run.losses, linestyle=style, label=label)
    ax.set(xlabel="epoch", ylabel="loss")


def _draw_differences(ax: Axes, runs: Sequence[AccuracyRun]) -> None:
    for number, run in enumerate(runs[1:], start=1):
        apart = [abs(a - b) for a, b in zip(run.losses, runs[0].losses, strict=True)]
        # A logarithm has no place for what is the same to the last bit.
        seen = [(epoch, each) for epoch, each in enumerate(apart, start=1) if each]
        if seen:
            ax.plot(*zip(*seen, strict=True), ".", ms=3, color=f"C{number}")
    ax.set(yscale="log", ylim=(1e-17, 1e-6), xlabel="epoch", ylabel="difference of the loss")


def communication_findings(results: CommunicationResults) -> Iterator[Finding]:
    """Bytes, formulas and accuracy."""
    shared = [cell for cell in results.cells if cell.ranks > 1]
    published = [cell for cell in shared if cell.method == "published"]
    most = max((c.ranks for c in published if c.grid.name == "2d"), default=0)
    at_most = {c.grid.name: c.mean for c in published if c.ranks == most}
    if {"1d", "2d"} <= set(at_most):
        ratio = at_most["1d"] / at_most["2d"]
        yield (
            "On many ranks 2D moves fewer words than 1D",
            "by their formulas 9.0 GB instead of 20.0 on 64 ranks, for 14 million nodes",
            f"{ratio:.2f} times fewer on {most} ranks",
            ratio > 1,
        )
    if shared:
        wrong = sum(len(cell.differing) for cell in shared)
        total = sum(len(cell.records) for cell in shared)
        yield (
            "Communication is what the formulas say",
            "formulas",
            f"bytes received equal the formulas on {total - wrong} of {total} ranks",
            wrong == 0,
        )
    if results.accuracies:
        serial = results.accuracies[0]
        worst = max(largest_difference(run, serial) for run in results.accuracies)
        yield (
            "Every grid learns what one process learns",
            "exact algorithms",
            f"losses of any epoch differ by at most {worst:.1e} in float64",
            worst < 1e-8,
        )
    top = max((cell.ranks for cell in shared), default=0)
    line = [c.mean for c in published if c.ranks == top and c.grid.name == "1d"]
    for method, words in (
        ("reductions", "Order of products, kept products and panels: the same with less"),
        ("sparsity-aware", "Only the rows that are needed travel"),
    ):
        own = [c.mean for c in shared if c.ranks == top and c.method == method and c.mean > 0]
        if line and own:
            yield (
                words,
                "not in the paper",
                f"{line[0] / min(own):.1f} times fewer bytes than 1D as published, on {top} ranks",
                None,
            )


COMMUNICATION: Study[NamedGraph, CommunicationResults] = Study(
    paper="Tripathy et al. (2020), Reducing Communication in Graph Neural Network Training",
    results=CommunicationResults,
    load=shared_graph,
    about=NamedGraph.about,
    measure=measure_communication,
    sections=communication_sections,
    figures=communication_figures,
    findings=communication_findings,
)
"""What ranks that share one graph send each other."""
