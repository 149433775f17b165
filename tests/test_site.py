"""The site: it builds without a warning, no link is dead, and the reference has every name."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
from sphinx.util.inventory import InventoryFile

import weft
from chromium import BROWSER, DARK, LIGHT, browse, console, cut

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; the tutorials are run by test_docs."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-D", "nb_execution_mode=off", str(DOCS), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


class _Links(HTMLParser):
    """The anchors of a page, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.anchors.add(value)
            elif name in {"href", "src"} and tag != "base":
                self.targets.add(value)


def test_no_link_or_anchor_is_dead(site: Path) -> None:
    pages = {path: _Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 40
    dead = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not file.is_file() or (
                anchor and file in pages and anchor not in pages[file].anchors
            ):
                dead.append(f"{path.relative_to(site)}: {target}")
    assert not dead


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    described = {
        name
        for kind, names in inventory.data.items()
        if kind.startswith("py:") and kind != "py:module"
        for name in names
    }
    rooms = [name for _, name, package in pkgutil.iter_modules(weft.__path__, "weft.") if package]
    missing = []
    for room in ["weft", *rooms]:
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", ()):
            shared = getattr(weft, name, None) is getattr(module, name)
            if name[0] != "_" and f"{'weft' if shared else room}.{name}" not in described:
                missing.append(f"{room}.{name}")
    assert not missing


def test_the_search_knows_names_and_words(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "DropAndGrow" in index
    assert "halo" in index


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_small_and_stands_on_a_page(path: Path) -> None:
    assert path.stat().st_size < 150_000
    assert ElementTree.parse(path).getroot().get("aria-label")
    other = {"light": "dark", "dark": "light"}
    name, theme = path.stem.rsplit("-", 1)
    assert path.with_name(f"{name}-{other[theme]}.svg").exists()
    pages = (DOCS / "techniques").glob("*.md")
    assert any(f"pictures/{path.name}" in page.read_text(encoding="utf-8") for page in pages)


LOOKED_AT = [
    "index",
    "tutorials/faster",
    "techniques/communication",
    "reference/weft",
    "benchmarks",
]
# Code, tables, signatures and drawings of the site scroll by themselves.
SCROLLING = ".highlight, .docutils.container, table.docutils, .drawing, .cell_output"
# Menus are beyond the edges until they are opened.
SCROLLING += ", .sidebar-drawer, .toc-drawer"


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_fits_screens_and_says_nothing_in_the_console(
    site: Path, tmp_path: Path, name: str
) -> None:
    page = site / f"{name}.html"
    text = page.read_text(encoding="utf-8")
    for width in (390, 1280):
        assert cut(tmp_path, page.parent, text, width, boxes=SCROLLING) == []
    shots = []
    for theme in (LIGHT, DARK):
        shot = tmp_path / f"{theme}.png"
        scheme = f"--blink-settings=preferredColorScheme={theme}"
        done = browse(tmp_path, page, scheme, "--enable-logging=stderr", f"--screenshot={shot}")
        assert console(done) == []
        shots.append(shot.read_bytes())
    assert shots[0] != shots[1]


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_the_search_finds(site: Path, tmp_path: Path) -> None:
    options = ("--dump-dom", "--virtual-time-budget=8000")
    shown = browse(tmp_path, site / "search.html", *options, query="?q=DropAndGrow").stdout
    assert "reference/weft.html#weft.DropAndGrow" in shown
