"""The study of sparsification as tables and sentences, plots and claims, beside the published."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from weft.sparsify import table_ii
from weft_lab.report import Panel, Section
from weft_lab.statistics import mean_interval
from weft_lab.studies.sparsification import (
    FORMS,
    Mode,
    SparsificationData,
    SparsificationResults,
    TimeCell,
    faster_from,
    measure_sparsification,
    sparsification_data,
)
from weft_lab.studies.sparsification_training import SparseRun
from weft_lab.study import Finding, Study
from weft_lab.study_settings import Network, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("slr_dense", "slr_sparse", "training_dense", "training_sparse")
"""SLR and sparse training, each with dense and with sparse embeddings."""

TABLE_II = {
    "ia-email": ("0.773", "0.056", "0.094", "0.0067"),
    "wiki-talk": ("0.773", "0.069", "0.094", "0.0084"),
    "stackoverflow": ("0.773", "0.236", "0.094", "0.0286"),
    "brain": ("0.773", "0.640", "0.094", "0.0776"),
}
"""Training FLOPs over those of dense training at a sparsity of 0.906, as printed, by COLUMNS."""

WAYS = {
    ("oneshot", "dense"): "pruned once",
    ("slr", "dense"): "SLR",
    ("rigl", "dense"): "RigL",
    ("slr", "sparse"): "SLR, sparse input",
    ("rigl", "sparse"): "RigL, sparse input",
}
"""Ways of sparsity and kinds of embedding, and what tables call them."""

_TASKS: dict[Task, str] = {
    "links": "Temporal links, FNN, test AUC in %",
    "nodes": "Classes of nodes, FNN on embeddings, test accuracy in %",
    "gcn": "Classes of nodes, GCN, test accuracy in %",
}
_DENSE = {("dense", "dense"): "dense", ("dense", "sparse"): "dense, sparse input"}
_EPOCH_ROWS = 10
# Slowest over fastest turn of the same step from which on times say little.
_BUSY = 1.5
# Points of accuracy or AUC within which two models are called as good as each other.
_POINTS = 1.5
_NAMES = {"links": "temporal links", "nodes": "classes of nodes, FNN", "gcn": "classes, GCN"}
_SCORES = {"links": "AUC, %", "nodes": "accuracy, %", "gcn": "accuracy, %"}
# A form has the same colour in all panels.
_FORMS = ("masks", "sparse", "compact", "accelerate")


def sparsification_sections(results: SparsificationResults) -> list[Section]:
    """All tables of the study of sparsification."""
    sections = []
    for task in results.config.tasks:
        sections += [_scores(results, task), _costs(results, task), _epochs(results, task)]
    sections.append(_table_ii())
    for network in results.config.networks:
        sections += [_times(results, network, mode) for mode in FORMS]
    return sections


def matching(
    runs: Sequence[SparseRun], way: str, embedding: str, sparsity: float
) -> list[SparseRun]:
    """The trainings of one kind, of all seeds."""
    return [
        run
        for run in runs
        if (run.kind.way, run.kind.embedding, run.kind.sparsity) == (way, embedding, sparsity)
    ]


def _graph(results: SparsificationResults, task: Task) -> str:
    about = results.data["links" if task == "links" else "nodes"]
    return f"{about['name']}: {about['nodes']:,} nodes, {about['edges']:,} edges"


def _percent(runs: Sequence[SparseRun]) -> str:
    if not runs:
        return ""
    found = mean_interval([100 * run.score for run in runs])
    half = found.high - found.mean
    return f"{found.mean:.2f}" + (f" ± {half:.2f}" if math.isfinite(half) else "")


def _sparsities(runs: Sequence[SparseRun]) -> list[float]:
    return sorted({run.kind.sparsity for run in runs})


def _scores(results: SparsificationResults, task: Task) -> Section:
    """Their Figs. 5 and 6."""
    runs = results.of(task)
    inputs = {run.kind.embedding for run in runs}
    ways = {key: name for key, name in WAYS.items() if key[1] in inputs}
    rows = []
    for sparsity in _sparsities(runs):
        cells = []
        for way, embedding in ways:
            own = matching(runs, way if sparsity else "dense", embedding, sparsity)
            cells.append(_percent(own))
        rows.append((f"{sparsity:g}" if sparsity else "0 (dense)", *cells))
    return Section(
        title=f"{_TASKS[task]}, by sparsity of the weights; {_graph(results, task)}",
        headings=("sparsity", *ways.values()),
        rows=rows,
        says=_loss(runs, results.config.curve_sparsity),
    )


def _loss(runs: Sequence[SparseRun], sparsity: float) -> list[str]:
    """What a sparse model lost against a dense one on the same input."""
    said = []
    for (way, embedding), name in WAYS.items():
        dense = [run.score for run in matching(runs, "dense", embedding, 0.0)]
        own = [run.score for run in matching(runs, way, embedding, sparsity)]
        if dense and own:
            gap = 100 * (statistics.fmean(own) - statistics.fmean(dense))
            said.append(f"{name} {gap:+.2f}")
    if not said:
        return []
    return [f"At {sparsity:g}, points from dense on the same input: {', '.join(said)}."]


def _costs(results: SparsificationResults, task: Task) -> Section:
    runs = results.of(task)
    base = matching(runs, "dense", "dense", 0.0)
    seconds = statistics.median(run.seconds for run in base) if base else math.nan
    kinds = [
        (name, matching(runs, way, embedding, sparsity))
        for sparsity in _sparsities(runs)
        for (way, embedding), name in (WAYS if sparsity else _DENSE).items()
    ]
    says = [
        "FLOPs and time are shares of those of the dense training on dense input. FLOPs leave out "
        "every product with a zero; the time is that of masks on dense weights, which multiply "
        "the zeros too and save nothing."
    ]
    says += results.remarks
    if task in results.densities and task != "gcn":
        says.append(f"Of the sparse inputs {results.densities[task]:.1%} are not 0.")
    return Section.of(
        f"What it costs: {_TASKS[task].split(',')[0].lower()}, {_graph(results, task)}",
        [kind for kind in kinds if kind[1] and base],
        {
            "sparsity": "{0[1][0].kind.sparsity:g}",
            "way": "{0[0]}",
            "score [%]": lambda kind: _percent(kind[1]),
            "weights": "{0[1][0].active:,}",
            "training FLOPs / dense": "{0[1][0].training_flops:.4f}",
            "training time / dense, masks": lambda kind: (
                f"{statistics.median(run.seconds for run in kind[1]) / seconds:.2f}"
            ),
            "inference FLOPs / dense": "{0[1][0].inference_flops:.4f}",
        },
        says=says,
        narrow=(
            *("sparsity", "way", "training FLOPs / dense"),
            *("training time / dense, masks", "inference FLOPs / dense"),
        ),
    )


def _curves(results: SparsificationResults, task: Task) -> dict[str, list[float]]:
    """Validation scores in % after each epoch, by what was trained."""
    runs = results.of(task)
    kinds = {"dense": matching(runs, "dense", "dense", 0.0)}
    for (way, embedding), name in WAYS.items():
        kinds[name] = matching(runs, way, embedding, results.config.curve_sparsity)
    return {
        name: [100 * statistics.fmean(each) for each in zip(*(r.curve for r in own), strict=True)]
        for name, own in kinds.items()
        if own
    }


def _epochs(results: SparsificationResults, task: Task) -> Section:
    """Their Fig. 7."""
    curves = {name: curve for name, curve in _curves(results, task).items() if curve}
    length = max((len(curve) for curve in curves.values()), default=0)
    shown = sorted({round((i + 1) * length / _EPOCH_ROWS) for i in range(_EPOCH_ROWS)} - {0})
    return Section(
        title=f"Validation score in % after each epoch at {results.config.curve_sparsity:g}: "
        f"{_TASKS[task].split(',')[0].lower()}",
        headings=("epoch", *curves),
        rows=[
            (str(epoch), *(f"{curve[epoch - 1]:.2f}" for curve in curves.values()))
            for epoch in shown
        ],
        says=[
            "SLR trains densely for half of the epochs and is re-weighted for a quarter; then it "
            "is pruned. Pruned once is the same without re-weighting."
        ],
    )


def _flop_shares() -> dict[str, list[tuple[float, str]]]:
    """By data set, what the formulas give and what Table II prints, by COLUMNS."""
    shares = {}
    for row in table_ii():
        found = [getattr(row, column) for column in COLUMNS]
        shares[row.dataset] = list(zip(found, TABLE_II[row.dataset], strict=True))
    return shares


def _equal_entries() -> tuple[int, int]:
    """Entries of Table II that agree to every digit, and how many there are."""
    pairs = [pair for cells in _flop_shares().values() for pair in cells]
    equal = sum(f"{value:.{len(p.partition('.')[2])}f}" == p for value, p in pairs)
    return equal, len(pairs)


def _table_ii() -> Section:
    equal, count = _equal_entries()
    names = ("SLR", "SLR, sparse input", "sparse training", "sparse training, sparse input")
    return Section(
        title="Training FLOPs over those of dense training at a sparsity of 29/32, by formula "
        "(Table II of the paper)",
        headings=("data set", *(each for name in names for each in (name, "printed"))),
        rows=[
            (name, *(text for value, printed in cells for text in (f"{value:.5f}", printed)))
            for name, cells in _flop_shares().items()
        ],
        says=[
            f"{equal} of {count} entries agree with the paper's to every digit it prints. These "
            "are FLOPs, not time."
        ],
    )


def _timed(results: SparsificationResults, network: str, mode: Mode) -> list[TimeCell]:
    """The times of one network, from dense to sparse."""
    cells = [cell for cell in results.cells if (cell.network, cell.mode) == (network, mode)]
    return sorted(cells, key=lambda cell: cell.sparsity)


def _times(results: SparsificationResults, network: str, mode: Mode) -> Section:
    cells = _timed(results, network, mode)
    what = "a training step" if mode == "training" else "a pass forward"
    forms = FORMS[mode]

    def milliseconds(cell: TimeCell, form: str) -> str:
        return f"{1e3 * cell.seconds(form):.3f}"

    return Section.of(
        f"ms of {what}, FNN {Network.read(network)}",
        cells,
        {
            "sparsity": "{0.sparsity:g}",
            "FLOPs, times less": "{0.flops:.1f}",
            **{f"{form} ms": partial(milliseconds, form=form) for form in forms},
            "sparse, times faster": lambda cell: f"{cell.speedup('sparse'):.2f}",
            "accelerate, times faster": lambda cell: f"{cell.speedup('accelerate'):.2f}",
            "layers made sparse": "{0.chosen} of {0.layers}",
        },
        says=_crossings(cells, forms),
        narrow=(
            *("sparsity", "FLOPs, times less", "dense ms", "sparse ms"),
            *("accelerate ms", "accelerate, times faster"),
        ),
    )


def _crossings(cells: Sequence[TimeCell], forms: Sequence[str]) -> list[str]:
    if not cells:
        return []
    said = []
    for form in forms[1:]:
        found = faster_from(cells, form)
        if isinstance(found, float):
            said.append(f"{form} from a sparsity of {found:.2f} on")
        elif found == "never":
            said.append(f"{form} not at {cells[-1].sparsity:g}")
        else:
            said.append(f"{form} from {cells[0].sparsity:g}, the lowest timed, on")
    worst = min(cell.speedup("accelerate") for cell in cells)
    sentences = [
        f"Faster than dense: {'; '.join(said)}.",
        f"accelerate is {worst:.2f} times as fast as dense at worst.",
    ]
    # The dense step is the same at every sparsity.
    turns = [seconds for cell in cells for seconds in cell.measured["dense"]]
    spread = max(turns) / min(turns)
    if spread > _BUSY:
        sentences.append(
            f"The same dense step took up to {spread:.1f} times as long in another turn: the "
            "machine was busy, time again when it is not."
        )
    return sentences


def sparsification_figures(results: SparsificationResults) -> dict[str, list[Panel]]:
    """Scores by sparsity and by epoch, and times by sparsity."""
    config = results.config
    tasks = [task for task in config.tasks if results.of(task)]
    times = {
        (mode, str(Network.read(network))): _timed(results, network, mode)
        for mode, network in product(FORMS, config.networks)
    }
    at = f"at {config.curve_sparsity:g}"
    return {
        "accuracy.svg": [(_NAMES[t], _draw_accuracy, results.of(t), t) for t in tasks],
        "epochs.svg": [(f"{_NAMES[t]}, {at}", _draw_epochs, results, t) for t in tasks],
        **{
            f"times-{mode}.svg": [
                (f"{mode}, {network}", _draw_times, cells)
                for (of, network), cells in times.items()
                if cells and of == mode
            ]
            for mode in FORMS
        },
    }


def _draw_accuracy(ax: Axes, runs: list[SparseRun], task: Task) -> None:
    for number, ((way, embedding), name) in enumerate(WAYS.items()):
        places, means, halves = [], [], []
        for sparsity in _sparsities(runs):
            own = matching(runs, way if sparsity else "dense", embedding, sparsity)
            if own:
                found = mean_interval([100 * run.score for run in own])
                places.append(sparsity)
                means.append(found.mean)
                halves.append(found.high - found.mean if len(own) > 1 else 0.0)
        if places:
            ax.errorbar(
                places, means, halves, fmt=".-", color=f"C{number}", capsize=2, lw=1, label=name
            )
    ax.set(xlabel="sparsity of the weights; 0 is dense", ylabel=_SCORES[task])


def _draw_epochs(ax: Axes, results: SparsificationResults, task: Task) -> None:
    curves = _curves(results, task)
    for number, name in enumerate(("dense", *WAYS.values())):
        if curve := curves.get(name):
            color = "0.4" if name == "dense" else f"C{number - 1}"
            ax.plot(range(1, len(curve) + 1), curve, color=color, lw=1, label=name)
    ax.set(xlabel="epoch", ylabel=f"validation {_SCORES[task]}")


def _draw_times(ax: Axes, cells: list[TimeCell]) -> None:
    kept = [1 - cell.sparsity for cell in cells]
    for number, form in enumerate(_FORMS):
        # The legend is the first panel's, and names the forms of all.
        there = form in cells[0].measured
        gains = [cell.speedup(form) for cell in cells] if there else []
        places = kept if there else []
        ax.plot(places, gains, ".-", color=f"C{number}", lw=1, label=f"time, {form}")
    ax.plot(kept, [cell.flops for cell in cells], ":", color="0.4", label="FLOPs")
    ax.axhline(1, color="0.7", lw=0.8, zorder=0)
    # From dense to sparse, as everywhere else.
    ax.set(xlim=(1.2 * max(kept), min(kept) / 1.2), xscale="log", yscale="log")
    ax.set_xticks(kept, [f"{cell.sparsity:g}" for cell in cells], fontsize=7, rotation=45)
    ax.minorticks_off()
    ax.set(xlabel="sparsity", ylabel="times less than dense")


def sparsification_findings(results: SparsificationResults) -> Iterator[Finding]:
    """FLOPs, accuracy and time."""
    equal, count = _equal_entries()
    yield (
        "Training FLOPs fall to a tenth and below (Table II)",
        "0.094 of dense with dense, 0.0067 with sparse embeddings",
        f"{equal} of {count} entries equal to every printed digit",
        equal == count,
    )
    sparsity = results.config.curve_sparsity
    extreme = max((*results.config.sparsities, sparsity))
    for at, words, least in (
        (sparsity, "Sparse training is as accurate as SLR", -_POINTS),
        (extreme, "and much more accurate under extreme sparsity", _POINTS),
    ):
        gaps = _ahead(results, at)
        if gaps:
            yield (
                f"{words}, at {at:g}",
                "comparable accuracy" if least < 0 else "much higher, most of all for classes",
                "RigL against SLR: "
                + "; ".join(f"{name} {gap:+.2f} points" for name, gap in gaps.items()),
                all(gap > least for gap in gaps.values()),
            )
    for network in results.config.networks:
        cells = _timed(results, network, "training")
        if cells:
            cell = min(cells, key=lambda c: abs(c.sparsity - sparsity))
            yield (
                f"Sparse weights are faster too: a training step of {network}",
                "left open",
                f"{cell.speedup('accelerate'):.2f} times as fast as dense at {cell.sparsity:g}, "
                f"FLOPs {cell.flops:.1f} times fewer; masks on dense weights "
                f"{cell.speedup('masks'):.2f}",
                None,
            )


def _ahead(results: SparsificationResults, sparsity: float) -> dict[str, float]:
    """Points by which RigL is more accurate than SLR on dense inputs, by task."""
    names = {"links": "AUC of links", "nodes": "accuracy, FNN", "gcn": "accuracy, GCN"}
    gaps = {}
    for task in results.config.tasks:
        scores = [
            [run.score for run in matching(results.of(task), way, "dense", sparsity)]
            for way in ("rigl", "slr")
        ]
        if all(scores):
            rigl, slr = map(statistics.fmean, scores)
            gaps[names[task]] = 100 * (rigl - slr)
    return gaps


SPARSIFICATION: Study[SparsificationData, SparsificationResults] = Study(
    paper="Peng, Gurevin et al. (2022), Towards Sparsification of Graph Neural Networks",
    results=SparsificationResults,
    load=sparsification_data,
    about=SparsificationData.about,
    measure=measure_sparsification,
    sections=sparsification_sections,
    figures=sparsification_figures,
    findings=sparsification_findings,
)
"""Accuracy, FLOPs and time against the sparsity of the weights."""
