"""The study of sparsification as pictures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from weft_lab.studies.figures import Panel, draw_panels
from weft_lab.studies.sparsification_report import WAYS, matching, mean_curve
from weft_lab.studies.sparsification_results import SparsificationResults
from weft_lab.studies.sparsification_settings import Network
from weft_lab.studies.sparsification_times import FORMS, TimeCell
from weft_lab.studies.sparsification_training import SparseRun
from weft_lab.studies.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {"links": "temporal links", "nodes": "classes of nodes, FNN", "gcn": "classes, GCN"}
_SCORES = {"links": "AUC, %", "nodes": "accuracy, %", "gcn": "accuracy, %"}
# A form has the same colour in all panels.
_FORMS = ("masks", "sparse", "compact", "accelerate")


def plot_sparsification(results: SparsificationResults, folder: Path) -> list[Path]:
    """Write what there is to show as SVG files; gives their paths.

    Raises:
        DataError: matplotlib is not installed.
    """
    figures: dict[str, list[Panel]] = {"accuracy.svg": [], "epochs.svg": [], "times.svg": []}
    for task in results.config.tasks:
        runs = results.of(task)
        if runs:
            name = _NAMES[task]
            figures["accuracy.svg"].append((name, partial(_accuracy, runs=runs, task=task)))
            sparsity = results.config.curve_sparsity
            figures["epochs.svg"].append(
                (f"{name}, at {sparsity:g}", partial(_epochs, runs=runs, task=task, at=sparsity))
            )
    for mode in FORMS:
        for network in results.config.networks:
            cells = [c for c in results.cells if (c.network, c.mode) == (network, mode)]
            if cells:
                title = f"{mode}, {Network.read(network)}"
                figures["times.svg"].append((title, partial(_times, cells=cells)))
    return [draw_panels(panels, folder / name) for name, panels in figures.items() if panels]


def _accuracy(ax: Axes, runs: list[SparseRun], task: str) -> None:
    for number, ((way, embedding), name) in enumerate(WAYS.items()):
        places, means, halves = [], [], []
        for sparsity in sorted({run.kind.sparsity for run in runs}):
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
    ax.set_xlabel("sparsity of the weights; 0 is dense")
    ax.set_ylabel(_SCORES[task])


def _epochs(ax: Axes, runs: list[SparseRun], task: str, at: float) -> None:
    curves = {"dense": mean_curve(matching(runs, "dense", "dense", 0.0))}
    for (way, embedding), name in WAYS.items():
        curves[name] = mean_curve(matching(runs, way, embedding, at))
    for number, (name, curve) in enumerate(curves.items()):
        if curve:
            color = "0.4" if name == "dense" else f"C{number - 1}"
            values = [100 * value for value in curve]
            ax.plot(range(1, len(curve) + 1), values, color=color, lw=1, label=name)
    ax.set_xlabel("epoch")
    ax.set_ylabel(f"validation {_SCORES[task]}")


def _times(ax: Axes, cells: list[TimeCell]) -> None:
    ranked = sorted(cells, key=lambda cell: cell.sparsity)
    kept = [1 - cell.sparsity for cell in ranked]
    for number, form in enumerate(_FORMS):
        if form in ranked[0].measured:
            gains = [cell.speedup(form) for cell in ranked]
            ax.plot(kept, gains, ".-", color=f"C{number}", lw=1, label=f"time, {form}")
        else:
            # The legend is the first panel's, and names the forms of all.
            ax.plot([], [], ".-", color=f"C{number}", lw=1, label=f"time, {form}")
    ax.plot(kept, [cell.flops for cell in ranked], ":", color="0.4", label="FLOPs")
    ax.axhline(1, color="0.7", lw=0.8, zorder=0)
    # From dense to sparse, as everywhere else.
    ax.set_xlim(1.2 * max(kept), min(kept) / 1.2)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(kept, [f"{cell.sparsity:g}" for cell in ranked], fontsize=7, rotation=45)
    ax.minorticks_off()
    ax.set_xlabel("sparsity")
    ax.set_ylabel("times less than dense")
