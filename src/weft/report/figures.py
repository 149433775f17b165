"""The plots of a page, each with a table of its data: inline SVG in the page's own colours."""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array
from weft.report.page import FIGURE, Figure, Table, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Points = Sequence[tuple[float, float]]
"""Pairs of x and y."""
Bar = tuple[str, float, float, float]
"""A name, a value, and the low and high end of its interval."""

INK = "#010203"
"""Placeholder for the colour of the page's text."""
PALETTE = tuple(f"#0a0b0{number}" for number in range(1, 9))
"""Placeholders for colours of series; the page has a light and a dark form of each."""

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"
_SETTINGS: dict[str, Any] = {
    # Text stays text: it can be searched, read aloud and copied.
    "svg.fonttype": "none",
    # Names of runs and metrics are no formulas, whatever their dollar signs.
    "text.parse_math": False,
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.8,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
}
_MOST_POINTS = 120
WIDTH = 4.8
"""Inches, of 72 units each. Text of 10 units is as large as that on a screen of 390 pixels, where a
plot has 358 of them, and larger on others."""
_HEIGHT = 3.1
_LINE = 0.2


def curves(
    title: str,
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    x_log: bool = False,
    y_log: bool = False,
    from_zero: bool = False,
    note: str = "",
) -> Figure | None:
    """Lines by name; None where there is nothing to draw. `note` is a sentence below.

    A line of more than 120 points is drawn, and tabulated, as the means of adjacent points.
    """
    # A line keeps its colour from plot to plot, even where another has no data.
    order = {name: index for index, name in enumerate(series)}
    series = {name: _thinned(points) for name, points in series.items()}
    series = {name: points for name, points in series.items() if points}
    if not series:
        return None
    y_log = y_log and _spans([value for points in series.values() for _, value in points])
    x_log = x_log and _spans([place for points in series.values() for place, _ in points])

    places = sorted({place for points in series.values() for place, _ in points})
    names = [_short(name) for name in series]
    columns = legend_columns(names)
    above = -(-len(names) // columns) * _LINE if len(names) > 1 else 0.0

    def draw(ax: Axes) -> None:
        for name, points in series.items():
            index, few = order[name], len(points) <= 40
            ax.plot(
                *zip(*points, strict=True),
                _LINES[index // len(PALETTE) % len(_LINES)],
                color=PALETTE[index % len(PALETTE)],
                marker=_MARKS[index % len(_MARKS)] if few else None,
                label=name,
            )
        ax.set_xscale("log" if x_log else "linear")
        ax.set_yscale("log" if y_log else "linear")
        _ticks(ax.xaxis, log=x_log, whole=all(place == int(place) for place in places))
        _ticks(ax.yaxis, log=y_log)
        if from_zero and not y_log:
            highest = max(value for points in series.values() for _, value in points)
            ax.set_ylim(0, 1.08 * highest if highest > 0 else 1)
        ax.set_xlabel(x)
        ax.set_ylabel(y)
        ax.grid(True)
        if len(series) > 1:
            ax.legend(
                [ax.lines[i] for i in _by_columns(len(names), columns)],
                [names[i] for i in _by_columns(len(names), columns)],
                loc="lower left",
                bbox_to_anchor=(0, 1),
                ncols=columns,
                borderaxespad=0.2,
                columnspacing=1.2,
                handlelength=1.6,
            )

    found = [dict(points) for points in series.values()]
    table = Table(
        caption=f"{title}: {y} by {x}",
        headings=(x, *series),
        rows=[
            (number(place), *(number(points.get(place)) for points in found)) for place in places
        ],
    )
    described = "; ".join(
        f"{name} goes from {number(points[0][1])} to {number(points[-1][1])}"
        for name, points in series.items()
    )
    return _figure(
        draw,
        title=title,
        table=table,
        description=f"{y} by {x}. {described}.",
        note=note,
        height=_HEIGHT + above,
    )


def bars(
    title: str,
    rows: Sequence[Bar],
    *,
    x: str,
    of: str,
    marked: Collection[int] = (),
    note: str = "",
) -> Figure:
    """Horizontal bars with whiskers, from top to bottom.

    Args:
        title: of the figure.
        rows: the bars.
        x: what the values are, with their unit.
        of: what a bar stands for.
        marked: numbers of the bars that stand out.
        note: a sentence below it.
    """
    whiskers = any(low < value or high > value for _, value, low, high in rows)

    def draw(ax: Axes) -> None:
        places = list(range(len(rows)))
        values = [value for _, value, _, _ in rows]
        colours = [PALETTE[0] if place in marked else PALETTE[7] for place in places]
        ax.barh(places, values, height=0.4, color=colours, alpha=0.85)
        if whiskers:
            spread = [
                [max(0.0, value - low) for _, value, low, _ in rows],
                [max(0.0, high - value) for _, value, _, high in rows],
            ]
            ax.errorbar(values, places, xerr=spread, fmt="none", color=INK, capsize=3, elinewidth=1)
        left = min(0.0, *(min(value, low) for _, value, low, _ in rows))
        span = max(0.0, *(max(value, high) for _, value, _, high in rows)) - left or 1.0
        for place, (name, value, _, high) in enumerate(rows):
            ax.text(max(0.0, value, high) + 0.015 * span, place, number(value), va="center")
            # Above its bar: beside it a long name would leave the bar no room.
            ax.text(left, place - 0.24, _short(name), va="bottom")
        ax.set_yticks([])
        ax.set_ylim(len(rows) - 0.65, -0.75)
        ax.set_xlim(left, left + 1.22 * span)
        ax.grid(True, axis="x")
        ax.spines["left"].set_visible(False)
        ax.set_xlabel(x)
        _ticks(ax.xaxis, log=False)

    headings = (of, x, "from", "to")[: 4 if whiskers else 2]
    best = min(rows, key=lambda row: row[1])
    return _figure(
        draw,
        title=title,
        description=f"{x} of {len(rows)} bars; the least is {number(best[1])}, {best[0]}.",
        table=Table(
            caption=f"{title}: {x}",
            headings=headings,
            rows=[(name, *map(number, values))[: len(headings)] for name, *values in rows],
            marked=tuple(marked),
        ),
        note=note,
        height=0.7 + 0.48 * len(rows),
    )


def spy_plot(title: str, counts: Array, table: Table, note: str) -> Figure:
    """Where the entries of a matrix are: int [k, k] counts."""
    return _figure(
        lambda ax: _draw_counts(ax, counts),
        title=title,
        description=f"A matrix, {title}; dark cells hold more entries.",
        table=table,
        note=note,
        height=WIDTH,
    )


def _figure(
    draw: Callable[[Axes], None],
    *,
    title: str,
    description: str,
    table: Table,
    note: str = "",
    height: float = _HEIGHT,
) -> Figure:
    """A plot, as `Figure` says, that `draw` draws on axes of its own.

    The `description` is for screen readers; `height` is in inches, which the page scales.

    Raises:
        DataError: matplotlib is not installed.
    """
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise DataError(
            "a page's plots need matplotlib, which is not installed: pip install 'weft[report]'"
        ) from error
    salt = hashlib.sha256(f"{title}\n{description}".encode()).hexdigest()[:10]
    settings: Any = {**_SETTINGS, "svg.hashsalt": salt}
    with matplotlib.rc_context(settings):
        # Figure itself, not pyplot: no display, no state that outlives this function.
        figure = matplotlib.figure.Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots())
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    svg = _element(file.getvalue(), title=title, description=description)
    return Figure(title=title, svg=svg, table=table, note=note)


def _element(text: str, *, title: str, description: str) -> str:
    """What matplotlib has drawn, as an element of the page with ids of its own."""
    opening = re.search(r'<svg\b[^>]*viewBox="([\d. ]+)"[^>]*>', text)
    assert opening is not None, "matplotlib gives every drawing a size"
    inner = text[opening.end() : text.rindex("</svg>")]
    # A drawing's style sheet would reach the whole page, whose own has the same rules.
    inner = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->|<style[^<]*</style>", "", inner, flags=re.S
    )
    # Names are only kept where something refers to them, and are the page's only ones.
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", inner))
    inner = re.sub(
        r' id="([^"]*)"',
        lambda found: f' id="{FIGURE}-{found[1]}"' if found[1] in used else "",
        inner,
    )
    inner = re.sub(r"(url\(|href=\")#", rf"\1#{FIGURE}-", inner)
    colours = {INK: "currentColor", "#000000": "currentColor", "#ffffff": "var(--paper)"}
    colours |= {colour: f"var(--c{number})" for number, colour in enumerate(PALETTE, start=1)}
    inner = re.sub("|".join(colours), lambda found: colours[found[0]], inner)
    # Versions of matplotlib write a font's size and family as one property or as two.
    inner = re.sub(r"font: ([\d.]+px) [^;\"]*", rf"font: \1 {_FONT}", inner)
    inner = re.sub(r"font-family: [^;\"]*", f"font-family: {_FONT}", inner)
    inner = re.sub(r"\n\s*", "\n", inner).strip()
    return (
        f'<svg role="img" aria-labelledby="{FIGURE}-t {FIGURE}-d" viewBox="{opening[1]}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'style="fill: currentColor"><title id="{FIGURE}-t">{escape(title)}</title>'
        f'<desc id="{FIGURE}-d">{escape(description)}</desc>\n{inner}</svg>'
    )


_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_LINES = ("-", "--", ":", "-.")
_SHADES = (0.3, 0.55, 0.8, 1.0)


def _draw_counts(ax: Axes, counts: Array) -> None:
    """Cells as vector shapes, in four shades: a page's colours reach them."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    size = counts.shape[0]
    levels = np.ceil(len(_SHADES) * np.sqrt(counts / max(1, counts.max()))).astype(int)
    for level, shade in enumerate(_SHADES, start=1):
        # Neighbours in a row are one shape, from where the level begins to where it ends.
        steps = np.diff(np.pad(levels == level, ((0, 0), (1, 1))).astype(int))
        (rows, left), (_, right) = np.nonzero(steps == 1), np.nonzero(steps == -1)
        corners = np.array([[left, rows], [right, rows], [right, rows + 1], [left, rows + 1]])
        if len(rows):
            shape = Path.make_compound_path_from_polys(corners.transpose(2, 0, 1))
            ax.add_patch(PathPatch(shape, facecolor=PALETTE[0], linewidth=0, alpha=shade))
    ax.set_xlim(0, size)
    ax.set_ylim(size, 0)
    ax.set_aspect("equal")
    ax.set_xticks([])
    ax.set_yticks([])
    for side in ("top", "right"):
        ax.spines[side].set_visible(True)
    ax.set_xlabel("sender")
    ax.set_ylabel("receiver")


def _ticks(axis: Axis, *, log: bool, whole: bool = False) -> None:
    """Ticks with plain numbers; on a logarithmic scale as many as there is room for."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if log:
        low, high = axis.get_view_interval()
        decades = math.log10(high / low)
        steps = (1, 2, 5) if decades < 2 else (1, 3) if decades < 3 else (1,)
        axis.set_major_locator(LogLocator(subs=steps, numticks=12))
        axis.set_minor_formatter(NullFormatter())
    elif whole:
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=(1, 2, 5, 10)))
    else:
        axis.set_major_locator(MaxNLocator(nbins=6, steps=(1, 2, 2.5, 5, 10)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def legend_columns(names: Sequence[str]) -> int:
    """How many of these names fit beside each other in a plot; letters are 6 units wide or less."""
    return max(1, min(4, len(names), int(320 // (6 * max(map(len, names)) + 40))))


def _by_columns(count: int, columns: int) -> list[int]:
    """The order in which a legend, which fills columns, has its names in rows."""
    return [i for column in range(columns) for i in range(column, count, columns)]


def _spans(values: Sequence[float]) -> bool:
    """Whether a logarithmic scale shows more: all positive, and some much larger than others."""
    return min(values) > 0 and max(values) > 4 * min(values)


def _thinned(points: Points) -> Points:
    clean = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(clean) <= _MOST_POINTS:
        return clean
    parts = np.array_split(np.array(clean), _MOST_POINTS)
    return [(float(part[-1, 0]), float(part[:, 1].mean())) for part in parts]


def _short(name: str, most: int = 48) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
