"""Figures of several panels, written as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import DataError
from weft.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panel = tuple[str, "Callable[[Axes], None]"]
"""A title, and what draws below it."""

_PANELS_A_ROW = 3


def draw_panels(panels: Sequence[Panel], path: Path) -> Path:
    """Draw `panels` beside and below one another into the file `path`, SVG or PNG by its name.

    Names that the first panel gives become a legend for all.

    Raises:
        DataError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure
    except ImportError as error:
        raise DataError(
            "plots need matplotlib, which is not installed: pip install 'weft[plots]'"
        ) from error

    columns = min(len(panels), _PANELS_A_ROW)
    rows = -(-len(panels) // columns)
    # Figure itself, not pyplot: no display, no state that outlives this function.
    figure = matplotlib.figure.Figure(
        figsize=(max(6.0, 4.0 * columns), 0.4 + 3.4 * rows), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for (title, panel), ax in zip(panels, axes, strict=False):
        panel(ax)
        ax.set_title(title, fontsize=10)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    marks, names = axes[0].get_legend_handles_labels()
    if names:
        # Three names fit under a panel.
        across = min(len(names), 3 * columns)
        figure.legend(marks, names, loc="outside lower center", ncols=across, fontsize=8)
    kind = path.suffix[1:]
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=150))
    return path
