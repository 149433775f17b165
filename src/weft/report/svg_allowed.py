"""SVG from files of unknown origin: parsed, and written anew from a list of what only draws."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn
from xml.parsers import expat
from xml.sax.saxutils import escape

from weft.errors import DataError

_SVG = "http://www.w3.org/2000/svg"
_XLINK_HREF = "http://www.w3.org/1999/xlink href"
_XML_SPACE = "http://www.w3.org/XML/1998/namespace space"
_DEEPEST = 100
_QUOTES = {'"': "&quot;"}


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


def allowed_svg(text: str) -> str:
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
    """Takes a parser's events and writes those that are allowed."""

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
            f' {key}="{escape(value, _QUOTES)}"'
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
            self._parts.append(escape(text, _QUOTES))

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
