"""Looks at a page as a browser's parser does."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

_VOID = {"meta", "link", "img", "br", "hr", "input", "use"}


class Looked(HTMLParser):
    """Tags with their attributes, in order; text; what is not closed as it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.crossed: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.crossed.append(tag)
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.words += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def assert_is_sound(text: str) -> Looked:
    """What every page must be: whole, escaped, accessible, and without anything from elsewhere."""
    page = Looked(text)
    assert text.startswith("<!DOCTYPE html>")
    assert page.crossed == []
    assert page.open == []
    assert page.all("html")[0]["lang"] == "en"
    assert page.all("script") == page.all("iframe") == page.all("object") == []
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page.all(landmark)) == 1
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href"):
                # A leader board links to the pages beside it.
                beside = tag == "a" and value.endswith("/report.html") and ":" not in value
                assert beside or value.startswith(("#", "data:")), value
            if name == "aria-labelledby":
                assert set(value.split()) <= set(names), value
            if value.startswith("#") and name in ("href", "xlink:href"):
                assert value[1:] in names, value
    assert "url(http" not in text
    assert "@import" not in text
    for drawing in page.all("svg"):
        assert drawing["role"] == "img"
    assert len(page.all("table")) == len(page.all("caption"))
    assert all(cell.get("scope") in ("row", "col") for cell in page.all("th"))
    return page
