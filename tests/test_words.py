"""The words that CONTRIBUTING.md asks for: in the docs, and in all text of the library."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).resolve().parents[1]
FIRST = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PAGES = [*(ROOT / name for name in FIRST), *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(Path(weft.__file__).parents[1].glob("weft*/**/*.py"))
AVOIDED = re.compile(r"^\| ([^|]+?) \| [^|]+ \|$", re.MULTILINE)


def avoided() -> re.Pattern[str]:
    """The first column of the table in CONTRIBUTING.md, as one pattern."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Words")[2]
    phrases = [re.escape(found) for found in AVOIDED.findall(section) if set(found) - {"-"}]
    phrases.remove("not")
    return re.compile(rf"\b(?:{'|'.join(phrases)})(?!\w)", re.IGNORECASE)


def found_in(text: str, words: re.Pattern[str]) -> list[str]:
    # A phrase may be cut by the end of a line.
    flat = re.sub(r"\s+", " ", text)
    return [flat[max(0, hit.start() - 30) : hit.end() + 30] for hit in words.finditer(flat)]


def strings(path: Path) -> str:
    """Docstrings, help and messages of a module: everything in quotes that is more than a word."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(text for text in texts if isinstance(text, str) and " " in text)


def test_the_table_has_phrases() -> None:
    words = avoided()
    assert found_in("what weft is\nasked for", words) == ["what weft is asked for"]
    assert found_in("Whoever asks first", words)
    assert not found_in("the wholetold story", words)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_docs_avoid_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    # The table itself names them.
    text = "".join(line for line in text.splitlines(True) if not AVOIDED.match(line.strip()))
    assert found_in(text, avoided()) == []


def test_the_library_avoids_them() -> None:
    words = avoided()
    found = {path.name: found_in(strings(path), words) for path in MODULES}
    assert {name: hits for name, hits in found.items() if hits} == {}
