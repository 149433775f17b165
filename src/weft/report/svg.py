"""Drawings of matplotlib as SVG inside a page: its colours, its fonts, and no name used twice."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from weft.errors import DataError
from weft.report.svg_allowed import allowed_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE = "@figure@"
"""Stands in a drawing's names for what the page calls it: two may be the same to the last point."""
INK = "#010203"
"""Stands for the colour of the page's text until the drawing is in the page."""
PALETTE = tuple(f"#0a0b0{number}" for number in range(1, 9))
"""Colours of series; the page has a light and a dark one for each, told apart by everyone."""

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
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
}
_TABLEAU = (
    *("1f77b4", "ff7f0e", "2ca02c", "d62728", "9467bd"),
    *("8c564b", "e377c2", "7f7f7f", "bcbd22", "17becf"),
)
"""Colours that matplotlib takes by itself."""


def drawn(
    draw: Callable[[Any], None],
    *,
    title: str,
    description: str,
    size: tuple[float, float],
    columns: int = 1,
) -> str:
    """What `draw` puts on axes, as an SVG element of the page.

    Args:
        draw: gets the axes, or a list of `columns` of them.
        title: of the drawing, for those who cannot see it.
        description: of what it shows, for the same.
        size: width and height in inches; the page makes it as wide as there is room.
        columns: axes beside each other.

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
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        axes: list[Axes] = list(figure.subplots(1, columns, squeeze=False).ravel())
        draw(axes[0] if columns == 1 else axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return _element(file.getvalue(), title=title, description=description)


def inlined(text: str, *, title: str, description: str) -> str:
    """The text of an SVG file, from wherever it is, as an element of the page.

    Raises:
        DataError: it is no SVG drawing, or has anything in it that could run or fetch something.
    """
    return _element(allowed_svg(text), title=title, description=description)


def _inner(text: str) -> str:
    """What is inside the SVG element, without comments."""
    begins = re.search(r"<svg\b[^>]*>", text)
    ends = text.rfind("</svg>")
    if begins is None or ends < begins.end():
        raise DataError("it holds no drawing")
    inner = text[begins.end() : ends]
    inner = re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.S)
    return re.sub(r"<!--.*?-->", "", inner, flags=re.S)


def _element(text: str, *, title: str, description: str) -> str:
    # A drawing's style sheet would reach the whole page, whose own has the same rules.
    inner = re.sub(r"<style[^<]*</style>", " ", _inner(text), flags=re.I)
    box = re.search(r'<svg\b[^>]*viewBox="([\d. ]+)"', text)
    if box is None:
        raise DataError("it holds no drawing of a known size")
    name = FIGURE
    # Names are only kept where something refers to them, and are the page's only ones.
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", inner))
    inner = re.sub(
        r' id="([^"]*)"',
        lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "",
        inner,
    )
    inner = re.sub(r"(url\(|href=\")#", rf"\1#{name}-", inner)
    inner = re.sub(r"\n\s*", "\n", _in_page_colours(inner)).strip()
    return (
        f'<svg role="img" aria-labelledby="{name}-t {name}-d" viewBox="{box[1]}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'style="fill: currentColor"><title id="{name}-t">{escape(title)}</title>'
        f'<desc id="{name}-d">{escape(description)}</desc>\n{inner}</svg>'
    )


def _in_page_colours(text: str) -> str:
    colours = {INK: "currentColor", "#000000": "currentColor", "#ffffff": "var(--paper)"}
    colours |= {colour: f"var(--c{number})" for number, colour in enumerate(PALETTE, start=1)}
    colours |= {f"#{c}": f"var(--c{number % 8 + 1})" for number, c in enumerate(_TABLEAU)}
    # Greys of helping lines.
    colours |= dict.fromkeys(("#666666", "#b3b3b3", "#cccccc", "#b0b0b0"), "var(--soft)")
    pattern = re.compile("|".join(map(re.escape, colours)))
    text = pattern.sub(lambda found: colours[found[0]], text)
    return re.sub(r"font: ([\d.]+px) [^;\"]*", rf"font: \1 {_FONT}", text)
