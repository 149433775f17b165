"""Plots as inline SVG: in the page's colours and fonts, with unique ids, and harmless."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, NoReturn
from xml.parsers import expat

from weft.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE = "@figure@"
"""Placeholder for a plot's number in its ids, because a page may have two equal plots."""
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
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
}
_TABLEAU = (
    *("1f77b4", "ff7f0e", "2ca02c", "d62728", "9467bd"),
    *("8c564b", "e377c2", "7f7f7f", "bcbd22", "17becf"),
)
"""The default colours of matplotlib."""


def drawn(
    draw: Callable[[Any], None],
    *,
    title: str,
    description: str,
    size: tuple[float, float],
    columns: int = 1,
) -> str:
    """A plot as an SVG element of the page.

    Args:
        draw: draws on the axes that it gets, or on a list of `columns` of them.
        title: of the plot, for screen readers.
        description: of the plot, for screen readers.
        size: width and height in inches; the page scales it.
        columns: number of axes side by side.

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
    """The text of an SVG file of unknown origin as an element of the page.

    Raises:
        DataError: it is no SVG drawing, or has anything in it that could run or fetch something.
    """
    return _element(_only_drawing(text), title=title, description=description)


def _inner(text: str) -> str:
    """The content of the SVG element, without comments."""
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
    # Greys of grid lines.
    colours |= dict.fromkeys(("#666666", "#b3b3b3", "#cccccc", "#b0b0b0"), "var(--soft)")
    pattern = re.compile("|".join(map(re.escape, colours)))
    text = pattern.sub(lambda found: colours[found[0]], text)
    return re.sub(r"font: ([\d.]+px) [^;\"]*", rf"font: \1 {_FONT}", text)


_SVG = "http://www.w3.org/2000/svg"
_XLINK_HREF = "http://www.w3.org/1999/xlink href"
_XML_SPACE = "http://www.w3.org/XML/1998/namespace space"
_DEEPEST = 100


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTS = _words(
    "g defs path use clipPath text tspan image rect circle ellipse line polyline polygon symbol "
    "linearGradient radialGradient stop pattern marker mask filter feComposite feColorMatrix"
)
# They draw nothing; the page has a style sheet, titles and descriptions of its own.
_DROPPED = frozenset({"metadata", "style", "title", "desc"})
_PROPERTIES = _words(
    "clip-path clip-rule color display dominant-baseline fill fill-opacity fill-rule filter font "
    "font-family font-size font-stretch font-style font-variant font-weight image-rendering "
    "letter-spacing marker-end marker-mid marker-start mask mix-blend-mode opacity overflow "
    "shape-rendering stop-color stop-opacity stroke stroke-dasharray stroke-dashoffset "
    "stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity stroke-width "
    "text-align text-anchor text-decoration transform transform-origin vector-effect visibility "
    "white-space word-spacing"
)
_ATTRIBUTES = _PROPERTIES | _words(
    "id d x y x1 y1 x2 y2 cx cy r rx ry fx fy fr dx dy rotate points width height viewBox offset "
    "preserveAspectRatio clipPathUnits gradientUnits gradientTransform spreadMethod patternUnits "
    "patternContentUnits patternTransform markerUnits markerWidth markerHeight refX refY orient "
    "maskUnits maskContentUnits filterUnits primitiveUnits in in2 result operator type values k1 "
    "k2 k3 k4 textLength lengthAdjust pathLength"
)
# They say nothing about the drawing, or only to a style sheet.
_IGNORED = frozenset({"version", "baseProfile", "class"})
_REFERENCE = re.compile(r"url\(#([\w.:-]+)\)")
# Function names, at-rules, escapes and comments by which CSS reaches for other files or for code.
_REACHING = re.compile(
    r"(?:url|image|image-set|src|expression|element|attr)\s*\(|@|\\|/\*|javascript|behaviou?r|"
    r"-moz-binding",
    re.I,
)
_PNG = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]*")


def _only_drawing(text: str) -> str:
    """The drawing in `text` as an `svg` element without prefixes, comments and declarations.

    Elements, attributes and properties of style outside a list refuse the drawing; so do
    references to anything but its own parts and PNG images that it holds itself, and parts that
    refer to others in turn, which could multiply without end. Metadata, style sheets that are
    harmless, and attributes of other namespaces are left out: they draw nothing.

    Raises:
        DataError: it is not an SVG drawing, or it could run or fetch something; the message says
            where.
    """
    rebuilt = _Rebuilt()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = rebuilt.start
    parser.EndElementHandler = rebuilt.end
    parser.CharacterDataHandler = rebuilt.words
    parser.StartDoctypeDeclHandler = rebuilt.doctype
    parser.EntityDeclHandler = rebuilt.entity
    parser.SkippedEntityHandler = rebuilt.entity
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise DataError(f"it holds no drawing that can be read ({error})") from None
    return rebuilt.whole()


def _refuse(what: str) -> NoReturn:
    raise DataError(f"it runs or fetches something ({what[:80]}), so it is left out of the page")


class _Rebuilt:
    """Writes a drawing anew from the events of a parser, with what is allowed in it."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._open: list[tuple[str, str, int]] = []
        self._dropping = 0
        self._sheet = ""
        self._targets: set[str] = set()
        self._referring: set[str] = set()

    def whole(self) -> str:
        if self._targets & self._referring:
            name = min(self._targets & self._referring)
            _refuse(f"#{name} is referred to and refers to others")
        return "".join(self._parts)

    def doctype(self, name: str, system: object, public: object, internal: int) -> None:
        # matplotlib names SVG's own document type, which declares nothing.
        if internal:
            _refuse("a document type with declarations")

    def entity(self, name: str, *_: object) -> None:
        _refuse(f"the entity {name}")

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        space, _, tag = name.rpartition(" ")
        if not self._open:
            if (space, tag) != (_SVG, "svg"):
                raise DataError("it holds no drawing: its outermost element is not SVG's")
        elif self._dropping or (space == _SVG and tag in _DROPPED):
            self._dropping += 1
            self._sheet = ""
            return
        elif space != _SVG or tag not in _ELEMENTS:
            _refuse(f"<{tag}>")
        if len(self._open) >= _DEEPEST:
            raise DataError(f"it holds elements more than {_DEEPEST} deep")
        self._open.append((tag, attributes.get("id", ""), len(self._parts) + 1))
        written = "".join(
            f' {key}="{escape(value)}"'
            for given, value in attributes.items()
            if (key := self._attribute(tag, given, value))
        )
        self._parts.append(f"<{tag}{written}>")

    def _attribute(self, tag: str, name: str, value: str) -> str:
        """What to call the attribute in the page; nothing for one to leave out."""
        if name in (_XLINK_HREF, "href"):
            if value.startswith("#"):
                self._refer(value[1:])
            elif tag != "image" or not _PNG.fullmatch(value):
                _refuse(f"<{tag}> refers to {value[:40]}")
            return "xlink:href"
        if name == _XML_SPACE:
            return "xml:space"
        if " " in name or name in _IGNORED:
            return ""
        if name == "style":
            for declaration in filter(str.strip, value.split(";")):
                key, _, said = declaration.partition(":")
                if key.strip().lower() not in _PROPERTIES:
                    _refuse(f"<{tag}> has the style {key.strip()}")
                self._check_value(tag, said)
            return name
        if name not in _ATTRIBUTES:
            _refuse(f"<{tag}> has the attribute {name}")
        if name in _PROPERTIES:
            self._check_value(tag, value)
        return name

    def _check_value(self, tag: str, value: str) -> None:
        for found in _REFERENCE.finditer(value):
            self._refer(found[1])
        if _REACHING.search(_REFERENCE.sub("", value)):
            _refuse(f"<{tag}> has the style {value.strip()}")

    def _refer(self, name: str) -> None:
        self._targets.add(name)
        self._referring.update(outer for _, outer, _ in self._open if outer)

    def words(self, text: str) -> None:
        if self._dropping:
            self._sheet += text
        else:
            self._parts.append(escape(text))

    def end(self, name: str) -> None:
        if self._dropping:
            self._dropping -= 1
            if name == f"{_SVG} style" and _REACHING.search(self._sheet):
                _refuse("a style sheet that reaches for other files")
            return
        tag, _, began = self._open.pop()
        if len(self._parts) == began:
            self._parts[-1] = f"{self._parts[-1][:-1]}/>"
        else:
            self._parts.append(f"</{tag}>")
