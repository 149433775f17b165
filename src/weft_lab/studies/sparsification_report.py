"""The study of sparsification as tables and sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from weft.sparsify import table_ii
from weft_lab.studies.sections import Section
from weft_lab.studies.sparsification_published import COLUMNS, TABLE_II
from weft_lab.studies.sparsification_results import SparsificationResults
from weft_lab.studies.sparsification_settings import Network, Task
from weft_lab.studies.sparsification_times import FORMS, TimeCell, crossover
from weft_lab.studies.sparsification_training import SparseRun
from weft_lab.studies.statistics import mean_interval

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


def sparsification_report(results: SparsificationResults) -> list[Section]:
    """All tables of the study of sparsification, those that have rows."""
    sections = []
    for task in results.config.tasks:
        sections += [_scores(results, task), _costs(results, task), _epochs(results, task)]
    sections.append(_table_ii())
    for network in results.config.networks:
        sections += [_times(results, network, mode) for mode in FORMS]
    return [section for section in sections if section.rows]


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
    if not base:
        return Section(title="", headings=(), rows=[])
    seconds = statistics.median(run.seconds for run in base)
    rows: list[tuple[str, ...]] = []
    for sparsity in _sparsities(runs):
        names = WAYS if sparsity else _DENSE
        for (way, embedding), name in names.items():
            own = matching(runs, way, embedding, sparsity)
            if own:
                rows.append(
                    (
                        f"{sparsity:g}",
                        name,
                        _percent(own),
                        f"{own[0].active:,}",
                        f"{own[0].training_flops:.4f}",
                        f"{statistics.median(run.seconds for run in own) / seconds:.2f}",
                        f"{own[0].inference_flops:.4f}",
                    )
                )
    says = [
        "FLOPs and time are shares of those of the dense training on dense input. FLOPs leave out "
        "every product with a zero; the time is that of masks on dense weights, which multiply "
        "the zeros too and save nothing."
    ]
    if task in results.densities and task != "gcn":
        says.append(f"Of the sparse inputs {results.densities[task]:.1%} are not 0.")
    return Section(
        title=f"What it costs: {_TASKS[task].split(',')[0].lower()}, {_graph(results, task)}",
        headings=(
            "sparsity",
            "way",
            "score",
            "weights",
            "training FLOPs",
            "training time, masks",
            "inference FLOPs",
        ),
        rows=rows,
        says=says,
        narrow=("sparsity", "way", "training FLOPs", "training time, masks", "inference FLOPs"),
    )


def _epochs(results: SparsificationResults, task: Task) -> Section:
    """Their Fig. 7."""
    runs, sparsity = results.of(task), results.config.curve_sparsity
    curves = {"dense": mean_curve(matching(runs, "dense", "dense", 0.0))}
    for (way, embedding), name in WAYS.items():
        curves[name] = mean_curve(matching(runs, way, embedding, sparsity))
    curves = {name: curve for name, curve in curves.items() if curve}
    length = max((len(curve) for curve in curves.values()), default=0)
    shown = sorted({round((i + 1) * length / _EPOCH_ROWS) for i in range(_EPOCH_ROWS)} - {0})
    return Section(
        title=f"Validation score in % after each epoch at {sparsity:g}: "
        f"{_TASKS[task].split(',')[0].lower()}",
        headings=("epoch", *curves),
        rows=[
            (str(epoch), *(f"{100 * curve[epoch - 1]:.2f}" for curve in curves.values()))
            for epoch in shown
        ],
        says=[
            "SLR trains densely for half of the epochs and is re-weighted for a quarter; then it "
            "is pruned. Pruned once is the same without re-weighting."
        ],
    )


def mean_curve(runs: Sequence[SparseRun]) -> list[float]:
    """Mean over the trainings of the score after each epoch."""
    return [statistics.fmean(each) for each in zip(*(run.curve for run in runs), strict=True)]


def _table_ii() -> Section:
    rows, equal, count = [], 0, 0
    for row in table_ii():
        cells = []
        for column, printed in zip(COLUMNS, TABLE_II[row.dataset], strict=True):
            value = getattr(row, column)
            digits = len(printed.partition(".")[2])
            equal, count = equal + (f"{value:.{digits}f}" == printed), count + 1
            cells += [f"{value:.5f}", printed]
        rows.append((row.dataset, *cells))
    names = ("SLR", "SLR, sparse input", "sparse training", "sparse training, sparse input")
    return Section(
        title="Training FLOPs over those of dense training at a sparsity of 29/32, by formula "
        "(Table II of the paper)",
        headings=("data set", *(each for name in names for each in (name, "printed"))),
        rows=rows,
        says=[
            f"{equal} of {count} entries agree with the paper's to every digit it prints. These "
            "are FLOPs, not time."
        ],
    )


def _times(results: SparsificationResults, network: str, mode: str) -> Section:
    cells = [cell for cell in results.cells if (cell.network, cell.mode) == (network, mode)]
    what = "a training step" if mode == "training" else "a pass forward"
    forms = next((forms for name, forms in FORMS.items() if name == mode), ())
    rows = [
        (
            f"{cell.sparsity:g}",
            f"{cell.flops:.1f}",
            *(f"{1e3 * cell.seconds(form):.3f}" for form in forms),
            f"{cell.speedup('sparse'):.2f}",
            f"{cell.speedup('accelerate'):.2f}",
            f"{cell.chosen} of {cell.layers}",
        )
        for cell in sorted(cells, key=lambda cell: cell.sparsity)
    ]
    return Section(
        title=f"ms of {what}, FNN {Network.read(network)}",
        headings=(
            "sparsity",
            "FLOPs, times less",
            *(f"{form} ms" for form in forms),
            "sparse, times faster",
            "accelerate, times faster",
            "layers made sparse",
        ),
        rows=rows,
        says=_crossings(cells, forms),
        narrow=(
            "sparsity",
            "FLOPs, times less",
            "dense ms",
            "sparse ms",
            "accelerate ms",
            "accelerate, times faster",
        ),
    )


def _crossings(cells: Sequence[TimeCell], forms: Sequence[str]) -> list[str]:
    if not cells:
        return []
    said = []
    for form in forms[1:]:
        found = crossover(cells, form)
        if isinstance(found, float):
            said.append(f"{form} from a sparsity of {found:.2f} on")
        elif found == "never":
            said.append(f"{form} not at {max(cell.sparsity for cell in cells):g}")
        else:
            said.append(
                f"{form} from {min(cell.sparsity for cell in cells):g}, the lowest timed, on"
            )
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
