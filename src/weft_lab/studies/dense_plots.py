"""The study of dense hardware as pictures."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from weft_lab.studies.dense_crossover import FormCell
from weft_lab.studies.dense_orders import BINS
from weft_lab.studies.dense_results import DenseResults
from weft_lab.studies.figures import Panel, draw_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_dense(results: DenseResults, folder: Path) -> list[Path]:
    """Write what there is to show: SVG files, and a PNG of one graph's edges; gives their paths.

    Raises:
        DataError: matplotlib is not installed.
    """
    figures: dict[str, list[Panel]] = {
        "bandwidth.svg": [("programs by bandwidth", partial(_bandwidths, results=results))],
        "supergraphs.svg": [],
        "accuracy.svg": [],
        "crossover.svg": [],
        "spy.png": [],
    }
    if results.supergraphs:
        figures["supergraphs.svg"] = [
            ("graphs in a supergraph", partial(_supergraphs, results=results, what="graphs")),
            ("graphs that fit", partial(_supergraphs, results=results, what="share")),
        ]
    if any(each.curve for each in results.slices):
        figures["accuracy.svg"] = [("trained on slices", partial(_accuracies, results=results))]
    measured = [cell for cell in results.cells if cell.measured]
    for types, group in groupby(measured, lambda cell: cell.types):
        figures["crossover.svg"].append((f"P = {types}", partial(_gains, cells=list(group))))
    if results.spy is not None:
        one = results.spy
        figures["spy.png"] = [
            (
                f"{when}: bandwidth {bandwidth}",
                partial(_dots, pairs=pairs, nodes=one.nodes),
            )
            for when, pairs, bandwidth in (
                ("before", one.before, one.bandwidth_before),
                ("after", one.after, one.bandwidth_after),
            )
        ]
    return [draw_panels(panels, folder / name) for name, panels in figures.items() if panels]


def _bandwidths(ax: Axes, results: DenseResults) -> None:
    names = [str(low) for low in BINS]
    for figures in results.orders:
        if not figures.skipped:
            shares = [100 * count / figures.graphs for count in figures.histogram]
            ax.step(range(len(BINS)), shares, where="mid", label=figures.order)
    ax.set_xticks(range(len(BINS)), names, fontsize=8)
    ax.set_xlabel("bandwidth, from")
    ax.set_ylabel("% of the programs")


def _supergraphs(ax: Axes, results: DenseResults, what: str) -> None:
    counts = results.supergraphs or []
    for asked in results.config.nodes:
        # N is rounded up to a multiple of each block.
        own = [count for count in counts if 0 <= count.nodes - asked < count.block]
        values = [getattr(count, what) for count in own]
        ax.plot([count.block for count in own], values, "o-", label=f"N = {asked:,}")
    blocks = sorted({count.block for count in counts})
    ax.set_xscale("log", base=2)
    ax.set_xticks(blocks, [str(block) for block in blocks])
    ax.set_xlabel("block")
    ax.set_ylim(bottom=0)


def _accuracies(ax: Axes, results: DenseResults) -> None:
    for each in results.slices:
        if each.curve:
            seen, _, accuracies = zip(*each.curve, strict=True)
            label = f"{each.name} ({each.share:.0%})"
            ax.plot(seen, [100 * a for a in accuracies], "o-", markersize=3, label=label)
    for name, label, style in (
        ("random", "random candidate", ":"),
        ("recent", "most recent use", "--"),
    ):
        ax.axhline(100 * results.baselines[name], color="0.4", linestyle=style, label=label)
    ax.set_xlabel("graphs seen")
    ax.set_ylabel("validation accuracy, %")
    ax.set_ylim(bottom=0)


def _gains(ax: Axes, cells: list[FormCell]) -> None:
    for number, (block, group) in enumerate(groupby(cells, lambda cell: cell.block)):
        own = list(group)
        densities = [cell.density for cell in own]
        gains = [cell.seconds("csr") / cell.seconds("banded") for cell in own]
        ax.plot(densities, gains, "o-", color=f"C{number}", label=f"S = {block}")
        expected = [cell.estimated["csr"] / cell.estimated["banded"] for cell in own]
        ax.plot(densities, expected, ":", color=f"C{number}")
    ax.axhline(1, color="0.4", linewidth=0.8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("density (dotted: cost model)")
    ax.set_ylabel("time of csr / time of banded")


def _dots(ax: Axes, pairs: list[list[int]], nodes: int) -> None:
    receivers, senders = pairs
    ax.plot(senders, receivers, ".", markersize=1.5, color="C0")
    ax.set_xlim(-0.5, nodes - 0.5)
    ax.set_ylim(nodes - 0.5, -0.5)
    ax.set_aspect("equal")
    ax.set_xlabel("sender")
    ax.set_ylabel("receiver")
