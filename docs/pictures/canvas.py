"""An SVG of rectangles, lines and text in one of two palettes; small enough to be committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

PALETTES = {
    "light": {
        "ink": "#1b1f24",
        "soft": "#59636e",
        "line": "#b8bfc7",
        "pale": "#e4e8ec",
        "tint": "#d6e8f2",
        "blue": "#2f6f9f",
        "red": "#c8553d",
        "green": "#588157",
        "gold": "#9a7d0a",
        "violet": "#6b4fa0",
    },
    "dark": {
        "ink": "#e4e8ec",
        "soft": "#9aa5b1",
        "line": "#525d69",
        "pale": "#2b333c",
        "tint": "#1c3a4b",
        "blue": "#5fb4ee",
        "red": "#f0917b",
        "green": "#8fc08d",
        "gold": "#e6cf5a",
        "violet": "#b9a2ea",
    },
}
"""Colours by name, for pages that are light and dark."""

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"


@dataclass
class Canvas:
    """A picture that is 520 wide: on a telephone its text, 15 high, is still read.

    Attributes:
        theme: a name of PALETTES.
        height: of the picture.
        label: what it shows, for screen readers.
    """

    theme: str
    height: int
    label: str
    width: int = 520
    _parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, words: str, *, color: str = "ink", size: int = 15, **more: str
    ) -> None:
        """Words whose line stands on y; `anchor` and `weight` as in SVG."""
        anchor, weight = more.get("anchor", "start"), more.get("weight", "normal")
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}" fill="{self.color(color)}">{escape(words)}</text>'
        )

    def rect(
        self, x: float, y: float, width: float, height: float, *, fill: str = "none", line: str = ""
    ) -> None:
        """A rectangle, filled, outlined or both."""
        stroke = f' stroke="{self.color(line)}" stroke-width="1.5"' if line else ""
        self._parts.append(
            f'<rect x="{x:.5g}" y="{y:.5g}" width="{width:.5g}" height="{height:.5g}" '
            f'fill="{self.color(fill)}"{stroke}/>'
        )

    def cells(
        self, places: Iterable[tuple[float, float]], width: float, height: float, fill: str
    ) -> None:
        """Many equal rectangles, as the strokes of one path."""
        path = "".join(f"M{x:.4g} {y + height / 2:.4g}h{width:.3g}" for x, y in places)
        if path:
            self._parts.append(
                f'<path d="{path}" stroke="{self.color(fill)}" stroke-width="{height:.3g}"/>'
            )

    def color(self, name: str) -> str:
        """The colour of a name in this theme."""
        return PALETTES[self.theme].get(name, name)

    def save(self, folder: Path, name: str) -> None:
        """Write `NAME-THEME.svg`."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" '
            f'aria-label="{escape(self.label)}" font-family="{_FONT}">'
        )
        text = "\n".join([head, *self._parts, "</svg>\n"])
        (folder / f"{name}-{self.theme}.svg").write_text(text, encoding="utf-8")
