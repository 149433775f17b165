"""The study as pictures: time by policy, fill, test error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft_lab.studies.cells import Timings
from weft_lab.studies.figures import draw_panels
from weft_lab.studies.results import StudyResults
from weft_lab.studies.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_study(results: StudyResults, folder: Path) -> list[Path]:
    """Write SVG files of what there is to show; gives their paths.

    Raises:
        DataError: matplotlib is not installed.
    """
    written = []

    def draw(name: str, panels: Sequence[tuple[str, Callable[[Axes], None]]]) -> None:
        if panels:
            written.append(draw_panels(panels, folder / f"{name}.svg"))

    eager = [t for t in results.cells if t.graphs and t.cell.mode == "eager"]
    kinds = dict.fromkeys((t.cell.data, t.cell.model) for t in eager)
    groups = {kind: [t for t in eager if (t.cell.data, t.cell.model) == kind] for kind in kinds}
    draw(
        "time",
        [
            (f"{model} on {data}", partial(_times, cells=cells))
            for (data, model), cells in groups.items()
        ],
    )
    draw(
        "fill",
        [(f"{data}", partial(_fills, results=results, data=data)) for data in results.shapes],
    )
    draw(
        "error",
        [
            (
                f"{results.config.repeat_model} on {data}",
                partial(_errors, results=results, data=data),
            )
            for data, errors in results.errors.items()
            if any(errors.values())
        ],
    )
    return written


def _bars(ax: Axes, values: dict[str, dict[int, float]]) -> None:
    """Groups of bars: a group for each batch size, in it a bar for each policy."""
    sizes = list(dict.fromkeys(size for by_size in values.values() for size in by_size))
    width = 0.8 / max(1, len(values))
    for number, (policy, by_size) in enumerate(values.items()):
        places = [sizes.index(size) + (number + 0.5) * width - 0.4 for size in by_size]
        ax.bar(places, list(by_size.values()), width, label=policy)
    ax.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    ax.set_xlabel("batch size")


def _times(ax: Axes, cells: list[Timings]) -> None:
    values: dict[str, dict[int, float]] = {}
    for timings in cells:
        by_size = values.setdefault(timings.cell.policy, {})
        # A graph, not a step: padded batches hold fewer of them.
        by_size[timings.cell.batch_size] = 1e3 / timings.graphs_per_second
    _bars(ax, values)
    ax.set_ylabel("batching and update, ms a graph")


def _fills(ax: Axes, results: StudyResults, data: str) -> None:
    values: dict[str, dict[int, float]] = {}
    for count in results.shapes[data]:
        values.setdefault(count.policy, {})[count.batch_size] = count.edge_fill
    _bars(ax, values)
    ax.set_ylim(0, 1.05)
    ax.set_ylabel("edges that are not padding")


def _errors(ax: Axes, results: StudyResults, data: str) -> None:
    errors = {policy: values for policy, values in results.errors[data].items() if values}
    about = results.data[data]
    for number, values in enumerate(errors.values()):
        ax.plot([number] * len(values), values, ".", color="0.7")
        interval = mean_interval(values)
        spread: Any = None
        if len(values) > 1:
            spread = [[interval.mean - interval.low], [interval.high - interval.mean]]
        ax.errorbar([number], [interval.mean], yerr=spread, fmt="o", capsize=4, color="C0")
    ax.set_xticks(range(len(errors)), list(errors), rotation=20, fontsize=8)
    unit = f" [{about['unit']}]" if about["unit"] else ""
    ax.set_ylabel(f"test RMSE of {about['target']}{unit}")
