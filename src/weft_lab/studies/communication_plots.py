"""The study of communication as pictures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from weft_lab.studies.communication_ranks import METHODS
from weft_lab.studies.communication_results import CommunicationCell, CommunicationResults
from weft_lab.studies.figures import Panel, draw_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = ("1d", "1.5d", "2d", "3d")
# Of recorded bytes, by whether the ranks were processes.
_MARKS = (("o", True), ("x", False))


def plot_communication(results: CommunicationResults, folder: Path) -> list[Path]:
    """Write what there is to show as SVG files; gives their paths.

    Raises:
        DataError: matplotlib is not installed.
    """
    figures: dict[str, list[Panel]] = {"bytes.svg": [], "times.svg": [], "accuracy.svg": []}
    shared = [cell for cell in results.cells if cell.ranks > 1]
    if shared:
        limits = min(cell.mean for cell in shared) / 1e6, max(cell.mean for cell in shared) / 1e6
        figures["bytes.svg"] = [
            (method, partial(_bytes, cells=shared, method=method, limits=limits))
            for method in METHODS
        ]
    real = [cell for cell in results.cells if cell.real]
    for ranks in sorted({cell.ranks for cell in real}):
        own = [cell for cell in real if cell.ranks == ranks]
        title = "1 process" if ranks == 1 else f"{ranks} ranks"
        figures["times.svg"].append((title, partial(_times, cells=own)))
    if results.accuracies:
        figures["accuracy.svg"] = [
            ("training loss", partial(_losses, results=results)),
            ("apart from one process", partial(_differences, results=results)),
        ]
    return [draw_panels(panels, folder / name) for name, panels in figures.items() if panels]


def _bytes(
    ax: Axes, cells: list[CommunicationCell], method: str, limits: tuple[float, float]
) -> None:
    own = [cell for cell in cells if cell.method == method]
    for number, name in enumerate(_NAMES):
        # Of 1.5d the replication with the least.
        by_ranks: dict[int, CommunicationCell] = {}
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
    ax.set_yscale("log")
    # The same for all methods, so that they can be compared; ranks are not all alike.
    ax.set_ylim(limits[0] / 3, limits[1] * 2)
    ax.set_xlabel("ranks")
    ax.set_ylabel("MB received by a rank in an epoch")


def _times(ax: Axes, cells: list[CommunicationCell]) -> None:
    names = list(dict.fromkeys(cell.label for cell in cells))
    width = 0.8 / len(METHODS)
    for number, method in enumerate(METHODS):
        own = {cell.label: cell for cell in cells if cell.method == method}
        places = [i + (number - 1) * width for i in range(len(names))]
        compute = [1e3 * own[name].seconds("compute") for name in names]
        waiting = [1e3 * own[name].seconds("communication") for name in names]
        color = f"C{number}"
        ax.bar(places, compute, width, color=color, label=f"{method}: compute")
        ax.bar(
            places,
            waiting,
            width,
            bottom=compute,
            color=color,
            alpha=0.35,
            label=f"{method}: waiting",
        )
    ax.set_xticks(range(len(names)), names, fontsize=8)
    ax.set_ylabel("ms of an epoch")


def _losses(ax: Axes, results: CommunicationResults) -> None:
    for number, run in enumerate(results.accuracies):
        label = run.label if run.grid.ranks == 1 else f"{run.label}, P = {run.grid.ranks}"
        style = "-" if run.grid.ranks == 1 else (0, (1, 1 + number))
        ax.plot(range(1, len(run.losses) + 1), run.losses, linestyle=style, label=label)
    ax.set_xlabel("epoch")
    ax.set_ylabel("loss")


def _differences(ax: Axes, results: CommunicationResults) -> None:
    serial, *others = results.accuracies
    for number, run in enumerate(others, start=1):
        apart = [abs(a - b) for a, b in zip(run.losses, serial.losses, strict=True)]
        # A logarithm has no place for what is the same to the last bit.
        seen = [(epoch, each) for epoch, each in enumerate(apart, start=1) if each]
        if seen:
            ax.plot(*zip(*seen, strict=True), ".", ms=3, color=f"C{number}")
    ax.set_yscale("log")
    ax.set_ylim(1e-17, 1e-6)
    ax.set_xlabel("epoch")
    ax.set_ylabel("difference of the loss")
